//! How far two tensors are apart.

use tensorc_ir::TensorData;
use tensorc_ir::scalar::Scalar;

/// What may be between two elements: `absolute + relative · m`, where `m` is the largest finite magnitude of the first tensor.
/// Elements that are no floats must be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// A share of the largest magnitude.
    pub relative: f64,
    /// A number.
    pub absolute: f64,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance { relative: 1e-4, absolute: 1e-6 }
    }
}

/// How far two tensors of one type are apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// The largest difference of two elements; infinite if one of them is no number, or infinite, and the other another.
    pub absolute: f64,
    /// That as a share of the largest finite magnitude of the first tensor.
    pub relative: f64,
    /// Where it is, by coordinates.
    pub at: Vec<u64>,
    /// Both elements there.
    pub values: [f64; 2],
    /// Elements that are farther apart than the tolerance, and in all.
    pub beyond: u64,
    /// Elements in all.
    pub elements: u64,
}

impl Difference {
    /// Of two tensors of the same type.
    pub fn of(a: &TensorData, b: &TensorData, tolerance: Tolerance) -> Difference {
        let mut found = Difference { elements: a.len(), ..Difference::default() };
        if a.bytes() == b.bytes() {
            return found;
        }
        let largest = a.iter().map(|x| x.as_f64().abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
        let limit = if a.dtype().is_float() { tolerance.absolute + tolerance.relative * largest } else { 0.0 };
        let mut worst = None;
        for (i, (x, y)) in (0..).zip(a.iter().zip(b.iter())) {
            let distance = distance(x, y);
            found.beyond += u64::from(distance > limit);
            if distance > found.absolute {
                (found.absolute, worst) = (distance, Some((i, [x.as_f64(), y.as_f64()])));
            }
        }
        if let Some((i, values)) = worst {
            (found.at, found.values) = (coordinates(i, a.dims()), values);
        }
        found.relative = if found.absolute == 0.0 { 0.0 } else { found.absolute / largest };
        found
    }

    /// Whether no element is farther away than the tolerance.
    pub fn is_within(&self) -> bool {
        self.beyond == 0
    }
}

fn distance(x: Scalar, y: Scalar) -> f64 {
    let (a, b) = (x.as_f64(), y.as_f64());
    match (a - b).abs() {
        _ if x.bits == y.bits || x.dtype.is_float() && a == b || a.is_nan() && b.is_nan() => 0.0,
        // Integers that are too large for a float to tell apart.
        0.0 => 1.0,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}

/// The coordinates of an element of a row-major tensor.
fn coordinates(position: u64, dims: &[u64]) -> Vec<u64> {
    let mut rest = position;
    let mut at: Vec<u64> = vec![];
    for n in dims.iter().rev() {
        at.push(rest % n);
        rest /= n;
    }
    at.reverse();
    at
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> TensorData {
        TensorData::f32s(&[2, values.len() as u64 / 2], values).unwrap()
    }

    #[test]
    fn the_largest_difference_is_told_with_its_place() {
        let (a, b) = (f32s(&[1.0, -8.0, 2.0, 0.0]), f32s(&[1.0, -8.0, 2.5, 0.001]));
        let found = Difference::of(&a, &b, Tolerance { relative: 0.01, absolute: 0.0 });
        assert_eq!((found.absolute, found.relative, found.beyond, found.elements), (0.5, 0.0625, 1, 4));
        assert_eq!((found.at, found.values), (vec![1, 0], [2.0, 2.5]));
        assert!(Difference::of(&a, &b, Tolerance { relative: 0.1, absolute: 0.0 }).is_within());
        assert!(Difference::of(&a, &b, Tolerance { relative: 0.0, absolute: 0.5 }).is_within());
    }

    #[test]
    fn values_that_are_no_numbers_agree_with_each_other_alone() {
        let nan = Difference::of(&f32s(&[f32::NAN, 1.0]), &f32s(&[-f32::NAN, 1.0]), Tolerance::default());
        assert!(nan.is_within() && nan.absolute == 0.0);
        let lost = Difference::of(&f32s(&[f32::INFINITY, 1.0]), &f32s(&[3.0, 1.0]), Tolerance::default());
        assert_eq!((lost.absolute, lost.beyond), (f64::INFINITY, 1));
        let zeros = Difference::of(&f32s(&[0.0, 1.0]), &f32s(&[-0.0, 1.0]), Tolerance { relative: 0.0, absolute: 0.0 });
        assert!(zeros.is_within());
    }

    #[test]
    fn integers_are_equal_or_not() {
        let i64s = |values: &[i64]| TensorData::i64s(&[values.len() as u64], values).unwrap();
        let large =
            Difference::of(&i64s(&[i64::MAX]), &i64s(&[i64::MAX - 1]), Tolerance { relative: 1.0, absolute: 9.0 });
        assert_eq!((large.beyond, large.absolute), (1, 1.0));
    }
}
