//! The canonical form of kernels: variables and local buffers numbered in the order of the text.

use crate::index::{Atom, Index};
use crate::kir::{
    Buf, BufferPlace, GroupMma, Kernel, Mma, Operand, Stmt, TensorMap, TileCopy, TileOperand, Var, WarpRole,
};

/// The same kernel with variables numbered in the order they are bound, scalar parameters first,
/// and local buffers in the order of their allocation. What is never bound or allocated comes last
/// if it is used and goes if it is not. Two kernels that differ in numbering alone become equal.
pub fn canonical_kernel(kernel: &Kernel) -> Kernel {
    let mut c = Canonical {
        old: kernel,
        vars: vec![None; kernel.vars.len()],
        buffers: vec![None; kernel.buffers.len()],
        new: Kernel {
            name: kernel.name.clone(),
            vars: vec![],
            buffers: vec![],
            params: kernel.params,
            scalars: vec![],
            body: vec![],
        },
    };
    for b in 0..kernel.params.min(kernel.buffers.len()) {
        c.buf(Buf(b as u32));
    }
    for v in &kernel.scalars {
        c.var(*v);
    }
    c.number(&kernel.body);
    c.new.scalars = kernel.scalars.iter().map(|v| c.var(*v)).collect();
    c.new.body = c.block(&kernel.body);
    c.new
}

struct Canonical<'a> {
    old: &'a Kernel,
    vars: Vec<Option<Var>>,
    buffers: Vec<Option<Buf>>,
    new: Kernel,
}

