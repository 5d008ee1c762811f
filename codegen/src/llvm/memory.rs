//! Buffers: where they lie, loads and stores of scalars and lanes.

use inkwell::values::{InstructionOpcode as Op, PointerValue};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, MemorySpace};
use tensorc_ir::scalar::Scalar;

use super::ir::{Value, lanes_of};
use super::state::{BufferStorage, Gen};
use crate::walk::{ElementAccess, KernelWalker, gcd, internal, not_live, unsupported};

/// Bytes that a load whose guard is false may read instead: the widest vector access.
const SPARE_BYTES: u32 = 512;

/// Bytes of the widest access of one thread of a GPU.
const MAX_ACCESS_BYTES: u32 = 16;

/// Alignment of local arrays: that of the widest vectors.
const LOCAL_ALIGNMENT: u32 = 64;

impl<'c> Gen<'c, '_, '_> {
    /// Memory of the function for `len` elements.
    pub(super) fn local(&self, element: inkwell::types::BasicTypeEnum<'c>, len: u32) -> Result<PointerValue<'c>> {
        use inkwell::types::BasicType;
        let here = self.current_block()?;
        self.ir.b.position_at_end(self.entry);
        let memory = self.ir.alloca(element.array_type(len.max(1)).into(), LOCAL_ALIGNMENT);
        self.ir.b.position_at_end(here);
        memory
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

    /// Alignment of an access, in bytes. Only a GPU's instructions depend on it.
    pub(super) fn alignment(&self, access: ElementAccess<PointerValue<'c>>) -> u32 {
        let size = self.kernel.buf(access.buf).dtype.size() as u64;
        match self.machine.gpu {
            true => gcd(access.multiple.saturating_mul(size), u64::from(MAX_ACCESS_BYTES)) as u32,
            false => size as u32,
        }
    }

    pub(super) fn load_at(&self, dtype: DType, at: PointerValue<'c>, lanes: Option<u32>) -> Result<Value<'c>> {
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

    pub(super) fn store_at(&self, dtype: DType, v: Value<'c>, at: PointerValue<'c>, alignment: u32) -> Result<()> {
        self.ir.store(self.stored(dtype, v)?, at, alignment)
    }

    /// The address of the vector of all lanes that stands for one element of a private array, and the lanes.
    pub(super) fn private(
        walk: &mut KernelWalker<'_, Self>,
        buf: Buf,
        index: &Index,
    ) -> Result<(PointerValue<'c>, u32)> {
        let Value::IntValue(at) = walk.index_value(index)? else { return Err(internal("lanes of one place")) };
        let g = &walk.code;
        let BufferStorage::Private(base, lanes) = g.storage[buf.0 as usize] else {
            return Err(not_live(g.kernel, buf));
        };
        let vector = g.ir.shaped(g.ir.memory_type(g.kernel.buf(buf).dtype), Some(lanes))?;
        Ok((g.ir.element(vector, base, at)?, lanes))
    }

    /// Every second element. The two loads overlap in one element, so that nothing beyond the last lane's is
    /// read.
    pub(super) fn load_alternate(&mut self, from: ElementAccess<PointerValue<'c>>, lanes: u32) -> Result<Value<'c>> {
        let dtype = self.kernel.buf(from.buf).dtype;
        let high = self.ir.element(self.ir.memory_type(dtype), from.at, self.ir.i64(i64::from(lanes) - 1))?;
        let (low, high) = (self.load_at(dtype, from.at, Some(lanes))?, self.load_at(dtype, high, Some(lanes))?);
        let n = lanes as usize;
        let pick = |lane: usize| if 2 * lane < n { 2 * lane } else { n + 2 * lane - (n - 1) };
        self.ir.shuffle(low, high, (0..n).map(pick))
    }

    /// Consecutive elements of which some are not read but replaced by `fill`.
    pub(super) fn load_masked(
        &mut self,
        from: ElementAccess<PointerValue<'c>>,
        mask: Value<'c>,
        fill: Scalar,
    ) -> Result<Value<'c>> {
        let dtype = self.kernel.buf(from.buf).dtype;
        let lanes = lanes_of(mask).ok_or_else(|| internal("a mask without lanes"))?;
        let fill = self.ir.splat(self.stored(dtype, self.ir.scalar(fill)?)?, lanes)?;
        let types = [fill.get_type(), self.ir.pointer_type()];
        let raw = self.ir.intrinsic("llvm.masked.load", &types, &[from.at.into(), mask, fill])?;
        self.loaded(dtype, raw)
    }

    /// `at` where `c` holds, else memory that may be read without harm.
    pub(super) fn guarded(&mut self, c: Value<'c>, at: PointerValue<'c>) -> Result<PointerValue<'c>> {
        let spare = match self.spare {
            Some(spare) => spare,
            None => {
                let memory = self.local(self.ir.int(8).into(), SPARE_BYTES)?;
                *self.spare.insert(memory)
            }
        };
        match self.ir.select(c, at.into(), spare.into())? {
            Value::PointerValue(p) => Ok(p),
            _ => Err(internal("expected a select of pointers")),
        }
    }

    pub(super) fn load_guarded(
        &mut self,
        from: ElementAccess<PointerValue<'c>>,
        lanes: Option<u32>,
        guard: Option<(Value<'c>, Scalar)>,
    ) -> Result<Value<'c>> {
        let (dtype, at, alignment) = (self.kernel.buf(from.buf).dtype, from.at, self.alignment(from));
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
        let here = self.current_block()?;
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
    pub(super) fn target(&self, buf: Buf, at: PointerValue<'c>) -> Result<PointerValue<'c>> {
        if self.kernel.buf(buf).space != MemorySpace::Tile {
            return Ok(at);
        }
        let plain = self.ir.cast(Op::PtrToInt, at.into(), self.ir.int(32).into())?;
        let row = self.ir.and_bits(self.ir.shift(Op::LShr, plain, 3)?, 0x70)?;
        match self.ir.cast(Op::IntToPtr, self.ir.xor(plain, row)?, at.get_type().into())? {
            Value::PointerValue(at) => Ok(at),
            _ => Err(internal("an address that is none")),
        }
    }

    /// Refuses a store of lanes to more than one piece of a tile.
    pub(super) fn check_piece(&self, to: ElementAccess<PointerValue<'c>>, values: Value<'c>) -> Result<()> {
        let info = self.kernel.buf(to.buf);
        let whole = Some(self.alignment(to)) == lanes_of(values).map(|lanes| lanes * info.dtype.size() as u32);
        match info.space == MemorySpace::Tile && !whole {
            true => Err(unsupported("a store to parts of two pieces of a tile")),
            false => Ok(()),
        }
    }
}
