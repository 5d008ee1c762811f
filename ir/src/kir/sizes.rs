//! Kernels for many shapes: numbers that depend on symbols become arguments of each call.
//!
//! The last parameter of such a kernel is memory of i64, its *sizes*. They are read once, at the beginning of an iteration of the
//! parallel loop, or of the kernel if it has none. A kernel for a GPU takes them as scalars, which a launch passes by value. What an
//! index multiplies or divides by a size is computed in the outermost block where its variables are known, of a GPU in the program
//! of a thread.

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::{Buf, BufInfo, BufferPlace, Kernel, LoopKind, MAX_BLOCKS, MemorySpace, Mma, Operand, Stmt, Var, VarInfo};
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::extent::Extent;
use crate::index::{Atom, Index, Interval, unbounded};
use crate::scalar::{CmpOp, Scalar, ScalarOp};

/// A kernel that takes its sizes as an argument.
#[derive(Clone, Debug)]
pub struct SizedKernel {
    /// The kernel, with memory of the sizes as its last parameter if it has any, or as its scalars if it is for a GPU.
    pub kernel: Kernel,
    /// The sizes, by position in that memory or among the scalars.
    pub sizes: Vec<Extent>,
}

/// Elements that a parameter may have whose length depends on symbols.
const MAX_ELEMENTS: i64 = 1 << 40;
/// Iterations that a parallel loop may have whose extent depends on symbols.
const MAX_ITERATIONS: i64 = 1 << 40;

impl Kernel {
    /// Whether a number that the kernel computes with depends on symbols.
    pub fn is_open(&self) -> bool {
        self.buffers.iter().any(|b| b.len.is_open()) || self.body.iter().any(is_open)
    }

    /// The kernel with sizes in place of what depends on symbols.
    ///
    /// # Errors
    /// [`DiagnosticCode::Unsupported`]: the extent of a vector, of an unrolled loop or of memory of its own depends on symbols, or
    /// what groups of warps do.
    pub fn sized(&self) -> Result<SizedKernel> {
        if self.is_launch() {
            return Sizes::new(self, false).rewritten(&self.body);
        }
        let found = Sizes::new(self, true).rewritten(&self.body)?;
        // Each launch has the number of iterations anyway.
        if found.sizes.is_empty() { Sizes::new(self, false).rewritten(&self.body) } else { Ok(found) }
    }
}

/// Whether a number of a statement depends on symbols.
fn is_open(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::For { lo, hi, body, .. } => lo.is_open() || hi.is_open() || body.iter().any(is_open),
        Stmt::LetIndex { index, .. } | Stmt::Load { index, .. } | Stmt::Store { index, .. } => index.is_open(),
        Stmt::VectorMath { start, len, .. } => start.is_open() || len.is_open(),
        Stmt::If { then, otherwise, .. } => then.iter().chain(otherwise).any(is_open),
        Stmt::Mma(mma) => [&mma.a, &mma.b, &mma.acc].iter().any(|place| place.index.is_open()),
        Stmt::LoadMatrix { into, from, .. } | Stmt::CopyAsync { into, from, .. } => {
            into.index.is_open() || from.index.is_open()
        }
        Stmt::AwaitBarrier { barrier, phase } => barrier.index.is_open() || phase.is_open(),
        Stmt::Arrive { barrier, .. } => barrier.index.is_open(),
        Stmt::CopyTile(copy) => {
            let places = [&copy.into, &copy.barrier].map(|place| &place.index);
            places.into_iter().chain(&copy.at).chain(&copy.batch).any(Index::is_open)
        }
        Stmt::GroupMma(mma) => [&mma.acc, &mma.a.at, &mma.b.at].iter().any(|place| place.index.is_open()),
        Stmt::Roles(roles) => roles.iter().flat_map(|role| &role.body).any(is_open),
        Stmt::Let { .. }
        | Stmt::Alloc { .. }
        | Stmt::Barrier
        | Stmt::Shuffle { .. }
        | Stmt::CommitCopies
        | Stmt::AwaitCopies { .. }
        | Stmt::InitBarriers { .. }
        | Stmt::AwaitProducts { .. } => false,
    }
}

fn unsupported(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Unsupported, why)
}

/// An operation and its operands.
type Computation = (ScalarOp, SmallVec<[Operand; 3]>);

/// A block that is being written, and what is computed in it for further use.
#[derive(Default)]
struct Block {
    stmts: Vec<Stmt>,
    computed: Vec<(Computation, Var)>,
}

