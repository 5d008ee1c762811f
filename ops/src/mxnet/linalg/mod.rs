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
fn transposed(b: &mut Builder<'_>, x: Value) -> Result<Value> {
    let rank = b.dims(x)?.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    b.permuted(x, &perm)
}

fn transposed_if(b: &mut Builder<'_>, x: Value, flag: bool) -> Result<Value> {
    if flag { transposed(b, x) } else { Ok(x) }
}

fn matmul(b: &mut Builder<'_>, x: Value, y: Value) -> Result<Value> {
    b.call("matmul", &[x, y])
}

fn scaled(b: &mut Builder<'_>, x: Value, by: f64) -> Result<Value> {
    if by == 1.0 { Ok(x) } else { with_number(b, "mul", x, by) }
}

/// What is not in the lower (or upper) triangle becomes zero.
fn triangle(b: &mut Builder<'_>, x: Value, lower: bool) -> Result<Value> {
    let (ty, rank) = (b.ty(x)?, b.dims(x)?.len());
    b.map_as(&[x], ty.dtype, &ty.dims, |s, a| {
        let (row, column) = (s.coord(rank - 2), s.coord(rank - 1));
        let keep = if lower { column.le(&row) } else { column.ge(&row) };
        keep.select(&a[0], &a[0].lit(0.0))
    })
}
