//! Elements of less than a byte, which the files of ONNX pack: the first one is in the lowest bits of the first byte, and
//! the next begins at the bit behind it.

use bytes::Bytes;
use tensorc_ir::DType;

/// The bytes of so many elements of a type in a file, given their bytes in memory.
pub(super) fn bytes(dtype: DType, in_memory: u64) -> u64 {
    match dtype.bits() as u64 {
        bits @ 0..8 => (in_memory / 8) * bits + (in_memory % 8 * bits).div_ceil(8),
        _ => in_memory,
    }
}

/// Whether an entry of the field of integers is a byte of packed elements. One of 6 bits has an entry of its own.
pub(super) fn in_typed_field(dtype: DType) -> bool {
    dtype.bits() <= 4
}

/// So many elements of the narrow type, a byte each.
pub(super) fn unpacked(dtype: DType, packed: &[u8], elements: u64) -> Bytes {
    let bits = dtype.bits();
    let signed = matches!(dtype, DType::I4 | DType::I2);
    let element = |i: u64| {
        let first = i * bits as u64;
        let byte = |at: u64| u16::from(packed.get(at as usize).copied().unwrap_or_default());
        let code = (byte(first / 8) | byte(first / 8 + 1) << 8) >> (first % 8);
        let code = (code as u8) << (8 - bits);
        if signed { (code as i8 >> (8 - bits)) as u8 } else { code >> (8 - bits) }
    };
    (0..elements).map(element).collect()
}

/// The elements of a narrow type, given a byte each, as files have them.
pub(super) fn packed(dtype: DType, elements: &[u8]) -> Bytes {
    let bits = dtype.bits();
    let mut packed = vec![0u8; bytes(dtype, elements.len() as u64) as usize];
    for (i, element) in elements.iter().enumerate() {
        let (first, code) = (i * bits, u16::from(element << (8 - bits) >> (8 - bits)));
        let [low, high] = (code << (first % 8)).to_le_bytes();
        packed[first / 8] |= low;
        if high != 0 {
            packed[first / 8 + 1] |= high;
        }
    }
    packed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_follow_each_other_from_the_lowest_bit_on() {
        let packed = [0b1110_0100, 0b1001_1010, 0b1111_0001];
        assert_eq!(unpacked(DType::U2, &packed, 5)[..], [0, 1, 2, 3, 2]);
        assert_eq!(unpacked(DType::I2, &packed, 5)[..], [0, 1, 0xfe, 0xff, 0xfe]);
        assert_eq!(unpacked(DType::U4, &packed, 5)[..], [4, 14, 10, 9, 1]);
        assert_eq!(unpacked(DType::I4, &packed, 3)[..], [4, 0xfe, 0xfa]);
        assert_eq!(unpacked(DType::F6E2M3, &packed, 4)[..], [0b10_0100, 0b10_1011, 0b01_1001, 0b11_1100]);
        for (dtype, elements) in [(DType::U2, 5), (DType::I2, 9), (DType::U4, 5), (DType::I4, 3), (DType::F6E2M3, 4)] {
            let all = unpacked(dtype, &packed, elements);
            assert_eq!(unpacked(dtype, &super::packed(dtype, &all), elements), all, "{dtype}");
        }
        let sizes = |dtype| [0u64, 1, 3, 4, 5, 8].map(|n| bytes(dtype, n));
        assert_eq!(sizes(DType::U2), [0, 1, 1, 1, 2, 2]);
        assert_eq!(sizes(DType::F4E2M1), [0, 1, 2, 2, 3, 4]);
        assert_eq!(sizes(DType::F6E3M2), [0, 1, 3, 3, 4, 6]);
        assert_eq!(sizes(DType::F8E5M2), [0, 1, 3, 4, 5, 8]);
    }
}
