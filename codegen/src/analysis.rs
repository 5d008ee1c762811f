//! What is decided before translation, for every back end: where register buffers live, which vector loops can
//! run as vectors.

use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var};
use tensorc_ir::scalar::ScalarOp;

/// How a local buffer is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// In a stack slot.
    Memory,
    /// One variable for each element.
    Elements,
    /// Vectors of consecutive elements, read and written by lane.
    Packed,
}

/// More elements than this do not fit any register file, and only slow register allocation down.
const MAX_REGISTERS: u64 = 1024;

#[derive(Clone, Debug)]
pub(crate) struct KernelAnalysis {
    classes: Vec<Class>,
    /// Whether vector loops may become vectors.
    pub vectors: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum VarKind {
    Dynamic,
    /// Constant once unrolled.
    Constant,
    Lane,
}

impl KernelAnalysis {
    /// Without `vectors`, vector loops over registers are unrolled.
    pub fn new(kernel: &Kernel, vectors: bool) -> KernelAnalysis {
        let initial = |b: &tensorc_ir::kir::BufInfo| match b.space {
            MemorySpace::Register if b.len <= MAX_REGISTERS => Class::Elements,
            _ => Class::Memory,
        };
        let mut walk = AnalysisWalk {
            kinds: vec![VarKind::Dynamic; kernel.vars.len()],
            classes: kernel.buffers.iter().map(initial).collect(),
            vectors,
        };
        walk.block(&kernel.body);
        KernelAnalysis { classes: walk.classes, vectors }
    }

    pub fn class(&self, buf: Buf) -> Class {
        self.classes[buf.0 as usize]
    }
}

struct AnalysisWalk {
    kinds: Vec<VarKind>,
    classes: Vec<Class>,
    vectors: bool,
}

impl AnalysisWalk {
    fn kind(&self, index: &Index) -> VarKind {
        let mut kind = VarKind::Constant;
        index.visit_vars(&mut |v| match self.kinds[v as usize] {
            VarKind::Dynamic => kind = VarKind::Dynamic,
            VarKind::Lane if kind == VarKind::Constant => kind = VarKind::Lane,
            _ => {}
        });
        kind
    }

    fn access(&mut self, buf: Buf, index: &Index) {
        let kind = self.kind(index);
        let class = &mut self.classes[buf.0 as usize];
        *class = match (*class, kind) {
            (Class::Memory, _) | (_, VarKind::Dynamic) => Class::Memory,
            (_, VarKind::Lane) => Class::Packed,
            (class, VarKind::Constant) => class,
        };
    }

    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::For { var, lo, hi, kind, body, .. } => {
                    let fixed = self.kind(lo) == VarKind::Constant && self.kind(hi) == VarKind::Constant;
                    self.kinds[var.0 as usize] = match kind {
                        LoopKind::Unroll if fixed => VarKind::Constant,
                        LoopKind::Vector if fixed && self.vectors => VarKind::Lane,
                        LoopKind::Vector if fixed => VarKind::Constant,
                        _ => VarKind::Dynamic,
                    };
                    self.block(body);
                }
                Stmt::LetIndex { var, index } => self.kinds[var.0 as usize] = self.kind(index),
                Stmt::Load { buf, index, .. } | Stmt::Store { buf, index, .. } => self.access(*buf, index),
                Stmt::If { then, otherwise, .. } => {
                    self.block(then);
                    self.block(otherwise);
                }
                Stmt::Mma(mma) => [&mma.a, &mma.b, &mma.acc].into_iter().for_each(|p| self.access(p.buf, &p.index)),
                Stmt::LoadMatrix { into, .. } => self.access(into.buf, &into.index),
                Stmt::GroupMma(mma) => self.access(mma.acc.buf, &mma.acc.index),
                Stmt::Roles(roles) => roles.iter().for_each(|role| self.block(&role.body)),
                _ => {}
            }
        }
    }
}

/// Whether a statement of the block accesses a register buffer at an index that mentions `var`.
pub(crate) fn indexes_registers(kernel: &Kernel, var: Var, body: &[Stmt]) -> bool {
    let mut derived = vec![false; kernel.vars.len()];
    derived[var.0 as usize] = true;
    mentions(kernel, body, &mut derived)
}

