//! The kinds of gradient compression, and the sizes of their codes.

/// How gradients of type f32 are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Compression {
    /// Four bytes a value, unchanged.
    #[default]
    None,
    /// Two bits a value `v`, the gradient and the residual together: `threshold` where `v >= threshold`, `-threshold` where
    /// `v <= -threshold`, otherwise 0. The threshold is finite and above 0.
    TwoBit {
        /// The threshold.
        threshold: f32,
    },
    /// One bit a value `v`, the gradient and the residual together: 1 where `v > threshold`, otherwise -1, whatever the
    /// threshold is. It is finite; 0 suits values that are as often above zero as below.
    OneBit {
        /// The threshold.
        threshold: f32,
    },
    /// IEEE binary16, rounded to nearest even; from 65520 on, values become infinite.
    F16,
    /// The upper half of f32, rounded to nearest even.
    BF16,
}

/// MXNet's threshold where none is given.
pub(crate) const DEFAULT_THRESHOLD: f32 = 0.5;

impl Compression {
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
}
