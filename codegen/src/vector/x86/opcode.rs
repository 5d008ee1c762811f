//! The vector instructions that loops are written with, as their encodings name them (Intel's manual, volume 2).

/// The part of an encoding that says which instruction it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcode {
    /// The prefix that the instruction would have had: 0 none, 1 `66`, 2 `F3`, 3 `F2`.
    pub prefix: u8,
    /// 1 `0F`, 2 `0F38`, 3 `0F3A`.
    pub map: u8,
    pub byte: u8,
    /// Often whether elements have 64 bits.
    pub wide: bool,
}

const fn op(prefix: u8, map: u8, byte: u8) -> Opcode {
    Opcode { prefix, map, byte, wide: false }
}

impl Opcode {
    /// The form for elements of 64 bits, where that is this bit alone.
    pub const fn wide(self, wide: bool) -> Opcode {
        Opcode { wide, ..self }
    }

    /// The form for elements of 64 bits, where that is another code as well.
    pub const fn or_wide(self, byte: u8, wide: bool) -> Opcode {
        Opcode { byte: if wide { byte } else { self.byte }, wide, ..self }
    }

    /// The form for f64, whose prefix is `66`.
    pub const fn double(self, double: bool) -> Opcode {
        Opcode { prefix: double as u8, wide: double, ..self }
    }
}

// f32, and f64 by `double`.
pub(super) const ADD: Opcode = op(0, 1, 0x58);
pub(super) const MUL: Opcode = op(0, 1, 0x59);
pub(super) const SUB: Opcode = op(0, 1, 0x5c);
pub(super) const DIV: Opcode = op(0, 1, 0x5e);
/// The second operand if either is NaN or both are zero.
pub(super) const MIN: Opcode = op(0, 1, 0x5d);
pub(super) const MAX: Opcode = op(0, 1, 0x5f);
pub(super) const SQRT: Opcode = op(0, 1, 0x51);
pub(super) const COMPARE: Opcode = op(0, 1, 0xc2);
pub(super) const LOAD: Opcode = op(0, 1, 0x10);
pub(super) const STORE: Opcode = op(0, 1, 0x11);

// f32, and f64 by `wide`.
/// The target becomes the product of the target and the second operand, plus the third.
pub(super) const FMA_213: Opcode = op(1, 2, 0xa8);
/// The target becomes the product of the other two plus the target.
pub(super) const FMA_231: Opcode = op(1, 2, 0xb8);
pub(super) const ROUND: Opcode = op(1, 3, 0x08);
/// AVX-512: where the mask holds, the last operand.
pub(super) const BLEND_MASKED: Opcode = op(1, 2, 0x65);
/// AVX: where the sign of the mask is set, the last operand.
pub(super) const BLEND: Opcode = op(1, 3, 0x4a);
/// AVX-512: minimum (4) or maximum (5) by an immediate, of zeros by their signs; of a NaN and a number the number.
pub(super) const RANGE: Opcode = op(1, 3, 0x50);
pub(super) const SCALE: Opcode = op(1, 2, 0x2c);
pub(super) const LOAD_MASKED: Opcode = op(1, 2, 0x2c);
pub(super) const STORE_MASKED: Opcode = op(1, 2, 0x2e);

// Integers of 32 bits, and of 64 by `or_wide` or `wide`.
pub(super) const ADD_INT: Opcode = op(1, 1, 0xfe);
pub(super) const SUB_INT: Opcode = op(1, 1, 0xfa);
pub(super) const MUL_INT: Opcode = op(1, 2, 0x40);
pub(super) const MIN_SIGNED: Opcode = op(1, 2, 0x39);
pub(super) const MIN_UNSIGNED: Opcode = op(1, 2, 0x3b);
pub(super) const MAX_SIGNED: Opcode = op(1, 2, 0x3d);
pub(super) const MAX_UNSIGNED: Opcode = op(1, 2, 0x3f);
pub(super) const ABS_INT: Opcode = op(1, 2, 0x1e);
pub(super) const AND: Opcode = op(1, 1, 0xdb);
/// The complement of the first operand, and the second.
pub(super) const AND_NOT: Opcode = op(1, 1, 0xdf);
pub(super) const OR: Opcode = op(1, 1, 0xeb);
pub(super) const XOR: Opcode = op(1, 1, 0xef);
/// By an immediate; the register field says which: [`SHIFT_RIGHT`], [`SHIFT_ARITHMETIC`], [`SHIFT_LEFT`].
pub(super) const SHIFT: Opcode = op(1, 1, 0x72);
pub(super) const SHIFT_RIGHT: u8 = 2;
pub(super) const SHIFT_ARITHMETIC: u8 = 4;
pub(super) const SHIFT_LEFT: u8 = 6;
pub(super) const SHIFT_LEFT_BY: Opcode = op(1, 2, 0x47);
pub(super) const SHIFT_RIGHT_BY: Opcode = op(1, 2, 0x45);
pub(super) const SHIFT_ARITHMETIC_BY: Opcode = op(1, 2, 0x46);
pub(super) const EQUAL: Opcode = op(1, 1, 0x76);
pub(super) const EQUAL_WIDE: Opcode = op(1, 2, 0x29);
pub(super) const GREATER: Opcode = op(1, 1, 0x66);
pub(super) const GREATER_WIDE: Opcode = op(1, 2, 0x37);
/// AVX-512: to a mask, by an immediate.
pub(super) const COMPARE_SIGNED: Opcode = op(1, 3, 0x1f);
pub(super) const COMPARE_UNSIGNED: Opcode = op(1, 3, 0x1e);
/// AVX-512: to a mask, where the operands have a bit in common.
pub(super) const TEST: Opcode = op(1, 2, 0x27);

