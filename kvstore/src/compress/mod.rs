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

use crate::error::{KvError, check_length};
use crate::group::NoMemory;

/// How gradients of type f32 are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Compression {
    /// Four bytes a value, unchanged.
    #[default]
    None,
    /// Two bits a value `v`, the gradient and the residual together: `threshold` where `v >= threshold`, `-threshold` where
    /// `v <= -threshold`, otherwise 0. The threshold is finite and above 0.
    TwoBit { threshold: f32 },
    /// One bit a value `v`, the gradient and the residual together: 1 where `v > threshold`, otherwise -1, whatever the
    /// threshold is. It is finite; 0 suits values that are as often above zero as below.
    OneBit { threshold: f32 },
    /// IEEE binary16, rounded to nearest even; from 65520 on, values become infinite.
    F16,
    /// The upper half of f32, rounded to nearest even.
    BF16,
}

/// MXNet's threshold where none is given.
pub const DEFAULT_THRESHOLD: f32 = 0.5;

impl Compression {
    /// Reads MXNet's settings: `type` is `2bit`, `1bit`, `fp16`, `bf16` or `none`; `threshold` is optional for the first two.
    ///
    /// # Errors
    /// No type, an unknown setting or type, a setting given twice, or a threshold that the type cannot have.
    pub fn from_settings<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Compression, KvError> {
        let (mut kind, mut threshold) = (None, None);
        for (name, value) in settings {
            let given = match name {
                "type" => &mut kind,
                "threshold" => &mut threshold,
                _ => return Err(KvError::setting(name, value, "only `type` and `threshold` of gradient compression")),
            };
            if given.replace(value).is_some() {
                return Err(KvError::setting(name, value, "one value only"));
            }
        }
        let number = threshold.map_or(Ok(DEFAULT_THRESHOLD), |text| text.trim().parse::<f32>().map_err(|_| text));
        let number = number.map_err(|text| KvError::setting("threshold", text, "a number"))?;
        let compression = match kind.unwrap_or_default() {
            "2bit" => Compression::TwoBit { threshold: number },
            "1bit" => Compression::OneBit { threshold: number },
            "fp16" => Compression::F16,
            "bf16" => Compression::BF16,
            "none" => Compression::None,
            other => return Err(KvError::setting("type of compression", other, "2bit, 1bit, fp16, bf16 or none")),
        };
        if let (Some(text), false) = (threshold, compression.keeps_residual()) {
            return Err(KvError::setting("threshold", text, "none for this type of compression"));
        }
        compression.check()?;
        Ok(compression)
    }

    /// Whether the threshold is one that this compression can have.
    fn check(self) -> Result<(), KvError> {
        match self {
            Compression::TwoBit { threshold } if !(threshold > 0.0 && threshold.is_finite()) => {
                Err(KvError::setting("threshold", threshold, "a finite number above 0"))
            }
            Compression::OneBit { threshold } if !threshold.is_finite() => {
                Err(KvError::setting("threshold", threshold, "a finite number"))
            }
            _ => Ok(()),
        }
    }

    /// Whether [`Compression::encode`] needs a residual, which is 0 at the beginning.
    pub fn keeps_residual(self) -> bool {
        matches!(self, Compression::TwoBit { .. } | Compression::OneBit { .. })
    }

    /// Bytes of the codes of so many values. Codes of few bits come in words of four bytes.
    pub fn encoded_len(self, count: usize) -> usize {
        match self {
            Compression::None => count.saturating_mul(4),
            Compression::TwoBit { .. } => count.div_ceil(16).saturating_mul(4),
            Compression::OneBit { .. } => count.div_ceil(32) * 4,
            Compression::F16 | Compression::BF16 => count.saturating_mul(2),
        }
    }

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
