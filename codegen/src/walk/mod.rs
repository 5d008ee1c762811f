//! Translation of a kernel, once for every back end: what variables are, loops and branches, which loops become vectors.
//!
//! [`KernelWalker`] goes over the statements; [`KernelEmitter`] is what it writes with, the instructions of a back end. A vector loop
//! becomes values with an element for each iteration, a lane. `index` has index expressions, `memory` loads and stores.

mod index;
mod memory;

use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode as Reason, Result};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Operand, Stmt, Var};
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

use crate::analysis::{self, Class, KernelAnalysis};
use crate::symbols;

use index::Interval;
pub(crate) use index::{IndexOp, gcd, sum};
pub(crate) use memory::{ElementAccess, Guard};

pub(crate) fn internal(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Reason::Internal, message)
}

pub(crate) fn unsupported(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Reason::Unsupported, message)
}

pub(crate) fn not_live(kernel: &Kernel, buf: Buf) -> Diagnostic {
    internal(format!("buffer `{}` is used before its allocation", kernel.buf(buf).name))
}

/// The instructions of a back end, which go where its builder stands.
///
/// # Errors
/// Of every method: [`Reason::Unsupported`] for what the back end or its target has no code for, [`Reason::Internal`]
/// for a kernel that breaks the rules of KIR.
pub(crate) trait KernelEmitter: Sized {
    /// A value that is the same in every lane. Indices are i64.
    type Value: Copy;
    /// A value for each lane of the vector loop.
    type Lanes: Clone;
    /// Where an element lies in memory.
    type Address: Copy;

    /// Index parameter `i` of the call.
    fn scalar(&mut self, i: usize) -> Result<Self::Value>;

    fn constant(&mut self, c: Scalar) -> Result<Self::Value>;

    /// One step of index arithmetic.
    fn index(&mut self, op: IndexOp<Self::Value>) -> Result<Self::Value>;

    /// How many loops and branches stand around the place of a value: sums of indices begin with the outermost.
    fn depth(&self, _: Self::Value) -> usize {
        0
    }

    /// The value of a resolved index that differs by lane, but not by a fixed distance from one to the next.
    fn index_lanes(walk: &mut KernelWalker<'_, Self>, index: &Index) -> Result<Self::Lanes> {
        walk.lane_after_lane(index)
    }

    /// `first + l·step` in lane `l`.
    fn steps(&mut self, first: Self::Value, step: i64, lanes: usize) -> Result<Self::Lanes>;

    /// The same in every lane.
    fn splat(&mut self, v: UniformOperand<Self::Value>, dtype: DType, lanes: usize) -> Result<Self::Lanes>;

    /// The lanes with the given values.
    fn assemble(&mut self, dtype: DType, values: &[Self::Value]) -> Result<Self::Lanes>;

    fn extract(&mut self, dtype: DType, from: &Self::Lanes, lane: usize) -> Result<Self::Value>;

    /// Applies an operation whose first operand has type `dtype`.
    fn apply(&mut self, op: ScalarOp, dtype: DType, args: &[UniformOperand<Self::Value>]) -> Result<Self::Value>;

    /// Applies an operation of which some operand differs by lane.
    fn apply_lanes(&mut self, op: ScalarOp, args: &[LaneArg<Self>], lanes: usize) -> Result<Self::Lanes>;

    /// Memory for a local buffer that needs some.
    fn reserve(&mut self, buf: Buf, class: Class) -> Result<()>;

    /// Begins the life of a local buffer; with `lanes`, of one for each lane of the vector loop.
    fn alloc(&mut self, buf: Buf, class: Class, lanes: Option<usize>) -> Result<()>;

    /// Whether the elements of a buffer have addresses; `None` before its allocation.
    fn in_memory(&self, buf: Buf) -> Option<bool>;

    /// The address of element `constant + Σ factor·value`.
    fn address(&mut self, buf: Buf, parts: &[(Self::Value, i64)], constant: i64) -> Result<Self::Address>;

    /// Reads an element; with a guard, only where it holds.
    fn load(&mut self, from: ElementAccess<Self::Address>, guard: Option<(Self::Value, Scalar)>)
    -> Result<Self::Value>;

