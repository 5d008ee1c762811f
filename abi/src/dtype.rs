//! Element types shared by the compiler and the run time.

#[cfg(feature = "plan")]
use serde::{Deserialize, Serialize};

named! {
    /// Element type of a tensor.
    ///
    /// Every type is stored little-endian; `Bool` takes one byte holding 0 or 1. The types from `F8E4M3FN` on are *narrow*:
    /// they are converted and moved, never computed with. An element takes one byte that holds its code in the low bits; above
    /// them are copies of the sign in `I4` and `I2`, zeros in the others.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[cfg_attr(feature = "plan", derive(Serialize, Deserialize))]
    #[repr(u8)]
    pub enum DType {
        /// IEEE 754 binary32.
        F32 = "f32",
        /// IEEE 754 binary64.
        F64 = "f64",
        /// IEEE 754 binary16.
        F16 = "f16",
        /// bfloat16: the upper half of a binary32.
        BF16 = "bf16",
        /// Signed 8-bit integer.
        I8 = "i8",
        /// Signed 16-bit integer.
        I16 = "i16",
        /// Signed 32-bit integer.
        I32 = "i32",
        /// Signed 64-bit integer.
        I64 = "i64",
        /// Unsigned 8-bit integer.
        U8 = "u8",
        /// Unsigned 16-bit integer.
        U16 = "u16",
        /// Unsigned 32-bit integer.
        U32 = "u32",
        /// Unsigned 64-bit integer.
        U64 = "u64",
        /// Truth value.
        Bool = "bool",
        /// 8-bit float: 4 bits of exponent, 3 of fraction; no infinities, one NaN of each sign.
        F8E4M3FN = "f8e4m3fn",
        /// As `F8E4M3FN` with a bias of 8; no negative zero, whose code is the NaN.
        F8E4M3FNUZ = "f8e4m3fnuz",
        /// 8-bit float: 5 bits of exponent, 2 of fraction, with infinities and NaNs as in IEEE 754.
        F8E5M2 = "f8e5m2",
        /// As `F8E5M2` with a bias of 16, without infinities; the code of the negative zero is the NaN.
        F8E5M2FNUZ = "f8e5m2fnuz",
        /// A power of 2: the exponent of an f32 alone, and one NaN.
        F8E8M0 = "f8e8m0",
        /// 6-bit float: 2 bits of exponent, 3 of fraction, finite numbers alone.
        F6E2M3 = "f6e2m3",
        /// 6-bit float: 3 bits of exponent, 2 of fraction, finite numbers alone.
        F6E3M2 = "f6e3m2",
        /// 4-bit float: 2 bits of exponent, 1 of fraction, finite numbers alone.
        F4E2M1 = "f4e2m1",
        /// Signed 4-bit integer.
        I4 = "i4",
        /// Signed 2-bit integer.
        I2 = "i2",
        /// Unsigned 4-bit integer.
        U4 = "u4",
        /// Unsigned 2-bit integer.
        U2 = "u2",
    }
}

impl DType {
    /// The types that expressions are computed in: all but the narrow ones. Numbers come first, bool last.
    pub const COMPUTED: [DType; 13] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ];

    /// Size of one element in memory, in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
            _ => 1,
        }
    }

    /// Number of bits that tell elements apart; they are packed in the files of ONNX. `Bool` has 8.
    pub const fn bits(self) -> usize {
        match self {
            DType::I2 | DType::U2 => 2,
            DType::I4 | DType::U4 | DType::F4E2M1 => 4,
            DType::F6E2M3 | DType::F6E3M2 => 6,
            other => other.size() * 8,
        }
    }

    /// Whether it is a type without arithmetic, of at most 8 bits.
    pub const fn is_narrow(self) -> bool {
        self as u8 >= DType::F8E4M3FN as u8
    }

    /// Whether it is a narrow floating-point type.
    pub const fn is_narrow_float(self) -> bool {
        self.is_narrow() && self as u8 <= DType::F4E2M1 as u8
    }

    /// The type whose elements the bytes in memory are to kernels: `U8` for narrow types, else the type itself.
    pub const fn storage(self) -> DType {
        if self.is_narrow() { DType::U8 } else { self }
    }

    /// Whether a byte is an element of a narrow type; of other types, any is a part of one.
    pub const fn holds(self, byte: u8) -> bool {
        match self {
            DType::I4 => matches!(byte as i8, -8..=7),
            DType::I2 => matches!(byte as i8, -2..=1),
            _ => byte as usize >> (if self.bits() < 8 { self.bits() } else { 8 }) == 0,
        }
    }

    /// Whether it is a floating-point type that is computed with.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Whether it is a signed integer type that is computed with.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether it is an unsigned integer type that is computed with; `Bool` is not.
    pub const fn is_unsigned_int(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// Whether it is an integer type that is computed with; `Bool` is not.
    pub const fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }
}

impl core::fmt::Display for DType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
