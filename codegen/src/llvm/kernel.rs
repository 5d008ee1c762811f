//! The instructions of LLVM that a kernel is written with: parameters, index arithmetic, structured control flow.
//!
//! Values of lanes are vectors. LLVM moves index arithmetic out of loops; what it cannot know is that a dividend is not negative,
//! which the intervals of variables say. Arrays that live in registers are memory of the function, which LLVM's scalar
//! replacement dissolves.

use inkwell::IntPredicate;
use inkwell::values::{FunctionValue, InstructionOpcode as Op, PointerValue};
use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Operand, Stmt};
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

use super::ir::{Ir, Value, constant_vector, lanes_of};
use super::scalar::ProcessorTraits;
use super::state::{BufferStorage, Gen};
use crate::analysis::{Class, KernelAnalysis};
use crate::symbols;
use crate::walk::{
    self, Bind, ElementAccess, Guard, IndexOp, KernelEmitter, KernelWalker, LaneArg, Shaped, UniformOperand, internal,
    not_live, unsupported,
};

/// Writes the body of `function`, whose parameters are the buffers and the scalars of the kernel; on a GPU every
/// buffer and every scalar.
pub(super) fn write_body<'c>(
    ir: Ir<'c, '_>,
    machine: ProcessorTraits,
    kernel: &Kernel,
    function: FunctionValue<'c>,
) -> Result<()> {
    let entry = ir.cx.append_basic_block(function, "entry");
    let start = ir.cx.append_basic_block(function, "start");
    ir.b.position_at_end(start);
    let storage = vec![BufferStorage::None; kernel.buffers.len()];
    let (spare, shows_tiles, scalars) = (None, false, None);
    let mut g = Gen { ir, kernel, machine, storage, spare, shows_tiles, function, entry, scalars };
    match machine.gpu {
        true => g.take_parameters()?,
        false => g.load_parameters()?,
    }
    let ir = KernelWalker::run(kernel, KernelAnalysis::new(kernel, true), g)?.ir;
    ir.ret()?;
    ir.b.position_at_end(entry);
    ir.jump(start)
}

impl<'c> Gen<'c, '_, '_> {
    fn load_parameters(&mut self) -> Result<()> {
        let buffers = self.parameter(0)?;
        self.scalars = Some(self.parameter(1)?);
        let pointer = self.ir.pointer_type();
        for i in 0..self.kernel.params {
            let at = self.ir.element(pointer, buffers, self.ir.i64(i as i64))?;
            let Value::PointerValue(base) = self.ir.load(pointer, at, 8)? else {
                return Err(internal("expected a pointer for a buffer"));
            };
            self.storage[i] = BufferStorage::Memory(base);
        }
        Ok(())
    }

    fn constant_like(&self, v: Value<'c>, c: i64) -> Result<Value<'c>> {
        self.ir.bits_like(v, c as u64)
    }

    /// Operands of one shape.
    fn alike(&self, a: Value<'c>, b: Value<'c>) -> Result<[Value<'c>; 2]> {
        let shape = |v, like| lanes_of(like).map_or(Ok(v), |lanes| self.ir.splat(v, lanes));
        Ok([shape(a, b)?, shape(b, a)?])
    }

    fn divide(&self, v: Value<'c>, d: i64, (lo, hi): (i64, i64)) -> Result<Value<'c>> {
        if lo >= 0 && hi <= i64::from(u32::MAX) && d <= i64::from(u32::MAX) {
            let narrow = self.ir.cast(Op::Trunc, v, self.ir.ints_like(v, 32)?)?;
            let quotient = self.ir.binary(Op::UDiv, narrow, self.constant_like(narrow, d)?)?;
            return self.ir.cast(Op::ZExt, quotient, v.get_type());
        }
        self.ir.binary(if lo >= 0 { Op::UDiv } else { Op::SDiv }, v, self.constant_like(v, d)?)
    }

    /// In 32 bits if the value is a quotient of 32 bits, because of an error of NVIDIA's assembler (ptxas 13.0, sm_90): it makes one
    /// instruction of the high half of a 32-bit product and a 64-bit subtraction from it, and takes the borrow of that for 1 where
    /// nothing is subtracted.
    fn rest(&self, v: Value<'c>, multiple: Value<'c>) -> Result<Value<'c>> {
        let instruction = match v {
            Value::IntValue(v) => v.as_instruction(),
            Value::VectorValue(v) => v.as_instruction(),
            _ => None,
        };
        let widened = instruction.filter(|i| i.get_opcode() == Op::ZExt);
        let Some(quotient) = widened.and_then(|i| i.get_operand(0)?.value()) else {
            return self.ir.sub(v, multiple);
        };
        let narrow = self.ir.cast(Op::Trunc, multiple, quotient.get_type())?;
        self.ir.cast(Op::ZExt, self.ir.sub(quotient, narrow)?, v.get_type())
    }
}

impl<'c> KernelEmitter for Gen<'c, '_, '_> {
    type Value = Value<'c>;
    type Lanes = Value<'c>;
    type Address = PointerValue<'c>;

