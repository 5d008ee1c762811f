//! Interpolation as a composite of gathers: what operators that sample at computed positions are
//! differentiated as.

use crate::prelude::*;
use crate::sampled_axis::{Outside, SampledAxis};

/// Samples `x` [n, c, spatial…] at positions, one tensor [n, place…] for each spatial axis, in the type
/// arithmetic is done in: [n, c, place…] in that type.
pub fn gathered(b: &mut Builder<'_>, x: Value, positions: &[Value], axes: &[SampledAxis]) -> Result<Value> {
    let (ty, place) = (b.ty(x)?, b.dims(positions[0])?);
    let (rank, wide) = (axes.len(), compute_type(ty.dtype));
    // Channels innermost: every gather reads whole rows of them.
    let last: Vec<usize> = std::iter::once(0).chain(2..2 + rank).chain([1]).collect();
    let rows = b.permuted(x, &last)?;
    let plane: u64 = ty.dims[2..].iter().product();
    let rows = b.reshaped(rows, &[ty.dims[0] * plane, ty.dims[1]])?;
    let column = [&place[..], &[1]].concat();
    let whole = [&place[..], &ty.dims[1..2]].concat();
    let mut terms = vec![];
    for chosen in combinations(axes) {
        let taps =
            |a: &[Ex]| -> Vec<[Ex; 3]> { (0..rank).map(|i| axes[i].taps(&a[i]).swap_remove(chosen[i])).collect() };
        let at = b.map_as(positions, DType::I64, &place, |s, a| {
            let int = |n: u64| s.constant(Scalar::i64(n as i64));
            taps(a).iter().zip(axes).fold(s.coord(0), |at, (tap, axis)| at * int(axis.extent) + &tap[0])
        })?;
        let weight = b.map_as(positions, wide, &place, |_, a| {
            let weight = |[_, inside, weight]: &[Ex; 3], axis: &SampledAxis| match axis.outside {
                Outside::Zeros => inside.select(weight, &weight.lit(0.0)),
                _ => weight.clone(),
            };
            let each = taps(a);
            let each = each.iter().zip(axes).map(|(tap, axis)| weight(tap, axis));
            each.reduce(|product, w| product * w).unwrap_or_else(|| a[0].lit(1.0))
        })?;
        let read = b.gathered(rows, at, 0)?;
        let weight = b.reshaped(weight, &column)?;
        terms.push(b.map_as(&[read, weight], wide, &whole, |_, a| &a[0] * &a[1])?);
    }
    let sum = b.map_as(&terms, wide, &whole, |_, a| a[1..].iter().fold(a[0].clone(), |sum, x| sum + x))?;
    let first: Vec<usize> = [0, place.len()].into_iter().chain(1..place.len()).collect();
    b.permuted(sum, &first)
}

/// Every choice of one tap for each axis.
fn combinations(axes: &[SampledAxis]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![vec![]], |chosen, axis| {
        let with = |c: &Vec<usize>| (0..axis.tap_count()).map(|tap| [&c[..], &[tap]].concat()).collect::<Vec<_>>();
        chosen.iter().flat_map(with).collect()
    })
}