    /// Reads elements at the distance 1 or 2, one for each lane; `None` if there is no better way than one after the
    /// other.
    fn load_lanes(
        &mut self,
        from: ElementAccess<Self::Address>,
        stride: i64,
        lanes: usize,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Option<Self::Lanes>>;

    fn store(&mut self, to: ElementAccess<Self::Address>, value: Self::Value) -> Result<()>;

    /// Writes consecutive elements.
    fn store_lanes(&mut self, to: ElementAccess<Self::Address>, values: &Self::Lanes) -> Result<()>;

    /// Reads a buffer without addresses.
    fn load_register(
        walk: &mut KernelWalker<'_, Self>,
        buf: Buf,
        index: &Index,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Bind<Self>>;

    /// Writes a buffer without addresses.
    fn store_register(walk: &mut KernelWalker<'_, Self>, buf: Buf, index: &Index, value: Operand) -> Result<()>;

    /// Applies a function to `len` elements from an address on.
    fn strip(&mut self, f: MathFn, at: Self::Address, len: Self::Value) -> Result<()>;

    /// A loop tested at its end, of which `body` writes the inside for a value of its counter; `runs` says that there
    /// is a first iteration.
    fn repeat(
        walk: &mut KernelWalker<'_, Self>,
        range: (Self::Value, Self::Value, i64),
        runs: bool,
        body: impl FnOnce(&mut KernelWalker<'_, Self>, Self::Value) -> Result<()>,
    ) -> Result<()>;

    /// Writes loops that the back end has a better way for than one statement after the other, if a block begins with
    /// them; how many statements that are.
    fn loops(_: &mut KernelWalker<'_, Self>, _: &[Stmt]) -> Result<usize> {
        Ok(0)
    }

    /// Two blocks, of which the condition chooses one.
    fn branch(walk: &mut KernelWalker<'_, Self>, cond: Self::Value, arms: [&[Stmt]; 2]) -> Result<()>;

    /// The number of this block or thread in the launch.
    fn launched(&mut self, _: LoopKind) -> Result<Self::Value> {
        Err(unsupported("the kernel is for a GPU"))
    }

    /// A statement of kernels for a GPU.
    fn on_gpu(_: &mut KernelWalker<'_, Self>, _: &Stmt) -> Result<()> {
        Err(unsupported("the kernel is for a GPU"))
    }
}

/// What a KIR variable currently is.
pub(crate) enum Bind<C: KernelEmitter> {
    Unset,
    Const(Scalar),
    Uniform(C::Value),
    Lanes(C::Lanes),
    /// An index expression not computed until used as a value.
    Index(Index),
    /// The variable of the vector loop being translated.
    Lane,
}

/// An operand that is the same in every lane: its value, and the constant it is known to be.
#[derive(Clone, Copy)]
pub(crate) struct UniformOperand<V> {
    pub v: V,
    pub c: Option<Scalar>,
}

/// An operand in a vector loop.
pub(crate) struct LaneArg<C: KernelEmitter> {
    pub operand: Operand,
    pub dtype: DType,
    pub value: Shaped<C>,
}

/// What an operand is in the lanes of a vector loop.
pub(crate) enum Shaped<C: KernelEmitter> {
    Uniform(UniformOperand<C::Value>),
    Lanes(C::Lanes),
}

/// The vector loop being translated: lane `l` stands for `lo + l`.
#[derive(Clone, Debug)]
pub(crate) struct LaneLoop {
    pub var: u32,
    pub lanes: usize,
    pub lo: Index,
}

type Bounds = (Index, Index, i64);

/// The translation of a kernel.
pub(crate) struct KernelWalker<'k, C: KernelEmitter> {
    pub code: C,
    pub kernel: &'k Kernel,
    plan: KernelAnalysis,
    pub lanes: Option<LaneLoop>,
    vars: Vec<Bind<C>>,
    ranges: Vec<Interval>,
    /// What the value of a variable is certainly a multiple of.
    multiples: Vec<u64>,
}

/// Local memory of one kernel, in bytes: well below the stack of any thread.
const MAX_STACK: u64 = 256 << 10;

const UNKNOWN: Interval = (i64::MIN / 4, i64::MAX / 4);

impl<'k, C: KernelEmitter> KernelWalker<'k, C> {
    /// Writes the kernel.
    pub fn run(kernel: &'k Kernel, plan: KernelAnalysis, code: C) -> Result<C> {
        let n = kernel.vars.len();
        let vars = (0..n).map(|_| Bind::Unset).collect();
        let mut walk =
            KernelWalker { code, kernel, plan, lanes: None, vars, ranges: vec![UNKNOWN; n], multiples: vec![1; n] };
        if !kernel.is_parallel() {
            for (i, v) in kernel.scalars.iter().enumerate() {
                let value = walk.code.scalar(i)?;
                walk.bind(*v, Bind::Uniform(value));
            }
        }
        walk.reserve()?;
        walk.block(&kernel.body)?;
        Ok(walk.code)
    }

    /// Reserves memory for local buffers.
    fn reserve(&mut self) -> Result<()> {
        let mut total = 0u64;
        for (i, info) in self.kernel.buffers.iter().enumerate().skip(self.kernel.params) {
            let class = self.plan.class(Buf(i as u32));
            if info.space.is_shared() {
                continue;
            }
            let bytes = info.elements().saturating_mul(info.dtype.size() as u64);
            total = total.saturating_add(if class == Class::Memory { bytes } else { 0 });
            if total > MAX_STACK {
                let message = format!("buffer `{}` of {bytes} bytes does not fit the stack", info.name);
                return Err(unsupported(message));
            }
            self.code.reserve(Buf(i as u32), class)?;
        }
        Ok(())
    }

    pub fn block(&mut self, body: &[Stmt]) -> Result<()> {
        let mut rest = body;
        while let [first, behind @ ..] = rest {
            rest = match C::loops(self, rest)? {
                0 => {
                    self.stmt(first)?;
                    behind
                }
                done => &rest[done..],
            };
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                let bounds = (self.resolve(lo), self.resolve(hi), *step);
                self.for_loop(*var, *kind, bounds, body)
            }
            Stmt::Let { var, op, args } => {
                let bind = self.operation(*op, args)?;
                self.bind(*var, bind);
                Ok(())
            }
            Stmt::LetIndex { var, index } => {
                let index = self.resolve(index);
                self.know(*var, self.interval(&index), self.multiple(&index));
                let bind = match index.as_constant() {
                    Some(c) => Bind::Const(Scalar::i64(c)),
                    None => Bind::Index(index),
                };
                self.bind(*var, bind);
                Ok(())
            }
            Stmt::Load { var, buf, index, guard } => {
                let index = self.resolve(index);
                let bind = self.load(*buf, &index, *guard)?;
                self.bind(*var, bind);
                Ok(())
            }
            Stmt::Store { buf, index, value } => {
                let index = self.resolve(index);
                self.store(*buf, &index, *value)
            }
            Stmt::VectorMath { f, buf, start, len } => {
                if !self.in_memory(*buf)? {
                    return Err(internal("a strip that is not in memory"));
                }
                let (start, len) = (self.resolve(start), self.resolve(len));
                let at = self.address(*buf, &start)?;
                let len = self.index_value(&len)?;
                self.code.strip(*f, at, len)
            }
            Stmt::Alloc { buf } => self.code.alloc(*buf, self.plan.class(*buf), self.lanes.as_ref().map(|l| l.lanes)),
            Stmt::If { cond, then, otherwise } => match self.known(*cond) {
                Some(c) => self.block(if c.as_bool() { then } else { otherwise }),
                None => {
                    let cond = self.uniform(*cond)?;
                    C::branch(self, cond.v, [then, otherwise])
                }
            },
            _ => C::on_gpu(self, stmt),
        }
    }

    pub fn bind(&mut self, var: Var, bind: Bind<C>) {
        self.vars[var.0 as usize] = bind;
    }

    fn in_memory(&self, buf: Buf) -> Result<bool> {
        self.code.in_memory(buf).ok_or_else(|| not_live(self.kernel, buf))
    }

    fn know(&mut self, var: Var, range: Interval, multiple: u64) {
        self.ranges[var.0 as usize] = range;
        self.multiples[var.0 as usize] = multiple;
    }

    pub fn dtype(&self, operand: Operand) -> DType {
        match operand {
            Operand::Var(v) => self.kernel.var(v).dtype,
            Operand::Const(c) => c.dtype,
        }
    }

    pub fn lane_count(&self) -> Result<usize> {
        self.lanes.as_ref().map(|l| l.lanes).ok_or_else(|| internal("lanes outside of a vector loop"))
    }

    /// The constant an operand is known to be.
    fn known(&self, operand: Operand) -> Option<Scalar> {
        match operand {
            Operand::Const(c) => Some(c),
            Operand::Var(v) => match self.vars[v.0 as usize] {
                Bind::Const(c) => Some(c),
                _ => None,
            },
        }
    }

    /// An operand that is the same in every lane.
    pub fn uniform(&mut self, operand: Operand) -> Result<UniformOperand<C::Value>> {
        match self.shaped(operand)? {
            Shaped::Uniform(arg) => Ok(arg),
            Shaped::Lanes(_) => Err(internal("a value differs by lane where it must not")),
        }
    }

    pub fn shaped(&mut self, operand: Operand) -> Result<Shaped<C>> {
        let uniform = |v| Ok(Shaped::Uniform(UniformOperand { v, c: None }));
        if let Some(c) = self.known(operand) {
            return Ok(Shaped::Uniform(UniformOperand { v: self.code.constant(c)?, c: Some(c) }));
        }
        let Operand::Var(var) = operand else { return Err(internal("an operand that is nothing")) };
        match &self.vars[var.0 as usize] {
            Bind::Uniform(v) => uniform(*v),
            Bind::Lanes(v) => Ok(Shaped::Lanes(v.clone())),
            Bind::Lane => self.index_lanes(&Index::var(var.0)).map(Shaped::Lanes),
            Bind::Index(index) => {
                let index = index.clone();
                match self.varies(&index) {
                    true => self.index_lanes(&index).map(Shaped::Lanes),
                    false => uniform(self.index_value(&index)?),
                }
            }
            Bind::Const(_) | Bind::Unset => {
                Err(internal(format!("`{}` is used before it is bound", self.kernel.var(var).name)))
            }
        }
    }

    /// The value of an operand in every lane.
    pub fn lane_operand(&mut self, operand: Operand) -> Result<C::Lanes> {
        let lanes = self.lane_count()?;
        match self.shaped(operand)? {
            Shaped::Uniform(arg) => self.code.splat(arg, self.dtype(operand), lanes),
            Shaped::Lanes(v) => Ok(v),
        }
    }

    fn operation(&mut self, op: ScalarOp, operands: &[Operand]) -> Result<Bind<C>> {
        let known: Option<SmallVec<[Scalar; 3]>> = operands.iter().map(|o| self.known(*o)).collect();
        let dtype = self.dtype(operands[0]);
        // Library calls are not evaluated here: their bits belong to the run-time library.
        if let (Some(args), false) = (known, symbols::callee(op, dtype).is_some()) {
            return Ok(Bind::Const(op.eval(&args)));
        }
        let mut uniform: SmallVec<[UniformOperand<C::Value>; 3]> = SmallVec::new();
        let mut args: SmallVec<[LaneArg<C>; 3]> = SmallVec::new();
        for &operand in operands {
            let value = self.shaped(operand)?;
            if let Shaped::Uniform(arg) = value {
                uniform.push(arg);
            }
            args.push(LaneArg { operand, dtype: self.dtype(operand), value });
        }
        if uniform.len() == args.len() {
            return self.code.apply(op, dtype, &uniform).map(Bind::Uniform);
        }
        let lanes = self.lane_count()?;
        self.code.apply_lanes(op, &args, lanes).map(Bind::Lanes)
    }

    fn for_loop(&mut self, var: Var, kind: LoopKind, bounds: Bounds, body: &[Stmt]) -> Result<()> {
        let constant = bounds.0.as_constant().is_some() && bounds.1.as_constant().is_some();
        match kind {
            LoopKind::Vector if self.vectorized(var, &bounds, body) => self.vector_loop(var, &bounds, body),
            LoopKind::Vector if constant && analysis::indexes_registers(self.kernel, var, body) => {
                self.unrolled(var, &bounds, body)
            }
            LoopKind::Unroll if constant => self.unrolled(var, &bounds, body),
            LoopKind::Parallel => self.parallel(var, &bounds, body),
            LoopKind::Grid | LoopKind::Threads => {
                let value = self.code.launched(kind)?;
                let last = bounds.1.as_constant().unwrap_or(i64::MAX / 4) - 1;
                self.iteration(var, value, (0, last.max(0)), body)
            }
            _ => self.counted(var, &bounds, body),
        }
    }

    /// The body of a loop for a value of its variable.
    fn iteration(&mut self, var: Var, value: C::Value, range: Interval, body: &[Stmt]) -> Result<()> {
        self.bind(var, Bind::Uniform(value));
        self.ranges[var.0 as usize] = range;
        self.block(body)
    }

    /// Iterations of a range that the call gives.
    fn parallel(&mut self, var: Var, (_, hi, step): &Bounds, body: &[Stmt]) -> Result<()> {
        let mut bound = [self.code.scalar(0)?, self.code.scalar(1)?];
        if *step != 1 {
            for b in &mut bound {
                *b = self.code.index(IndexOp::Scale(*b, *step))?;
            }
        }
        let last = (hi.as_constant().unwrap_or(i64::MAX / 4) - 1).saturating_mul(*step);
        let each = |walk: &mut KernelWalker<'_, C>, i| walk.iteration(var, i, (0, last), body);
        C::repeat(self, (bound[0], bound[1], *step), false, each)
    }

    fn unrolled(&mut self, var: Var, (lo, hi, step): &Bounds, body: &[Stmt]) -> Result<()> {
        let (Some(mut i), Some(hi)) = (lo.as_constant(), hi.as_constant()) else {
            return Err(internal("an unrolled loop has bounds that are not constant"));
        };
        while i < hi {
            self.bind(var, Bind::Const(Scalar::i64(i)));
            self.block(body)?;
            i += (*step).max(1);
        }
        Ok(())
    }

    fn counted(&mut self, var: Var, (lo, hi, step): &Bounds, body: &[Stmt]) -> Result<()> {
        let range = (self.interval(lo).0, self.interval(hi).1.saturating_sub(1));
        self.multiples[var.0 as usize] = gcd(self.multiple(lo), step.unsigned_abs());
        let runs = match (lo.as_constant(), hi.as_constant()) {
            (Some(lo), Some(hi)) if lo >= hi => return Ok(()),
            (Some(_), Some(_)) => true,
            _ => false,
        };
        let (lo, hi) = (self.index_value(lo)?, self.index_value(hi)?);
        let each = |walk: &mut KernelWalker<'_, C>, i| walk.iteration(var, i, range, body);
        C::repeat(self, (lo, hi, *step), runs, each)
    }

    /// Whether the iterations of a vector loop become lanes.
    fn vectorized(&self, var: Var, (lo, hi, step): &Bounds, body: &[Stmt]) -> bool {
        let extent = hi.sub(lo).as_constant();
        let fits = extent.is_some_and(|n| n > 0 && n % 4 == 0 && n <= 64) && *step == 1 && self.plan.vectors;
        fits && self.lanes.is_none() && analysis::vectorizable(self.kernel, &self.plan, var, body)
    }

    fn vector_loop(&mut self, var: Var, (lo, hi, _): &Bounds, body: &[Stmt]) -> Result<()> {
        let lanes = hi.sub(lo).constant.fixed();
        let first = self.interval(lo);
        self.ranges[var.0 as usize] = (first.0, first.1 + lanes - 1);
        self.bind(var, Bind::Lane);
        self.lanes = Some(LaneLoop { var: var.0, lanes: lanes as usize, lo: lo.clone() });
        let result = self.block(body);
        self.lanes = None;
        result
    }
}
