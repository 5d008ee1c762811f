//! Scatters for many threads: each owns some positions of the result and takes the updates that land there, in order.
//!
//! A result is seen as `outer × extent × inner` elements, of which updates choose positions along the extent. An owner
//! has one column, all its positions or every so many of them; neighbouring owners have neighbouring elements. So no two
//! write the same element, and results have the bits of one thread's.

use crate::kernel::coordinates;
use crate::prelude::*;

/// Owners that keep a GPU busy. Each walks all updates, so there are no more where columns suffice.
const MIN_OWNERS: i64 = 1 << 14;

/// A result, and how it is divided.
pub struct Owners {
    outer: Extents,
    extent: Extent,
    inner: Extents,
    /// Owners of a column.
    parts: i64,
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

/// Stores the update at some coordinates to an element of the result.
pub type Store<'a> = dyn Fn(&ScatterColumn, &[Index], &Index) + 'a;

/// What elements of the result begin as.
pub type Initial<'a, 'k> = dyn Fn(&Index) -> KernelValue<'k> + 'a;

/// Where an update is found, and what becomes of the element at its target.
pub struct Updates<'a> {
    /// Axes that are walked, in order.
    pub dims: Extents,
    /// The position along the extent that an update has.
    pub position: &'a dyn Fn(&ScatterColumn, &[Index]) -> Index,
    pub store: &'a Store<'a>,
}

impl Owners {
    /// For a result with these axes around those that updates choose a position along, `extent` in all.
    pub fn new(outer: Extents, extent: Extent, inner: Extents) -> Owners {
        let columns = outer.count().saturating_mul(inner.count()).example();
        let parts = (MIN_OWNERS / columns.max(1)).clamp(1, extent.example().max(1));
        Owners { outer, extent, inner, parts }
    }

    /// Fills the kernel: every element of `out` begins as `initial` says for its number, then takes its updates; those
    /// of columns outside `covered` (extents of the outer and of the inner axes) have none.
    pub fn scatter<'k>(
        &self,
        k: &'k KernelScope,
        out: KernelTensor<'k>,
        initial: &Initial<'_, 'k>,
        covered: [Extents; 2],
        updates: &Updates<'_>,
    ) {
        let columns = [self.outer.count(), self.parts.into(), self.inner.count()];
        k.parallel(&columns, |at| {
            let own = OwnedRange {
                outer: k.bound("outer", &at[0]),
                part: k.bound("part", &at[1]),
                inner: k.bound("inner", &at[2]),
            };
            k.strided("z", (&own.part, &Index::constant(self.extent), self.parts), |position| {
                let at = self.element(&own, position);
                out.set(&at, initial(&at));
            });
            let column = ScatterColumn {
                outer: coordinates(&own.outer, &self.outer),
                inner: coordinates(&own.inner, &self.inner),
            };
            let axes = self.outer.all().chain(self.inner.all()).zip(column.outer.iter().chain(&column.inner));
            let covered = covered.iter().flat_map(Extents::all);
            let cut = axes.zip(covered).filter(|((n, _), covered)| !covered.is_surely_from(*n));
            let inside = cut.map(|((_, at), covered)| k.in_range(at, 0, covered)).reduce(|all, ok| all & ok);
            k.when_all(inside, || self.updates(k, &own, &column, updates));
        });
    }

    fn element(&self, own: &OwnedRange, position: &Index) -> Index {
        let dims = [self.outer.count(), self.extent, self.inner.count()];
        linearize(&[own.outer.clone(), position.clone(), own.inner.clone()], &dims)
    }

    fn updates(&self, k: &KernelScope, own: &OwnedRange, column: &ScatterColumn, updates: &Updates<'_>) {
        k.serial(&updates.dims, |at| {
            let position = (updates.position)(column, at);
            if self.parts == 1 {
                return (updates.store)(column, at, &self.element(own, &position));
            }
            let last = self.extent - 1;
            let part = position.modulo(self.parts, &move |_: u32| (Extent::ZERO, last));
            let owned = k.position(&part).eq(&own.part);
            k.when(owned, || (updates.store)(column, at, &self.element(own, &position)));
        });
    }
}
