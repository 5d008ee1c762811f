//! Interpolation as a composite of gathers: what operators that sample at computed positions are
//! differentiated as.

use crate::prelude::*;
use crate::sampled_axis::{Outside, SampledAxis};

/// Samples `x` [n, c, spatial…] at positions, one tensor [n, place…] for each spatial axis, in the type
/// arithmetic is done in: [n, c, place…] in that type.
pub fn gathered<'g>(x: Tensor<'g>, positions: &[Tensor<'g>], axes: &[SampledAxis]) -> Result<Tensor<'g>> {
    let (g, ty, place) = (x.graph(), x.ty()?, positions[0].dims()?);
    let (rank, wide) = (axes.len(), compute_type(ty.dtype));
    // Channels innermost: every gather reads whole rows of them.
    let last: Vec<usize> = std::iter::once(0).chain(2..2 + rank).chain([1]).collect();
    let plane: u64 = ty.dims[2..].iter().product();
    let rows = x.permute(&last).reshape([ty.dims[0] * plane, ty.dims[1]]);
    let column = [&place[..], &[1]].concat();
    let whole = [&place[..], &ty.dims[1..2]].concat();
    let term = |chosen: Vec<usize>| {
        let taps = |a: &[Ex]| -> Vec<[Ex; 3]> {
            (0..rank).map(|i| axes[i].taps(&a[i], None).swap_remove(chosen[i])).collect()
        };
        let at = g.map(positions, DType::I64, &place, |s, a| {
            let int = |n: i64| s.constant(Scalar::i64(n));
            taps(a).iter().zip(axes).fold(s.coord(0), |at, (tap, axis)| at * int(axis.extent.fixed()) + &tap[0])
        });
        let weight = g.map(positions, wide, &place, |_, a| {
            let weight = |[_, inside, weight]: &[Ex; 3], axis: &SampledAxis| match axis.outside {
                Outside::Zeros => inside.select(weight, &weight.lit(0.0)),
                _ => weight.clone(),
            };
            let each = taps(a);
            let each = each.iter().zip(axes).map(|(tap, axis)| weight(tap, axis));
            each.reduce(|product, w| product * w).unwrap_or_else(|| a[0].lit(1.0))
        });
        g.map(&[rows.gather(at, 0), weight.reshape(&column)], wide, &whole, |_, a| &a[0] * &a[1])
    };
    let terms: Vec<_> = combinations(axes).into_iter().map(term).collect();
    let sum = g.map(&terms, wide, &whole, |_, a| a[1..].iter().fold(a[0].clone(), |sum, x| sum + x));
    let first: Vec<usize> = [0, place.len()].into_iter().chain(1..place.len()).collect();
    Ok(sum.permute(&first))
}

/// Every choice of one tap for each axis.
fn combinations(axes: &[SampledAxis]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![vec![]], |chosen, axis| {
        let with = |c: &Vec<usize>| (0..axis.tap_count()).map(|tap| [&c[..], &[tap]].concat()).collect::<Vec<_>>();
        chosen.iter().flat_map(with).collect()
    })
}
