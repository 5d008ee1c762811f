//! The iteration space of a map kernel: the axes of its result, cut where accesses divide them.
//!
//! A reshape between two transpositions reads `floordiv(a, c)` and `mod(a, c)` of an axis `a`. As two axes,
//! `a = c·a₁ + a₀`, the same accesses are affine, so that neighbouring elements are loaded as vectors.

use tensorc_ir::diag::Result;
use tensorc_ir::graph::Value;
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::{Extent, Extents};

use super::{ClusterAccesses, Located};

/// Shorter rows are not worth a loop of their own.
const MIN_ROW_LENGTH: i64 = 8;

/// Axes that are iterated over, and the coordinates of a result's element in them.
pub struct IterationAxes {
    /// The extents of the axes.
    pub extents: Extents,
    /// The coordinates of an element of the result.
    pub coords: Vec<Index>,
    /// Every access of one iteration.
    pub uses: ClusterAccesses,
}

impl IterationAxes {
    /// The axes of elements of shape `dims` computed for all of `outputs`.
    pub fn of(cluster: &Located<'_>, outputs: &[Value], dims: &Extents) -> Result<IterationAxes> {
        let mut extents = dims.clone();
        let mut coords: Vec<Index> = (0..dims.len() as u32).map(Index::var).collect();
        loop {
            let mut uses = ClusterAccesses::default();
            for (i, v) in outputs.iter().enumerate() {
                uses.collect(cluster, *v, &coords, &extents, &|_| false)?;
                uses.store(*v, cluster.output_address(i, dims, &coords));
            }
            let Some((axis, inner)) = uses.flats.iter().find_map(|(_, flat)| cut(flat, &extents)) else {
                return Ok(IterationAxes { extents, coords, uses });
            };
            let shifted = |v: u32| Index::var(v + u32::from(v as usize > axis));
            let parts = shifted(axis as u32).scale(inner).add(&Index::var(axis as u32 + 1));
            let replace = |v: u32| if v as usize == axis { parts.clone() } else { shifted(v) };
            let cut = [extents.at(axis) / inner, inner];
            extents = extents.range(..axis).all().chain(cut).chain(extents.range(axis + 1..).all()).collect();
            coords = coords.iter().map(|c| c.substitute(&replace, &extents)).collect();
        }
    }
}

/// An axis that a quotient or a remainder of an index cuts evenly, and the extent of its inner part.
fn cut(index: &Index, extents: &Extents) -> Option<(usize, Extent)> {
    index.terms.iter().find_map(|(atom, _)| match atom {
        Atom::Var(_) => None,
        Atom::Div(x, d) | Atom::Mod(x, d) => match x.as_var() {
            Some(v) => even(v as usize, *d, extents),
            None => cut(x, extents),
        },
        Atom::Min(a, b) | Atom::Max(a, b) => cut(a, extents).or_else(|| cut(b, extents)),
    })
}

fn even(axis: usize, inner: Extent, extents: &Extents) -> Option<(usize, Extent)> {
    let innermost = extents.all().rposition(|n| !n.is_surely(1)) == Some(axis);
    let n = extents.at(axis);
    let fits = n.sure_quotient(inner).is_some() && inner.is_surely_below(n);
    (fits && (!innermost || inner >= MIN_ROW_LENGTH)).then_some((axis, inner))
}
