//! Types of instructions, and registers as patterns of bits.

/// A type of an instruction (PTX ISA, "Fundamental types", "Packed data types", "Alternate floating-point data formats").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    BF16,
    BF16x2,
    TF32,
    F32,
    F64,
}

impl Type {
    pub fn parse(name: &str) -> Option<Type> {
        use Type::*;
        let all = [
            ("pred", Pred),
            ("b8", B8),
            ("b16", B16),
            ("b32", B32),
            ("b64", B64),
            ("u8", U8),
            ("u16", U16),
            ("u32", U32),
            ("u64", U64),
            ("s8", S8),
            ("s16", S16),
            ("s32", S32),
            ("s64", S64),
            ("u16x2", U16x2),
            ("s16x2", S16x2),
            ("f16", F16),
            ("f16x2", F16x2),
            ("bf16", BF16),
            ("bf16x2", BF16x2),
            ("tf32", TF32),
            ("f32", F32),
            ("f64", F64),
        ];
        all.iter().find(|(known, _)| *known == name).map(|(_, ty)| *ty)
    }

    /// Bits of a register that holds it.
    pub fn bits(self) -> u32 {
        use Type::*;
        match self {
            Pred => 1,
            B8 | U8 | S8 => 8,
            B16 | U16 | S16 | F16 | BF16 => 16,
            B32 | U32 | S32 | U16x2 | S16x2 | F16x2 | BF16x2 | TF32 | F32 => 32,
            B64 | U64 | S64 | F64 => 64,
        }
    }

    /// The type of each half of a packed one.
    pub fn half(self) -> Option<Type> {
        match self {
            Type::U16x2 => Some(Type::U16),
            Type::S16x2 => Some(Type::S16),
            Type::F16x2 => Some(Type::F16),
            Type::BF16x2 => Some(Type::BF16),
            _ => None,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub fn is_int(self) -> bool {
        self.is_signed() || matches!(self, Type::U8 | Type::U16 | Type::U32 | Type::U64)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::TF32 | Type::F32 | Type::F64)
    }
}

/// The low bits of a register.
pub(super) const fn low(bits: u32, value: u64) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The low bits of a register as a signed number.
pub(super) const fn signed(bits: u32, value: u64) -> i64 {
    let unused = 64 - bits;
    ((value << unused) as i64) >> unused
}
