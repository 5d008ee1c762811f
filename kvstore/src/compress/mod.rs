//! Gradients in fewer bits.

use std::fmt;

use crate::error::KvError;

/// How gradients are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Compression {
    #[default]
    None,
    TwoBit {
        threshold: f32,
    },
    OneBit {
        threshold: f32,
    },
    F16,
    BF16,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::TwoBit { threshold } => write!(f, "2bit ({threshold})"),
            Compression::OneBit { threshold } => write!(f, "1bit ({threshold})"),
            Compression::F16 => f.write_str("fp16"),
            Compression::BF16 => f.write_str("bf16"),
        }
    }
}

impl Compression {
    pub fn has_residual(&self) -> bool {
        matches!(self, Compression::TwoBit { .. } | Compression::OneBit { .. })
    }
    pub fn encoded_len(&self, _count: usize) -> usize {
        0
    }
    pub fn encode(&self, _gradient: &[u8], _residual: &mut [f32], _out: &mut Vec<u8>) -> Result<(), KvError> {
        Ok(())
    }
    pub fn decode_into(&self, _codes: &[u8], _out: &mut [u8]) -> Result<(), KvError> {
        Ok(())
    }
    pub fn decode_add(&self, _codes: &[u8], _out: &mut [u8]) -> Result<(), KvError> {
        Ok(())
    }
}
