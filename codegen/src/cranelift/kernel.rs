//! The instructions of Cranelift that a kernel is written with: parameters, index arithmetic, structured control flow.
//!
//! Index arithmetic is placed before the outermost loop whose variables it uses. Equal computations of one scope are
//! shared.

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, FuncRef, InstBuilder, StackSlotData, StackSlotKind, Value, ValueDef, types};
use cranelift_frontend::FunctionBuilder;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, Operand, Stmt};
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};
use tensorc_schedule::target::VectorLevel;

use super::state::{BufferStorage, Chunks, Gen, parameter};
use super::types::chunk_type;
use super::vector_loop;
use crate::analysis::{Class, KernelAnalysis};
use crate::vector::CompiledLoop;
use crate::walk::{
    self, Bind, ElementAccess, Guard, IndexOp, KernelEmitter, KernelWalker, LaneArg, Shaped, UniformOperand, internal,
    not_live,
};

/// Writes the whole function; the builder is ready to be finalized afterwards. `vectors`: whether the target has them, and
/// what it has for loops over wide ones. The code of such loops comes with the function.
pub(super) fn translate<'b>(
    b: FunctionBuilder<'b>,
    kernel: &Kernel,
    externals: &BTreeMap<String, FuncRef>,
    (vectors, level): (bool, Option<VectorLevel>),
) -> Result<(FunctionBuilder<'b>, Vec<CompiledLoop>)> {
    let code = Gen::new(b, kernel, externals, level);
    let mut done = KernelWalker::run(kernel, KernelAnalysis::new(kernel, vectors), code)?;
    done.b.ins().return_(&[]);
    Ok((done.b, done.loops))
}

impl KernelEmitter for Gen<'_, '_> {
    type Value = Value;
    type Lanes = Chunks;
    type Address = (Value, i32);

    fn scalar(&mut self, i: usize) -> Result<Value> {
        Ok(self.b.ins().load(types::I64, parameter(), self.scalars, 8 * i as i32))
    }

    fn constant(&mut self, c: Scalar) -> Result<Value> {
        Ok(self.carried(c))
    }

    fn index(&mut self, op: IndexOp<Value>) -> Result<Value> {
        let depth = match op {
            IndexOp::Const(_) => self.scopes.len() - 1,
            IndexOp::Add(a, b) | IndexOp::Rest(a, b) | IndexOp::Min(a, b) | IndexOp::Max(a, b) => {
                self.depth(a).max(self.depth(b))
            }
            IndexOp::AddConst(a, _) | IndexOp::Scale(a, _) | IndexOp::Mask(a, _) => self.depth(a),
            IndexOp::ShiftRight(a, _) => self.depth(a),
            // Values in `0..2³¹` are multiplied by the rounded-up reciprocal (Granlund and Montgomery 1994, theorem
            // 4.2 with N = 31).
            IndexOp::Divide(a, d, (lo, hi)) if lo >= 0 && hi < 1 << 31 && d < 1 << 31 => {
                let shift = 31 + (64 - (d - 1).leading_zeros());
                let reciprocal = ((1i128 << shift) + i128::from(d) - 1) / i128::from(d);
                let product = self.index(IndexOp::Scale(a, reciprocal as i64))?;
                return self.index(IndexOp::ShiftRight(product, shift));
            }
            IndexOp::Divide(a, ..) => self.depth(a),
        };
        Ok(self.place(op, depth))
    }

    fn depth(&self, v: Value) -> usize {
        let block = match self.b.func.dfg.value_def(v) {
            ValueDef::Result(inst, _) => self.b.func.layout.inst_block(inst),
            ValueDef::Param(block, _) => Some(block),
            ValueDef::Union(..) => None,
        };
        // A register buffer may hold what was computed in a loop that has ended.
        block.map_or(0, |block| self.depths[block]).min(self.scopes.len() - 1)
    }

    fn steps(&mut self, first: Value, step: i64, lanes: usize) -> Result<Chunks> {
        let first = self.b.ins().splat(types::I64X2, first);
        let mut chunks = Chunks::new();
        for lane in (0..lanes as i64).step_by(2) {
            let data = [lane * step, (lane + 1) * step].iter().flat_map(|x| x.to_le_bytes()).collect();
            let steps = self.vector_const(types::I64X2, data);
            chunks.push(self.b.ins().iadd(first, steps));
        }
        Ok(chunks)
    }

    fn splat(&mut self, a: UniformOperand<Value>, dtype: DType, lanes: usize) -> Result<Chunks> {
        Ok(self.splat_as(a, dtype, lanes, 32))
    }

