//! The 16-bit floating-point types, converted in blocks by the machine's instructions where it has them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Values converted at a time.
const BLOCK: usize = 512;

/// A 16-bit floating-point type.
pub(crate) trait Half: Copy + Default {
    fn from_f32(values: &[f32], halves: &mut [Self]);
    fn to_f32(halves: &[Self], values: &mut [f32]);
    fn to_bytes(self) -> [u8; 2];
    fn from_bytes(bytes: [u8; 2]) -> Self;
}

macro_rules! half {
    ($type:ty) => {
        impl Half for $type {
            fn from_f32(values: &[f32], halves: &mut [Self]) {
                halves.convert_from_f32_slice(values);
            }
            fn to_f32(halves: &[Self], values: &mut [f32]) {
                halves.convert_to_f32_slice(values);
            }
            fn to_bytes(self) -> [u8; 2] {
                self.to_le_bytes()
            }
            fn from_bytes(bytes: [u8; 2]) -> Self {
                Self::from_le_bytes(bytes)
            }
        }
    };
}

half!(f16);
half!(bf16);

/// Rounds f32 values, read by `read`, to 16 bits each in little-endian order.
pub(crate) fn write<H: Half>(values: &[f32], bytes: &mut [u8]) {
    let mut halves = [H::default(); BLOCK];
    for (values, bytes) in values.chunks(BLOCK).zip(bytes.as_chunks_mut().0.chunks_mut(BLOCK)) {
        let halves = &mut halves[..values.len()];
        H::from_f32(values, halves);
        bytes.iter_mut().zip(halves).for_each(|(bytes, half)| *bytes = half.to_bytes());
    }
}

/// Reads values of 16 bits in little-endian order.
pub(crate) fn read<H: Half>(bytes: &[u8], values: &mut [f32]) {
    let mut halves = [H::default(); BLOCK];
    for (values, bytes) in values.chunks_mut(BLOCK).zip(bytes.as_chunks().0.chunks(BLOCK)) {
        let halves = &mut halves[..values.len()];
        halves.iter_mut().zip(bytes).for_each(|(half, bytes)| *half = H::from_bytes(*bytes));
        H::to_f32(halves, values);
    }
}

pub(super) fn encode<H: Half>(gradient: &[[u8; 4]], codes: &mut [u8]) {
    let mut values = [0.0; BLOCK];
    for (gradient, codes) in gradient.chunks(BLOCK).zip(codes.chunks_mut(2 * BLOCK)) {
        let values = &mut values[..gradient.len()];
        values.iter_mut().zip(gradient).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
        write::<H>(values, codes);
    }
}

pub(super) fn decode<H: Half>(codes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
    let mut values = [0.0; BLOCK];
    for (codes, out) in codes.chunks(2 * BLOCK).zip(out.chunks_mut(BLOCK)) {
        let values = &mut values[..out.len()];
        read::<H>(codes, values);
        out.iter_mut().zip(values).for_each(|(out, value)| put(out, *value));
    }
}
