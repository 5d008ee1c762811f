//! Element types shared by the compiler and the run time.

#[cfg(feature = "plan")]
use serde::{Deserialize, Serialize};

named! {
    /// Element type of a tensor.
    ///
    /// Every type is stored little-endian; `Bool` takes one byte holding 0 or 1.
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
    }
}

impl DType {
    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Whether it is a signed integer type.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether it is an unsigned integer type; `Bool` is not.
    pub const fn is_unsigned_int(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// Whether it is an integer type; `Bool` is not.
    pub const fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }
}

impl core::fmt::Display for DType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
