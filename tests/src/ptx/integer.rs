//! Integer, logical and comparison instructions (PTX ISA, "Integer arithmetic instructions", "Logic and shift instructions",
//! "Comparison and selection instructions"), as functions of the bits of registers.

use super::alu::{F1, F2, F3, Try2};
use super::types::{Type, low};

/// A function of two registers by the integer type in which it computes.
macro_rules! of_two {
    ($ty:expr, |$a:ident, $b:ident| $value:expr) => {{
        macro_rules! one {
            ($int:ty, $bits:ty) => {
                |x: u64, y: u64| {
                    let ($a, $b) = (x as $int, y as $int);
                    let value: $int = $value;
                    u64::from(value as $bits)
                }
            };
        }
        let f: Option<F2> = match $ty {
            Type::U16 | Type::B16 => Some(one!(u16, u16)),
            Type::S16 => Some(one!(i16, u16)),
            Type::U32 | Type::B32 => Some(one!(u32, u32)),
            Type::S32 => Some(one!(i32, u32)),
            Type::U64 | Type::B64 => Some(one!(u64, u64)),
            Type::S64 => Some(one!(i64, u64)),
            _ => None,
        };
        f
    }};
}

/// A comparison of two registers.
macro_rules! compared {
    ($ty:expr, |$a:ident, $b:ident| $value:expr) => {{
        macro_rules! one {
            ($int:ty) => {
                |x: u64, y: u64| {
                    let ($a, $b) = (x as $int, y as $int);
                    u64::from($value)
                }
            };
        }
        let f: Option<F2> = match $ty {
            Type::U16 | Type::B16 => Some(one!(u16)),
            Type::S16 => Some(one!(i16)),
            Type::U32 | Type::B32 => Some(one!(u32)),
            Type::S32 => Some(one!(i32)),
            Type::U64 | Type::B64 => Some(one!(u64)),
            Type::S64 => Some(one!(i64)),
            _ => None,
        };
        f
    }};
}

pub(super) fn unary(name: &str, ty: Type) -> Option<F1> {
    let f: F1 = match (name, ty) {
        ("neg", Type::S16) => |x| u64::from((x as u16).wrapping_neg()),
        ("neg", Type::S32) => |x| u64::from((x as u32).wrapping_neg()),
        ("neg", Type::S64) => |x| x.wrapping_neg(),
        ("abs", Type::S16) => |x| u64::from((x as i16).wrapping_abs() as u16),
        ("abs", Type::S32) => |x| u64::from((x as i32).wrapping_abs() as u32),
        ("abs", Type::S64) => |x| (x as i64).wrapping_abs() as u64,
        ("not", Type::Pred) => |x| x ^ 1,
        ("not", Type::B16) => |x| x ^ 0xffff,
        ("not", Type::B32) => |x| x ^ 0xffff_ffff,
        ("not", Type::B64) => |x| !x,
        ("popc", Type::B32 | Type::B64) => |x| u64::from(x.count_ones()),
        ("clz", Type::B32) => |x| u64::from((x as u32).leading_zeros()),
        ("clz", Type::B64) => |x| u64::from(x.leading_zeros()),
        ("brev", Type::B32) => |x| u64::from((x as u32).reverse_bits()),
        ("brev", Type::B64) => u64::reverse_bits,
        ("bfind", Type::U32) => |x| most_significant(x),
        ("bfind", Type::U64) => |x| most_significant(x),
        ("bfind", Type::S32) => |x| most_significant(u64::from(if (x as i32) < 0 { !(x as u32) } else { x as u32 })),
        ("bfind", Type::S64) => |x| most_significant(if (x as i64) < 0 { !x } else { x }),
        _ => return None,
    };
    Some(f)
}

/// The position of the highest one, or all ones in 32 bits.
fn most_significant(x: u64) -> u64 {
    if x == 0 { 0xffff_ffff } else { 63 - u64::from(x.leading_zeros()) }
}

pub(super) fn binary(name: &str, ty: Type) -> Option<F2> {
    match name {
        "add" => of_two!(ty, |a, b| a.wrapping_add(b)),
        "sub" => of_two!(ty, |a, b| a.wrapping_sub(b)),
        "mul.lo" => of_two!(ty, |a, b| a.wrapping_mul(b)),
        "mul.hi" => high(ty),
        "mul.wide" => wide(ty),
        "min" => of_two!(ty, |a, b| a.min(b)),
        "max" => of_two!(ty, |a, b| a.max(b)),
        "and" | "or" | "xor" => logic(name, ty),
        "shl" | "shr" => shift(name, ty),
        _ => None,
    }
}

