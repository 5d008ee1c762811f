//! Sine, cosine and tangent for every f64 argument.
//!
//! `x·2/π` modulo 4 is formed in integers (Payne and Hanek, "Radian reduction for trigonometric functions", 1983): of the
//! bits of 2/π the 192 that decide it are chosen by the exponent, and multiplied by the mantissa modulo 2¹⁹².

use super::super::format::horner;
use super::{fast_sum, product};
use crate::prelude::*;

/// 96 zeros, then 1216 bits of 2/π, the first with the weight ½.
const TWO_OVER_PI: [u32; 41] = [
    0,
    0,
    0,
    0xa2f9_836e,
    0x4e44_1529,
    0xfc27_57d1,
    0xf534_ddc0,
    0xdb62_9599,
    0x3c43_9041,
    0xfe51_63ab,
    0xdebb_c561,
    0xb724_6e3a,
    0x424d_d2e0,
    0x0649_2eea,
    0x09d1_921c,
    0xfe1d_eb1c,
    0xb129_a73e,
    0xe882_35f5,
    0x2ebb_4484,
    0xe99c_7026,
    0xb45f_7e41,
    0x3991_d639,
    0x8353_39f4,
    0x9c84_5f8b,
    0xbdf9_283b,
    0x1ff8_97ff,
    0xde05_980f,
    0xef2f_118b,
    0x5a0a_6d1f,
    0x6d36_7ecf,
    0x27cb_09b7,
    0x4f46_3f66,
    0x9e5f_ea2d,
    0x7527_bac7,
    0xebe5_f17b,
    0x3d07_39f7,
    0x8a52_92ea,
    0x6bfb_5fb1,
    0x1f8d_5d08,
    0x5603_3046,
    0xfc7b_6bab,
];
/// Words of a product.
const WORDS: usize = 6;

/// `(sin r - r) / r³` in `r²`, for `|r| ≤ π/4`; error 2^-57.1.
const SIN_TAIL: [f64; 7] = [
    -0.166_666_666_666_666_66,
    0.008_333_333_333_333_331,
    -0.000_198_412_698_412_650_63,
    2.755_731_921_933_731_2e-6,
    -2.505_210_623_180_283_7e-8,
    1.605_853_151_679_775_8e-10,
    -7.586_691_094_197_958e-13,
];
/// `(cos r - 1 + r²/2) / r⁴` in `r²`; error 2^-59.5.
const COS_TAIL: [f64; 7] = [
    0.041_666_666_666_666_664,
    -0.001_388_888_888_888_888_7,
    2.480_158_730_158_464_5e-5,
    -2.755_731_922_140_179e-7,
    2.087_675_579_072_196_3e-9,
    -1.147_046_083_079_530_4e-11,
    4.745_868_553_081_665_6e-14,
];
/// `π/2` in two parts.
const HALF_PI: (f64, f64) = (std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17);
/// Below, the functions are `x` and 1 to the last bit.
const TINY: f64 = 1.0 / (1u64 << 27) as f64;

fn long(x: &Ex, n: i64) -> Ex {
    x.builder().constant(Scalar::from_i64(DType::U64, n))
}

fn word(x: &Ex, n: u32) -> Ex {
    x.builder().constant(Scalar::from_i64(DType::U32, i64::from(n)))
}

/// The words of [`TWO_OVER_PI`] from bit `at` on, which is a u32, the most significant first.
fn window(at: &Ex) -> Vec<Ex> {
    let index = at.shr(&word(at, 5));
    let mut words: Vec<Ex> = TWO_OVER_PI.iter().map(|w| word(at, *w)).collect();
    // By the bits of the index, the highest first, what may still be needed moves forward.
    for bit in (0..6).rev() {
        let step = 1 << bit;
        let moves = (&index & &word(at, step as u32)).ne(&word(at, 0));
        let needed = (WORDS + step).min(words.len());
        let moved = |i: usize| match words.get(i + step) {
            Some(later) => moves.select(later, &words[i]),
            None => words[i].clone(),
        };
        words = (0..needed).map(moved).collect();
    }
    let shift = at & &word(at, 31);
    let rest = word(at, 32) - &shift;
    (0..WORDS).map(|i| words[i].shl(&shift) | words[i + 1].shr(&rest)).collect()
}

/// The four upper words of `mantissa·words` modulo 2¹⁹², the most significant first, as u64.
fn multiply(mantissa: &Ex, words: &[Ex]) -> Vec<Ex> {
    let mask = long(mantissa, 0xffff_ffff);
    let width = long(mantissa, 32);
    let (low, high) = (mantissa & &mask, mantissa.shr(&width));
    let (mut carry, mut before) = (long(mantissa, 0), long(mantissa, 0));
    let mut out = vec![];
    for w in words.iter().rev().map(|w| w.cast(DType::U64)) {
        let (by_low, by_high) = (&low * &w, before);
        let sum = (&by_low & &mask) + (&by_high & &mask) + carry;
        out.push(&sum & &mask);
        carry = by_low.shr(&width) + by_high.shr(&width) + sum.shr(&width);
        before = &high * &w;
    }
    out.into_iter().rev().take(4).collect()
}

