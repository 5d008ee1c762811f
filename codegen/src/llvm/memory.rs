//! Buffers: where they lie, loads and stores of scalars and lanes.

use inkwell::values::{InstructionOpcode as Op, PointerValue};
use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Operand, Space};
use tensorc_ir::scalar::Scalar;

use super::ir::{Value, internal, lanes_of, unsupported};
use super::kernel::{Bind, Gen};

/// Where a buffer's elements are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Storage<'c> {
    None,
    /// At an address.
    Memory(PointerValue<'c>),
    /// A vector of all lanes of the current vector loop for each element, at an address.
    Private(PointerValue<'c>, u32),
}

/// Local memory of one kernel, in bytes: well below the stack of any thread.
const MAX_STACK: u64 = 256 << 10;

/// Bytes that a load whose guard is false may read instead: the widest vector access.
const SPARE_BYTES: u32 = 512;

/// Bytes of the widest access of one thread of a GPU.
const WIDEST_ACCESS: u32 = 16;

/// Alignment of local arrays: that of the widest vectors.
const LOCAL_ALIGNMENT: u32 = 64;

impl<'c> Gen<'c, '_, '_> {
    /// Reserves memory for local arrays, of a lane's own later. What is accessed at constant positions only
    /// never becomes memory.
    pub(super) fn reserve_memory(&mut self) -> Result<()> {
        let mut total = 0u64;
        for (i, info) in self.kernel.buffers.iter().enumerate().skip(self.kernel.params) {
            let bytes = info.len.saturating_mul(info.dtype.size() as u64);
            if info.space.is_shared() {
                continue;
            }
            total = total.saturating_add(if info.space == Space::Stack { bytes } else { 0 });
            if total > MAX_STACK || bytes > MAX_STACK {
                let message = format!("buffer `{}` of {bytes} bytes does not fit the stack", info.name);
                return Err(unsupported(message));
            }
            self.storage[i] = Storage::Memory(self.local(self.ir.memory_type(info.dtype), info.len as u32)?);
        }
        Ok(())
    }

    /// Memory of the function for `len` elements.
    fn local(&self, element: inkwell::types::BasicTypeEnum<'c>, len: u32) -> Result<PointerValue<'c>> {
        use inkwell::types::BasicType;
        let here = self.ir.b.get_insert_block().ok_or_else(|| internal("memory of no function"))?;
        self.ir.b.position_at_end(self.entry);
        let memory = self.ir.alloca(element.array_type(len.max(1)).into(), LOCAL_ALIGNMENT);
        self.ir.b.position_at_end(here);
        memory
    }

    pub(super) fn alloc(&mut self, buf: Buf) -> Result<()> {
        let info = self.kernel.buf(buf);
        if info.space.is_shared() {
            return self.alloc_shared(buf);
        }
        if let Some(lanes) = self.lanes.as_ref().map(|l| l.lanes) {
            let vector = self.ir.shaped(self.ir.memory_type(info.dtype), Some(lanes))?;
            self.storage[buf.0 as usize] = Storage::Private(self.local(vector, info.len as u32)?, lanes);
        }
        Ok(())
    }

    pub(super) fn not_live(&self, buf: Buf) -> Diagnostic {
        internal(format!("buffer `{}` is used before its allocation", self.kernel.buf(buf).name))
    }

    /// A value as memory holds it.
    fn stored(&self, dtype: DType, v: Value<'c>) -> Result<Value<'c>> {
        if dtype == DType::Bool { self.ir.cast(Op::ZExt, v, self.ir.ints_like(v, 8)?) } else { Ok(v) }
    }

    /// What memory holds as a value.
    fn loaded(&self, dtype: DType, v: Value<'c>) -> Result<Value<'c>> {
        if dtype != DType::Bool {
            return Ok(v);
        }
        self.ir.compare_ints(inkwell::IntPredicate::NE, v, self.ir.bits_like(v, 0)?)
    }

    /// Alignment, in bytes, of what a resolved index addresses. Only a GPU's instructions depend on it.
    fn alignment(&self, buf: Buf, index: &Index) -> u32 {
        let size = self.kernel.buf(buf).dtype.size() as u64;
        match self.machine.gpu {
            true => super::index::gcd(self.multiple(index).saturating_mul(size), u64::from(WIDEST_ACCESS)) as u32,
            false => size as u32,
        }
    }

    fn load_at(&self, dtype: DType, at: PointerValue<'c>, lanes: Option<u32>) -> Result<Value<'c>> {
        self.load_aligned(dtype, at, lanes, dtype.size() as u32)
    }

    fn load_aligned(
        &self,
        dtype: DType,
        at: PointerValue<'c>,
        lanes: Option<u32>,
        alignment: u32,
    ) -> Result<Value<'c>> {
        let ty = self.ir.shaped(self.ir.memory_type(dtype), lanes)?;
        self.loaded(dtype, self.ir.load(ty, at, alignment)?)
    }

    fn store_at(&self, dtype: DType, v: Value<'c>, at: PointerValue<'c>, alignment: u32) -> Result<()> {
        self.ir.store(self.stored(dtype, v)?, at, alignment)
    }

    pub(super) fn load(&mut self, buf: Buf, index: &Index, guard: Option<(Operand, Scalar)>) -> Result<Bind<'c>> {
        let mut condition = None;
        if let Some((operand, fill)) = guard {
            match self.known(operand).map(|c| c.as_bool()) {
                Some(true) => {}
                Some(false) => return Ok(Bind::Const(fill)),
                None => condition = Some((self.operand(operand)?, fill)),
            }
        }
        let value = match self.storage[buf.0 as usize] {
            Storage::None => return Err(self.not_live(buf)),
            Storage::Private(base, lanes) => self.load_private(buf, (base, lanes), index, condition)?,
            Storage::Memory(_) => self.load_memory(buf, index, condition)?,
        };
        Ok(self.bound(value))
    }

    /// The vector of all lanes that stands for one element of a private array.
    fn private(&mut self, buf: Buf, base: PointerValue<'c>, lanes: u32, index: &Index) -> Result<PointerValue<'c>> {
        let vector = self.ir.shaped(self.ir.memory_type(self.kernel.buf(buf).dtype), Some(lanes))?;
        let at = self.scalar_index(index, None)?;
        self.ir.element(vector, base, at)
    }

    fn load_private(
        &mut self,
        buf: Buf,
        (base, lanes): (PointerValue<'c>, u32),
        index: &Index,
        guard: Option<(Value<'c>, Scalar)>,
    ) -> Result<Value<'c>> {
        let dtype = self.kernel.buf(buf).dtype;
        let mut at = self.private(buf, base, lanes, index)?;
        let Some((condition, fill)) = guard else { return self.load_at(dtype, at, Some(lanes)) };
        if condition.is_int_value() {
            at = self.guarded(condition, at)?;
        } else {
            // The position is one for all lanes, and inside where any lane reads it.
            let any = self.ir.intrinsic("llvm.vector.reduce.or", &[condition.get_type()], &[condition])?;
            at = self.guarded(any, at)?;
        }
        let value = self.load_at(dtype, at, Some(lanes))?;
        let fill = self.ir.splat(self.ir.scalar(fill)?, lanes)?;
        self.ir.select(condition, value, fill)
    }

    fn load_memory(&mut self, buf: Buf, index: &Index, guard: Option<(Value<'c>, Scalar)>) -> Result<Value<'c>> {
        let dtype = self.kernel.buf(buf).dtype;
        let by_lane = guard.is_some_and(|(c, _)| c.is_vector_value());
        let alignment = self.alignment(buf, index);
        if !by_lane && !self.varies(index) {
            let at = self.address(buf, index, None)?;
            return self.load_guarded(dtype, at, None, alignment, guard);
        }
        let lanes = self.lane_count()?;
        if self.lane_stride(index) == Some(1) && !(by_lane && self.machine.gpu) {
            let at = self.address(buf, index, Some(0))?;
            return match guard {
                Some((mask, fill)) if by_lane => self.load_masked(dtype, at, mask, fill),
                _ => self.load_guarded(dtype, at, Some(lanes), alignment, guard),
            };
        }
        if let (None, Some(2), false) = (guard, self.lane_stride(index), self.machine.gpu) {
            return self.load_alternate(buf, index, lanes);
        }
        let mut values = Vec::with_capacity(lanes as usize);
        for lane in 0..lanes {
            let at = self.address(buf, index, Some(lane))?;
            let guard = match guard {
                Some((c, fill)) => Some((self.ir.extract(c, lane as usize)?, fill)),
                None => None,
            };
            values.push(self.load_guarded(dtype, at, None, dtype.size() as u32, guard)?);
        }
        self.ir.assemble(&values)
    }

    /// Every second element. The two loads overlap in one element, so that nothing beyond the last lane's is
    /// read.
    fn load_alternate(&mut self, buf: Buf, index: &Index, lanes: u32) -> Result<Value<'c>> {
        let dtype = self.kernel.buf(buf).dtype;
        let low = self.address(buf, index, Some(0))?;
        let high = self.address(buf, &index.offset(i64::from(lanes) - 1), Some(0))?;
        let (low, high) = (self.load_at(dtype, low, Some(lanes))?, self.load_at(dtype, high, Some(lanes))?);
        let n = lanes as usize;
        let pick = |lane: usize| if 2 * lane < n { 2 * lane } else { n + 2 * lane - (n - 1) };
        self.ir.shuffle(low, high, (0..n).map(pick))
    }

    /// Consecutive elements of which some are not read but replaced by `fill`.
    fn load_masked(&mut self, dtype: DType, at: PointerValue<'c>, mask: Value<'c>, fill: Scalar) -> Result<Value<'c>> {
        let lanes = lanes_of(mask).ok_or_else(|| internal("a mask without lanes"))?;
        let fill = self.ir.splat(self.stored(dtype, self.ir.scalar(fill)?)?, lanes)?;
        let types = [fill.get_type(), self.ir.pointer_type()];
        let raw = self.ir.intrinsic("llvm.masked.load", &types, &[at.into(), mask, fill])?;
        self.loaded(dtype, raw)
    }

    /// `at` where `c` holds, else memory that may be read without harm.
    fn guarded(&mut self, c: Value<'c>, at: PointerValue<'c>) -> Result<PointerValue<'c>> {
        let spare = match self.spare {
            Some(spare) => spare,
            None => {
                let memory = self.local(self.ir.int(8).into(), SPARE_BYTES)?;
                *self.spare.insert(memory)
            }
        };
        match self.ir.select(c, at.into(), spare.into())? {
            Value::PointerValue(p) => Ok(p),
            _ => Err(internal("a choice of addresses that is none")),
        }
    }

    fn load_guarded(
        &mut self,
        dtype: DType,
        at: PointerValue<'c>,
        lanes: Option<u32>,
        alignment: u32,
        guard: Option<(Value<'c>, Scalar)>,
    ) -> Result<Value<'c>> {
        let Some((c, fill)) = guard else { return self.load_aligned(dtype, at, lanes, alignment) };
        let fill = self.ir.scalar(fill)?;
        let fill = lanes.map_or(Ok(fill), |n| self.ir.splat(fill, n))?;
        if self.machine.gpu {
            return self.load_if(c, fill, |g| g.load_aligned(dtype, at, lanes, alignment));
        }
        let at = self.guarded(c, at)?;
        let value = self.load_at(dtype, at, lanes)?;
        self.ir.select(c, value, fill)
    }

    /// A load in a branch of its own, which a GPU executes as a predicated instruction.
    fn load_if(
        &mut self,
        c: Value<'c>,
        fill: Value<'c>,
        load: impl FnOnce(&mut Self) -> Result<Value<'c>>,
    ) -> Result<Value<'c>> {
        let here = self.ir.b.get_insert_block().ok_or_else(|| internal("a load in no block"))?;
        let (then, join) = (self.new_block("load"), self.new_block("loaded"));
        self.ir.branch(c, then, join)?;
        self.ir.b.position_at_end(then);
        let value = load(self)?;
        self.ir.jump(join)?;
        self.ir.b.position_at_end(join);
        let either = self.ir.phi(value.get_type())?;
        either.add_incoming(&[(&fill, here), (&value, then)]);
        Ok(either.as_basic_value())
    }

    /// Where a store goes to: in tiles the bits of an address that number the piece are combined with those that number the row.
    fn target(&mut self, buf: Buf, index: &Index, lane: Option<u32>) -> Result<PointerValue<'c>> {
        let at = self.address(buf, index, lane)?;
        if self.kernel.buf(buf).space != Space::Tile {
            return Ok(at);
        }
        let plain = self.ir.cast(Op::PtrToInt, at.into(), self.ir.int(32).into())?;
        let row = self.ir.and_bits(self.ir.shift(Op::LShr, plain, 3)?, 0x70)?;
        match self.ir.cast(Op::IntToPtr, self.ir.xor(plain, row)?, at.get_type().into())? {
            Value::PointerValue(at) => Ok(at),
            _ => Err(internal("an address that is none")),
        }
    }

    pub(super) fn store(&mut self, buf: Buf, index: &Index, value: Operand) -> Result<()> {
        let dtype = self.kernel.buf(buf).dtype;
        match self.storage[buf.0 as usize] {
            Storage::None => Err(self.not_live(buf)),
            Storage::Private(base, lanes) => {
                let value = self.lane_operand(value)?;
                let at = self.private(buf, base, lanes, index)?;
                self.store_at(dtype, value, at, dtype.size() as u32)
            }
            Storage::Memory(_) => {
                let value = self.operand(value)?;
                let alignment = self.alignment(buf, index);
                let varies = self.varies(index);
                if !varies {
                    // All lanes write one place: the last one wins.
                    let last = lanes_of(value).map_or(0, |n| n as usize - 1);
                    let at = self.target(buf, index, None)?;
                    return self.store_at(dtype, self.ir.extract(value, last)?, at, alignment);
                }
                let lanes = self.lane_count()?;
                if self.lane_stride(index) == Some(1) {
                    let whole = alignment == lanes * dtype.size() as u32;
                    if self.kernel.buf(buf).space == Space::Tile && !whole {
                        return Err(unsupported("a store to parts of two pieces of a tile"));
                    }
                    let at = self.target(buf, index, Some(0))?;
                    return self.store_at(dtype, self.ir.splat(value, lanes)?, at, alignment);
                }
                for lane in 0..lanes {
                    let at = self.target(buf, index, Some(lane))?;
                    self.store_at(dtype, self.ir.extract(value, lane as usize)?, at, dtype.size() as u32)?;
                }
                Ok(())
            }
        }
    }
}
