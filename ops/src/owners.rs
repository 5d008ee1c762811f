//! Scatters for many threads: each owns some positions of the result and takes the updates that land there, in order.
//!
//! A result is seen as `outer × extent × inner` elements, of which updates choose positions along the extent. An owner
//! has one column, all its positions or every so many of them; neighbouring owners have neighbouring elements. So no two
//! write the same element, and results have the bits of one thread's.

use tensorc_ir::kir::{Buf, KernelBuilder, LoopKind, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::nest::{Scalars, coordinates, flat, parallel, serial};
use crate::prelude::*;

/// Owners that keep a GPU busy. Each walks all updates, so there are no more where columns suffice.
const MIN_OWNERS: u64 = 1 << 14;

/// A result, and how it is divided.
pub struct Owners {
    outer: Vec<u64>,
    extent: u64,
    inner: Vec<u64>,
    /// Owners of a column.
    parts: u64,
}

/// What an owner has.
struct OwnedRange {
    outer: Index,
    part: Index,
    inner: Index,
}

/// The coordinates before the extent and behind it.
pub struct ScatterColumn {
    pub outer: Vec<Index>,
    pub inner: Vec<Index>,
}

/// Stores the update at some coordinates to the element of a number.
pub type Store<'a> = dyn Fn(&mut KernelBuilder, &ScatterColumn, &[Index], Index) -> Result<(), OpError> + 'a;

/// Where an update is found, and what becomes of the element at its target.
pub struct Updates<'a> {
    /// Axes that are walked, in order.
    pub dims: &'a [u64],
    /// The position along the extent that an update has.
    pub position: &'a dyn Fn(&mut KernelBuilder, &ScatterColumn, &[Index]) -> Index,
    pub store: &'a Store<'a>,
}

impl Owners {
    /// For a result with these axes around those that updates choose a position along, `extent` in all.
    pub fn new(outer: &[u64], extent: u64, inner: &[u64]) -> Owners {
        let columns: u64 = outer.iter().chain(inner).product();
        let parts = (MIN_OWNERS / columns.max(1)).clamp(1, extent.max(1));
        Owners { outer: outer.to_vec(), extent, inner: inner.to_vec(), parts }
    }

    /// Fills the kernel: every element of `out` begins as `initial` says for its number, then takes its updates; those
    /// of columns outside `covered` (extents of the outer and of the inner axes) have none.
    pub fn scatter(
        &self,
        k: &mut KernelBuilder,
        out: Buf,
        initial: &dyn Fn(&mut KernelBuilder, Index) -> Operand,
        covered: [&[u64]; 2],
        updates: &Updates<'_>,
    ) -> Result<(), OpError> {
        let columns = [self.outer.iter().product(), self.parts, self.inner.iter().product()];
        parallel(k, &columns, |k, at| {
            // As variables of their own, whose ranges are their extents.
            let mut own = |name: &str, i: usize| k.let_index(name, at[i].clone());
            let own = OwnedRange { outer: own("outer", 0), part: own("part", 1), inner: own("inner", 2) };
            let positions = (own.part.clone(), Index::constant(self.extent as i64), self.parts as i64);
            k.for_loop("z", positions, LoopKind::Serial, |k, position| {
                let at = self.element(&own, position);
                let value = initial(k, at.clone());
                k.store(out, at, value);
                Ok::<(), OpError>(())
            })?;
            let column = ScatterColumn {
                outer: coordinates(&own.outer, &self.outer),
                inner: coordinates(&own.inner, &self.inner),
            };
            let mut inside = None;
            let axes = self.outer.iter().chain(&self.inner).zip(column.outer.iter().chain(&column.inner));
            for ((_, at), covered) in axes.zip(covered.concat()).filter(|((n, _), covered)| covered < *n) {
                let ok = k.in_range(at, 0, covered as i64);
                inside = Some(inside.map_or(ok, |all| k.bin(ScalarOp::And, all, ok)));
            }
            match inside {
                Some(cond) => k.if_then(cond, |k| self.updates(k, &own, &column, updates)),
                None => self.updates(k, &own, &column, updates),
            }
        })
    }

    fn element(&self, own: &OwnedRange, position: Index) -> Index {
        let inner: u64 = self.inner.iter().product();
        let outer: u64 = self.outer.iter().product();
        flat(&[own.outer.clone(), position, own.inner.clone()], &[outer, self.extent, inner])
    }

    fn updates(
        &self,
        k: &mut KernelBuilder,
        own: &OwnedRange,
        column: &ScatterColumn,
        updates: &Updates<'_>,
    ) -> Result<(), OpError> {
        serial(k, updates.dims, &mut |k, at| {
            let position = (updates.position)(k, column, at);
            if self.parts == 1 {
                return (updates.store)(k, column, at, self.element(own, position));
            }
            let last = self.extent as i64 - 1;
            let part = position.modulo(self.parts as i64, &move |_: u32| (0, last));
            let (part, mine) = (k.index_value(part), k.index_value(own.part.clone()));
            let owned = k.cmp(CmpOp::Eq, part, mine);
            k.if_then(owned, |k| (updates.store)(k, column, at, self.element(own, position)))
        })
    }
}

/// The initial values that elements of a tensor are.
pub fn copied(from: Buf) -> impl Fn(&mut KernelBuilder, Index) -> Operand {
    move |k, at| k.load(from, at)
}

/// Zeros of a tensor's type.
pub fn zeros(ty: &DenseType) -> impl Fn(&mut KernelBuilder, Index) -> Operand {
    let zero = Operand::Const(Scalar::zero(ty.dtype));
    move |_, _| zero
}
