//! Translation of one kernel: what variables are, loops and branches.
//!
//! A vector loop becomes values of as many lanes as it has iterations. Arrays that live in registers are
//! memory of the function, which LLVM's scalar replacement dissolves.

use inkwell::IntPredicate;
use inkwell::basic_block::BasicBlock;
use inkwell::values::{FunctionValue, IntValue, PointerValue};
use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::{Index, Interval};
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Operand, Stmt, Var};
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

use super::ir::{Ir, Value, internal, unsupported};
use super::memory::Storage;
use super::scalar::Machine;
use crate::analysis::{self, Plan};
use crate::symbols;

/// What a KIR variable currently is.
#[derive(Clone, Debug)]
pub(super) enum Bind<'c> {
    Unset,
    Const(Scalar),
    /// The same in every lane.
    Uniform(Value<'c>),
    /// A vector with a value for each lane.
    Lanes(Value<'c>),
    /// An index expression not computed until used as a value.
    Index(Index),
    /// The variable of the vector loop being translated.
    Lane,
}

/// The vector loop being translated: lane `l` stands for `lo + l`.
#[derive(Clone, Debug)]
pub(super) struct LaneLoop {
    pub var: u32,
    pub lanes: u32,
    pub lo: Index,
}

pub(super) struct Gen<'c, 'm, 'k> {
    pub ir: Ir<'c, 'm>,
    pub kernel: &'k Kernel,
    pub machine: Machine,
    pub vars: Vec<Bind<'c>>,
    pub ranges: Vec<Interval>,
    /// What the value of a variable is certainly a multiple of.
    pub multiples: Vec<u64>,
    pub storage: Vec<Storage<'c>>,
    pub lanes: Option<LaneLoop>,
    /// Memory that a load may read whose guard does not hold.
    pub spare: Option<PointerValue<'c>>,
    /// Whether the warps of this role store to tiles, which matrix units must see when they arrive.
    pub shows_tiles: bool,
    plan: Plan,
    pub function: FunctionValue<'c>,
    /// The block of the function's memory, which ends in a jump to the code.
    pub entry: BasicBlock<'c>,
    /// The kernel's scalars; none on a GPU.
    scalars: Option<PointerValue<'c>>,
}

const UNKNOWN: Interval = (i64::MIN / 4, i64::MAX / 4);

impl<'c, 'm, 'k> Gen<'c, 'm, 'k> {
    /// Writes the body of `function`, whose parameters are the buffers and the scalars of the kernel; on a GPU every
    /// buffer.
    pub fn translate(ir: Ir<'c, 'm>, machine: Machine, kernel: &'k Kernel, function: FunctionValue<'c>) -> Result<()> {
        let entry = ir.cx.append_basic_block(function, "entry");
        let start = ir.cx.append_basic_block(function, "start");
        ir.b.position_at_end(start);
        let mut g = Gen {
            ir,
            kernel,
            machine,
            vars: vec![Bind::Unset; kernel.vars.len()],
            ranges: vec![UNKNOWN; kernel.vars.len()],
            multiples: vec![1; kernel.vars.len()],
            storage: vec![Storage::None; kernel.buffers.len()],
            lanes: None,
            spare: None,
            shows_tiles: false,
            plan: Plan::new(kernel, true),
            function,
            entry,
            scalars: None,
        };
        match machine.gpu {
            true => g.take_parameters()?,
            false => g.load_parameters()?,
        }
        g.reserve_memory()?;
        g.block(&kernel.body)?;
        g.ir.ret()?;
        g.ir.b.position_at_end(entry);
        g.ir.jump(start)
    }

