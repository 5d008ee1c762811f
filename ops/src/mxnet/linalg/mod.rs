//! Matrix products and factorisations, on matrices in the last two axes.

mod attention;
mod factor;
mod fourier;
mod products;
mod solve;
mod triangles;

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let families = [attention::ops(), factor::ops(), fourier::ops(), products::ops(), solve::ops(), triangles::ops()];
    families.into_iter().flatten().collect()
}

/// The last two axes exchanged.
fn transposed(x: Tensor<'_>) -> Tensor<'_> {
    x.then(|b, x| {
        let rank = b.dims(x)?.len();
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 1, rank - 2);
        b.permuted(x, &perm)
    })
}

fn transposed_if(x: Tensor<'_>, flag: bool) -> Tensor<'_> {
    if flag { transposed(x) } else { x }
}

fn matmul<'g>(x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    x.call("matmul", &[y])
}

fn scaled(x: Tensor<'_>, by: f64) -> Tensor<'_> {
    if by == 1.0 { x } else { x * by }
}

/// Which triangle of an operand is used.
fn is_lower(params: &Params) -> bool {
    params.bool("lower") != Some(false)
}

fn alpha(params: &Params) -> f64 {
    params.float("alpha").unwrap_or(1.0)
}

/// What is not in the lower (or upper) triangle becomes zero.
fn triangle(x: Tensor<'_>, lower: bool) -> Result<Tensor<'_>> {
    let rank = x.dims()?.len();
    Ok(x.map_with(&[], |s, a| {
        let (row, column) = (s.coord(rank - 2), s.coord(rank - 1));
        let keep = if lower { column.le(&row) } else { column.ge(&row) };
        keep.select(&a[0], &a[0].lit(0.0))
    }))
}

/// The lower triangle of a matrix, and its mirror image.
fn mirrored(x: Tensor<'_>) -> Result<Tensor<'_>> {
    let rank = x.dims()?.len();
    Ok(x.map_with(&[transposed(x)], |s, a| s.coord(rank - 1).le(&s.coord(rank - 2)).select(&a[0], &a[1])))
}
