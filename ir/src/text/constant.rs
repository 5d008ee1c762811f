//! The value of a constant: written out, generated or elided.

use super::{PrintOptions, base64, literal};
use crate::tensor::TensorData;

/// Bytes of all generated constants of a file: `splat`, `iota` and `random`. More are refused.
pub(super) const MAX_GENERATED_BYTES: u64 = 1 << 30;

/// The type and value of a constant.
pub(super) fn print(data: &TensorData, options: &PrintOptions) -> String {
    format!("{} {}", data.ty, value(data, options))
}

fn value(data: &TensorData, options: &PrintOptions) -> String {
    if data.is_open() {
        let elements: Vec<String> = data.extents().iter().map(|n| n.to_string()).collect();
        return format!("[{}]", elements.join(", "));
    }
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
