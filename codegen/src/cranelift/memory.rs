//! Buffers: loads and stores of scalars and lanes, arrays kept in registers.

use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Type, Value, types};
use cranelift_frontend::Variable;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Operand, Space};
use tensorc_ir::scalar::Scalar;

use super::kernel::{Bind, Chunks, Gen, internal, unsupported};
use super::scalar::{Arg, carrier};
use super::vector::chunk_type;
use crate::analysis::Class;

/// Where a buffer's elements are.
#[derive(Clone, Debug)]
pub(super) enum Storage {
    None,
    /// At an address.
    Memory(Value),
    /// One variable for each element.
    Elements(Vec<Variable>),
    /// Vectors of consecutive elements.
    Packed(Vec<Variable>),
    /// For each element the chunks of all lanes of the current vector loop.
    Private(Vec<Vec<Variable>>),
}

/// Stack memory of one kernel, in bytes: well below the stack of any thread.
const MAX_STACK: u64 = 256 << 10;

/// Bytes that a load whose guard is false may read instead: the widest vector access.
const SPARE_BYTES: u32 = 512;

fn unaligned() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Gen<'_, '_> {
    /// Reserves the stack slots of every local array in memory.
    pub(super) fn reserve_stack(&mut self) -> Result<()> {
        let mut total = 0u64;
        for (i, info) in self.kernel.buffers.iter().enumerate().skip(self.kernel.params) {
            if self.plan.class(Buf(i as u32)) != Class::Memory {
                continue;
            }
            let bytes = info.len.saturating_mul(info.dtype.size() as u64);
            total = total.saturating_add(bytes);
            if total > MAX_STACK {
                let message = format!("buffer `{}` of {bytes} bytes does not fit the stack", info.name);
                return Err(unsupported(message));
            }
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes.max(1) as u32, 4);
            let slot = self.b.create_sized_stack_slot(data);
            self.storage[i] = Storage::Memory(self.b.ins().stack_addr(types::I64, slot, 0));
        }
        Ok(())
    }

    pub(super) fn alloc(&mut self, buf: Buf) -> Result<()> {
        let info = self.kernel.buf(buf);
        if self.plan.class(buf) == Class::Memory {
            return Ok(());
        }
        debug_assert_eq!(info.space, Space::Register);
        let (dtype, len) = (info.dtype, info.len as usize);
        let lane_type = chunk_type(dtype, 32);
        let per = lane_type.lane_count() as usize;
        let storage = match (&self.lanes, self.plan.class(buf)) {
            (Some(current), _) => {
                let chunks = current.lanes / per;
                Storage::Private((0..len).map(|_| self.variables(lane_type, chunks)).collect())
            }
            (None, Class::Packed) => Storage::Packed(self.variables(lane_type, len.div_ceil(per))),
            (None, _) => Storage::Elements(self.variables(carrier(dtype), len)),
        };
        self.storage[buf.0 as usize] = storage;
        Ok(())
    }

    /// Variables that begin as zero, so that no loop carries what it does not need.
    fn variables(&mut self, ty: Type, n: usize) -> Vec<Variable> {
        let zero = self.konst(ty, 0);
        let define = |_| {
            let v = self.b.declare_var(ty);
            self.b.def_var(v, zero);
            v
        };
        (0..n).map(define).collect()
    }

    pub(super) fn load(&mut self, buf: Buf, index: &Index, guard: Option<(Operand, Scalar)>) -> Result<Bind> {
        let mut condition = None;
        if let Some((operand, fill)) = guard {
            match self.known(operand).map(|c| c.as_bool()) {
                Some(true) => {}
                Some(false) => return Ok(Bind::Const(fill)),
                None => condition = Some((operand, fill)),
            }
        }
        match self.storage[buf.0 as usize].clone() {
            Storage::Memory(base) => self.load_memory(base, buf, index, condition),
            Storage::None => Err(self.not_live(buf)),
            _ => self.load_register(buf, index, condition),
        }
    }

    /// How a buffer is read: memory that nothing writes may be read earlier, outside of loops.
    fn access(&self, buf: Buf) -> MemFlagsData {
        let info = self.kernel.buf(buf);
        let constant = self.kernel.is_on_blocks() && (buf.0 as usize) < self.kernel.params && !info.writable;
        if constant { unaligned().with_readonly() } else { unaligned() }
    }

    fn not_live(&self, buf: Buf) -> tensorc_ir::diag::Diagnostic {
        internal(format!("buffer `{}` is used before its allocation", self.kernel.buf(buf).name))
    }

    fn load_memory(&mut self, base: Value, buf: Buf, index: &Index, guard: Option<(Operand, Scalar)>) -> Result<Bind> {
        let dtype = self.buf_dtype(buf);
        let uniform_guard = match guard {
            Some((operand, fill)) => self.scalar_operand(operand)?.map(|c| (c.v, fill)),
            None => None,
        };
        let by_lane = guard.is_some() && uniform_guard.is_none();
        if !by_lane && !self.varies(index) {
            let (address, offset) = self.address(base, buf, index)?;
            let v = self.load_one(dtype, address, offset, uniform_guard);
            return Ok(self.uniform(v));
        }
        let lanes = self.lane_count()?;
        if self.is_contiguous(index) {
            let first = self.at_lane(index, 0)?;
            let (address, offset) = self.address(base, buf, &first)?;
            let chunks = match (uniform_guard, guard) {
                (Some((c, fill)), _) => {
                    let address = self.guarded_address(c, address, offset);
                    let loaded = self.load_chunks(dtype, unaligned(), address, 0, lanes);
                    let fill = Arg { v: self.carried(fill), c: Some(fill) };
                    let fill = self.splat(fill, dtype, 32);
                    self.choose_chunks(&[c], &loaded, &fill)
                }
                (None, Some((operand, fill))) => self.load_masked(dtype, (address, offset), operand, fill)?,
                (None, None) => self.load_chunks(dtype, self.access(buf), address, offset, lanes),
            };
            return Ok(Bind::Lanes(chunks));
        }
        if guard.is_none() && dtype.size() == 4 && self.lane_stride(index) == Some(2) {
            let first = self.at_lane(index, 0)?;
            let (address, offset) = self.address(base, buf, &first)?;
            return Ok(Bind::Lanes(self.load_alternate(dtype, address, offset, lanes)));
        }
        let mask = match (by_lane, guard) {
            (true, Some((operand, _))) => Some(self.lane_operand(operand, 32)?),
            _ => None,
        };
        let mut values = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let at = self.at_lane(index, lane)?;
            let (address, offset) = self.address(base, buf, &at)?;
            let guard = match (&mask, guard) {
                (Some(mask), Some((_, fill))) => Some((self.extract(DType::Bool, mask, lane), fill)),
                _ => uniform_guard,
            };
            values.push(self.load_one(dtype, address, offset, guard));
        }
        Ok(Bind::Lanes(self.assemble(dtype, &values)))
    }

    /// Every second element of 32 bits. The two loads of a chunk overlap in one element, so that
    /// nothing beyond the last lane's is read.
    fn load_alternate(&mut self, dtype: DType, address: Value, offset: i32, lanes: usize) -> Chunks {
        let ty = chunk_type(dtype, 32);
        let chunk = |g: &mut Self, i: usize| {
            let at = offset + i as i32 * 32;
            let low = g.b.ins().load(ty, unaligned(), address, at);
            let high = g.b.ins().load(ty, unaligned(), address, at + 12);
            let picked = g.shuffle(low, high, [0, 2, 5, 7]);
            g.reinterpret(ty, picked)
        };
        (0..lanes / 4).map(|i| chunk(self, i)).collect()
    }

    /// Consecutive elements of which some are replaced by `fill`. All lanes are read at once where
    /// no lane is replaced, the common case inside of a padded border.
    fn load_masked(
        &mut self,
        dtype: DType,
        (address, offset): (Value, i32),
        guard: Operand,
        fill: Scalar,
    ) -> Result<Chunks> {
        let lanes = self.lane_count()?;
        let mask = self.lane_operand(guard, carrier(dtype).bits().max(32))?;
        let all = mask[1..].iter().fold(mask[0], |a, m| self.b.ins().band(a, *m));
        let all = self.b.ins().vall_true(all);
        let (fast, slow, join) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.ins().brif(all, fast, &[], slow, &[]);
        self.b.switch_to_block(fast);
        self.b.seal_block(fast);
        let chunks = self.load_chunks(dtype, unaligned(), address, offset, lanes);
        let params: Chunks = chunks.iter().map(|c| self.b.append_block_param(join, self.ty(*c))).collect();
        let args: Vec<BlockArg> = chunks.iter().map(|c| BlockArg::Value(*c)).collect();
        self.b.ins().jump(join, &args);
        self.b.switch_to_block(slow);
        self.b.seal_block(slow);
        let size = dtype.size() as i32;
        let mut values = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let c = self.extract(DType::Bool, &mask, lane);
            values.push(self.load_one(dtype, address, offset + lane as i32 * size, Some((c, fill))));
        }
        let args: Vec<BlockArg> = self.assemble(dtype, &values).iter().map(|c| BlockArg::Value(*c)).collect();
        self.b.ins().jump(join, &args);
        self.b.switch_to_block(join);
        self.b.seal_block(join);
        Ok(params)
    }

    /// `address + offset` where `c` holds, else memory that may be read without harm.
    fn guarded_address(&mut self, c: Value, address: Value, offset: i32) -> Value {
        let address = match offset {
            0 => address,
            _ => self.b.ins().iadd_imm_s(address, i64::from(offset)),
        };
        let slot = match self.spare {
            Some(slot) => slot,
            None => {
                let data = StackSlotData::new(StackSlotKind::ExplicitSlot, SPARE_BYTES, 4);
                *self.spare.insert(self.b.create_sized_stack_slot(data))
            }
        };
        let spare = self.b.ins().stack_addr(types::I64, slot, 0);
        self.b.ins().select(c, address, spare)
    }

    fn load_one(&mut self, dtype: DType, address: Value, offset: i32, guard: Option<(Value, Scalar)>) -> Value {
        let Some((c, fill)) = guard else { return self.load_scalar(dtype, address, offset) };
        let address = self.guarded_address(c, address, offset);
        let loaded = self.load_scalar(dtype, address, 0);
        let fill = self.carried(fill);
        self.b.ins().select(c, loaded, fill)
    }

    fn load_scalar(&mut self, dtype: DType, address: Value, offset: i32) -> Value {
        let flags = unaligned();
        match dtype {
            DType::I8 => self.b.ins().sload8(types::I32, flags, address, offset),
            DType::U8 => self.b.ins().uload8(types::I32, flags, address, offset),
            DType::I16 => self.b.ins().sload16(types::I32, flags, address, offset),
            DType::U16 | DType::F16 | DType::BF16 => self.b.ins().uload16(types::I32, flags, address, offset),
            _ => self.b.ins().load(carrier(dtype), flags, address, offset),
        }
    }

    fn store_scalar(&mut self, dtype: DType, value: Value, address: Value, offset: i32) {
        let flags = unaligned();
        match (dtype, dtype.size()) {
            (DType::Bool, _) => self.b.ins().store(flags, value, address, offset),
            (_, 1) => self.b.ins().istore8(flags, value, address, offset),
            (_, 2) => self.b.ins().istore16(flags, value, address, offset),
            _ => self.b.ins().store(flags, value, address, offset),
        };
    }

    fn load_register(&mut self, buf: Buf, index: &Index, guard: Option<(Operand, Scalar)>) -> Result<Bind> {
        let dtype = self.buf_dtype(buf);
        let uniform = guard.is_none() && !self.varies(index);
        if !uniform || matches!(self.storage[buf.0 as usize], Storage::Private(_)) {
            let chunks = self.register_chunks(buf, index)?;
            let Some((operand, fill)) = guard else { return Ok(Bind::Lanes(chunks)) };
            if self.lanes.is_some() {
                let width = chunks.first().map_or(32, |c| self.ty(*c).lane_type().bits());
                let mask = self.lane_operand(operand, width)?;
                let fill = Arg { v: self.carried(fill), c: Some(fill) };
                let fill = self.splat(fill, dtype, width);
                return Ok(Bind::Lanes(self.choose_chunks(&mask, &chunks, &fill)));
            }
        }
        let v = self.register_element(buf, index.as_constant())?;
        let Some((operand, fill)) = guard else { return Ok(self.uniform(v)) };
        let c = self.scalar_operand(operand)?.ok_or_else(|| internal("a guard that differs by lane"))?;
        let fill = self.carried(fill);
        let v = self.b.ins().select(c.v, v, fill);
        Ok(self.uniform(v))
    }

    fn out_of_range(&self, buf: Buf, at: Option<i64>) -> tensorc_ir::diag::Diagnostic {
        let at = at.map_or("a computed index".to_string(), |i| i.to_string());
        internal(format!("register buffer `{}` accessed at {at}", self.kernel.buf(buf).name))
    }

    fn register_element(&mut self, buf: Buf, at: Option<i64>) -> Result<Value> {
        let dtype = self.buf_dtype(buf);
        let i = at.and_then(|i| usize::try_from(i).ok()).filter(|i| (*i as u64) < self.kernel.buf(buf).len);
        let i = i.ok_or_else(|| self.out_of_range(buf, at))?;
        match self.storage[buf.0 as usize].clone() {
            Storage::Elements(vars) => Ok(self.b.use_var(vars[i])),
            Storage::Packed(vars) => {
                let per = chunk_type(dtype, 32).lane_count() as usize;
                let chunk = self.b.use_var(vars[i / per]);
                Ok(self.extract(dtype, &[chunk], i % per))
            }
            _ => Err(self.not_live(buf)),
        }
    }

    /// The elements of a register buffer that the lanes see.
    fn register_chunks(&mut self, buf: Buf, index: &Index) -> Result<Chunks> {
        let dtype = self.buf_dtype(buf);
        let lanes = self.lane_count()?;
        let first = self.constant_at(index, 0)?;
        let per = chunk_type(dtype, 32).lane_count() as usize;
        match self.storage[buf.0 as usize].clone() {
            Storage::Private(vars) => {
                let element = first.and_then(|i| vars.get(usize::try_from(i).ok()?));
                let element = element.ok_or_else(|| self.out_of_range(buf, first))?;
                return Ok(element.iter().map(|v| self.b.use_var(*v)).collect());
            }
            Storage::Packed(vars) if self.is_contiguous(index) => {
                let chunk = first.filter(|i| *i >= 0 && (*i as usize).is_multiple_of(per)).map(|i| i as usize / per);
                if let Some(found) = chunk.and_then(|c| vars.get(c..c + lanes / per)) {
                    return Ok(found.iter().map(|v| self.b.use_var(*v)).collect());
                }
            }
            _ => {}
        }
        let mut values = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let at = self.constant_at(index, lane)?;
            values.push(self.register_element(buf, at)?);
        }
        Ok(self.assemble(dtype, &values))
    }

    pub(super) fn store(&mut self, buf: Buf, index: &Index, value: Operand) -> Result<()> {
        let dtype = self.buf_dtype(buf);
        let uniform = self.scalar_operand(value)?;
        let varies = self.varies(index);
        match (self.storage[buf.0 as usize].clone(), uniform) {
            (Storage::None, _) => Err(self.not_live(buf)),
            (Storage::Memory(base), Some(value)) if !varies => {
                let (address, offset) = self.address(base, buf, index)?;
                self.store_scalar(dtype, value.v, address, offset);
                Ok(())
            }
            (Storage::Memory(base), uniform) => {
                let lanes = self.lane_count()?;
                if self.is_contiguous(index) {
                    let chunks = self.lane_operand(value, 32)?;
                    let first = self.at_lane(index, 0)?;
                    let (address, offset) = self.address(base, buf, &first)?;
                    self.store_chunks(dtype, &chunks, address, offset);
                    return Ok(());
                }
                let chunks = match uniform {
                    Some(_) => Chunks::new(),
                    None => self.lane_operand(value, 32)?,
                };
                // All lanes write one place: the last one wins.
                let from = if varies { 0 } else { lanes - 1 };
                for lane in from..lanes {
                    let v = match uniform {
                        Some(v) => v.v,
                        None => self.extract(dtype, &chunks, lane),
                    };
                    let at = self.at_lane(index, lane)?;
                    let (address, offset) = self.address(base, buf, &at)?;
                    self.store_scalar(dtype, v, address, offset);
                }
                Ok(())
            }
            (Storage::Elements(_) | Storage::Packed(_), Some(value)) if !varies => {
                self.set_register(buf, index.as_constant(), value.v)
            }
            _ => self.store_register_chunks(buf, index, value),
        }
    }

    fn set_register(&mut self, buf: Buf, at: Option<i64>, value: Value) -> Result<()> {
        let dtype = self.buf_dtype(buf);
        let i = at.and_then(|i| usize::try_from(i).ok()).filter(|i| (*i as u64) < self.kernel.buf(buf).len);
        let i = i.ok_or_else(|| self.out_of_range(buf, at))?;
        match self.storage[buf.0 as usize].clone() {
            Storage::Elements(vars) => self.b.def_var(vars[i], value),
            Storage::Packed(vars) => {
                let per = chunk_type(dtype, 32).lane_count() as usize;
                let chunk = self.b.use_var(vars[i / per]);
                let chunk = self.insert(dtype, chunk, value, i % per);
                self.b.def_var(vars[i / per], chunk);
            }
            _ => return Err(self.not_live(buf)),
        }
        Ok(())
    }

    fn store_register_chunks(&mut self, buf: Buf, index: &Index, value: Operand) -> Result<()> {
        let dtype = self.buf_dtype(buf);
        let lanes = self.lane_count()?;
        let chunks = self.lane_operand(value, 32)?;
        let first = self.constant_at(index, 0)?;
        let per = chunk_type(dtype, 32).lane_count() as usize;
        let whole = match self.storage[buf.0 as usize].clone() {
            Storage::Private(vars) => {
                let element = first.and_then(|i| vars.get(usize::try_from(i).ok()?));
                Some(element.ok_or_else(|| self.out_of_range(buf, first))?.clone())
            }
            Storage::Packed(vars) if self.is_contiguous(index) => {
                let chunk = first.filter(|i| *i >= 0 && (*i as usize).is_multiple_of(per)).map(|i| i as usize / per);
                chunk.and_then(|c| vars.get(c..c + lanes / per)).map(<[Variable]>::to_vec)
            }
            _ => None,
        };
        if let Some(vars) = whole {
            for (var, chunk) in vars.into_iter().zip(chunks) {
                self.b.def_var(var, chunk);
            }
            return Ok(());
        }
        for lane in 0..lanes {
            let v = self.extract(dtype, &chunks, lane);
            let at = self.constant_at(index, lane)?;
            self.set_register(buf, at, v)?;
        }
        Ok(())
    }
}
