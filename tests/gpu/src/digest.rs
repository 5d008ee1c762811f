//! Bits of tensors in few characters, for results that are stored.

use tensorc::ir::TensorData;
use tensorc::ir::scalar::Scalar;
use tensorc_tests::cache::sha256;

/// Characters of a digest.
const LENGTH: usize = 24;

/// A digest of types, extents and bits; any NaN stands for any other.
pub fn digest(data: &TensorData) -> String {
    let (dtype, size) = (data.dtype(), data.dtype().size());
    let mut bytes = format!("{}\n", data.ty).into_bytes();
    let nan = |element: &[u8]| dtype.is_float() && Scalar::read(dtype, element).as_f64().is_nan();
    for element in data.bytes().chunks_exact(size.max(1)) {
        match nan(element) {
            true => bytes.extend(std::iter::repeat_n(0xff, size)),
            false => bytes.extend(element),
        }
    }
    let mut text = sha256(&bytes);
    text.truncate(LENGTH);
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use tensorc::ir::{DType, DenseType};

    #[test]
    fn payloads_do_not_count_and_everything_else_does() {
        let of = |dims: &[u64], bits: [u32; 2]| {
            let bytes: Vec<u8> = bits.iter().flat_map(|x| x.to_le_bytes()).collect();
            digest(&TensorData::new(DenseType::new(DType::F32, dims), bytes.into()).unwrap())
        };
        let first = of(&[2], [0x7fc0_0000, 1]);
        assert_eq!(first, of(&[2], [0xffc1_2345, 1]));
        assert_ne!(first, of(&[2], [0x7fc0_0000, 2]));
        assert_ne!(first, of(&[1, 2], [0x7fc0_0000, 1]));
        assert_ne!(of(&[2], [0, 1]), of(&[2], [0x8000_0000, 1]), "zeros have signs");
    }
}
