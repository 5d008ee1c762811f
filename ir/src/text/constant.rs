//! The value of a constant: written out, generated or elided.

use super::{PrintOptions, base64, literal};
use crate::scalar::Scalar;
use crate::tensor::TensorData;
use crate::types::DenseType;

/// Generated constants of more bytes are refused.
pub(super) const MAX_GENERATED_BYTES: u64 = 1 << 30;

/// The type and value of a constant.
pub(super) fn print(data: &TensorData, options: &PrintOptions) -> String {
    format!("{} {}", data.ty, value(data, options))
}

fn value(data: &TensorData, options: &PrintOptions) -> String {
    let first = (data.len() > 1).then(|| data.get(0));
    if let Some(first) = first.filter(|f| data.iter().all(|s| s == *f)) {
        return format!("splat({})", literal::print(first));
    }
    if data.len() <= options.inline_elements {
        let elements: Vec<String> = data.iter().map(literal::print).collect();
        return format!("[{}]", elements.join(", "));
    }
    match options.elide {
        true => format!("elided({:#018x}, {})", digest(data.bytes()), data.bytes().len()),
        false => format!("dense \"{}\"", base64::encode(data.bytes())),
    }
}

/// FNV-1a, 64 bits.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// 0, 1, 2, … in row-major order, converted to the element type.
pub(super) fn iota(ty: DenseType) -> TensorData {
    let dtype = ty.dtype;
    TensorData::from_fn(ty, |i| Scalar::from_i64(dtype, i as i64))
}

/// Uniform values: floats in [-1, 1), signed integers in -8..8, unsigned ones in 0..16, bools.
/// Element i comes from the i-th output of SplitMix64 with the given seed.
pub(super) fn random(ty: DenseType, seed: u64) -> TensorData {
    let dtype = ty.dtype;
    let mut rng = crate::rng::Rng::new(seed);
    TensorData::from_fn(ty, |_| rng.element(dtype))
}