/// `|x| = q·π/2 + r` with `|r| ≤ π/4`: `r` in two parts, and `q` modulo 4 as u64.
fn reduce(x: &Ex) -> (Ex, Ex, Ex) {
    let bits = x.abs().bitcast(DType::U64);
    let exponent = bits.shr(&long(x, 52));
    let mantissa = (&bits & &long(x, (1 << 52) - 1)) | long(x, 1 << 52);
    // Smaller arguments are those below TINY. A bit of 2/π of the weight 2^-j counts from the j on that is two less than
    // the exponent of the mantissa's last bit, `exponent - 1075`, and bit 96 has j = 1.
    let least = long(x, 996);
    let exponent = exponent.lt(&least).select(&least, &exponent);
    let at = exponent - long(x, 1077 - 96);
    let words = multiply(&mantissa, &window(&at.cast(DType::U32)));
    let width = long(x, 32);
    let top = words[0].shl(&width) | &words[1];
    let next = words[2].shl(&width) | &words[3];
    // Quarter turns to the nearest, and the signed rest in units of 2^-64 and 2^-128.
    let q = (&top + &long(x, 1 << 61)).shr(&long(x, 62));
    let fraction = top.shl(&long(x, 2)) | next.shr(&long(x, 62));
    let below = next.shl(&long(x, 2));
    let mask = long(x, 0xffff_ffff);
    let part = |v: &Ex, scale: i32| v.cast(DType::F64) * 2f64.powi(scale);
    let signed = fraction.bitcast(DType::I64);
    let first = part(&signed.shr(&signed.lit(32.0)), -32);
    let second = part(&(&fraction & &mask), -64);
    let third = part(&below.shr(&width), -96) + part(&(&below & &mask), -128);
    let (sum, lost) = fast_sum(&first, &second);
    let (turn, rest) = fast_sum(&sum, &(lost + third));
    let (half_pi, low) = (x.lit(HALF_PI.0), x.lit(HALF_PI.1));
    let (r, lost) = product(&turn, &half_pi);
    let rest = rest.fma(&half_pi, &turn.fma(&low, &lost));
    let (r, rest) = fast_sum(&r, &rest);
    (r, rest, q)
}

/// Sine and cosine of `r + rest`.
fn sine_and_cosine(r: &Ex, rest: &Ex) -> (Ex, Ex) {
    let one = r.lit(1.0);
    let square = r * r;
    let half = &square * 0.5;
    let sine = r + &(horner(&square, &SIN_TAIL) * &square).fma(r, &(rest * &(&one - &half)));
    let near = &one - &half;
    let lost = (&one - &near) - half;
    let low = (&square * &square).fma(&horner(&square, &COS_TAIL), &(lost - r * rest));
    (sine, near + low)
}

fn has_bit(q: &Ex, bit: i64) -> Ex {
    (q & &long(q, bit)).ne(&long(q, 0))
}

/// NaN unless `x` is finite.
fn of_finite(x: &Ex, y: &Ex) -> Ex {
    x.abs().lt(&x.lit(f64::INFINITY)).select(y, &x.lit(f64::NAN))
}

/// The sine of `r + rest + q·π/2`.
fn sine_at(r: &Ex, rest: &Ex, q: &Ex) -> Ex {
    let (sine, cosine) = sine_and_cosine(r, rest);
    let value = has_bit(q, 1).select(&cosine, &sine);
    has_bit(q, 2).select(&-&value, &value)
}

/// The odd function whose value at `|x|` is `y`; `x` where it is `x` to the last bit.
fn odd(x: &Ex, y: &Ex) -> Ex {
    let y = x.lt(&x.lit(0.0)).select(&-y, y);
    x.abs().lt(&x.lit(TINY)).select(x, &of_finite(x, &y))
}

pub fn sin(x: &Ex) -> Ex {
    let (r, rest, q) = reduce(x);
    odd(x, &sine_at(&r, &rest, &q))
}

pub fn cos(x: &Ex) -> Ex {
    let (r, rest, q) = reduce(x);
    let y = sine_at(&r, &rest, &(&q + &long(x, 1)));
    x.abs().lt(&x.lit(TINY)).select(&x.lit(1.0), &of_finite(x, &y))
}

pub fn tan(x: &Ex) -> Ex {
    let (r, rest, q) = reduce(x);
    let (sine, cosine) = sine_and_cosine(&r, &rest);
    let turned = has_bit(&q, 1);
    odd(x, &(turned.select(&-&cosine, &sine) / turned.select(&sine, &cosine)))
}
