//! Construction of kernels with structured scopes.

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::{Buf, BufInfo, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var, VarInfo, WarpRole};
use crate::extent::Extent;
use crate::index::Index;
use crate::scalar::{CmpOp, MathFn, Scalar, ScalarFn, ScalarNode, ScalarOp};

/// Builds one [`Kernel`]; statements go to the innermost open block.
pub struct KernelBuilder {
    kernel: Kernel,
    blocks: Vec<Vec<Stmt>>,
    loops: Vec<LoopHeader>,
}

struct LoopHeader {
    var: Var,
    range: LoopRange,
    kind: LoopKind,
}

/// Lower bound, upper bound (exclusive) and step of a loop.
pub type LoopRange = (Index, Index, i64);

impl KernelBuilder {
    /// A kernel without buffers and statements.
    pub fn new(name: impl Into<String>) -> KernelBuilder {
        let kernel =
            Kernel { name: name.into(), vars: vec![], buffers: vec![], params: 0, scalars: vec![], body: vec![] };
        KernelBuilder { kernel, blocks: vec![vec![]], loops: vec![] }
    }

    /// Declares the next buffer parameter. Parameters come before any local buffer. Elements of narrow types are `u8` in
    /// kernels.
    pub fn param(&mut self, name: impl Into<String>, dtype: DType, len: impl Into<Extent>, writable: bool) -> Buf {
        self.kernel.params += 1;
        self.buffer(BufInfo { name: name.into(), dtype, len: len.into(), space: MemorySpace::Global, writable })
    }

    fn buffer(&mut self, info: BufInfo) -> Buf {
        self.kernel.buffers.push(BufInfo { dtype: info.dtype.storage(), ..info });
        Buf(self.kernel.buffers.len() as u32 - 1)
    }

    /// Declares the next index parameter.
    pub fn scalar(&mut self, name: impl Into<String>) -> Var {
        let v = self.fresh(name, DType::I64);
        self.kernel.scalars.push(v);
        v
    }

    /// Declares the next index parameter, as an index.
    pub fn scalar_index(&mut self, name: &str) -> Index {
        Index::var(self.scalar(name).0)
    }

    /// A local buffer that lives until the end of the current block.
    pub fn alloc(&mut self, name: impl Into<String>, dtype: DType, len: impl Into<Extent>, space: MemorySpace) -> Buf {
        let buf = self.buffer(BufInfo { name: name.into(), dtype, len: len.into(), space, writable: true });
        self.push(Stmt::Alloc { buf });
        buf
    }

    fn fresh(&mut self, name: impl Into<String>, dtype: DType) -> Var {
        self.kernel.vars.push(VarInfo { name: name.into(), dtype });
        Var(self.kernel.vars.len() as u32 - 1)
    }

    /// Adds a statement.
    pub fn push(&mut self, stmt: Stmt) {
        if let Some(block) = self.blocks.last_mut() {
            block.push(stmt);
        }
    }

    fn block<E>(&mut self, body: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<Vec<Stmt>, E> {
        self.blocks.push(vec![]);
        let result = body(self);
        let block = self.blocks.pop().unwrap_or_default();
        result.map(|()| block)
    }

    /// `for name in lo..hi by step`.
    pub fn for_loop<E>(
        &mut self,
        name: &str,
        range: LoopRange,
        kind: LoopKind,
        body: impl FnOnce(&mut Self, Index) -> Result<(), E>,
    ) -> Result<(), E> {
        let i = self.open_for(name, range, kind);
        body(self, i)?;
        self.close_for();
        Ok(())
    }

    /// Opens a loop; statements go to its body until the matching [`KernelBuilder::close_for`].
    pub fn open_for(&mut self, name: &str, range: LoopRange, kind: LoopKind) -> Index {
        let var = self.fresh(name, DType::I64);
        self.loops.push(LoopHeader { var, range, kind });
        self.blocks.push(vec![]);
        Index::var(var.0)
    }

    /// Closes the loop opened last.
    pub fn close_for(&mut self) {
        if let (Some(LoopHeader { var, range: (lo, hi, step), kind }), Some(body)) =
            (self.loops.pop(), self.blocks.pop())
        {
            self.push(Stmt::For { var, lo, hi, step, kind, body });
        }
    }

    /// `for name in 0..n`.
    pub fn for_range<E>(
        &mut self,
        name: &str,
        n: impl Into<Extent>,
        kind: LoopKind,
        body: impl FnOnce(&mut Self, Index) -> Result<(), E>,
    ) -> Result<(), E> {
        self.for_loop(name, (Index::constant(0), Index::constant(n), 1), kind, body)
    }

    /// Opens the block of a condition; statements go there until [`KernelBuilder::close_if`].
    pub fn open_block(&mut self) {
        self.blocks.push(vec![]);
    }

    /// Closes the block opened last: it runs where `cond` holds.
    pub fn close_if(&mut self, cond: Operand) {
        let then = self.blocks.pop().unwrap_or_default();
        self.push(Stmt::If { cond, then, otherwise: vec![] });
    }

    /// Closes the block opened last: it is what some warps do.
    pub fn close_role(&mut self, warps: (u32, u32), registers: u32) -> WarpRole {
        WarpRole { warps, registers, body: self.blocks.pop().unwrap_or_default() }
    }

    /// What `value` is in the thread of the warp whose number differs in the bits of `mask`.
    pub fn shuffle(&mut self, value: Operand, mask: u32) -> Operand {
        let var = self.fresh("v", self.dtype(value));
        self.push(Stmt::Shuffle { var, value, mask });
        Operand::Var(var)
    }

    /// A condition around statements.
    pub fn if_then<E>(&mut self, cond: Operand, then: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        let then = self.block(then)?;
        self.push(Stmt::If { cond, then, otherwise: vec![] });
        Ok(())
    }

    /// Reads an element.
    pub fn load(&mut self, buf: Buf, index: Index) -> Operand {
        self.load_guarded(buf, index, None)
    }

    /// Reads an element where the guard holds, otherwise its fill value.
    pub fn load_guarded(&mut self, buf: Buf, index: Index, guard: Option<(Operand, Scalar)>) -> Operand {
        let var = self.fresh("v", self.kernel.buf(buf).dtype);
        let guard = guard.map(|(holds, fill)| (holds, fill.stored()));
        self.push(Stmt::Load { var, buf, index, guard });
        Operand::Var(var)
    }

    /// Writes an element.
    pub fn store(&mut self, buf: Buf, index: Index, value: Operand) {
        self.push(Stmt::Store { buf, index, value: stored(value) });
    }

    /// Applies a library function in place to `len` elements from `start` on.
    pub fn apply_strip(&mut self, f: MathFn, buf: Buf, start: Index, len: Index) {
        self.push(Stmt::VectorMath { f, buf, start, len });
    }

    /// Appends one scalar operation. Operand types must fit; the verifier reports it otherwise.
    pub fn op(&mut self, op: ScalarOp, args: &[Operand]) -> Operand {
        let op = match op {
            ScalarOp::Bitcast(to) if to.storage() == self.dtype(args[0]) => return stored(args[0]),
            ScalarOp::Bitcast(to) => ScalarOp::Bitcast(to.storage()),
            other => other,
        };
        let args: SmallVec<[Operand; 3]> = args.iter().map(|a| stored(*a)).collect();
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|a| self.dtype(*a)).collect();
        let dtype = op.result(&dtypes).unwrap_or_else(|_| dtypes.first().copied().unwrap_or(DType::F32));
        let var = self.fresh("v", dtype);
        self.push(Stmt::Let { var, op, args });
        Operand::Var(var)
    }

