//! Contractions of a constant of one element with a matrix or vector: scaled sums along an axis, as they come from moving a bias
//! behind weights. Same bits as the interpreter: fused multiply-adds, terms in row-major order.

use tensorc_abi::DType;
use tensorc_ir::index::linearize;
use tensorc_ir::prim::Contraction;
use tensorc_ir::views::in_bounds;
use tensorc_ir::{DenseType, TensorData};

use super::fast::{f32s, filled};

/// The other operand of a product with one number: columns of the result and terms of each sum.
struct ScaledSum {
    /// Whether the number is the first operand.
    first: bool,
    /// Extent and stride of the columns.
    columns: (usize, usize),
    /// Extent and stride of the terms.
    terms: (usize, usize),
}

impl ScaledSum {
    fn of(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<ScaledSum> {
        let first = lhs.len() == 1;
        let (number, other, from) = if first { (lhs, &c.rhs, rhs) } else { (rhs, &c.lhs, lhs) };
        let f32s = lhs.dtype == DType::F32 && rhs.dtype == DType::F32;
        let constant = if first { &c.lhs } else { &c.rhs }.iter().all(|index| index.as_constant() == Some(0));
        if !f32s || number.len() != 1 || !constant || !in_bounds(other, &from.dims, &c.extents) {
            return None;
        }
        let flat = linearize(other, &from.dims);
        let (mut columns, mut terms) = (None, None);
        for (v, extent) in c.extents.iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let stride = flat.step(v as u32).and_then(|s| usize::try_from(s).ok())?;
            let slot = if v < c.out_rank { &mut columns } else { &mut terms };
            if slot.replace((*extent as usize, stride)).is_some() {
                return None;
            }
        }
        let plain = flat.is_affine() && flat.constant == 0;
        plain.then(|| ScaledSum { first, columns: columns.unwrap_or((1, 0)), terms: terms.unwrap_or((1, 0)) })
    }
}

/// The value of a contraction if one operand is a single number.
pub(super) fn eval(c: &Contraction, lhs: &TensorData, rhs: &TensorData, output: &DenseType) -> Option<TensorData> {
    let ScaledSum { first, columns: (n, column), terms: (k, term) } = ScaledSum::of(c, &lhs.ty, &rhs.ty)?;
    if output.dtype != DType::F32 || output.len() != n as u64 || n == 0 {
        return None;
    }
    let (number, other) = if first { (lhs, rhs) } else { (rhs, lhs) };
    let (x, ys) = (*f32s(number)?.first()?, f32s(other)?);
    let mut sums = vec![0f32; n];
    for p in 0..k {
        let row = ys[p * term..].iter().step_by(column.max(1));
        sums.iter_mut().zip(row).for_each(|(sum, y)| *sum = mul_add(x, *y, *sum));
    }
    filled(output, |bytes| {
        bytes.as_chunks_mut().0.iter_mut().zip(&sums).for_each(|(to, sum)| *to = sum.to_le_bytes());
    })
}

/// As [`f32::mul_add`], which is slow where the instruction is not known to be there.
///
/// The product is exact in f64. Of a sum that is not, the last bit is made odd, so that rounding it to f32 rounds the exact
/// sum (S. Boldo and G. Melquiond, *Emulation of FMA and correctly rounded sums*, 2008).
fn mul_add(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    let part = sum - product;
    let error = (product - (sum - part)) + (z - part);
    let inexact = error != 0.0 && error.is_finite() && sum.to_bits() & 1 == 0;
    let away = (error > 0.0) == (sum > 0.0);
    let odd = if away { sum.to_bits().wrapping_add(1) } else { sum.to_bits().wrapping_sub(1) };
    (if inexact { f64::from_bits(odd) } else { sum }) as f32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a failure is a failed test")]

    use tensorc_ir::index::Index;
    use tensorc_ir::interp::eval_prim;
    use tensorc_ir::prim::{ConvAlgorithm, Prim};
    use tensorc_ir::scalar::Scalar;

    use super::*;

    /// Numbers of all magnitudes, by a linear congruential generator.
    fn numbers(seed: u64) -> impl Iterator<Item = f32> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f32::from_bits((state >> 32) as u32)
        })
    }

    #[test]
    fn multiply_adds_have_the_bits_of_the_instruction() {
        let mut all = numbers(7);
        let mut next = || all.next().expect("they do not end");
        for i in 0..200_000u32 {
            let (x, y, any) = (next(), next(), next());
            // Where most of the product cancels, what is rounded away counts.
            let z = match i % 4 {
                0 => any,
                1 => -(x * y),
                2 => f32::from_bits((x * y).to_bits() ^ 0x8000_0001),
                _ => f32::from_bits((x * y).to_bits().wrapping_add(24 << 23)),
            };
            let (fast, exact) = (mul_add(x, y, z), x.mul_add(y, z));
            assert!(fast.to_bits() == exact.to_bits() || fast.is_nan() && exact.is_nan(), "{x:e} {y:e} {z:e}");
        }
    }

    #[test]
    fn sums_have_the_bits_of_the_interpreter() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        let vars = |axes: &[u32]| axes.iter().map(|a| Index::var(*a)).collect::<Vec<_>>();
        let matrix = TensorData::from_fn(DenseType::new(DType::F32, [60, 50]), |i| {
            Scalar::f32((i * 7919 % 1009) as f32 / 77.0 - 5.3)
        });
        let number = TensorData::scalar(Scalar::f32(0.123_456_7));
        // Extents of columns and terms, and the axes of the matrix.
        for (extents, axes) in [([1, 50, 60], [2, 1]), ([1, 60, 50], [1, 2])] {
            for first in [true, false] {
                let (own, none) = (vars(&axes), vec![]);
                let (lhs, rhs) = if first { (none, own) } else { (own, none) };
                let c =
                    Contraction { extents: extents.into(), out_rank: 2, lhs, rhs, algorithm: ConvAlgorithm::Direct };
                let operands = if first { [&number, &matrix] } else { [&matrix, &number] };
                let output = DenseType::new(DType::F32, [1, extents[1]]);
                let fast = eval(&c, operands[0], operands[1], &output).expect("it is a sum");
                let slow = eval_prim(&Prim::Contract(c.into()), &operands, &[output], registry.math());
                assert_eq!(fast.bytes(), slow.expect("it is a value")[0].bytes(), "{extents:?} {first}");
            }
        }
    }
}
