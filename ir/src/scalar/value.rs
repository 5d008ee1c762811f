//! One element of any dtype, and the defined conversions between dtypes.

use half::{bf16, f16};
use tensorc_abi::DType;

use super::narrow::{self, NarrowRounding};

/// A typed element; `bits` holds its little-endian representation, zero extended.
///
/// Equality and hashing compare representations, so `-0.0 != 0.0` and a NaN equals itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scalar {
    /// The type.
    pub dtype: DType,
    /// The representation, in the low bits.
    pub bits: u64,
}

/// The f32 towards zero, or if that is even and not exact, its odd neighbour: rounded to fewer bits, it gives what
/// `x` gives (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
fn rounded_to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || near.to_bits() & 1 == 1 || !near.is_finite() {
        return near;
    }
    let outwards = f64::from(near).abs() > x.abs();
    f32::from_bits(if outwards { near.to_bits() - 1 } else { near.to_bits() + 1 })
}

impl Scalar {
    /// An f32.
    pub fn f32(x: f32) -> Scalar {
        Scalar { dtype: DType::F32, bits: u64::from(x.to_bits()) }
    }

    /// An i64.
    pub fn i64(x: i64) -> Scalar {
        Scalar { dtype: DType::I64, bits: x as u64 }
    }

    /// A bool.
    pub fn bool(x: bool) -> Scalar {
        Scalar { dtype: DType::Bool, bits: u64::from(x) }
    }

    /// Zero of a type.
    pub fn zero(dtype: DType) -> Scalar {
        Scalar { dtype, bits: 0 }
    }

    /// Rounds to nearest even; integers truncate toward zero and saturate, NaN becomes 0. Narrow types have rules of their
    /// own (`docs/numerics.md`).
    pub fn from_f64(dtype: DType, x: f64) -> Scalar {
        let bits = match dtype {
            DType::F32 => u64::from((x as f32).to_bits()),
            DType::F64 => x.to_bits(),
            DType::F16 => u64::from(f16::from_f32(rounded_to_odd(x)).to_bits()),
            DType::BF16 => u64::from(bf16::from_f32(rounded_to_odd(x)).to_bits()),
            DType::I8 => u64::from(x as i8 as u8),
            DType::I16 => u64::from(x as i16 as u16),
            DType::I32 => u64::from(x as i32 as u32),
            DType::I64 => x as i64 as u64,
            DType::U8 => u64::from(x as u8),
            DType::U16 => u64::from(x as u16),
            DType::U32 => u64::from(x as u32),
            DType::U64 => x as u64,
            DType::Bool => u64::from(x != 0.0),
            _ => narrow::encode(dtype, x, NarrowRounding::default()).into(),
        };
        Scalar { dtype, bits }
    }

    /// Integers wrap modulo 2ⁿ, floats round to nearest even.
    pub fn from_i64(dtype: DType, x: i64) -> Scalar {
        let bits = match dtype {
            DType::F32 => u64::from((x as f32).to_bits()),
            DType::F64 => (x as f64).to_bits(),
            DType::F16 | DType::BF16 => return Scalar::f32(x as f32).cast(dtype),
            DType::Bool => u64::from(x != 0),
            _ if dtype.is_narrow() => return Scalar::i64(x).cast(dtype),
            _ => (x as u64) & mask(dtype),
        };
        Scalar { dtype, bits }
    }

    /// The value as f64: exact for every type but 64-bit integers, which round to nearest even.
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            DType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::F64 => f64::from_bits(self.bits),
            DType::F16 => f16::from_bits(self.bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(self.bits as u16).to_f64(),
            DType::U64 => self.bits as f64,
            _ if self.dtype.is_narrow() => narrow::decode(self.dtype, self.bits as u8),
            _ => self.as_i64() as f64,
        }
    }

    /// The value as f32.
    pub fn as_f32(self) -> f32 {
        match self.dtype {
            DType::F32 => f32::from_bits(self.bits as u32),
            DType::U64 => self.bits as f32,
            DType::I64 => self.bits as i64 as f32,
            _ => self.as_f64() as f32,
        }
    }

    /// The value as i64: integers sign or zero extend (u64 wraps), floats truncate and saturate.
    pub fn as_i64(self) -> i64 {
        match self.dtype {
            DType::I8 => i64::from(self.bits as u8 as i8),
            DType::I16 => i64::from(self.bits as u16 as i16),
            DType::I32 => i64::from(self.bits as u32 as i32),
            _ if self.is_real() || self.dtype.is_narrow() => self.as_f64() as i64,
            _ => self.bits as i64,
        }
    }

    /// The value as bool: whether it is not 0.
    pub fn as_bool(self) -> bool {
        match self.is_real() {
            true => self.as_f64() != 0.0,
            false => self.bits != 0,
        }
    }

    /// Value conversion:
    /// - to a float: nearest even, directly from the source value;
    /// - float to integer: truncation toward zero, saturating, NaN to 0;
    /// - integer to integer: modulo 2ⁿ;
    /// - to bool: whether the value differs from zero (NaN does);
    /// - to a narrow type: [`Scalar::narrowed`] with the defaults.
    pub fn cast(self, to: DType) -> Scalar {
        if self.dtype == to {
            return self;
        }
        match to {
            DType::Bool => Scalar::bool(self.as_bool()),
            _ if to.is_narrow() => self.narrowed(to, NarrowRounding::default()),
            DType::F16 if self.dtype == DType::F32 => {
                Scalar { dtype: to, bits: u64::from(f16::from_f32(self.as_f32()).to_bits()) }
            }
            DType::BF16 if self.dtype == DType::F32 => {
                Scalar { dtype: to, bits: u64::from(bf16::from_f32(self.as_f32()).to_bits()) }
            }
            DType::F32 => Scalar::f32(self.as_f32()),
            _ if self.is_real() || to.is_float() => Scalar::from_f64(to, self.as_f64()),
            _ => Scalar { dtype: to, bits: (self.as_i64() as u64) & mask(to) },
        }
    }

    /// Reads the element at the front of `bytes`.
    pub fn read(dtype: DType, bytes: &[u8]) -> Scalar {
        let mut buffer = [0u8; 8];
        buffer[..dtype.size()].copy_from_slice(&bytes[..dtype.size()]);
        Scalar { dtype, bits: u64::from_le_bytes(buffer) }
    }

    /// Writes the element to the front of `bytes`.
    pub fn write(self, bytes: &mut [u8]) {
        let size = self.dtype.size();
        bytes[..size].copy_from_slice(&self.bits.to_le_bytes()[..size]);
    }

    /// The same bits in the type that kernels have them in ([`DType::storage`]).
    pub fn stored(self) -> Scalar {
        Scalar { dtype: self.dtype.storage(), ..self }
    }

    /// Whether its type is a floating-point type, narrow or not.
    pub fn is_real(self) -> bool {
        self.dtype.is_float() || self.dtype.is_narrow_float()
    }

    /// Whether it is a NaN.
    pub fn is_nan(self) -> bool {
        self.is_real() && self.as_f64().is_nan()
    }
}

/// The bits an element of `dtype` occupies.
pub(crate) const fn mask(dtype: DType) -> u64 {
    match dtype.size() {
        8 => u64::MAX,
        n => (1 << (n * 8)) - 1,
    }
}