    /// Parameter `i` of the function.
    pub fn parameter(&self, i: usize) -> Result<PointerValue<'c>> {
        match self.function.get_nth_param(i as u32) {
            Some(Value::PointerValue(p)) => Ok(p),
            _ => Err(internal("a kernel takes pointers")),
        }
    }

    fn load_parameters(&mut self) -> Result<()> {
        let buffers = self.parameter(0)?;
        self.scalars = Some(self.parameter(1)?);
        let pointer = self.ir.pointer_type();
        for i in 0..self.kernel.params {
            let at = self.ir.element(pointer, buffers, self.ir.i64(i as i64))?;
            let Value::PointerValue(base) = self.ir.load(pointer, at, 8)? else {
                return Err(internal("a buffer that is no pointer"));
            };
            self.storage[i] = Storage::Memory(base);
        }
        if !self.kernel.is_parallel() {
            for (i, v) in self.kernel.scalars.iter().enumerate() {
                let value = self.scalar_parameter(i as i64)?;
                self.vars[v.0 as usize] = Bind::Uniform(value.into());
            }
        }
        Ok(())
    }

    fn scalar_parameter(&self, i: i64) -> Result<IntValue<'c>> {
        let ty = self.ir.int(64).into();
        let scalars = self.scalars.ok_or_else(|| internal("a kernel without scalars"))?;
        let at = self.ir.element(ty, scalars, self.ir.i64(i))?;
        match self.ir.load(ty, at, 8)? {
            Value::IntValue(v) => Ok(v),
            _ => Err(internal("an index parameter that is no integer")),
        }
    }

    pub fn block(&mut self, body: &[Stmt]) -> Result<()> {
        body.iter().try_for_each(|s| self.stmt(s))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                let range = (self.resolve(lo), self.resolve(hi), *step);
                let constant = range.0.as_constant().is_some() && range.1.as_constant().is_some();
                match kind {
                    LoopKind::Vector => self.vector_loop(*var, range, body),
                    LoopKind::Unroll if constant => self.unrolled(*var, range, body),
                    LoopKind::Parallel => self.parallel(*var, range, body),
                    LoopKind::Grid | LoopKind::Threads => self.launched(*var, &range.1, *kind, body),
                    _ => self.counted(*var, range, body),
                }
            }
            Stmt::Let { var, op, args } => {
                self.vars[var.0 as usize] = self.operation(*op, args)?;
                Ok(())
            }
            Stmt::LetIndex { var, index } => {
                let index = self.resolve(index);
                self.ranges[var.0 as usize] = self.interval(&index);
                self.multiples[var.0 as usize] = self.multiple(&index);
                self.vars[var.0 as usize] = match index.as_constant() {
                    Some(c) => Bind::Const(Scalar::i64(c)),
                    None => Bind::Index(index),
                };
                Ok(())
            }
            Stmt::Load { var, buf, index, guard } => {
                let index = self.resolve(index);
                self.vars[var.0 as usize] = self.load(*buf, &index, *guard)?;
                Ok(())
            }
            Stmt::Store { buf, index, value } => {
                let index = self.resolve(index);
                self.store(*buf, &index, *value)
            }
            Stmt::Apply { f, buf, start, len } => self.apply_strip(*f, *buf, start, len),
            Stmt::Alloc { buf } => self.alloc(*buf),
            Stmt::If { cond, then, otherwise } => self.branch(*cond, then, otherwise),
            _ => self.gpu_stmt(stmt),
        }
    }

    fn apply_strip(&mut self, f: MathFn, buf: Buf, start: &Index, len: &Index) -> Result<()> {
        if self.machine.gpu {
            return Err(unsupported(format!("a strip of `{}` has no code for a GPU", f.name())));
        }
        let (start, len) = (self.resolve(start), self.resolve(len));
        let address = self.address(buf, &start, None)?;
        let len = self.index_value(&len)?;
        let types = [self.ir.pointer_type(), self.ir.int(64).into()];
        let function = self.ir.declare(&symbols::strip(f).0, &types, None);
        self.ir.call(function, &[address.into(), len]).map(drop)
    }

    pub fn interval(&self, index: &Index) -> Interval {
        index.interval(&|v: u32| self.ranges[v as usize])
    }

    pub fn dtype(&self, operand: Operand) -> DType {
        match operand {
            Operand::Var(v) => self.kernel.var(v).dtype,
            Operand::Const(c) => c.dtype,
        }
    }

    pub fn lane_count(&self) -> Result<u32> {
        self.lanes.as_ref().map(|l| l.lanes).ok_or_else(|| internal("lanes outside of a vector loop"))
    }

    /// The constant an operand is known to be.
    pub fn known(&self, operand: Operand) -> Option<Scalar> {
        match operand {
            Operand::Const(c) => Some(c),
            Operand::Var(v) => match self.vars[v.0 as usize] {
                Bind::Const(c) => Some(c),
                _ => None,
            },
        }
    }

    /// The value of an operand: a scalar if it is the same in every lane.
    pub fn operand(&mut self, operand: Operand) -> Result<Value<'c>> {
        if let Some(c) = self.known(operand) {
            return self.ir.scalar(c);
        }
        let Operand::Var(var) = operand else { return Err(internal("an operand that is nothing")) };
        match self.vars[var.0 as usize].clone() {
            Bind::Uniform(v) | Bind::Lanes(v) => Ok(v),
            Bind::Index(index) => self.index_value(&index),
            Bind::Lane => self.index_value(&Index::var(var.0)),
            Bind::Const(_) | Bind::Unset => {
                Err(internal(format!("`{}` is used before it is bound", self.kernel.var(var).name)))
            }
        }
    }

    /// The value of an operand in every lane of the current vector loop.
    pub fn lane_operand(&mut self, operand: Operand) -> Result<Value<'c>> {
        let v = self.operand(operand)?;
        self.ir.splat(v, self.lane_count()?)
    }

    pub fn bound(&self, v: Value<'c>) -> Bind<'c> {
        if v.is_vector_value() { Bind::Lanes(v) } else { Bind::Uniform(v) }
    }

    fn operation(&mut self, op: ScalarOp, operands: &[Operand]) -> Result<Bind<'c>> {
        let known: Option<SmallVec<[Scalar; 3]>> = operands.iter().map(|o| self.known(*o)).collect();
        let dtype = self.dtype(operands[0]);
        // Library calls are not evaluated here: their bits belong to the run-time library.
        if let (Some(args), false) = (known, symbols::callee(op, dtype).is_some()) {
            return Ok(Bind::Const(op.eval(&args)));
        }
        let mut args: SmallVec<[Value<'c>; 3]> = SmallVec::new();
        for operand in operands {
            args.push(self.operand(*operand)?);
        }
        if args.iter().any(|a| a.is_vector_value()) {
            let lanes = self.lane_count()?;
            for a in &mut args {
                *a = self.ir.splat(*a, lanes)?;
            }
        }
        let value = self.ir.apply(self.machine, op, dtype, &args)?;
        Ok(self.bound(value))
    }

    fn parallel(&mut self, var: Var, (_, hi, step): (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let bound = |i: i64| -> Result<Value<'c>> {
            let v = self.scalar_parameter(i)?.into();
            if step == 1 { Ok(v) } else { self.ir.mul(v, self.ir.i64(step).into()) }
        };
        let (from, to) = (bound(0)?, bound(1)?);
        let last = (hi.as_constant().unwrap_or(i64::MAX / 4) - 1).saturating_mul(step);
        self.serial(var, (from, to, step), (0, last), body)
    }

    fn unrolled(&mut self, var: Var, (lo, hi, step): (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let (mut i, hi) = (lo.as_constant().unwrap_or(0), hi.as_constant().unwrap_or(0));
        while i < hi {
            self.vars[var.0 as usize] = Bind::Const(Scalar::i64(i));
            self.block(body)?;
            i += step.max(1);
        }
        Ok(())
    }

    fn counted(&mut self, var: Var, (lo, hi, step): (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let range = (self.interval(&lo).0, self.interval(&hi).1.saturating_sub(1));
        self.multiples[var.0 as usize] = super::index::gcd(self.multiple(&lo), step.unsigned_abs());
        let (lo, hi) = (self.index_value(&lo)?, self.index_value(&hi)?);
        self.serial(var, (lo, hi, step), range, body)
    }

    /// A loop tested at its end, behind a test whether it runs at all.
    fn serial(
        &mut self,
        var: Var,
        (lo, hi, step): (Value<'c>, Value<'c>, i64),
        range: Interval,
        body: &[Stmt],
    ) -> Result<()> {
        let before = self.ir.b.get_insert_block().ok_or_else(|| internal("a loop in no block"))?;
        let (start, exit) = (self.new_block("loop"), self.new_block("done"));
        let any = self.ir.compare_ints(IntPredicate::SLT, lo, hi)?;
        self.ir.branch(any, start, exit)?;
        self.ir.b.position_at_end(start);
        let counter = self.ir.phi(self.ir.int(64).into())?;
        counter.add_incoming(&[(&lo, before)]);
        self.vars[var.0 as usize] = Bind::Uniform(counter.as_basic_value());
        self.ranges[var.0 as usize] = range;
        self.block(body)?;
        let next = self.ir.step(counter.as_basic_value(), self.ir.i64(step.max(1)).into())?;
        let more = self.ir.compare_ints(IntPredicate::SLT, next, hi)?;
        let latch = self.ir.b.get_insert_block().ok_or_else(|| internal("a loop in no block"))?;
        counter.add_incoming(&[(&next, latch)]);
        self.ir.branch(more, start, exit)?;
        self.ir.b.position_at_end(exit);
        Ok(())
    }

    pub fn new_block(&self, name: &str) -> BasicBlock<'c> {
        self.ir.cx.append_basic_block(self.function, name)
    }

    fn branch(&mut self, cond: Operand, then: &[Stmt], otherwise: &[Stmt]) -> Result<()> {
        if let Some(c) = self.known(cond) {
            return self.block(if c.as_bool() { then } else { otherwise });
        }
        let cond = self.operand(cond)?;
        let (yes, no, join) = (self.new_block("then"), self.new_block("else"), self.new_block("join"));
        self.ir.branch(cond, yes, no)?;
        for (block, body) in [(yes, then), (no, otherwise)] {
            self.ir.b.position_at_end(block);
            self.block(body)?;
            self.ir.jump(join)?;
        }
        self.ir.b.position_at_end(join);
        Ok(())
    }

    fn vector_loop(&mut self, var: Var, range: (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let extent = range.1.sub(&range.0).as_constant();
        let lanes = extent.filter(|&n| n > 0 && n % 4 == 0 && n <= 64 && range.2 == 1);
        if let (Some(lanes), None) = (lanes, &self.lanes)
            && analysis::vectorizable(self.kernel, &self.plan, var, body)
        {
            let lo = self.interval(&range.0);
            self.ranges[var.0 as usize] = (lo.0, lo.1 + lanes - 1);
            self.vars[var.0 as usize] = Bind::Lane;
            self.lanes = Some(LaneLoop { var: var.0, lanes: lanes as u32, lo: range.0 });
            let result = self.block(body);
            self.lanes = None;
            return result;
        }
        let constant = range.0.as_constant().is_some() && range.1.as_constant().is_some();
        if constant && analysis::indexes_registers(self.kernel, var, body) {
            return self.unrolled(var, range, body);
        }
        self.counted(var, range, body)
    }
}
