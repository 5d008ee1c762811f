//! Translation of one kernel: environment, scopes and structured control flow.

use std::collections::{BTreeMap, HashMap};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, FuncRef, Inst, InstBuilder, MemFlagsData, StackSlot, Value, types};
use cranelift_frontend::FunctionBuilder;
use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::index::{Index, Interval};
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Operand, Stmt, Var};
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

use super::index::IndexOp;
use super::memory::Storage;
use super::scalar::Arg;
use super::vector::Compared;
use crate::analysis::{self, Plan};

pub(super) fn internal(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::Internal, message)
}

pub(super) fn unsupported(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::Unsupported, message)
}

/// The chunks of a value that differs by lane.
pub(super) type Chunks = SmallVec<[Value; 8]>;

/// What a KIR variable currently is.
#[derive(Clone, Debug)]
pub(super) enum Bind {
    Unset,
    Const(Scalar),
    /// A value of the carrier type, computed at a depth of nesting.
    Uniform(Value, usize),
    Lanes(Chunks),
    /// An index expression not computed until used as a value.
    Index(Index),
    /// The variable of the vector loop being translated.
    Lane,
}

/// The vector loop being translated: lane `l` stands for `lo + l`.
#[derive(Clone, Debug)]
pub(super) struct LaneLoop {
    pub var: u32,
    pub lanes: usize,
    pub lo: Index,
}

/// A region of code that is entered from one place.
pub(super) struct Scope {
    /// The branch in the parent scope that enters this one: code moved out of the scope goes before.
    entry: Option<Inst>,
    /// Index computations already available in this scope.
    pub known: HashMap<IndexOp, Value>,
}

pub(super) struct Gen<'a, 'b> {
    pub b: FunctionBuilder<'b>,
    pub kernel: &'a Kernel,
    pub externals: &'a BTreeMap<String, FuncRef>,
    pub plan: Plan,
    /// Whether the target has vectors.
    vectors: bool,
    pub vars: Vec<Bind>,
    pub ranges: Vec<Interval>,
    pub storage: Vec<Storage>,
    pub scopes: Vec<Scope>,
    pub lanes: Option<LaneLoop>,
    pub spare: Option<StackSlot>,
    /// Operands of comparisons by lane, for selections between the same operands.
    pub compared: BTreeMap<u32, Compared>,
    scalars: Option<Value>,
}

const UNKNOWN: Interval = (i64::MIN / 4, i64::MAX / 4);

impl<'a, 'b> Gen<'a, 'b> {
    pub fn new(
        b: FunctionBuilder<'b>,
        kernel: &'a Kernel,
        externals: &'a BTreeMap<String, FuncRef>,
        vectors: bool,
    ) -> Self {
        Gen {
            b,
            kernel,
            externals,
            plan: Plan::new(kernel, vectors),
            vectors,
            vars: vec![Bind::Unset; kernel.vars.len()],
            ranges: vec![UNKNOWN; kernel.vars.len()],
            storage: vec![Storage::None; kernel.buffers.len()],
            scopes: vec![Scope { entry: None, known: HashMap::new() }],
            lanes: None,
            spare: None,
            compared: BTreeMap::new(),
            scalars: None,
        }
    }

    /// Emits the whole function; the builder is ready to be finalized afterwards.
    pub fn run(&mut self) -> Result<()> {
        let entry = self.b.create_block();
        self.b.append_block_params_for_function_params(entry);
        self.b.switch_to_block(entry);
        self.b.seal_block(entry);
        let (buffers, scalars) = (self.b.block_params(entry)[0], self.b.block_params(entry)[1]);
        self.scalars = Some(scalars);
        let constant = MemFlagsData::new().with_notrap().with_readonly().with_aligned();
        for i in 0..self.kernel.params {
            let base = self.b.ins().load(types::I64, constant, buffers, 8 * i as i32);
            self.storage[i] = Storage::Memory(base);
        }
        if !self.kernel.is_parallel() {
            for (i, v) in self.kernel.scalars.iter().enumerate() {
                let value = self.b.ins().load(types::I64, constant, scalars, 8 * i as i32);
                self.vars[v.0 as usize] = Bind::Uniform(value, 0);
            }
        }
        self.reserve_stack()?;
        let kernel = self.kernel;
        self.block(&kernel.body)?;
        self.b.ins().return_(&[]);
        Ok(())
    }

    pub fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    /// Where code of nesting depth `level` goes: before this instruction, or here.
    pub fn hoist_point(&self, level: usize) -> Option<Inst> {
        self.scopes.get(level + 1).and_then(|s| s.entry)
    }

