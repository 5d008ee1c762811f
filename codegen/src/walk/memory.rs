//! Loads and stores: what lanes access together, and what one after the other.

use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Operand};
use tensorc_ir::scalar::Scalar;

use super::{Bind, KernelEmitter, KernelWalker, Shaped};

/// An access to an element; in a vector loop, to the element of lane 0, from which the others follow.
#[derive(Clone, Copy)]
pub(crate) struct ElementAccess<A> {
    pub buf: Buf,
    pub at: A,
    /// What the position in the buffer is certainly a multiple of.
    #[cfg_attr(not(feature = "llvm"), expect(dead_code, reason = "instructions for GPUs depend on it"))]
    pub multiple: u64,
}

/// Where a load reads, and what it gives elsewhere.
pub(crate) type Guard<'a, C> = (&'a Shaped<C>, Scalar);

impl<C: KernelEmitter> KernelWalker<'_, C> {
    pub(super) fn load(&mut self, buf: Buf, index: &Index, guard: Option<(Operand, Scalar)>) -> Result<Bind<C>> {
        let mut condition = None;
        if let Some((operand, fill)) = guard {
            match self.known(operand).map(|c| c.as_bool()) {
                Some(true) => {}
                Some(false) => return Ok(Bind::Const(fill)),
                None => condition = Some((self.shaped(operand)?, fill)),
            }
        }
        let guard = condition.as_ref().map(|(c, fill)| (c, *fill));
        match self.in_memory(buf)? {
            true => self.load_memory(buf, index, guard),
            false => C::load_register(self, buf, index, guard),
        }
    }

    fn access(&mut self, buf: Buf, index: &Index, multiple: u64) -> Result<ElementAccess<C::Address>> {
        Ok(ElementAccess { buf, at: self.address(buf, index)?, multiple })
    }

    fn load_memory(&mut self, buf: Buf, index: &Index, guard: Option<Guard<'_, C>>) -> Result<Bind<C>> {
        let by_lane = matches!(guard, Some((Shaped::Lanes(_), _)));
        let multiple = self.multiple(index);
        if !by_lane && !self.varies(index) {
            let from = self.access(buf, index, multiple)?;
            let guard = self.guard_at(guard, 0)?;
            return self.code.load(from, guard).map(Bind::Uniform);
        }
        let lanes = self.lane_count()?;
        if let Some(stride @ 1..=2) = self.lane_stride(index) {
            let first = self.at_lane(index, 0)?;
            let from = self.access(buf, &first, multiple)?;
            if let Some(values) = self.code.load_lanes(from, stride, lanes, guard)? {
                return Ok(Bind::Lanes(values));
            }
        }
        let mut values = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let at = self.at_lane(index, lane)?;
            let from = self.access(buf, &at, 1)?;
            let guard = self.guard_at(guard, lane)?;
            values.push(self.code.load(from, guard)?);
        }
        let dtype = self.kernel.buf(buf).dtype;
        self.code.assemble(dtype, &values).map(Bind::Lanes)
    }

    /// The guard in one lane.
    fn guard_at(&mut self, guard: Option<Guard<'_, C>>, lane: usize) -> Result<Option<(C::Value, Scalar)>> {
        let Some((c, fill)) = guard else { return Ok(None) };
        Ok(Some((self.at(c, DType::Bool, lane)?, fill)))
    }

    fn at(&mut self, value: &Shaped<C>, dtype: DType, lane: usize) -> Result<C::Value> {
        match value {
            Shaped::Uniform(arg) => Ok(arg.v),
            Shaped::Lanes(lanes) => self.code.extract(dtype, lanes, lane),
        }
    }

    pub(super) fn store(&mut self, buf: Buf, index: &Index, value: Operand) -> Result<()> {
        if !self.in_memory(buf)? {
            return C::store_register(self, buf, index, value);
        }
        let (dtype, multiple) = (self.kernel.buf(buf).dtype, self.multiple(index));
        if self.lane_stride(index) == Some(1) {
            let values = self.lane_operand(value)?;
            let first = self.at_lane(index, 0)?;
            let to = self.access(buf, &first, multiple)?;
            return self.code.store_lanes(to, &values);
        }
        let value = self.shaped(value)?;
        let lanes = self.lanes.as_ref().map_or(1, |l| l.lanes);
        if !self.varies(index) {
            // All lanes write one place: the last one wins.
            let value = self.at(&value, dtype, lanes - 1)?;
            let to = self.access(buf, index, multiple)?;
            return self.code.store(to, value);
        }
        for lane in 0..lanes {
            let value = self.at(&value, dtype, lane)?;
            let at = self.at_lane(index, lane)?;
            let to = self.access(buf, &at, 1)?;
            self.code.store(to, value)?;
        }
        Ok(())
    }
}