fn high(ty: Type) -> Option<F2> {
    let f: F2 = match ty {
        Type::U16 => |a, b| (a as u16 as u64 * (b as u16 as u64)) >> 16,
        Type::S16 => |a, b| u64::from(((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16),
        Type::U32 => |a, b| (u64::from(a as u32) * u64::from(b as u32)) >> 32,
        Type::S32 => |a, b| u64::from(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        Type::U64 => |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64,
        Type::S64 => |a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        _ => return None,
    };
    Some(f)
}

/// The whole product, of twice the width.
fn wide(ty: Type) -> Option<F2> {
    let f: F2 = match ty {
        Type::U16 => |a, b| u64::from(a as u16) * u64::from(b as u16),
        Type::S16 => |a, b| u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32),
        Type::U32 => |a, b| u64::from(a as u32) * u64::from(b as u32),
        Type::S32 => |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64,
        _ => return None,
    };
    Some(f)
}

fn logic(name: &str, ty: Type) -> Option<F2> {
    let known = matches!(ty, Type::Pred | Type::B16 | Type::B32 | Type::B64);
    let f: F2 = match name {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        _ => |a, b| a ^ b,
    };
    known.then_some(f)
}

/// Shifts by the width or more are shifts by the width: 0, or the sign.
fn shift(name: &str, ty: Type) -> Option<F2> {
    let f: F2 = match (name, ty) {
        ("shl", Type::B16) => |a, b| u64::from((a as u16).checked_shl(b as u32).unwrap_or(0)),
        ("shl", Type::B32) => |a, b| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0)),
        ("shl", Type::B64) => |a, b| a.checked_shl(b as u32).unwrap_or(0),
        ("shr", Type::U16 | Type::B16) => |a, b| u64::from((a as u16).checked_shr(b as u32).unwrap_or(0)),
        ("shr", Type::U32 | Type::B32) => |a, b| u64::from((a as u32).checked_shr(b as u32).unwrap_or(0)),
        ("shr", Type::U64 | Type::B64) => |a, b| a.checked_shr(b as u32).unwrap_or(0),
        ("shr", Type::S16) => |a, b| u64::from((a as i16 >> (b as u32).min(15)) as u16),
        ("shr", Type::S32) => |a, b| u64::from((a as i32 >> (b as u32).min(31)) as u32),
        ("shr", Type::S64) => |a, b| (a as i64 >> (b as u32).min(63)) as u64,
        _ => return None,
    };
    Some(f)
}

/// Division and remainder, `None` where the result is unspecified or the processor's own.
pub(super) fn divided(name: &str, ty: Type) -> Option<Try2> {
    macro_rules! one {
        ($int:ty, $bits:ty, $f:ident) => {
            |x: u64, y: u64| (x as $int).$f(y as $int).map(|v| u64::from(v as $bits))
        };
    }
    let f: Try2 = match (name, ty) {
        ("div", Type::U16) => one!(u16, u16, checked_div),
        ("div", Type::S16) => one!(i16, u16, checked_div),
        ("div", Type::U32) => one!(u32, u32, checked_div),
        ("div", Type::S32) => one!(i32, u32, checked_div),
        ("div", Type::U64) => one!(u64, u64, checked_div),
        ("div", Type::S64) => one!(i64, u64, checked_div),
        ("rem", Type::U16) => one!(u16, u16, checked_rem),
        ("rem", Type::S16) => one!(i16, u16, checked_rem),
        ("rem", Type::U32) => one!(u32, u32, checked_rem),
        ("rem", Type::S32) => one!(i32, u32, checked_rem),
        ("rem", Type::U64) => one!(u64, u64, checked_rem),
        ("rem", Type::S64) => one!(i64, u64, checked_rem),
        _ => return None,
    };
    Some(f)
}

pub(super) fn comparison(name: &str, ty: Type) -> Option<F2> {
    let unsigned = !ty.is_signed();
    match name {
        "eq" => compared!(ty, |a, b| a == b),
        "ne" => compared!(ty, |a, b| a != b),
        "lt" if ty.is_int() => compared!(ty, |a, b| a < b),
        "le" if ty.is_int() => compared!(ty, |a, b| a <= b),
        "gt" if ty.is_int() => compared!(ty, |a, b| a > b),
        "ge" if ty.is_int() => compared!(ty, |a, b| a >= b),
        "lo" if unsigned => compared!(ty, |a, b| a < b),
        "ls" if unsigned => compared!(ty, |a, b| a <= b),
        "hi" if unsigned => compared!(ty, |a, b| a > b),
        "hs" if unsigned => compared!(ty, |a, b| a >= b),
        _ => None,
    }
}