struct Sizes {
    kernel: Kernel,
    /// Where the sizes lie, if there are any.
    memory: Option<Buf>,
    sizes: Vec<Extent>,
    /// The variables that hold the sizes.
    held: Vec<Var>,
    /// By variable: the block that binds it, counted from the outermost, and its interval.
    depths: Vec<usize>,
    ranges: Vec<Interval>,
    blocks: Vec<Block>,
}

impl Sizes {
    fn new(kernel: &Kernel, with_memory: bool) -> Sizes {
        let mut kernel = Kernel { body: vec![], ..kernel.clone() };
        for parameter in kernel.buffers.iter_mut().take(kernel.params).filter(|b| b.len.is_open()) {
            parameter.len = MAX_ELEMENTS.into();
        }
        let memory = with_memory.then_some(Buf(kernel.params as u32));
        let info = BufInfo {
            name: "sizes".into(),
            dtype: DType::I64,
            len: Extent::ZERO,
            space: MemorySpace::Global,
            writable: false,
        };
        if with_memory {
            // Parameters come first: local buffers move up by one.
            kernel.buffers.insert(kernel.params, info);
            kernel.params += 1;
        }
        let (depths, ranges) = (vec![0; kernel.vars.len()], vec![unbounded(0); kernel.vars.len()]);
        Sizes { kernel, memory, sizes: vec![], held: vec![], depths, ranges, blocks: vec![] }
    }

    fn rewritten(mut self, body: &[Stmt]) -> Result<SizedKernel> {
        match body {
            [Stmt::For { var, lo, hi, step, kind: kind @ (LoopKind::Parallel | LoopKind::Grid), body }] => {
                self.ranges[var.0 as usize] = (Extent::ZERO, self.interval(hi).1 - 1);
                let (body, most) = match kind {
                    LoopKind::Grid => (self.grid(body)?, MAX_BLOCKS as i64),
                    _ => (self.root(body)?, MAX_ITERATIONS),
                };
                let hi = if hi.is_open() { Index::constant(most) } else { hi.clone() };
                let (var, lo, step, kind) = (*var, lo.clone(), *step, *kind);
                self.kernel.body = vec![Stmt::For { var, lo, hi, step, kind, body }];
            }
            body => self.kernel.body = self.root(body)?,
        }
        Ok(self.finish())
    }

    fn finish(mut self) -> SizedKernel {
        match self.memory {
            Some(memory) => self.kernel.buffers[memory.0 as usize].len = self.sizes.len().into(),
            None => self.kernel.scalars.extend(&self.held),
        }
        SizedKernel { kernel: self.kernel, sizes: self.sizes }
    }

    fn interval(&self, index: &Index) -> Interval {
        index.interval(&|v: u32| self.ranges[v as usize])
    }

    /// The body of a grid loop, whose outermost block is the program of a thread.
    fn grid(&mut self, body: &[Stmt]) -> Result<Vec<Stmt>> {
        let written = |stmt: &Stmt| match stmt {
            Stmt::For { var, lo, hi, step, kind: kind @ LoopKind::Threads, body } if !lo.is_open() && !hi.is_open() => {
                self.ranges[var.0 as usize] = (Extent::ZERO, self.interval(hi).1 - 1);
                let (var, lo, hi, step, kind) = (*var, lo.clone(), hi.clone(), *step, *kind);
                Ok(Stmt::For { var, lo, hi, step, kind, body: self.root(body)? })
            }
            Stmt::Alloc { buf } if !self.kernel.buf(*buf).len.is_open() => Ok(stmt.clone()),
            Stmt::LetIndex { var, index } if !index.is_open() => {
                self.ranges[var.0 as usize] = self.interval(index);
                Ok(stmt.clone())
            }
            _ => Err(unsupported("what blocks of threads have in common depends on symbols")),
        };
        body.iter().map(written).collect()
    }

    /// The outermost block, which begins with the sizes.
    fn root(&mut self, body: &[Stmt]) -> Result<Vec<Stmt>> {
        let body = self.block(body)?;
        let load = |(i, var): (usize, &Var)| {
            Some(Stmt::Load { var: *var, buf: self.memory?, index: Index::constant(i), guard: None })
        };
        Ok(self.held.iter().enumerate().filter_map(load).chain(body).collect())
    }

    fn block(&mut self, body: &[Stmt]) -> Result<Vec<Stmt>> {
        self.blocks.push(Block::default());
        let written = body.iter().try_for_each(|stmt| self.stmt(stmt));
        let block = self.blocks.pop().unwrap_or_default();
        written.map(|()| block.stmts)
    }

    fn push(&mut self, depth: usize, stmt: Stmt) {
        if let Some(block) = self.blocks.get_mut(depth) {
            block.stmts.push(stmt);
        }
    }