    /// The type of an operand.
    pub fn dtype(&self, operand: Operand) -> DType {
        match operand {
            Operand::Var(v) => self.kernel.var(v).dtype,
            Operand::Const(c) => c.dtype.storage(),
        }
    }

    /// The value of an index expression, as i64.
    pub fn index_value(&mut self, index: Index) -> Operand {
        match (index.as_var(), index.as_constant()) {
            (Some(v), _) => Operand::Var(Var(v)),
            (_, Some(c)) => Operand::Const(Scalar::i64(c)),
            _ => {
                let var = self.fresh("i", DType::I64);
                self.push(Stmt::LetIndex { var, index });
                Operand::Var(var)
            }
        }
    }

    /// Binds an index expression to a variable of its own, so that it is computed once.
    pub fn let_index(&mut self, name: &str, index: Index) -> Index {
        if index.as_var().is_some() || index.as_constant().is_some() {
            return index;
        }
        let var = self.fresh(name, DType::I64);
        self.push(Stmt::LetIndex { var, index });
        Index::var(var.0)
    }

    /// An i64 value as an index.
    pub fn as_index(&self, operand: Operand) -> Index {
        match operand {
            Operand::Var(v) => Index::var(v.0),
            Operand::Const(c) => Index::constant(c.as_i64()),
        }
    }

    /// Whether `lo <= index < hi`, as a bool.
    pub fn in_range(&mut self, index: &Index, lo: i64, hi: impl Into<Extent>) -> Operand {
        let value = self.index_value(index.clone());
        let hi = self.index_value(Index::constant(hi));
        let ge = self.op(ScalarOp::Cmp(CmpOp::Ge), &[value, Operand::Const(Scalar::i64(lo))]);
        let lt = self.op(ScalarOp::Cmp(CmpOp::Lt), &[value, hi]);
        self.op(ScalarOp::And, &[ge, lt])
    }

    /// Inlines a scalar function at the element with the given coordinates.
    pub fn apply(&mut self, f: &ScalarFn, args: &[Operand], coords: &[Index]) -> Vec<Operand> {
        let mut values: Vec<Operand> = Vec::with_capacity(f.nodes.len());
        for node in &f.nodes {
            let value = match node {
                ScalarNode::Input(i) => args[*i as usize],
                ScalarNode::Const(c) => stored(Operand::Const(*c)),
                ScalarNode::Coord(a) => self.index_value(coords[*a as usize].clone()),
                ScalarNode::Op(op, ids) => {
                    let args: SmallVec<[Operand; 3]> = ids.iter().map(|i| values[i.0 as usize]).collect();
                    self.op(*op, &args)
                }
            };
            values.push(value);
        }
        f.outputs.iter().map(|o| values[o.0 as usize]).collect()
    }

    /// The finished kernel. A parallel kernel gets its two range parameters here.
    pub fn finish(mut self) -> Kernel {
        self.kernel.body = self.blocks.pop().unwrap_or_default();
        if self.kernel.is_parallel() && self.kernel.scalars.is_empty() {
            self.scalar("begin");
            self.scalar("end");
        }
        self.kernel
    }
}

/// A value as kernels have it.
fn stored(operand: Operand) -> Operand {
    match operand {
        Operand::Const(c) => Operand::Const(c.stored()),
        variable => variable,
    }
}