    fn scalar(&mut self, i: usize) -> Result<Value<'c>> {
        if self.machine.gpu {
            let value = self.function.get_nth_param((self.kernel.params + i) as u32);
            return value.ok_or_else(|| internal("a kernel without scalars"));
        }
        let ty = self.ir.int(64).into();
        let scalars = self.scalars.ok_or_else(|| internal("a kernel without scalars"))?;
        let at = self.ir.element(ty, scalars, self.ir.i64(i as i64))?;
        self.ir.load(ty, at, 8)
    }

    fn constant(&mut self, c: Scalar) -> Result<Value<'c>> {
        self.ir.scalar(c)
    }

    fn index(&mut self, op: IndexOp<Value<'c>>) -> Result<Value<'c>> {
        let extremum = |name: &str, [a, b]: [Value<'c>; 2]| self.ir.intrinsic(name, &[a.get_type()], &[a, b]);
        match op {
            IndexOp::Const(c) => Ok(self.ir.i64(c).into()),
            IndexOp::Add(a, b) => self.alike(a, b).and_then(|[a, b]| self.ir.add(a, b)),
            IndexOp::Rest(a, multiple) => self.rest(a, multiple),
            IndexOp::AddConst(a, c) => self.ir.add(a, self.constant_like(a, c)?),
            IndexOp::Scale(a, c) => self.ir.mul(a, self.constant_like(a, c)?),
            IndexOp::ShiftRight(a, by) => self.ir.shift(Op::AShr, a, by),
            IndexOp::Mask(a, c) => self.ir.and_bits(a, c as u64),
            IndexOp::Divide(a, d, interval) => self.divide(a, d, interval),
            IndexOp::Min(a, b) => extremum("llvm.smin", self.alike(a, b)?),
            IndexOp::Max(a, b) => extremum("llvm.smax", self.alike(a, b)?),
        }
    }

    /// Index arithmetic on vectors.
    fn index_lanes(walk: &mut KernelWalker<'_, Self>, index: &Index) -> Result<Value<'c>> {
        let Some(current) = walk.lanes.clone() else { return Err(internal("lanes outside of a vector loop")) };
        let first = walk.index_value(&current.lo)?;
        let values = walk.code.steps(first, 1, current.lanes)?;
        let lane = walk.name(values, current.var);
        let index = walk.without_lanes(index, (current.var, lane), |_, lanes| Ok(*lanes))?;
        walk.index_value(&index)
    }

    fn steps(&mut self, first: Value<'c>, step: i64, lanes: usize) -> Result<Value<'c>> {
        let steps: Vec<Value<'c>> = (0..lanes as i64).map(|l| self.ir.i64(l.wrapping_mul(step)).into()).collect();
        let first = self.ir.splat(first, lanes as u32)?;
        self.ir.add(first, constant_vector(&steps).into())
    }

    fn splat(&mut self, a: UniformOperand<Value<'c>>, _: DType, lanes: usize) -> Result<Value<'c>> {
        self.ir.splat(a.v, lanes as u32)
    }

    fn assemble(&mut self, _: DType, values: &[Value<'c>]) -> Result<Value<'c>> {
        self.ir.assemble(values)
    }

    fn extract(&mut self, _: DType, from: &Value<'c>, lane: usize) -> Result<Value<'c>> {
        self.ir.extract(*from, lane)
    }

    fn apply(&mut self, op: ScalarOp, dtype: DType, args: &[UniformOperand<Value<'c>>]) -> Result<Value<'c>> {
        let args: SmallVec<[Value<'c>; 3]> = args.iter().map(|a| a.v).collect();
        self.ir.apply(self.machine, op, dtype, &args)
    }

    fn apply_lanes(&mut self, op: ScalarOp, args: &[LaneArg<Self>], lanes: usize) -> Result<Value<'c>> {
        let mut values: SmallVec<[Value<'c>; 3]> = SmallVec::new();
        for arg in args {
            values.push(match arg.value {
                Shaped::Uniform(a) => self.ir.splat(a.v, lanes as u32)?,
                Shaped::Lanes(v) => v,
            });
        }
        self.ir.apply(self.machine, op, args[0].dtype, &values)
    }

    /// What is accessed at constant positions only never becomes memory.
    fn reserve(&mut self, buf: Buf, _: Class) -> Result<()> {
        let info = self.kernel.buf(buf);
        self.storage[buf.0 as usize] =
            BufferStorage::Memory(self.local(self.ir.memory_type(info.dtype), info.elements() as u32)?);
        Ok(())
    }

    fn alloc(&mut self, buf: Buf, _: Class, lanes: Option<usize>) -> Result<()> {
        let info = self.kernel.buf(buf);
        if info.space.is_shared() {
            return self.alloc_shared(buf);
        }
        if let Some(lanes) = lanes.map(|n| n as u32) {
            let vector = self.ir.shaped(self.ir.memory_type(info.dtype), Some(lanes))?;
            self.storage[buf.0 as usize] = BufferStorage::Private(self.local(vector, info.elements() as u32)?, lanes);
        }
        Ok(())
    }

    fn in_memory(&self, buf: Buf) -> Option<bool> {
        match self.storage[buf.0 as usize] {
            BufferStorage::None => None,
            BufferStorage::Memory(_) => Some(true),
            BufferStorage::Private(..) => Some(false),
        }
    }

    fn address(&mut self, buf: Buf, parts: &[(Value<'c>, i64)], constant: i64) -> Result<PointerValue<'c>> {
        let BufferStorage::Memory(base) = self.storage[buf.0 as usize] else { return Err(not_live(self.kernel, buf)) };
        let Value::IntValue(at) = walk::sum(self, None, parts, 1, constant)? else {
            return Err(internal("an address that differs by lane"));
        };
        self.ir.element(self.ir.memory_type(self.kernel.buf(buf).dtype), base, at)
    }

    fn load(&mut self, from: ElementAccess<PointerValue<'c>>, guard: Option<(Value<'c>, Scalar)>) -> Result<Value<'c>> {
        self.load_guarded(from, None, guard)
    }

    fn load_lanes(
        &mut self,
        from: ElementAccess<PointerValue<'c>>,
        stride: i64,
        lanes: usize,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Option<Value<'c>>> {
        let lanes = lanes as u32;
        let loaded = match guard {
            None if stride == 1 => self.load_guarded(from, Some(lanes), None),
            Some((Shaped::Uniform(c), fill)) if stride == 1 => self.load_guarded(from, Some(lanes), Some((c.v, fill))),
            Some((Shaped::Lanes(mask), fill)) if stride == 1 && !self.machine.gpu => {
                self.load_masked(from, *mask, fill)
            }
            None if !self.machine.gpu => self.load_alternate(from, lanes),
            _ => return Ok(None),
        };
        loaded.map(Some)
    }

    fn store(&mut self, to: ElementAccess<PointerValue<'c>>, value: Value<'c>) -> Result<()> {
        let at = self.target(to.buf, to.at)?;
        self.store_at(self.kernel.buf(to.buf).dtype, value, at, self.alignment(to))
    }

    fn store_lanes(&mut self, to: ElementAccess<PointerValue<'c>>, values: &Value<'c>) -> Result<()> {
        self.check_piece(to, *values)?;
        self.store(to, *values)
    }

    fn load_register(
        walk: &mut KernelWalker<'_, Self>,
        buf: Buf,
        index: &Index,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Bind<Self>> {
        let (at, lanes) = Gen::private(walk, buf, index)?;
        let g = &mut walk.code;
        let dtype = g.kernel.buf(buf).dtype;
        let Some((c, fill)) = guard else { return g.load_at(dtype, at, Some(lanes)).map(Bind::Lanes) };
        let (condition, any) = match c {
            Shaped::Uniform(c) => (c.v, c.v),
            // The position is one for all lanes, and inside where any lane reads it.
            Shaped::Lanes(c) => (*c, g.ir.intrinsic("llvm.vector.reduce.or", &[c.get_type()], &[*c])?),
        };
        let at = g.guarded(any, at)?;
        let value = g.load_at(dtype, at, Some(lanes))?;
        let fill = g.ir.splat(g.ir.scalar(fill)?, lanes)?;
        g.ir.select(condition, value, fill).map(Bind::Lanes)
    }

    fn store_register(walk: &mut KernelWalker<'_, Self>, buf: Buf, index: &Index, value: Operand) -> Result<()> {
        let value = walk.lane_operand(value)?;
        let (at, _) = Gen::private(walk, buf, index)?;
        let dtype = walk.kernel.buf(buf).dtype;
        walk.code.store_at(dtype, value, at, dtype.size() as u32)
    }

    fn strip(&mut self, f: MathFn, at: PointerValue<'c>, len: Value<'c>) -> Result<()> {
        if self.machine.gpu {
            return Err(unsupported(format!("a strip of `{}` has no code for a GPU", f.name())));
        }
        let types = [self.ir.pointer_type(), self.ir.int(64).into()];
        let function = self.ir.declare(&symbols::strip(f).0, &types, None);
        self.ir.call(function, &[at.into(), len]).map(drop)
    }

    fn repeat(
        walk: &mut KernelWalker<'_, Self>,
        (lo, hi, step): (Value<'c>, Value<'c>, i64),
        _: bool,
        body: impl FnOnce(&mut KernelWalker<'_, Self>, Value<'c>) -> Result<()>,
    ) -> Result<()> {
        let g = &walk.code;
        let before = g.current_block()?;
        let (start, exit) = (g.new_block("loop"), g.new_block("done"));
        // LLVM drops the test of constants.
        g.ir.branch(g.ir.compare_ints(IntPredicate::SLT, lo, hi)?, start, exit)?;
        g.ir.b.position_at_end(start);
        let counter = g.ir.phi(g.ir.int(64).into())?;
        counter.add_incoming(&[(&lo, before)]);
        body(walk, counter.as_basic_value())?;
        let g = &walk.code;
        let next = g.ir.step(counter.as_basic_value(), g.ir.i64(step.max(1)).into())?;
        let more = g.ir.compare_ints(IntPredicate::SLT, next, hi)?;
        counter.add_incoming(&[(&next, g.current_block()?)]);
        g.ir.branch(more, start, exit)?;
        g.ir.b.position_at_end(exit);
        Ok(())
    }

    fn branch(walk: &mut KernelWalker<'_, Self>, cond: Value<'c>, arms: [&[Stmt]; 2]) -> Result<()> {
        let g = &walk.code;
        let (yes, no, join) = (g.new_block("then"), g.new_block("else"), g.new_block("join"));
        g.ir.branch(cond, yes, no)?;
        for (block, body) in [yes, no].into_iter().zip(arms) {
            walk.code.ir.b.position_at_end(block);
            walk.block(body)?;
            walk.code.ir.jump(join)?;
        }
        walk.code.ir.b.position_at_end(join);
        Ok(())
    }

    fn launched(&mut self, kind: LoopKind) -> Result<Value<'c>> {
        self.launch_position(kind)
    }

    fn on_gpu(walk: &mut KernelWalker<'_, Self>, stmt: &Stmt) -> Result<()> {
        walk.gpu_stmt(stmt)
    }
}
