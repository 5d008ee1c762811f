//! Buffers: loads and stores of scalars and lanes, arrays kept in registers.

use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Type, Value, types};
use cranelift_frontend::Variable;
use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::index::Index;
use tensorc_ir::kir::Buf;
use tensorc_ir::scalar::Scalar;

use super::state::{BufferStorage, Chunks, Gen};
use super::types::{carrier, chunk_type};
use crate::analysis::Class;
use crate::walk::{ElementAccess, Guard, KernelEmitter, KernelWalker, Shaped, internal, not_live};

/// Bytes that a load whose guard is false may read instead: the widest vector access.
const SPARE_BYTES: u32 = 512;

fn unaligned() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Gen<'_, '_> {
    /// Variables for an array.
    pub(super) fn registers(&mut self, buf: Buf, class: Class, lanes: Option<usize>) -> BufferStorage {
        let (dtype, len) = (self.buf_dtype(buf), self.kernel.buf(buf).elements() as usize);
        let lane_type = chunk_type(dtype, 32);
        let per = lane_type.lane_count() as usize;
        match (lanes, class) {
            (Some(lanes), _) => {
                BufferStorage::Private((0..len).map(|_| self.variables(lane_type, lanes / per)).collect())
            }
            (None, Class::Packed) => BufferStorage::Packed(self.variables(lane_type, len.div_ceil(per))),
            (None, _) => BufferStorage::Elements(self.variables(carrier(dtype), len)),
        }
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

    /// How a buffer is read: memory that nothing writes may be read earlier, outside of loops.
    fn access(&self, buf: Buf) -> MemFlagsData {
        let info = self.kernel.buf(buf);
        let constant = self.kernel.is_on_blocks() && (buf.0 as usize) < self.kernel.params && !info.writable;
        if constant { unaligned().with_readonly() } else { unaligned() }
    }

    /// Reads an element for each lane, one behind the other.
    pub(super) fn load_consecutive(
        &mut self,
        from: ElementAccess<(Value, i32)>,
        lanes: usize,
        guard: Option<Guard<'_, Self>>,
    ) -> Result<Chunks> {
        let (dtype, at) = (self.buf_dtype(from.buf), from.at);
        match guard {
            None => Ok(self.load_chunks(dtype, self.access(from.buf), at, lanes)),
            Some((Shaped::Uniform(c), fill)) => {
                let address = self.guarded_address(c.v, at);
                let loaded = self.load_chunks(dtype, unaligned(), (address, 0), lanes);
                let fill = self.fill(fill, lanes, 32);
                Ok(self.choose_chunks(&[c.v], &loaded, &fill))
            }
            Some((Shaped::Lanes(mask), fill)) => self.load_masked(dtype, at, lanes, mask, fill),
        }
    }

    /// Every second element of 32 bits. The two loads of a chunk overlap in one element, so that
    /// nothing beyond the last lane's is read.
    pub(super) fn load_alternate(&mut self, from: ElementAccess<(Value, i32)>, lanes: usize) -> Chunks {
        let ((address, offset), dtype) = (from.at, self.buf_dtype(from.buf));
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
        lanes: usize,
        mask: &[Value],
        fill: Scalar,
    ) -> Result<Chunks> {
        let mask = self.resize_mask(mask, carrier(dtype).bits().max(32));
        let all = mask[1..].iter().fold(mask[0], |a, m| self.b.ins().band(a, *m));
        let all = self.b.ins().vall_true(all);
        let (fast, slow, join) = (self.new_block(false), self.new_block(false), self.new_block(false));
        self.b.ins().brif(all, fast, &[], slow, &[]);
        self.b.switch_to_block(fast);
        self.b.seal_block(fast);
        let chunks = self.load_chunks(dtype, unaligned(), (address, offset), lanes);
        let params: Chunks = chunks.iter().map(|c| self.b.append_block_param(join, self.ty(*c))).collect();
        let args: Vec<BlockArg> = chunks.iter().map(|c| BlockArg::Value(*c)).collect();
        self.b.ins().jump(join, &args);
        self.b.switch_to_block(slow);
        self.b.seal_block(slow);
        let size = dtype.size() as i32;
        let mut values = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let c = self.extract(DType::Bool, &mask, lane)?;
            values.push(self.load_one(dtype, (address, offset + lane as i32 * size), Some((c, fill))));
        }
        let args: Vec<BlockArg> = self.assemble(dtype, &values)?.iter().map(|c| BlockArg::Value(*c)).collect();
        self.b.ins().jump(join, &args);
        self.b.switch_to_block(join);
        self.b.seal_block(join);
        Ok(params)
    }

    /// An address as one value.
    pub(super) fn pointer(&mut self, (address, offset): (Value, i32)) -> Value {
        match offset {
            0 => address,
            _ => self.b.ins().iadd_imm_s(address, i64::from(offset)),
        }
    }

    /// The address where `c` holds, else memory that may be read without harm.
    fn guarded_address(&mut self, c: Value, at: (Value, i32)) -> Value {
        let address = self.pointer(at);
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

    pub(super) fn load_one(&mut self, dtype: DType, at: (Value, i32), guard: Option<(Value, Scalar)>) -> Value {
        let Some((c, fill)) = guard else { return self.load_scalar(dtype, at) };
        let address = self.guarded_address(c, at);
        let loaded = self.load_scalar(dtype, (address, 0));
        let fill = self.carried(fill);
        self.b.ins().select(c, loaded, fill)
    }

    fn load_scalar(&mut self, dtype: DType, (address, offset): (Value, i32)) -> Value {
        let flags = unaligned();
        match dtype {
            DType::I8 => self.b.ins().sload8(types::I32, flags, address, offset),
            DType::U8 => self.b.ins().uload8(types::I32, flags, address, offset),
            DType::I16 => self.b.ins().sload16(types::I32, flags, address, offset),
            DType::U16 | DType::F16 | DType::BF16 => self.b.ins().uload16(types::I32, flags, address, offset),
            _ => self.b.ins().load(carrier(dtype), flags, address, offset),
        }
    }

    pub(super) fn store_scalar(&mut self, dtype: DType, value: Value, (address, offset): (Value, i32)) {
        let flags = unaligned();
        match (dtype, dtype.size()) {
            (DType::Bool, _) => self.b.ins().store(flags, value, address, offset),
            (_, 1) => self.b.ins().istore8(flags, value, address, offset),
            (_, 2) => self.b.ins().istore16(flags, value, address, offset),
            _ => self.b.ins().store(flags, value, address, offset),
        };
    }

    fn out_of_range(&self, buf: Buf, at: Option<i64>) -> Diagnostic {
        let at = at.map_or("a computed index".to_string(), |i| i.to_string());
        internal(format!("register buffer `{}` accessed at {at}", self.kernel.buf(buf).name))
    }

    /// The position in an array that a constant index stands for.
    fn position(&self, buf: Buf, at: Option<i64>) -> Result<usize> {
        let i = at.and_then(|i| usize::try_from(i).ok()).filter(|i| (*i as u64) < self.kernel.buf(buf).elements());
        i.ok_or_else(|| self.out_of_range(buf, at))
    }

    pub(super) fn element(&mut self, buf: Buf, at: Option<i64>) -> Result<Value> {
        let i = self.position(buf, at)?;
        match &self.storage[buf.0 as usize] {
            BufferStorage::Elements(vars) => Ok(self.b.use_var(vars[i])),
            BufferStorage::Packed(vars) => {
                let per = chunk_type(self.buf_dtype(buf), 32).lane_count() as usize;
                let chunk = self.b.use_var(vars[i / per]);
                Ok(self.content(self.buf_dtype(buf), chunk, i % per))
            }
            _ => Err(not_live(self.kernel, buf)),
        }
    }

    pub(super) fn set_element(&mut self, buf: Buf, at: Option<i64>, value: Value) -> Result<()> {
        let i = self.position(buf, at)?;
        match &self.storage[buf.0 as usize] {
            BufferStorage::Elements(vars) => self.b.def_var(vars[i], value),
            BufferStorage::Packed(vars) => {
                let per = chunk_type(self.buf_dtype(buf), 32).lane_count() as usize;
                let var = vars[i / per];
                let chunk = self.b.use_var(var);
                let chunk = self.insert(self.buf_dtype(buf), chunk, value, i % per);
                self.b.def_var(var, chunk);
            }
            _ => return Err(not_live(self.kernel, buf)),
        }
        Ok(())
    }

    /// The variables of the elements that the lanes see, if whole chunks hold them.
    pub(super) fn chunks_of(
        walk: &mut KernelWalker<'_, Self>,
        buf: Buf,
        index: &Index,
    ) -> Result<Option<Vec<Variable>>> {
        let lanes = walk.lane_count()?;
        let first = walk.at_lane(index, 0)?.as_constant();
        let at = first.and_then(|i| usize::try_from(i).ok());
        let contiguous = walk.lane_stride(index) == Some(1);
        let g = &walk.code;
        match &g.storage[buf.0 as usize] {
            BufferStorage::Private(vars) => {
                let element = at.and_then(|i| vars.get(i));
                element.cloned().map(Some).ok_or_else(|| g.out_of_range(buf, first))
            }
            BufferStorage::Packed(vars) if contiguous => {
                let per = chunk_type(g.buf_dtype(buf), 32).lane_count() as usize;
                let chunk = at.filter(|i| i.is_multiple_of(per)).map(|i| i / per);
                Ok(chunk.and_then(|c| vars.get(c..c + lanes / per)).map(<[Variable]>::to_vec))
            }
            _ => Ok(None),
        }
    }
}
