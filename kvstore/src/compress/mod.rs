//! Gradients in fewer bits: MXNet's 2 bit and 1 bit codes, and the 16-bit floating-point types.
//!
//! The codes of few bits are lossy by themselves; what a code leaves of a gradient goes to a residual, which is added to
//! the next gradient of the same key, so that nothing is lost in the sum over time (up to rounding in f32).
//!
//! A gradient that is not finite follows the formulas, as in MXNet: NaN stays in the residual for ever and is sent as 0
//! (2 bit) or -1 (1 bit); an infinity stays in it, too, and is sent as the threshold (2 bit) or 1 (1 bit) with its sign.
//! [`Compression::None`], `F16` and `BF16` send NaN and infinities themselves.

mod bits;
pub(crate) mod halves;

use half::{bf16, f16};

use crate::buffers::NoMemory;
pub use crate::compression::Compression;
use crate::error::{KvError, check_length};

impl Compression {
    /// Appends the codes of a gradient, which is f32 in little-endian order, to `out`.
    ///
    /// The residual has one value for each of the gradient, or none where [`Compression::keeps_residual`] is false; the
    /// gradient is added to it and what the codes stand for is taken off it. Each part of a gradient may be encoded by
    /// itself, with its part of the residual.
    ///
    /// The codes of few bits fill bytes from the most significant bit on, in the order of the values: 2 bit is 11 for the
    /// threshold, 10 for its negative and 00 for zero; 1 bit is 1 for 1 and 0 for -1. The last word is filled up with 0.
    /// The other kinds are little-endian.
    ///
    /// # Errors
    /// Lengths that do not fit, a threshold that cannot be, or no memory; then nothing is changed.
    pub fn encode(self, gradient: &[u8], residual: &mut [f32], out: &mut Vec<u8>) -> Result<(), KvError> {
        self.check()?;
        let (values, rest) = gradient.as_chunks::<4>();
        check_length("bytes of a gradient of f32", values.len() * 4, values.len() * 4 + rest.len())?;
        let kept = if self.keeps_residual() { values.len() } else { 0 };
        check_length("values of a residual", kept, residual.len())?;
        let bytes = self.encoded_len(values.len());
        let short = |_| NoMemory(bytes as u64);
        out.try_reserve(bytes).map_err(short)?;
        let start = out.len();
        out.resize(start + bytes, 0);
        let codes = &mut out[start..];
        match self {
            Compression::None => codes.copy_from_slice(gradient),
            Compression::TwoBit { threshold } => bits::encode_two(threshold, values, residual, codes),
            Compression::OneBit { threshold } => bits::encode_one(threshold, values, residual, codes),
            Compression::F16 => halves::encode::<f16>(values, codes),
            Compression::BF16 => halves::encode::<bf16>(values, codes),
        }
        Ok(())
    }

    /// Writes the values that codes stand for. The 2 bit code 01, which no encoder writes, stands for 0, as in MXNet.
    ///
    /// # Errors
    /// The codes are not those of so many values, or a threshold cannot be; then nothing is changed.
    pub fn decode_into(self, codes: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        self.decode(codes, out, |out, value| *out = value)
    }

    /// Adds the values that codes stand for to those of `out`.
    ///
    /// # Errors
    /// As [`Compression::decode_into`].
    pub fn decode_add(self, codes: &[u8], out: &mut [f32]) -> Result<(), KvError> {
        self.decode(codes, out, |out, value| *out += value)
    }

    fn decode(self, codes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), KvError> {
        self.check()?;
        check_length("bytes of a compressed gradient", self.encoded_len(out.len()), codes.len())?;
        match self {
            Compression::None => {
                let values = codes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                out.iter_mut().zip(values).for_each(|(out, value)| put(out, value));
            }
            Compression::TwoBit { threshold } => bits::decode_two(threshold, codes, out, put),
            Compression::OneBit { .. } => bits::decode_one(codes, out, put),
            Compression::F16 => halves::decode::<f16>(codes, out, put),
            Compression::BF16 => halves::decode::<bf16>(codes, out, put),
        }
        Ok(())
    }
}