impl Canonical<'_> {
    /// Ids outside the kernel's tables stay outside the new ones.
    fn var(&mut self, v: Var) -> Var {
        let Some(info) = self.old.vars.get(v.0 as usize) else { return Var(u32::MAX) };
        let new = &mut self.new;
        *self.vars[v.0 as usize].get_or_insert_with(|| {
            new.vars.push(info.clone());
            Var(new.vars.len() as u32 - 1)
        })
    }

    fn buf(&mut self, b: Buf) -> Buf {
        let Some(info) = self.old.buffers.get(b.0 as usize) else { return Buf(u32::MAX) };
        let new = &mut self.new;
        *self.buffers[b.0 as usize].get_or_insert_with(|| {
            new.buffers.push(info.clone());
            Buf(new.buffers.len() as u32 - 1)
        })
    }

    /// Assigns numbers to everything the block binds.
    fn number(&mut self, block: &[Stmt]) {
        for stmt in block {
            match stmt {
                Stmt::For { var, body, .. } => {
                    self.var(*var);
                    self.number(body);
                }
                Stmt::Let { var, .. }
                | Stmt::LetIndex { var, .. }
                | Stmt::Load { var, .. }
                | Stmt::Shuffle { var, .. } => {
                    self.var(*var);
                }
                Stmt::Alloc { buf } => {
                    self.buf(*buf);
                }
                Stmt::If { then, otherwise, .. } => {
                    self.number(then);
                    self.number(otherwise);
                }
                Stmt::Store { .. }
                | Stmt::VectorMath { .. }
                | Stmt::Barrier
                | Stmt::Mma(_)
                | Stmt::LoadMatrix { .. }
                | Stmt::CopyAsync { .. }
                | Stmt::CommitCopies
                | Stmt::AwaitCopies { .. }
                | Stmt::InitBarriers { .. }
                | Stmt::Arrive { .. }
                | Stmt::AwaitBarrier { .. }
                | Stmt::CopyTile(_)
                | Stmt::GroupMma(_)
                | Stmt::AwaitProducts { .. } => {}
                Stmt::Roles(roles) => roles.iter().for_each(|role| self.number(&role.body)),
            }
        }
    }

    fn operand(&mut self, o: Operand) -> Operand {
        match o {
            Operand::Var(v) => Operand::Var(self.var(v)),
            Operand::Const(_) => o,
        }
    }

    fn index(&mut self, index: &Index) -> Index {
        let mut out = Index::constant(index.constant);
        out.terms = index
            .terms
            .iter()
            .map(|(atom, c)| {
                let atom = match atom {
                    Atom::Var(v) => Atom::Var(self.var(Var(*v)).0),
                    Atom::Div(x, d) => Atom::Div(Box::new(self.index(x)), *d),
                    Atom::Mod(x, d) => Atom::Mod(Box::new(self.index(x)), *d),
                    Atom::Min(a, b) => Atom::Min(Box::new(self.index(a)), Box::new(self.index(b))),
                    Atom::Max(a, b) => Atom::Max(Box::new(self.index(a)), Box::new(self.index(b))),
                };
                (atom, *c)
            })
            .collect();
        out.terms.sort();
        out
    }

    fn place(&mut self, place: &BufferPlace) -> BufferPlace {
        BufferPlace { buf: self.buf(place.buf), index: self.index(&place.index) }
    }

    fn block(&mut self, block: &[Stmt]) -> Vec<Stmt> {
        block.iter().map(|s| self.stmt(s)).collect()
    }

    fn stmt(&mut self, stmt: &Stmt) -> Stmt {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => Stmt::For {
                var: self.var(*var),
                lo: self.index(lo),
                hi: self.index(hi),
                step: *step,
                kind: *kind,
                body: self.block(body),
            },
            Stmt::Let { var, op, args } => {
                Stmt::Let { var: self.var(*var), op: *op, args: args.iter().map(|a| self.operand(*a)).collect() }
            }
            Stmt::LetIndex { var, index } => Stmt::LetIndex { var: self.var(*var), index: self.index(index) },
            Stmt::Load { var, buf, index, guard } => Stmt::Load {
                var: self.var(*var),
                buf: self.buf(*buf),
                index: self.index(index),
                guard: guard.map(|(cond, fill)| (self.operand(cond), fill)),
            },
            Stmt::Store { buf, index, value } => {
                Stmt::Store { buf: self.buf(*buf), index: self.index(index), value: self.operand(*value) }
            }
            Stmt::VectorMath { f, buf, start, len } => {
                Stmt::VectorMath { f: *f, buf: self.buf(*buf), start: self.index(start), len: self.index(len) }
            }
            Stmt::Alloc { buf } => Stmt::Alloc { buf: self.buf(*buf) },
            Stmt::If { cond, then, otherwise } => {
                Stmt::If { cond: self.operand(*cond), then: self.block(then), otherwise: self.block(otherwise) }
            }
            _ => self.gpu_stmt(stmt),
        }
    }

    /// Statements of kernels for a GPU alone.
    fn gpu_stmt(&mut self, stmt: &Stmt) -> Stmt {
        match stmt {
            Stmt::Shuffle { var, value, mask } => {
                Stmt::Shuffle { var: self.var(*var), value: self.operand(*value), mask: *mask }
            }
            Stmt::Mma(mma) => {
                Stmt::Mma(Box::new(Mma { a: self.place(&mma.a), b: self.place(&mma.b), acc: self.place(&mma.acc) }))
            }
            Stmt::LoadMatrix { into, from, count, transposed } => Stmt::LoadMatrix {
                into: self.place(into),
                from: self.place(from),
                count: *count,
                transposed: *transposed,
            },
            Stmt::CopyAsync { into, from, len, cond } => Stmt::CopyAsync {
                into: self.place(into),
                from: self.place(from),
                len: *len,
                cond: cond.map(|c| self.operand(c)),
            },
            Stmt::InitBarriers { buf, arrivals } => Stmt::InitBarriers { buf: self.buf(*buf), arrivals: *arrivals },
            Stmt::Arrive { barrier, bytes } => Stmt::Arrive { barrier: self.place(barrier), bytes: *bytes },
            Stmt::AwaitBarrier { barrier, phase } => {
                Stmt::AwaitBarrier { barrier: self.place(barrier), phase: self.index(phase) }
            }
            Stmt::CopyTile(copy) => {
                let map = TensorMap { buf: self.buf(copy.map.buf), ..copy.map.clone() };
                let at = [self.index(&copy.at[0]), self.index(&copy.at[1])];
                let batch = copy.batch.iter().map(|i| self.index(i)).collect();
                let (into, barrier) = (self.place(&copy.into), self.place(&copy.barrier));
                Stmt::CopyTile(Box::new(TileCopy { into, map, at, batch, barrier }))
            }
            Stmt::GroupMma(mma) => {
                let [a, b] = [&mma.a, &mma.b].map(|x| TileOperand { at: self.place(&x.at), panels: x.panels });
                Stmt::GroupMma(Box::new(GroupMma { acc: self.place(&mma.acc), a, b, ..(**mma).clone() }))
            }
            Stmt::AwaitProducts { sums, pending } => Stmt::AwaitProducts { sums: self.buf(*sums), pending: *pending },
            Stmt::Roles(roles) => {
                let role = |r: &WarpRole| WarpRole { body: self.block(&r.body), ..*r };
                Stmt::Roles(roles.iter().map(role).collect())
            }
            _ => stmt.clone(),
        }
    }
}
