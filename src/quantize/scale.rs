//! Scales and zero points.

use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, TensorData};

use super::histogram::Range;

/// The integers that stand for activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationType {
    /// Unsigned bytes, 0 to 255.
    #[default]
    U8,
    /// Signed bytes, -128 to 127.
    I8,
}

impl ActivationType {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            ActivationType::U8 => DType::U8,
            ActivationType::I8 => DType::I8,
        }
    }

    /// The least and the largest integer.
    pub(super) fn limits(self) -> (i32, i32) {
        match self {
            ActivationType::U8 => (0, 255),
            ActivationType::I8 => (-128, 127),
        }
    }
}

/// How integers stand for numbers: `(q - zero) · scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    pub scale: f32,
    pub zero: i32,
}

impl Scale {
    /// For numbers of a range, and 0, which has an integer of its own.
    pub fn of_range(range: Range, ty: ActivationType) -> Scale {
        let (low, high) = ty.limits();
        let (min, max) = (f64::from(range.min.min(0.0)), f64::from(range.max.max(0.0)));
        let scale = ((max - min) / f64::from(high - low)) as f32;
        if !(scale.is_finite() && scale >= f32::MIN_POSITIVE) {
            return Scale { scale: 1.0, zero: low };
        }
        let zero = (f64::from(low) - min / f64::from(scale)).round_ties_even() as i32;
        Scale { scale, zero: zero.clamp(low, high) }
    }

    /// The integer that stands for a number.
    pub fn quantised(self, x: f32, ty: ActivationType) -> i32 {
        let (low, high) = ty.limits();
        ((x / self.scale).round_ties_even() as i32).saturating_add(self.zero).clamp(low, high)
    }
}

/// Weights as signed bytes.
pub(super) struct QuantisedWeights {
    pub data: TensorData,
    /// One scale, or one for each position of an axis.
    pub scales: Vec<f32>,
}

/// The least and largest byte of weights: as many below 0 as above.
const WEIGHT_LIMIT: f32 = 127.0;

/// Weights as bytes whose scale is the largest magnitude, of each position of an axis if there is one. `least` gives for each
/// position the scale that is needed at least.
pub(super) fn quantise_weights(
    weights: &TensorData,
    axis: Option<usize>,
    least: &dyn Fn(usize) -> f32,
) -> QuantisedWeights {
    let values = weights.to_f32s();
    let dims = weights.dims();
    let channels = axis.map_or(1, |axis| dims[axis] as usize);
    let inner: u64 = axis.map_or(1, |axis| dims[axis + 1..].iter().product());
    let channel = |i: usize| i / inner as usize % channels;
    let mut largest = vec![0.0f32; channels];
    for (i, w) in values.iter().enumerate() {
        let most = &mut largest[channel(i)];
        *most = most.max(w.abs());
    }
    let scale = |(c, most): (usize, &f32)| match (most / WEIGHT_LIMIT).max(least(c)) {
        // Nothing but zeros.
        scale if scale < f32::MIN_POSITIVE => 1.0,
        scale => scale,
    };
    let scales: Vec<f32> = largest.iter().enumerate().map(scale).collect();
    let byte = |(i, w): (usize, &f32)| {
        (w / scales[channel(i)]).round_ties_even().clamp(-WEIGHT_LIMIT, WEIGHT_LIMIT) as i8 as u8
    };
    let bytes: Vec<u8> = values.iter().enumerate().map(byte).collect();
    QuantisedWeights { data: tensor(DType::I8, dims, bytes), scales }
}

/// A tensor of elements that fill the shape.
pub(super) fn tensor(dtype: DType, dims: &[u64], bytes: Vec<u8>) -> TensorData {
    let size = dtype.size();
    TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar::read(dtype, &bytes[i as usize * size..][..size]))
}

/// A tensor of f32 that fill the shape.
pub(super) fn floats(dims: &[u64], values: &[f32]) -> TensorData {
    tensor(DType::F32, dims, values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ranges_fill_the_integers_and_zero_has_one() {
        let both = Scale::of_range(Range { min: -1.0, max: 3.0 }, ActivationType::U8);
        assert_eq!(both, Scale { scale: 4.0 / 255.0, zero: 64 });
        assert_eq!([-1.0, 0.0, 3.0, 9.0, -9.0].map(|x| both.quantised(x, ActivationType::U8)), [0, 64, 255, 255, 0]);
        let signed = Scale::of_range(Range { min: 0.0, max: 2.55 }, ActivationType::I8);
        assert_eq!((signed.zero, signed.quantised(2.55, ActivationType::I8)), (-128, 127));
        let positive = Scale::of_range(Range { min: 2.0, max: 5.1 }, ActivationType::U8);
        assert_eq!(positive, Scale { scale: 5.1 / 255.0, zero: 0 });
        let nothing = Scale::of_range(Range { min: 0.0, max: 0.0 }, ActivationType::U8);
        assert_eq!(nothing, Scale { scale: 1.0, zero: 0 });
        assert_eq!(both.quantised(f32::MAX, ActivationType::U8), 255);
    }

    #[test]
    fn weights_have_a_scale_for_each_channel() {
        let weights = TensorData::f32s(&[2, 2, 2], &[1.01, -2.0, 0.0, 0.0, 0.5, 0.25, 8.0, -127.0]).unwrap();
        let found = quantise_weights(&weights, Some(1), &|_| 0.0);
        assert_eq!(found.scales, [2.0 / 127.0, 1.0]);
        let bytes: Vec<i8> = found.data.bytes().iter().map(|b| *b as i8).collect();
        assert_eq!(bytes, [64, -127, 0, 0, 32, 16, 8, -127]);
        let whole = quantise_weights(&weights, None, &|_| 2.0);
        assert_eq!(whole.scales, [2.0]);
        assert_eq!(whole.data.bytes()[7] as i8, -64);
        let zeros = quantise_weights(&TensorData::f32s(&[2], &[0.0, 0.0]).unwrap(), Some(0), &|_| 0.0);
        assert_eq!(zeros.scales, [1.0, 1.0]);
    }
}