/// Products with a sum, fields of bits, and bits of two registers.
pub(super) fn ternary(name: &str, ty: Type) -> Option<F3> {
    let f: F3 = match (name, ty) {
        ("mad.lo", Type::U16 | Type::S16) => {
            |a, b, c| u64::from((a as u16).wrapping_mul(b as u16).wrapping_add(c as u16))
        }
        ("mad.lo", Type::U32 | Type::S32) => {
            |a, b, c| u64::from((a as u32).wrapping_mul(b as u32).wrapping_add(c as u32))
        }
        ("mad.lo", Type::U64 | Type::S64) => |a, b, c| a.wrapping_mul(b).wrapping_add(c),
        ("mad.wide", Type::U16) => {
            |a, b, c| u64::from((u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c as u32))
        }
        ("mad.wide", Type::S16) => {
            |a, b, c| u64::from((i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32)
        }
        ("mad.wide", Type::U32) => |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c),
        ("mad.wide", Type::S32) => |a, b, c| ((i64::from(a as i32) * i64::from(b as i32)) as u64).wrapping_add(c),
        ("mad.hi", Type::U32) => {
            |a, b, c| u64::from((((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32) as u32).wrapping_add(c) & 0xffff_ffff
        }
        ("bfe", Type::U32) => |a, b, c| field(32, false, a, b, c),
        ("bfe", Type::S32) => |a, b, c| field(32, true, a, b, c),
        ("bfe", Type::U64) => |a, b, c| field(64, false, a, b, c),
        ("bfe", Type::S64) => |a, b, c| field(64, true, a, b, c),
        ("prmt", Type::B32) => permuted,
        ("shf.l.wrap", Type::B32) => |a, b, c| ((b << 32 | a) << (c & 31)) >> 32,
        ("shf.r.wrap", Type::B32) => |a, b, c| (b << 32 | a) >> (c & 31) & 0xffff_ffff,
        ("shf.l.clamp", Type::B32) => |a, b, c| (b << 32 | a) >> (32 - c.min(32)) & 0xffff_ffff,
        ("shf.r.clamp", Type::B32) => |a, b, c| (b << 32 | a) >> c.min(32) & 0xffff_ffff,
        _ => return None,
    };
    Some(f)
}

/// `bfe`: as many bits as `length` says from a position on, then the sign of the field (of the register, if that ends before) or
/// zeros.
fn field(bits: u32, signed: bool, value: u64, position: u64, length: u64) -> u64 {
    let (position, length) = ((position & 0xff) as u32, (length & 0xff) as u32);
    let count = length.min(bits.saturating_sub(position));
    let kept = low(count, value.checked_shr(position).unwrap_or(0));
    let negative = signed && length > 0 && value >> (position + length - 1).min(bits - 1) & 1 == 1;
    let extended = if negative { kept | u64::MAX.checked_shl(count).unwrap_or(0) } else { kept };
    low(bits, extended)
}

/// `prmt` without a mode: four bytes of eight, or their signs.
fn permuted(a: u64, b: u64, selection: u64) -> u64 {
    let bytes = (b << 32 | a).to_le_bytes();
    let byte = |i: u32| {
        let selector = selection >> (4 * i);
        let byte = bytes[(selector & 7) as usize];
        let byte = if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        u64::from(byte) << (8 * i)
    };
    (0..4).map(byte).sum()
}

/// `bfi`: `a` in place of a field of `b`.
pub(super) fn inserted(bits: u32, a: u64, b: u64, position: u64, length: u64) -> u64 {
    let (position, length) = ((position & 0xff) as u32, (length & 0xff) as u32);
    if position >= bits {
        return b;
    }
    let mask = low(bits, low(length.min(64), u64::MAX) << position);
    b & !mask | a << position & mask
}

/// `lop3`: any function of three bits, as the table of its values.
pub(super) fn by_table(table: u8, a: u64, b: u64, c: u64) -> u64 {
    let term = |i: u32| {
        let pick = |x: u64, bit: u32| if i >> bit & 1 == 1 { x } else { !x };
        if table >> i & 1 == 1 { pick(a, 2) & pick(b, 1) & pick(c, 0) } else { 0 }
    };
    (0..8).fold(0, |all, i| all | term(i)) & 0xffff_ffff
}
