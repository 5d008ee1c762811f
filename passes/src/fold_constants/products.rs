//! Products of constant f32 matrices, where they are too large for the interpreter: they add in f64 and round once.

use tensorc_abi::DType;
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::prim::Contraction;
use tensorc_ir::views::in_bounds;
use tensorc_ir::{DenseType, TensorData};

use super::fast::{f32s, filled};

/// Most multiplications of a product.
const MAX_PRODUCT_OPS: u64 = 32 << 20;

/// Fewest for which a product is computed here.
const MIN_PRODUCT_TERMS: u64 = 1 << 16;

/// `[m, k] × [k, n]`: for each axis its extent, and its strides in the operands that have it.
pub(super) struct StridedProduct {
    m: (usize, usize),
    n: (usize, usize),
    k: (usize, usize, usize),
}

/// A contraction that is a product of two matrices, or of a matrix and a vector, with any strides; too small or too
/// large ones are left to others.
pub(super) fn matrices(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<StridedProduct> {
    let inside = in_bounds(&c.lhs, &lhs.dims, &c.extents) && in_bounds(&c.rhs, &rhs.dims, &c.extents);
    let steps = c.extents.iter().fold(1u64, |all, e| all.saturating_mul(*e));
    let fits = inside && lhs.dtype == DType::F32 && rhs.dtype == DType::F32;
    if !fits || !(MIN_PRODUCT_TERMS..=MAX_PRODUCT_OPS).contains(&steps) {
        return None;
    }
    let (a, b) = (linearize(&c.lhs, &lhs.dims), linearize(&c.rhs, &rhs.dims));
    let affine = a.is_affine() && b.is_affine() && a.constant == 0 && b.constant == 0;
    let (mut m, mut n, mut k) = (None, None, None);
    for (v, extent) in c.extents.iter().enumerate().filter(|(_, extent)| **extent > 1) {
        let stride = |flat: &Index| flat.step(v as u32).and_then(|s| usize::try_from(s).ok());
        let (extent, in_a, in_b) = (*extent as usize, stride(&a)?, stride(&b)?);
        // Rows come before columns in the result.
        let taken = match (v < c.out_rank, in_a, in_b) {
            (true, 1.., 0) if n.is_none() => m.replace((extent, in_a)).is_some(),
            (true, 0, 1..) => n.replace((extent, in_b)).is_some(),
            (false, 1.., 1..) => k.replace((extent, in_a, in_b)).is_some(),
            _ => true,
        };
        if taken {
            return None;
        }
    }
    affine.then(|| StridedProduct { m: m.unwrap_or((1, 0)), n: n.unwrap_or((1, 0)), k: k.unwrap_or((1, 0, 0)) })
}

/// The product of two such matrices.
pub(super) fn eval(c: &Contraction, lhs: &TensorData, rhs: &TensorData, output: &DenseType) -> Option<TensorData> {
    let StridedProduct { m: (m, a_row), n: (n, b_col), k: (k, a_col, b_row) } = matrices(c, &lhs.ty, &rhs.ty)?;
    let (a, b) = (f32s(lhs)?, f32s(rhs)?);
    let mut sums = vec![0f64; n];
    filled(output, |bytes| {
        for (i, line) in bytes.chunks_exact_mut(4 * n).enumerate().take(m) {
            sums.fill(0.0);
            for p in 0..k {
                let (x, row) = (f64::from(a[i * a_row + p * a_col]), &b[p * b_row..]);
                let add = |(sum, y): (&mut f64, &f32)| *sum += x * f64::from(*y);
                match b_col {
                    1 => sums.iter_mut().zip(row).for_each(add),
                    _ => sums.iter_mut().zip(row.iter().step_by(b_col.max(1))).for_each(add),
                }
            }
            line.as_chunks_mut().0.iter_mut().zip(&sums).for_each(|(to, s)| *to = (*s as f32).to_le_bytes());
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a failure is a failed test")]

    use tensorc_ir::interp::eval_prim;
    use tensorc_ir::prim::{ConvAlgorithm, Prim};
    use tensorc_ir::scalar::Scalar;

    use super::super::fast::is_fast;
    use super::*;

    fn ramp(dims: &[u64]) -> TensorData {
        TensorData::from_fn(DenseType::new(DType::F32, dims), |i| Scalar::f32((i * 7 % 31) as f32 / 8.0 - 1.5))
    }

    fn vars(axes: &[u32]) -> Vec<Index> {
        axes.iter().map(|a| Index::var(*a)).collect()
    }

    #[test]
    fn products_have_the_values_of_the_interpreter() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        // Extents, and the axes of each operand; the last is summed over.
        let cases: [(&[u64], [&[u32]; 2]); 5] = [
            (&[1, 1, 300, 256], [&[3], &[3, 2]]),
            (&[1, 1, 300, 256], [&[3], &[2, 3]]),
            (&[40, 50, 60], [&[0, 2], &[2, 1]]),
            (&[40, 50, 60], [&[2, 0], &[1, 2]]),
            (&[300, 256], [&[0, 1], &[1]]),
        ];
        for (extents, [lhs, rhs]) in cases {
            let out_rank = extents.len() - 1;
            let of = |axes: &[u32]| ramp(&axes.iter().map(|a| extents[*a as usize]).collect::<Vec<_>>());
            let (a, b) = (of(lhs), of(rhs));
            let output = DenseType::new(DType::F32, &extents[..out_rank]);
            let extents = extents.into();
            let prim = Prim::Contract(
                Contraction { extents, out_rank, lhs: vars(lhs), rhs: vars(rhs), algorithm: ConvAlgorithm::Direct }
                    .into(),
            );
            assert!(is_fast(&prim, &[&a.ty, &b.ty], &[&output]));
            let Prim::Contract(c) = &prim else { unreachable!("it is one") };
            let fast = eval(c, &a, &b, &output).expect("it is fast");
            let slow = eval_prim(&prim, &[&a, &b], &[output], registry.math()).expect("it is a value");
            for (x, y) in fast.to_f32s().into_iter().zip(slow[0].to_f32s()) {
                assert!((x - y).abs() <= 1e-5 * y.abs().max(1.0), "{x} {y}");
            }
        }
    }

    #[test]
    fn products_that_read_outside_or_sum_over_more_are_left_alone() {
        let outside = Contraction {
            extents: [300, 256].into(),
            out_rank: 1,
            lhs: vec![Index::var(0).offset(1), Index::var(1)],
            rhs: vars(&[1]),
            algorithm: ConvAlgorithm::Direct,
        };
        assert!(matrices(&outside, &ramp(&[300, 256]).ty, &ramp(&[256]).ty).is_none());
        let batched = Contraction {
            extents: [2, 40, 50, 60].into(),
            out_rank: 3,
            lhs: vars(&[0, 1, 3]),
            rhs: vars(&[0, 3, 2]),
            algorithm: ConvAlgorithm::Direct,
        };
        assert!(matrices(&batched, &ramp(&[2, 40, 60]).ty, &ramp(&[2, 60, 50]).ty).is_none());
    }
}