    fn innermost(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        let depth = self.innermost();
        let written = match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                if *kind != LoopKind::Serial && (lo.is_open() || hi.is_open()) && hi.sub(lo).as_constant().is_none() {
                    return Err(unsupported("the extent of a vector or of an unrolled loop depends on symbols"));
                }
                self.depths[var.0 as usize] = depth + 1;
                let (from, to) = (self.interval(lo).0, self.interval(hi).1);
                self.ranges[var.0 as usize] = (from, to - 1);
                let (lo, hi) = (self.index(lo), self.index(hi));
                let body = self.block(body)?;
                Stmt::For { var: *var, lo, hi, step: *step, kind: *kind, body }
            }
            Stmt::Let { var, .. } => {
                self.depths[var.0 as usize] = depth;
                stmt.clone()
            }
            Stmt::LetIndex { var, index } => {
                self.depths[var.0 as usize] = depth;
                let range = self.interval(index);
                self.ranges[var.0 as usize] = range;
                Stmt::LetIndex { var: *var, index: self.index(index) }
            }
            Stmt::Load { var, buf, index, guard } => {
                self.depths[var.0 as usize] = depth;
                Stmt::Load { var: *var, buf: self.moved(*buf), index: self.index(index), guard: *guard }
            }
            Stmt::Store { buf, index, value } => {
                Stmt::Store { buf: self.moved(*buf), index: self.index(index), value: *value }
            }
            Stmt::VectorMath { f, buf, start, len } => {
                Stmt::VectorMath { f: *f, buf: self.moved(*buf), start: self.index(start), len: self.index(len) }
            }
            Stmt::Alloc { buf } => {
                let buf = self.moved(*buf);
                if self.kernel.buf(buf).len.is_open() {
                    return Err(unsupported("the size of local memory depends on symbols"));
                }
                Stmt::Alloc { buf }
            }
            Stmt::If { cond, then, otherwise } => {
                Stmt::If { cond: *cond, then: self.block(then)?, otherwise: self.block(otherwise)? }
            }
            Stmt::Shuffle { var, .. } => {
                self.depths[var.0 as usize] = depth;
                stmt.clone()
            }
            Stmt::Mma(mma) => {
                let [a, b, acc] = [&mma.a, &mma.b, &mma.acc].map(|place| self.place(place));
                Stmt::Mma(Box::new(Mma { a, b, acc }))
            }
            Stmt::LoadMatrix { into, from, count, transposed } => {
                let [into, from] = [into, from].map(|place| self.place(place));
                Stmt::LoadMatrix { into, from, count: *count, transposed: *transposed }
            }
            Stmt::CopyAsync { into, from, len, cond } => {
                let [into, from] = [into, from].map(|place| self.place(place));
                Stmt::CopyAsync { into, from, len: *len, cond: *cond }
            }
            Stmt::Barrier | Stmt::CommitCopies | Stmt::AwaitCopies { .. } => stmt.clone(),
            Stmt::InitBarriers { .. }
            | Stmt::Arrive { .. }
            | Stmt::AwaitBarrier { .. }
            | Stmt::CopyTile(_)
            | Stmt::GroupMma(_)
            | Stmt::AwaitProducts { .. }
            | Stmt::Roles(_) => return Err(unsupported("a kernel of groups of warps depends on symbols")),
        };
        self.push(depth, written);
        Ok(())
    }

    /// A buffer by its new position.
    fn moved(&self, buf: Buf) -> Buf {
        match self.memory {
            Some(memory) if buf >= memory => Buf(buf.0 + 1),
            _ => buf,
        }
    }

    fn place(&mut self, place: &BufferPlace) -> BufferPlace {
        BufferPlace { buf: self.moved(place.buf), index: self.index(&place.index) }
    }

    /// The variable that holds a number.
    fn size(&mut self, n: Extent) -> Var {
        if let Some(position) = self.sizes.iter().position(|known| known.is_surely(n)) {
            return self.held[position];
        }
        let var = self.variable("n", 0, (n, n));
        self.sizes.push(n);
        self.held.push(var);
        var
    }

    fn variable(&mut self, name: &str, depth: usize, range: Interval) -> Var {
        self.kernel.vars.push(VarInfo { name: name.to_owned(), dtype: DType::I64 });
        self.depths.push(depth);
        self.ranges.push(range);
        Var(self.kernel.vars.len() as u32 - 1)
    }

    /// The index without numbers that depend on symbols.
    fn index(&mut self, index: &Index) -> Index {
        if !index.is_open() {
            return index.clone();
        }
        let mut sum = Index::default();
        for (atom, factor) in &index.terms {
            let value = self.atom(atom);
            let term = match factor.known() {
                Some(factor) => value.scale(factor),
                None => {
                    let (factor, scale) = self.divided(*factor);
                    let (value, factor) = (self.operand(&value), Operand::Var(self.size(factor)));
                    Index::var(self.computed(ScalarOp::Mul, &[value, factor]).0).scale(scale)
                }
            };
            sum = sum.add(&term);
        }
        match index.constant.known() {
            Some(constant) => sum.offset(constant),
            None => {
                let (constant, scale) = self.divided(index.constant);
                sum.add(&Index::var(self.size(constant).0).scale(scale))
            }
        }
    }

    /// A number divided by what it is certainly a multiple of, and that: wide accesses of a GPU must be known to be aligned.
    fn divided(&self, n: Extent) -> (Extent, i64) {
        let is_launch = self.memory.is_none();
        let divide = |by: &i64| Some((n.sure_quotient(*by)?, *by));
        [16, 8, 4, 2].iter().filter(|_| is_launch).find_map(divide).unwrap_or((n, 1))
    }

    fn atom(&mut self, atom: &Atom) -> Index {
        match atom {
            Atom::Var(v) => Index::var(*v),
            Atom::Div(x, d) => match d.known() {
                Some(_) => Index::of(Atom::Div(self.index(x).into(), *d)),
                None => self.quotient(x, *d),
            },
            Atom::Mod(x, d) => match d.known() {
                Some(_) => Index::of(Atom::Mod(self.index(x).into(), *d)),
                None => {
                    let quotient = self.quotient(x, *d);
                    let (quotient, d) = (self.operand(&quotient), Operand::Var(self.size(*d)));
                    let multiple = self.computed(ScalarOp::Mul, &[quotient, d]);
                    self.index(x).sub(&Index::var(multiple.0))
                }
            },
            Atom::Min(a, b) => Index::of(Atom::Min(self.index(a).into(), self.index(b).into())),
            Atom::Max(a, b) => Index::of(Atom::Max(self.index(a).into(), self.index(b).into())),
        }
    }

    /// The quotient rounded down, by a positive number.
    fn quotient(&mut self, x: &Index, d: Extent) -> Index {
        let is_positive = self.interval(x).0.is_surely_from(0);
        let value = self.index(x);
        let args = [self.operand(&value), Operand::Var(self.size(d))];
        let truncated = Index::var(self.computed(ScalarOp::Div, &args).0);
        if is_positive {
            return truncated;
        }
        let rest = self.computed(ScalarOp::Rem, &args);
        let zero = Operand::Const(Scalar::i64(0));
        let below = self.computed(ScalarOp::Cmp(CmpOp::Lt), &[Operand::Var(rest), zero]);
        let borrow = self.computed(ScalarOp::Cast(DType::I64), &[Operand::Var(below)]);
        truncated.sub(&Index::var(borrow.0))
    }

    /// The value of an index without numbers that depend on symbols.
    fn operand(&mut self, index: &Index) -> Operand {
        if let Some(v) = index.as_var() {
            return Operand::Var(Var(v));
        }
        if let Some(c) = index.as_constant() {
            return Operand::Const(Scalar::i64(c));
        }
        let mut depth = 0;
        index.visit_vars(&mut |v| depth = depth.max(self.depths[v as usize]));
        let range = self.interval(index);
        let var = self.variable("i", depth, range);
        self.push(depth, Stmt::LetIndex { var, index: index.clone() });
        Operand::Var(var)
    }

    /// The result of an operation, in the outermost block where its operands are known.
    fn computed(&mut self, op: ScalarOp, args: &[Operand]) -> Var {
        let key: (ScalarOp, SmallVec<[Operand; 3]>) = (op, args.into());
        if let Some((_, var)) = self.blocks.iter().flat_map(|block| &block.computed).find(|(known, _)| *known == key) {
            return *var;
        }
        let depth_of = |arg: &Operand| if let Operand::Var(v) = arg { self.depths[v.0 as usize] } else { 0 };
        let depth = args.iter().map(depth_of).max().unwrap_or(0);
        let var = self.variable("v", depth, unbounded(0));
        if matches!(op, ScalarOp::Cmp(_)) {
            self.kernel.vars[var.0 as usize].dtype = DType::Bool;
        }
        self.push(depth, Stmt::Let { var, op, args: args.into() });
        if let Some(block) = self.blocks.get_mut(depth) {
            block.computed.push((key, var));
        }
        var
    }
}
