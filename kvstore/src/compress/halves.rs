//! The 16-bit floating-point types and their conversions.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Values converted at a time.
const BLOCK: usize = 512;

/// Set in an f32 NaN that does not signal.
const QUIET: u32 = 1 << 22;

/// A 16-bit floating-point type. Conversions are without branches, so that compilers vectorise them.
pub(crate) trait Half: Copy + Default {
    /// The same value in f32, of little-endian bytes; NaN is quiet.
    fn widen(bytes: [u8; 2]) -> f32;

    /// Rounds values to nearest even, in little-endian order.
    fn narrow(values: &[f32], bytes: &mut [u8]);
}

impl Half for f16 {
    fn widen(bytes: [u8; 2]) -> f32 {
        let half = u32::from(u16::from_le_bytes(bytes));
        let (sign, magnitude) = ((half & 0x8000) << 16, half & 0x7fff);
        // The exponent of f32 is larger by 112; that of infinity and NaN, by 112 more.
        let normal = (magnitude << 13) + (112 << 23);
        let special = (normal + (112 << 23)) | if magnitude > 0x7c00 { QUIET } else { 0 };
        // A subnormal is 2^-14 times its fraction: one is put before the point, and taken off again.
        let subnormal = (f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
        let finite = if magnitude < 0x0400 { subnormal } else { normal };
        f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
    }

    fn narrow(values: &[f32], bytes: &mut [u8]) {
        let mut halves = [f16::ZERO; BLOCK];
        for (values, bytes) in values.chunks(BLOCK).zip(bytes.as_chunks_mut().0.chunks_mut(BLOCK)) {
            let halves = &mut halves[..values.len()];
            halves.convert_from_f32_slice(values);
            bytes.iter_mut().zip(halves).for_each(|(bytes, half)| *bytes = half.to_le_bytes());
        }
    }
}

impl Half for bf16 {
    fn widen(bytes: [u8; 2]) -> f32 {
        let bits = u32::from(u16::from_le_bytes(bytes)) << 16;
        f32::from_bits(bits | if f32::from_bits(bits).is_nan() { QUIET } else { 0 })
    }

    fn narrow(values: &[f32], bytes: &mut [u8]) {
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            let bits = value.to_bits();
            // A tie ends at the even neighbour.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            let kept = if value.is_nan() { bits | QUIET } else { rounded };
            *bytes = ((kept >> 16) as u16).to_le_bytes();
        }
    }
}

pub(crate) fn encode<H: Half>(gradient: &[[u8; 4]], codes: &mut [u8]) {
    let mut values = [0.0; BLOCK];
    for (gradient, codes) in gradient.chunks(BLOCK).zip(codes.chunks_mut(2 * BLOCK)) {
        let values = &mut values[..gradient.len()];
        values.iter_mut().zip(gradient).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
        H::narrow(values, codes);
    }
}

pub(crate) fn decode<H: Half>(codes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
    out.iter_mut().zip(codes.as_chunks().0).for_each(|(out, bytes)| put(out, H::widen(*bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            assert_eq!(f16::widen(bytes).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
            assert_eq!(bf16::widen(bytes).to_bits(), bf16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
        }
    }

    #[test]
    fn every_bf16_and_what_rounds_to_it() {
        // Below, at and above the tie with the next value, and the value itself.
        for offset in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let values: Vec<_> = (0..=u16::MAX).map(|half| f32::from_bits(u32::from(half) << 16 | offset)).collect();
            let mut rounded = vec![0; 2 * values.len()];
            bf16::narrow(&values, &mut rounded);
            let expected = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes());
            assert!(expected.eq(rounded), "{offset:#x}");
        }
    }
}