    fn block(&mut self, body: &[Stmt]) -> Result<()> {
        body.iter().try_for_each(|s| self.stmt(s))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                let range = (self.resolve(lo), self.resolve(hi), *step);
                match kind {
                    LoopKind::Vector => self.vector_loop(*var, range, body),
                    LoopKind::Unroll if range.0.as_constant().is_some() && range.1.as_constant().is_some() => {
                        self.unrolled(*var, range, body)
                    }
                    LoopKind::Parallel => {
                        let scalars = self.scalars.ok_or_else(|| internal("a parallel loop without a range"))?;
                        let constant = MemFlagsData::new().with_notrap().with_readonly().with_aligned();
                        let lo = self.b.ins().load(types::I64, constant, scalars, 0);
                        let hi = self.b.ins().load(types::I64, constant, scalars, 8);
                        let (lo, hi) = (self.times(lo, *step), self.times(hi, *step));
                        let last = (range.1.as_constant().unwrap_or(i64::MAX / 4) - 1).saturating_mul(*step);
                        self.serial(*var, (lo, hi, *step), (0, last), false, body)
                    }
                    LoopKind::Grid | LoopKind::Threads => {
                        Err(unsupported("the kernel is for a GPU, which Cranelift has no code for"))
                    }
                    _ => self.counted(*var, range, body),
                }
            }
            Stmt::Let { var, op, args } => {
                let bind = self.operation(*op, args)?;
                self.bind(*var, bind);
                Ok(())
            }
            Stmt::LetIndex { var, index } => {
                let index = self.resolve(index);
                self.ranges[var.0 as usize] = index.interval(&|v: u32| self.ranges[v as usize]);
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
            Stmt::Apply { f, buf, start, len } => self.apply_strip(*f, *buf, start, len),
            Stmt::Alloc { buf } => self.alloc(*buf),
            Stmt::If { cond, then, otherwise } => self.branch(*cond, then, otherwise),
            _ => Err(unsupported("the kernel is for a GPU, which Cranelift has no code for")),
        }
    }

    fn apply_strip(&mut self, f: MathFn, buf: Buf, start: &Index, len: &Index) -> Result<()> {
        let Storage::Memory(base) = self.storage[buf.0 as usize].clone() else {
            return Err(internal("a strip that is not in memory"));
        };
        let (start, len) = (self.resolve(start), self.resolve(len));
        let (address, offset) = self.address(base, buf, &start)?;
        let address = self.b.ins().iadd_imm_s(address, i64::from(offset));
        let len = self.index_value(&len)?.0;
        let callee = self.externals.get(&crate::symbols::strip(f).0).copied();
        let callee = callee.ok_or_else(|| internal(format!("a strip of `{}` has no callee", f.name())))?;
        self.b.ins().call(callee, &[address, len]);
        Ok(())
    }

    fn times(&mut self, v: Value, factor: i64) -> Value {
        if factor == 1 { v } else { self.b.ins().imul_imm_s(v, factor) }
    }

    pub fn bind(&mut self, var: Var, bind: Bind) {
        self.vars[var.0 as usize] = bind;
    }

    pub fn uniform(&self, v: Value) -> Bind {
        Bind::Uniform(v, self.depth())
    }

    pub fn dtype(&self, operand: Operand) -> DType {
        match operand {
            Operand::Var(v) => self.kernel.var(v).dtype,
            Operand::Const(c) => c.dtype,
        }
    }

    pub fn buf_dtype(&self, buf: Buf) -> DType {
        self.kernel.buf(buf).dtype
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

    /// An operand that is the same in every lane, or `None`.
    pub fn scalar_operand(&mut self, operand: Operand) -> Result<Option<Arg>> {
        if let Some(c) = self.known(operand) {
            return Ok(Some(Arg { v: self.carried(c), c: Some(c) }));
        }
        let Operand::Var(var) = operand else { return Ok(None) };
        match self.vars[var.0 as usize].clone() {
            Bind::Uniform(v, _) => Ok(Some(Arg { v, c: None })),
            Bind::Index(index) if !self.varies(&index) => {
                let (v, _) = self.index_value(&index)?;
                Ok(Some(Arg { v, c: None }))
            }
            Bind::Unset => Err(internal(format!("`{}` is used before it is bound", self.kernel.var(var).name))),
            _ => Ok(None),
        }
    }

    fn operation(&mut self, op: ScalarOp, operands: &[Operand]) -> Result<Bind> {
        let known: Option<SmallVec<[Scalar; 3]>> = operands.iter().map(|o| self.known(*o)).collect();
        let dtype = self.dtype(operands[0]);
        // Library calls are not evaluated here: their bits belong to the run-time library.
        if let (Some(args), false) = (known, crate::symbols::callee(op, dtype).is_some()) {
            return Ok(Bind::Const(op.eval(&args)));
        }
        let mut args: SmallVec<[Arg; 3]> = SmallVec::new();
        for operand in operands {
            match self.scalar_operand(*operand)? {
                Some(a) => args.push(a),
                None => return self.lane_operation(op, operands).map(Bind::Lanes),
            }
        }
        let value = self.apply(op, dtype, &args)?;
        let value = value.ok_or_else(|| internal(format!("no code for `{}` on {dtype}", op.name())))?;
        Ok(self.uniform(value))
    }

    fn unrolled(&mut self, var: Var, (lo, hi, step): (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let (lo, hi) = (lo.as_constant().unwrap_or(0), hi.as_constant().unwrap_or(0));
        let mut i = lo;
        while i < hi {
            self.vars[var.0 as usize] = Bind::Const(Scalar::i64(i));
            self.block(body)?;
            i += step.max(1);
        }
        Ok(())
    }

    fn counted(&mut self, var: Var, (lo, hi, step): (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let interval = |i: &Index| i.interval(&|v: u32| self.ranges[v as usize]);
        let range = (interval(&lo).0, interval(&hi).1.saturating_sub(1));
        let runs = match (lo.as_constant(), hi.as_constant()) {
            (Some(lo), Some(hi)) if lo >= hi => return Ok(()),
            (Some(_), Some(_)) => true,
            _ => false,
        };
        let (lo, hi) = (self.index_value(&lo)?.0, self.index_value(&hi)?.0);
        self.serial(var, (lo, hi, step), range, runs, body)
    }

    /// A loop tested at its end; `runs` says that there is a first iteration.
    fn serial(
        &mut self,
        var: Var,
        (lo, hi, step): (Value, Value, i64),
        range: Interval,
        runs: bool,
        body: &[Stmt],
    ) -> Result<()> {
        let (start, exit) = (self.b.create_block(), self.b.create_block());
        let counter = self.b.append_block_param(start, types::I64);
        let entry = if runs {
            self.b.ins().jump(start, &[BlockArg::Value(lo)])
        } else {
            let any = self.b.ins().icmp(IntCC::SignedLessThan, lo, hi);
            self.b.ins().brif(any, start, &[BlockArg::Value(lo)], exit, &[])
        };
        self.b.switch_to_block(start);
        self.scopes.push(Scope { entry: Some(entry), known: HashMap::new() });
        self.bind(var, Bind::Uniform(counter, self.depth()));
        self.ranges[var.0 as usize] = range;
        self.block(body)?;
        let next = self.b.ins().iadd_imm_s(counter, step.max(1));
        let more = self.b.ins().icmp(IntCC::SignedLessThan, next, hi);
        self.b.ins().brif(more, start, &[BlockArg::Value(next)], exit, &[]);
        self.scopes.pop();
        self.b.seal_block(start);
        self.b.switch_to_block(exit);
        self.b.seal_block(exit);
        Ok(())
    }

    fn branch(&mut self, cond: Operand, then: &[Stmt], otherwise: &[Stmt]) -> Result<()> {
        if let Some(c) = self.known(cond) {
            return self.block(if c.as_bool() { then } else { otherwise });
        }
        let Some(cond) = self.scalar_operand(cond)? else {
            return Err(internal("a branch that differs by lane in a vectorised loop"));
        };
        let blocks = [self.b.create_block(), self.b.create_block()];
        let join = if otherwise.is_empty() { blocks[1] } else { self.b.create_block() };
        let entry = self.b.ins().brif(cond.v, blocks[0], &[], blocks[1], &[]);
        for (start, body) in blocks.into_iter().zip([then, otherwise]) {
            if start == join {
                break;
            }
            self.b.switch_to_block(start);
            self.b.seal_block(start);
            self.scopes.push(Scope { entry: Some(entry), known: HashMap::new() });
            self.block(body)?;
            self.scopes.pop();
            self.b.ins().jump(join, &[]);
        }
        self.b.switch_to_block(join);
        self.b.seal_block(join);
        Ok(())
    }

    fn vector_loop(&mut self, var: Var, range: (Index, Index, i64), body: &[Stmt]) -> Result<()> {
        let extent = range.1.sub(&range.0).as_constant();
        let lanes = extent.filter(|&n| self.vectors && n > 0 && n % 4 == 0 && n <= 64 && range.2 == 1);
        if let (Some(lanes), None) = (lanes, &self.lanes)
            && analysis::vectorizable(self.kernel, &self.plan, var, body)
        {
            let lo_interval = range.0.interval(&|v: u32| self.ranges[v as usize]);
            self.ranges[var.0 as usize] = (lo_interval.0, lo_interval.1 + lanes - 1);
            self.bind(var, Bind::Lane);
            self.lanes = Some(LaneLoop { var: var.0, lanes: lanes as usize, lo: range.0 });
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