// Copies of one element.
pub(super) const SPLAT: Opcode = op(1, 2, 0x18);
/// Of 64 bits, in a VEX encoding without the bit `wide`.
pub(super) const SPLAT_WIDE: Opcode = op(1, 2, 0x19);
pub(super) const SPLAT_INT: Opcode = op(1, 2, 0x58);
pub(super) const SPLAT_INT_WIDE: Opcode = op(1, 2, 0x59);
/// Of a general register, AVX-512.
pub(super) const SPLAT_GENERAL: Opcode = op(1, 2, 0x7c);
/// From a general register to the low element.
pub(super) const MOVE_GENERAL: Opcode = op(1, 1, 0x6e);

// Widths of integers.
pub(super) const EXTEND_I8: Opcode = op(1, 2, 0x21);
pub(super) const EXTEND_I16: Opcode = op(1, 2, 0x23);
pub(super) const EXTEND_U8: Opcode = op(1, 2, 0x31);
pub(super) const EXTEND_U16: Opcode = op(1, 2, 0x33);
pub(super) const EXTEND_I32: Opcode = op(1, 2, 0x25);
pub(super) const EXTEND_U32: Opcode = op(1, 2, 0x35);
/// AVX-512: the low bits, to memory or a register.
pub(super) const TRUNCATE_TO_8: Opcode = op(2, 2, 0x31);
pub(super) const TRUNCATE_TO_16: Opcode = op(2, 2, 0x33);
pub(super) const TRUNCATE_TO_32: Opcode = op(2, 2, 0x35);
pub(super) const PACK_U16: Opcode = op(1, 2, 0x2b);
pub(super) const PACK_U8: Opcode = op(1, 1, 0x67);
/// 128 bits to a quarter or half of a vector.
pub(super) const INSERT: Opcode = op(1, 3, 0x18);
/// 64 bits to memory.
pub(super) const STORE_LOW: Opcode = op(1, 1, 0xd6);

// Elements in another order.
pub(super) const PERMUTE_WIDE: Opcode = Opcode { prefix: 1, map: 3, byte: 0x00, wide: true };
/// In each 128 bits: two elements of 32 bits, or one of 64, of the first operand, then as many of the second, by an
/// immediate.
pub(super) const SHUFFLE: Opcode = op(0, 1, 0xc6);
/// In each 128 bits: the lower, or the upper, elements of two operands in turns.
pub(super) const UNPACK_LOW: Opcode = op(0, 1, 0x14);
pub(super) const UNPACK_HIGH: Opcode = op(0, 1, 0x15);
/// AVX-512: the target becomes elements of the target and the last operand, at the positions in the other.
pub(super) const PERMUTE_TWO: Opcode = op(1, 2, 0x7f);
/// AVX-512: the target becomes elements of the other operands, at the positions in the target.
pub(super) const PERMUTE_AT: Opcode = op(1, 2, 0x77);

// Conversions.
pub(super) const F32_OF_I32: Opcode = op(0, 1, 0x5b);
pub(super) const I32_OF_F32: Opcode = op(2, 1, 0x5b);
pub(super) const F64_OF_F32: Opcode = op(0, 1, 0x5a);
pub(super) const F32_OF_F64: Opcode = Opcode { prefix: 1, map: 1, byte: 0x5a, wide: true };
pub(super) const I32_OF_F64: Opcode = Opcode { prefix: 1, map: 1, byte: 0xe6, wide: true };
pub(super) const F64_OF_I32: Opcode = op(2, 1, 0xe6);
pub(super) const F32_OF_F16: Opcode = op(1, 2, 0x13);
/// To memory or a register.
pub(super) const F16_OF_F32: Opcode = op(1, 3, 0x1d);
// Of AVX-512.
pub(super) const F32_OF_U32: Opcode = op(3, 1, 0x7a);
pub(super) const F64_OF_U32: Opcode = op(2, 1, 0x7a);
pub(super) const U32_OF_F32: Opcode = op(0, 1, 0x78);
pub(super) const U32_OF_F64: Opcode = Opcode { prefix: 0, map: 1, byte: 0x78, wide: true };
pub(super) const F32_OF_I64: Opcode = Opcode { prefix: 0, map: 1, byte: 0x5b, wide: true };
pub(super) const F64_OF_I64: Opcode = Opcode { prefix: 2, map: 1, byte: 0xe6, wide: true };
pub(super) const F32_OF_U64: Opcode = Opcode { prefix: 3, map: 1, byte: 0x7a, wide: true };
pub(super) const F64_OF_U64: Opcode = Opcode { prefix: 2, map: 1, byte: 0x7a, wide: true };
pub(super) const I64_OF_F32: Opcode = op(1, 1, 0x7a);
pub(super) const I64_OF_F64: Opcode = Opcode { prefix: 1, map: 1, byte: 0x7a, wide: true };

// Masks of AVX-512, encoded as VEX.
pub(super) const MASK_AND: Opcode = op(0, 1, 0x41);
pub(super) const MASK_OR: Opcode = op(0, 1, 0x45);
pub(super) const MASK_XNOR: Opcode = op(0, 1, 0x46);
pub(super) const MASK_XOR: Opcode = op(0, 1, 0x47);
pub(super) const MASK_NOT: Opcode = op(0, 1, 0x44);
pub(super) const MASK_OF_GENERAL: Opcode = op(0, 1, 0x92);
/// The low bits of a general register, of BMI2.
pub(super) const LOW_BITS: Opcode = op(0, 2, 0xf5);
