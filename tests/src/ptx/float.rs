//! Floating-point instructions (PTX ISA, "Floating point instructions", "Half precision floating-point instructions"), as functions
//! of the bits of registers.
//!
//! Results that are not numbers are the ones the processor gives: no payload of an operand survives. Functions that the ISA calls
//! approximate are computed in f64 and rounded: within their documented error, but not with a processor's bits.

use super::alu::{F1, F2, F3};
use super::types::Type;

/// What is not a number, by type.
pub(super) const NAN32: u64 = 0x7fff_ffff;
pub(super) const NAN64: u64 = 0x7fff_ffff_ffff_ffff;
pub(super) const NAN16: u64 = 0x7fff;

fn x32(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn x64(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn of32(x: f32) -> u64 {
    if x.is_nan() { NAN32 } else { u64::from(x.to_bits()) }
}

fn of64(x: f64) -> u64 {
    if x.is_nan() { NAN64 } else { x.to_bits() }
}

/// A subnormal number becomes the zero of its sign (`.ftz`).
pub(super) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// A format of 16 bits.
#[derive(Clone, Copy)]
pub(super) struct Half {
    /// Bits of the fraction.
    fraction: u32,
    /// The exponent of the smallest normal number, and the largest exponent.
    least: i32,
    most: i32,
}

pub(super) const F16: Half = Half { fraction: 10, least: -14, most: 15 };
pub(super) const BF16: Half = Half { fraction: 7, least: -126, most: 127 };

impl Half {
    pub fn of(ty: Type) -> Option<Half> {
        match ty {
            Type::F16 | Type::F16x2 => Some(F16),
            Type::BF16 | Type::BF16x2 => Some(BF16),
            _ => None,
        }
    }

    pub fn value(self, bits: u64) -> f64 {
        let exponent_bits = 15 - self.fraction;
        let fraction = bits & ((1 << self.fraction) - 1);
        let exponent = (bits >> self.fraction) as i32 & ((1 << exponent_bits) - 1);
        let scale = |e: i32| f64::from_bits(((e + 1023) as u64) << 52);
        let one = 1u64 << self.fraction;
        let size = match exponent {
            0 => fraction as f64 * scale(self.least - self.fraction as i32),
            e if e == (1 << exponent_bits) - 1 => {
                if fraction == 0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            e => (fraction + one) as f64 * scale(e - self.most - self.fraction as i32),
        };
        if bits >> 15 & 1 == 1 { -size } else { size }
    }

    /// The nearest number, of two equally near the even one.
    pub fn nearest(self, x: f64) -> u64 {
        if x.is_nan() {
            return NAN16;
        }
        let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
        let size = x.abs();
        // The distance of numbers where `size` is; scaling by powers of two is exact here.
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(self.least);
        let unit = f64::from_bits(((exponent - self.fraction as i32 + 1023) as u64) << 52);
        if size.is_infinite() || exponent > self.most {
            return sign | self.infinity();
        }
        let steps = (size / unit).round_ties_even() as u64;
        // What rounds up to the next power of two carries into the exponent.
        sign | ((((exponent - self.least) as u64) << self.fraction) + steps)
    }

    fn infinity(self) -> u64 {
        0x7fff & !((1 << self.fraction) - 1)
    }
}

/// An f64 that rounds to a shorter format as the exact sum does: of an inexact sum the neighbour with an odd last bit.
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let back = sum - a;
    let error = (a - (sum - back)) + (b - back);
    if !sum.is_finite() || error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let up = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if up { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

/// Operations on each half that compute in a wider type and round once.
macro_rules! half_two {
    ($half:ident, |$a:ident, $b:ident| $value:expr) => {
        |x: u64, y: u64| {
            let ($a, $b) = ($half.value(x), $half.value(y));
            $half.nearest($value)
        }
    };
}

fn half_unary(name: &str) -> Option<F1> {
    let f: F1 = match name {
        "neg" => |x| x ^ 0x8000,
        "abs" => |x| x & 0x7fff,
        _ => return None,
    };
    Some(f)
}

fn half_binary(name: &str, half_is_f16: bool) -> Option<F2> {
    macro_rules! either {
        (|$a:ident, $b:ident| $value:expr) => {
            if half_is_f16 { half_two!(F16, |$a, $b| $value) } else { half_two!(BF16, |$a, $b| $value) }
        };
    }
    let f: F2 = match name {
        "add.rn" => either!(|a, b| a + b),
        "sub.rn" => either!(|a, b| a - b),
        "mul.rn" => either!(|a, b| a * b),
        "min" => either!(|a, b| least(a, b)),
        "max" => either!(|a, b| -least(-a, -b)),
        "min.NaN" => either!(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { least(a, b) }),
        "max.NaN" => either!(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { -least(-a, -b) }),
        _ => return None,
    };
    Some(f)
}

/// The lesser number, of a number and none the number; −0 is less than 0.
fn least(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => a.min(b),
    }
}

pub(super) fn unary(name: &str, ty: Type) -> Option<F1> {
    if Half::of(ty).is_some() {
        return half_unary(name);
    }
    let f: F1 = match (name, ty) {
        ("neg", Type::F32) => |x| x ^ 0x8000_0000,
        ("abs", Type::F32) => |x| x & 0x7fff_ffff,
        ("neg", Type::F64) => |x| x ^ 1 << 63,
        ("abs", Type::F64) => |x| x & !(1 << 63),
        ("neg.ftz", Type::F32) => |x| of32(-flushed(x32(x))),
        ("abs.ftz", Type::F32) => |x| of32(flushed(x32(x)).abs()),
        ("sqrt.rn", Type::F32) => |x| of32(x32(x).sqrt()),
        ("sqrt.rn.ftz", Type::F32) => |x| of32(flushed(x32(x)).sqrt()),
        ("sqrt.rn", Type::F64) => |x| of64(x64(x).sqrt()),
        ("rcp.rn", Type::F32) => |x| of32(1.0 / x32(x)),
        ("rcp.rn.ftz", Type::F32) => |x| of32(flushed(1.0 / flushed(x32(x)))),
        ("rcp.rn", Type::F64) => |x| of64(1.0 / x64(x)),
        ("ex2.approx", Type::F32) => |x| rounded(x, f64::exp2),
        ("ex2.approx.ftz", Type::F32) => |x| ftz(x, f64::exp2),
        ("lg2.approx", Type::F32) => |x| rounded(x, f64::log2),
        ("lg2.approx.ftz", Type::F32) => |x| ftz(x, f64::log2),
        ("rcp.approx", Type::F32) => |x| rounded(x, f64::recip),
        ("rcp.approx.ftz", Type::F32) => |x| ftz(x, f64::recip),
        ("sqrt.approx", Type::F32) => |x| rounded(x, f64::sqrt),
        ("sqrt.approx.ftz", Type::F32) => |x| ftz(x, f64::sqrt),
        ("rsqrt.approx", Type::F32) => |x| rounded(x, |x| x.sqrt().recip()),
        ("rsqrt.approx.ftz", Type::F32) => |x| ftz(x, |x| x.sqrt().recip()),
        ("sin.approx", Type::F32) => |x| rounded(x, f64::sin),
        ("sin.approx.ftz", Type::F32) => |x| ftz(x, f64::sin),
        ("cos.approx", Type::F32) => |x| rounded(x, f64::cos),
        ("cos.approx.ftz", Type::F32) => |x| ftz(x, f64::cos),
        ("tanh.approx", Type::F32) => |x| rounded(x, f64::tanh),
        _ => return None,
    };
    Some(f)
}

fn rounded(x: u64, f: impl Fn(f64) -> f64) -> u64 {
    of32(f(f64::from(x32(x))) as f32)
}

fn ftz(x: u64, f: impl Fn(f64) -> f64) -> u64 {
    of32(flushed(f(f64::from(flushed(x32(x)))) as f32))
}

pub(super) fn binary(name: &str, ty: Type) -> Option<F2> {
    if Half::of(ty).is_some() {
        return half_binary(name, matches!(ty, Type::F16 | Type::F16x2));
    }
    macro_rules! single {
        (|$a:ident, $b:ident| $value:expr) => {
            |x: u64, y: u64| {
                let ($a, $b) = (x32(x), x32(y));
                of32($value)
            }
        };
    }
    macro_rules! flush {
        (|$a:ident, $b:ident| $value:expr) => {
            |x: u64, y: u64| {
                let ($a, $b) = (flushed(x32(x)), flushed(x32(y)));
                of32(flushed($value))
            }
        };
    }
    macro_rules! double {
        (|$a:ident, $b:ident| $value:expr) => {
            |x: u64, y: u64| {
                let ($a, $b) = (x64(x), x64(y));
                of64($value)
            }
        };
    }
    let f: F2 = match (name, ty) {
        ("add.rn", Type::F32) => single!(|a, b| a + b),
        ("sub.rn", Type::F32) => single!(|a, b| a - b),
        ("mul.rn", Type::F32) => single!(|a, b| a * b),
        ("div.rn", Type::F32) => single!(|a, b| a / b),
        ("div.approx", Type::F32) => single!(|a, b| a / b),
        ("div.full", Type::F32) => single!(|a, b| a / b),
        ("min", Type::F32) => single!(|a, b| least(a.into(), b.into()) as f32),
        ("max", Type::F32) => single!(|a, b| -least(-f64::from(a), -f64::from(b)) as f32),
        ("min.NaN", Type::F32) => {
            single!(|a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { least(a.into(), b.into()) as f32 })
        }
        ("max.NaN", Type::F32) => {
            single!(|a, b| if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                -least(-f64::from(a), -f64::from(b)) as f32
            })
        }
        ("copysign", Type::F32) => |a, b| b & 0x7fff_ffff | a & 0x8000_0000,
        ("add.rn.ftz", Type::F32) => flush!(|a, b| a + b),
        ("sub.rn.ftz", Type::F32) => flush!(|a, b| a - b),
        ("mul.rn.ftz", Type::F32) => flush!(|a, b| a * b),
        ("div.rn.ftz", Type::F32) => flush!(|a, b| a / b),
        ("min.ftz", Type::F32) => flush!(|a, b| least(a.into(), b.into()) as f32),
        ("max.ftz", Type::F32) => flush!(|a, b| -least(-f64::from(a), -f64::from(b)) as f32),
        ("add.rn", Type::F64) => double!(|a, b| a + b),
        ("sub.rn", Type::F64) => double!(|a, b| a - b),
        ("mul.rn", Type::F64) => double!(|a, b| a * b),
        ("div.rn", Type::F64) => double!(|a, b| a / b),
        ("min", Type::F64) => double!(|a, b| least(a, b)),
        ("max", Type::F64) => double!(|a, b| -least(-a, -b)),
        ("copysign", Type::F64) => |a, b| b & !(1 << 63) | a & 1 << 63,
        _ => return None,
    };
    Some(f)
}

pub(super) fn ternary(name: &str, ty: Type) -> Option<F3> {
    let f: F3 = match (name, ty) {
        ("fma.rn", Type::F32) => |a, b, c| of32(x32(a).mul_add(x32(b), x32(c))),
        ("fma.rn.ftz", Type::F32) => |a, b, c| of32(flushed(flushed(x32(a)).mul_add(flushed(x32(b)), flushed(x32(c))))),
        ("fma.rn", Type::F64) => |a, b, c| of64(x64(a).mul_add(x64(b), x64(c))),
        ("fma.rn", Type::F16 | Type::F16x2) => {
            |a, b, c| F16.nearest(sum_to_odd(F16.value(a) * F16.value(b), F16.value(c)))
        }
        ("fma.rn", Type::BF16 | Type::BF16x2) => {
            |a, b, c| BF16.nearest(sum_to_odd(BF16.value(a) * BF16.value(b), BF16.value(c)))
        }
        _ => return None,
    };
    Some(f)
}

/// A comparison: of numbers, of numbers or none (`u`), or of whether there are numbers.
pub(super) fn comparison(name: &str, ty: Type) -> Option<F2> {
    macro_rules! one {
        (|$a:ident, $b:ident| $value:expr) => {
            match ty {
                Type::F16 => Some(|x: u64, y: u64| {
                    let ($a, $b) = (F16.value(x), F16.value(y));
                    u64::from($value)
                }),
                Type::BF16 => Some(|x: u64, y: u64| {
                    let ($a, $b) = (BF16.value(x), BF16.value(y));
                    u64::from($value)
                }),
                Type::F32 => Some(|x: u64, y: u64| {
                    let ($a, $b) = (x32(x), x32(y));
                    u64::from($value)
                }),
                Type::F64 => Some(|x: u64, y: u64| {
                    let ($a, $b) = (x64(x), x64(y));
                    u64::from($value)
                }),
                _ => None,
            }
        };
    }
    match name {
        "eq" => one!(|a, b| a == b),
        "ne" => one!(|a, b| a != b && !a.is_nan() && !b.is_nan()),
        "lt" => one!(|a, b| a < b),
        "le" => one!(|a, b| a <= b),
        "gt" => one!(|a, b| a > b),
        "ge" => one!(|a, b| a >= b),
        "equ" => one!(|a, b| a == b || a.is_nan() || b.is_nan()),
        "neu" => one!(|a, b| a != b),
        "ltu" => one!(|a, b| a < b || a.is_nan() || b.is_nan()),
        "leu" => one!(|a, b| a <= b || a.is_nan() || b.is_nan()),
        "gtu" => one!(|a, b| a > b || a.is_nan() || b.is_nan()),
        "geu" => one!(|a, b| a >= b || a.is_nan() || b.is_nan()),
        "num" => one!(|a, b| !a.is_nan() && !b.is_nan()),
        "nan" => one!(|a, b| a.is_nan() || b.is_nan()),
        _ => None,
    }
}