fn mentions(kernel: &Kernel, body: &[Stmt], derived: &mut Vec<bool>) -> bool {
    body.iter().any(|stmt| match stmt {
        Stmt::For { body, .. } => mentions(kernel, body, derived),
        Stmt::If { then, otherwise, .. } => mentions(kernel, then, derived) || mentions(kernel, otherwise, derived),
        Stmt::LetIndex { var, index } => {
            derived[var.0 as usize] = any(index, derived);
            false
        }
        Stmt::Load { buf, index, .. } | Stmt::Store { buf, index, .. } => {
            kernel.buf(*buf).space == MemorySpace::Register && any(index, derived)
        }
        _ => false,
    })
}

fn any(index: &Index, set: &[bool]) -> bool {
    let mut found = false;
    index.visit_vars(&mut |v| found |= set[v as usize]);
    found
}

/// Whether the body of a vector loop can run with all lanes in step: control flow is the same in
/// every lane and private arrays are in registers.
pub(crate) fn vectorizable(kernel: &Kernel, plan: &KernelAnalysis, lane: Var, body: &[Stmt]) -> bool {
    let mut check = Vectorizable {
        kernel,
        plan,
        varying: vec![false; kernel.vars.len()],
        private: vec![false; kernel.buffers.len()],
    };
    check.varying[lane.0 as usize] = true;
    check.block(body)
}

struct Vectorizable<'a> {
    kernel: &'a Kernel,
    plan: &'a KernelAnalysis,
    varying: Vec<bool>,
    private: Vec<bool>,
}

impl Vectorizable<'_> {
    fn varies(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Var(v) if self.varying[v.0 as usize])
    }

    fn register(&self, buf: Buf) -> bool {
        self.kernel.buf(buf).space == MemorySpace::Register && self.plan.class(buf) != Class::Memory
    }

    fn block(&mut self, body: &[Stmt]) -> bool {
        body.iter().all(|stmt| match stmt {
            Stmt::For { lo, hi, kind, body, .. } => {
                *kind != LoopKind::Vector && !any(lo, &self.varying) && !any(hi, &self.varying) && self.block(body)
            }
            Stmt::If { cond, then, otherwise } => !self.varies(cond) && self.block(then) && self.block(otherwise),
            Stmt::Let { var, args, .. } => {
                self.varying[var.0 as usize] = args.iter().any(|a| self.varies(a));
                true
            }
            Stmt::LetIndex { var, index } => {
                self.varying[var.0 as usize] = any(index, &self.varying);
                true
            }
            Stmt::Load { var, buf, index, guard } => {
                let by_lane = any(index, &self.varying);
                let guarded = guard.as_ref().is_some_and(|(g, _)| self.varies(g));
                let private = self.private[buf.0 as usize];
                self.varying[var.0 as usize] = by_lane || private || guarded;
                !(private && by_lane)
            }
            Stmt::Store { buf, index, value } => {
                let by_lane = any(index, &self.varying);
                match (self.private[buf.0 as usize], self.kernel.buf(*buf).space) {
                    (true, _) => !by_lane,
                    // What every lane writes to one place must be the same value.
                    (false, MemorySpace::Register | MemorySpace::Stack) => by_lane || !self.varies(value),
                    (false, MemorySpace::Global | MemorySpace::Shared | MemorySpace::Tile | MemorySpace::Barrier) => {
                        true
                    }
                }
            }
            Stmt::Alloc { buf } => {
                self.private[buf.0 as usize] = true;
                self.register(*buf)
            }
            _ => false,
        })
    }
}

/// Scalar operations for each element from which on vectors of 128 bits are the limit rather than memory.
const MIN_ARITHMETIC_OPS: usize = 24;

/// Whether some vector loop of the kernel computes so much that wide vectors pay for their compilation, or what is an
/// instruction in wide vectors alone.
pub(crate) fn computes_much(kernel: &Kernel) -> bool {
    fn operations(body: &[Stmt]) -> usize {
        let of = |stmt: &Stmt| match stmt {
            Stmt::Let { op: ScalarOp::Scale, .. } => MIN_ARITHMETIC_OPS + 1,
            Stmt::Let { .. } => 1,
            Stmt::For { body, .. } => operations(body),
            Stmt::If { then, otherwise, .. } => operations(then) + operations(otherwise),
            _ => 0,
        };
        body.iter().map(of).sum()
    }
    fn any(body: &[Stmt]) -> bool {
        body.iter().any(|stmt| match stmt {
            Stmt::For { kind: LoopKind::Vector, body, .. } => operations(body) > MIN_ARITHMETIC_OPS,
            Stmt::For { body, .. } => any(body),
            Stmt::If { then, otherwise, .. } => any(then) || any(otherwise),
            _ => false,
        })
    }
    any(&kernel.body)
}