    fn assemble(&mut self, dtype: DType, values: &[Value]) -> Result<Chunks> {
        let ty = chunk_type(dtype, 32);
        let mut out = Chunks::new();
        for group in values.chunks(ty.lane_count() as usize) {
            let first = self.lane_content(dtype, group[0]);
            let mut chunk = self.b.ins().scalar_to_vector(ty, first);
            for (i, v) in group.iter().enumerate().skip(1) {
                chunk = self.insert(dtype, chunk, *v, i);
            }
            out.push(chunk);
        }
        Ok(out)
    }

    fn extract(&mut self, dtype: DType, from: &Chunks, lane: usize) -> Result<Value> {
        let per = self.ty(from[0]).lane_count() as usize;
        Ok(self.content(dtype, from[lane / per], lane % per))
    }

    fn apply(&mut self, op: ScalarOp, dtype: DType, args: &[UniformOperand<Value>]) -> Result<Value> {
        let v = self.operation(op, dtype, args)?;
        v.ok_or_else(|| internal(format!("no code for `{}` on {dtype}", op.name())))
    }

    fn apply_lanes(&mut self, op: ScalarOp, args: &[LaneArg<Self>], lanes: usize) -> Result<Chunks> {
        self.lane_operation(op, args, lanes)
    }

    fn reserve(&mut self, buf: Buf, class: Class) -> Result<()> {
        if class == Class::Memory {
            let info = self.kernel.buf(buf);
            let bytes = (info.elements() as u32 * info.dtype.size() as u32).max(1);
            let slot = self.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 4));
            self.storage[buf.0 as usize] = BufferStorage::Memory(self.b.ins().stack_addr(types::I64, slot, 0));
        }
        Ok(())
    }

    fn alloc(&mut self, buf: Buf, class: Class, lanes: Option<usize>) -> Result<()> {
        if class != Class::Memory {
            self.storage[buf.0 as usize] = self.registers(buf, class, lanes);
        }
        Ok(())
    }

    fn in_memory(&self, buf: Buf) -> Option<bool> {
        match self.storage[buf.0 as usize] {
            BufferStorage::None => None,
            BufferStorage::Memory(_) => Some(true),
            _ => Some(false),
        }
    }

    fn address(&mut self, buf: Buf, parts: &[(Value, i64)], constant: i64) -> Result<(Value, i32)> {
        let BufferStorage::Memory(base) = self.storage[buf.0 as usize] else { return Err(not_live(self.kernel, buf)) };
        let size = self.buf_dtype(buf).size() as i64;
        let address = walk::sum(self, Some(base), parts, size, 0)?;
        let offset = constant.wrapping_mul(size);
        // Room for the chunks of a vector access behind the element.
        match i32::try_from(offset) {
            Ok(offset) if offset < i32::MAX - 4096 => Ok((address, offset)),
            _ => Ok((self.index(IndexOp::AddConst(address, offset))?, 0)),
        }
    }

    fn load(&mut self, from: ElementAccess<(Value, i32)>, guard: Option<(Value, Scalar)>) -> Result<Value> {
        Ok(self.load_one(self.buf_dtype(from.buf), from.at, guard))
    }

    fn load_lanes(
        &mut self,
        from: ElementAccess<(Value, i32)>,
        stride: i64,
        lanes: usize,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Option<Chunks>> {
        match (stride, guard) {
            (1, guard) => self.load_consecutive(from, lanes, guard).map(Some),
            (2, None) if self.buf_dtype(from.buf).size() == 4 => Ok(Some(self.load_alternate(from, lanes))),
            _ => Ok(None),
        }
    }

    fn store(&mut self, to: ElementAccess<(Value, i32)>, value: Value) -> Result<()> {
        self.store_scalar(self.buf_dtype(to.buf), value, to.at);
        Ok(())
    }

    fn store_lanes(&mut self, to: ElementAccess<(Value, i32)>, values: &Chunks) -> Result<()> {
        self.store_chunks(self.buf_dtype(to.buf), values, to.at);
        Ok(())
    }

    fn load_register(
        walk: &mut KernelWalker<'_, Self>,
        buf: Buf,
        index: &Index,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Bind<Self>> {
        let private = matches!(walk.code.storage[buf.0 as usize], BufferStorage::Private(_));
        if !private && !walk.varies(index) && !matches!(guard, Some((Shaped::Lanes(_), _))) {
            let mut v = walk.code.element(buf, index.as_constant())?;
            if let Some((Shaped::Uniform(c), fill)) = guard {
                let fill = walk.code.carried(fill);
                v = walk.code.b.ins().select(c.v, v, fill);
            }
            return Ok(Bind::Uniform(v));
        }
        let lanes = walk.lane_count()?;
        let chunks: Chunks = match Gen::chunks_of(walk, buf, index)? {
            Some(vars) => vars.into_iter().map(|v| walk.code.b.use_var(v)).collect(),
            None => {
                let mut values = Vec::with_capacity(lanes);
                for lane in 0..lanes {
                    let at = walk.at_lane(index, lane)?.as_constant();
                    values.push(walk.code.element(buf, at)?);
                }
                walk.code.assemble(walk.code.buf_dtype(buf), &values)?
            }
        };
        let Some((c, fill)) = guard else { return Ok(Bind::Lanes(chunks)) };
        let g = &mut walk.code;
        let width = chunks.first().map_or(32, |c| g.ty(*c).lane_type().bits());
        let mask = g.lane_value(c, DType::Bool, lanes, width);
        let fill = g.fill(fill, lanes, width);
        Ok(Bind::Lanes(g.choose_chunks(&mask, &chunks, &fill)))
    }

    fn store_register(walk: &mut KernelWalker<'_, Self>, buf: Buf, index: &Index, value: Operand) -> Result<()> {
        let private = matches!(walk.code.storage[buf.0 as usize], BufferStorage::Private(_));
        let dtype = walk.code.buf_dtype(buf);
        let value = walk.shaped(value)?;
        if let (Shaped::Uniform(a), false, false) = (&value, private, walk.varies(index)) {
            return walk.code.set_element(buf, index.as_constant(), a.v);
        }
        let lanes = walk.lane_count()?;
        let chunks = walk.code.lane_value(&value, dtype, lanes, 32);
        if let Some(vars) = Gen::chunks_of(walk, buf, index)? {
            for (var, chunk) in vars.into_iter().zip(chunks) {
                walk.code.b.def_var(var, chunk);
            }
            return Ok(());
        }
        for lane in 0..lanes {
            let v = walk.code.extract(dtype, &chunks, lane)?;
            let at = walk.at_lane(index, lane)?.as_constant();
            walk.code.set_element(buf, at, v)?;
        }
        Ok(())
    }

    fn strip(&mut self, f: MathFn, at: (Value, i32), len: Value) -> Result<()> {
        let address = self.pointer(at);
        self.call(&crate::symbols::strip(f).0, &[address, len]).map(drop)
    }

    fn repeat(
        walk: &mut KernelWalker<'_, Self>,
        (lo, hi, step): (Value, Value, i64),
        runs: bool,
        body: impl FnOnce(&mut KernelWalker<'_, Self>, Value) -> Result<()>,
    ) -> Result<()> {
        let (start, exit) = (walk.code.new_block(true), walk.code.new_block(false));
        let b = &mut walk.code.b;
        let counter = b.append_block_param(start, types::I64);
        let entry = if runs {
            b.ins().jump(start, &[BlockArg::Value(lo)])
        } else {
            let any = b.ins().icmp(IntCC::SignedLessThan, lo, hi);
            b.ins().brif(any, start, &[BlockArg::Value(lo)], exit, &[])
        };
        b.switch_to_block(start);
        Gen::scope(walk, entry, |walk| body(walk, counter))?;
        let b = &mut walk.code.b;
        let next = b.ins().iadd_imm_s(counter, step.max(1));
        let more = b.ins().icmp(IntCC::SignedLessThan, next, hi);
        b.ins().brif(more, start, &[BlockArg::Value(next)], exit, &[]);
        b.seal_block(start);
        b.switch_to_block(exit);
        b.seal_block(exit);
        Ok(())
    }

    fn loops(walk: &mut KernelWalker<'_, Self>, block: &[Stmt]) -> Result<usize> {
        vector_loop::call(walk, block)
    }

    fn branch(walk: &mut KernelWalker<'_, Self>, cond: Value, arms: [&[Stmt]; 2]) -> Result<()> {
        let g = &mut walk.code;
        let (then, join) = (g.new_block(true), g.new_block(false));
        let otherwise = if arms[1].is_empty() { join } else { g.new_block(true) };
        let blocks = [then, otherwise];
        let entry = g.b.ins().brif(cond, then, &[], otherwise, &[]);
        for (start, body) in blocks.into_iter().zip(arms) {
            if start == join {
                break;
            }
            walk.code.b.switch_to_block(start);
            walk.code.b.seal_block(start);
            Gen::scope(walk, entry, |walk| walk.block(body))?;
            walk.code.b.ins().jump(join, &[]);
        }
        walk.code.b.switch_to_block(join);
        walk.code.b.seal_block(join);
        Ok(())
    }
}
