//! Sine, cosine and tangent for every f32 argument, reduced and evaluated in f64.
//!
//! `x·2/π` modulo 4 is formed exactly enough even for the largest arguments (Payne and Hanek): 2/π
//! is cut into 28-bit parts, so that each product with a 24-bit `x` is exact, and so is its sum with what is left of
//! the products before it where that cancels. Whole multiples of 4 are dropped from each product before it is added.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::format::horner;

/// 196 bits of 2/π in parts of 28.
const TWO_OVER_PI: [f64; 7] = [
    0.636_619_769_036_769_9,
    3.330_811_473_856_165_6e-9,
    2.276_010_047_810_136e-18,
    2.526_826_018_900_282_2e-26,
    1.668_286_765_701_952_5e-34,
    1.158_871_328_288_855e-43,
    7.053_959_174_404_295e-52,
];
/// Products with parts from this one on are below 2^-14.
const SMALL_PARTS: usize = 5;
/// `(sin r - r) / r³` in `r²`, for `|r| ≤ π/4`; error 2^-35.8.
const SIN_TAIL: [f64; 4] =
    [-0.166_666_666_638_530_44, 0.008_333_331_873_837_089, -0.000_198_400_862_637_554_43, 2.724_986_465_513_958_5e-6];
/// `(cos r - 1) / r²` in `r²`; error 2^-42.
const COS_TAIL: [f64; 5] = [
    -0.499_999_999_999_638_57,
    0.041_666_666_637_372_694,
    -0.001_388_888_508_912_625_2,
    2.479_986_150_250_612e-5,
    -2.723_707_673_132_509_7e-7,
];

/// `x·part` less the multiple of 4 nearest to it.
fn modulo_four(x: &Ex, part: f64) -> Ex {
    let product = x * part;
    (&product * 0.25).round().fma(&x.lit(-4.0), &product)
}

/// `x = (q + r·2/π)·π/2` with `r` within π/4 but for a few thousandths of a percent: `r` as f64 and `q` modulo 4 in the
/// low bits of an i32.
fn reduce(x: &Ex) -> (Ex, Ex) {
    let x = x.cast(DType::F64);
    let first = modulo_four(&x, TWO_OVER_PI[0]);
    let mut quarter = first.round();
    let mut fraction = first - &quarter;
    for part in &TWO_OVER_PI[1..SMALL_PARTS] {
        let sum = &fraction + &modulo_four(&x, *part);
        let whole = sum.round();
        fraction = sum - &whole;
        quarter = quarter + whole;
    }
    for part in &TWO_OVER_PI[SMALL_PARTS..] {
        fraction = x.fma(&x.lit(*part), &fraction);
    }
    let quarter = quarter.cast(DType::F32) + 12_582_912.0;
    (fraction * std::f64::consts::FRAC_PI_2, quarter.bitcast(DType::I32))
}

fn sine_and_cosine(r: &Ex) -> (Ex, Ex) {
    let square = r * r;
    let sine = (horner(&square, &SIN_TAIL) * &square).fma(r, r);
    let cosine = horner(&square, &COS_TAIL).fma(&square, &r.lit(1.0));
    (sine, cosine)
}

fn is_odd(q: &Ex) -> Ex {
    (q & &q.lit(1.0)).ne(&q.lit(0.0))
}

/// The sine of `r + q·π/2`.
fn sine_at(r: &Ex, q: &Ex) -> Ex {
    let (sine, cosine) = sine_and_cosine(r);
    let value = is_odd(q).select(&cosine.cast(DType::F32), &sine.cast(DType::F32));
    // The second bit of `q` in the place of the sign.
    let sign = q.shl(&q.lit(30.0)) & &value.lit(-0.0).bitcast(q.dtype());
    (value.bitcast(q.dtype()) ^ sign).bitcast(DType::F32)
}

/// `x` itself where the function is `x` to the last bit; this keeps the sign of zero.
fn tiny(x: &Ex, y: &Ex) -> Ex {
    x.abs().lt(&x.lit(2f64.powi(-13))).select(x, y)
}

pub fn sin(x: &Ex) -> Ex {
    let (r, q) = reduce(x);
    tiny(x, &sine_at(&r, &q))
}

pub fn cos(x: &Ex) -> Ex {
    let (r, q) = reduce(x);
    sine_at(&r, &(&q + 1.0))
}

pub fn tan(x: &Ex) -> Ex {
    let (r, q) = reduce(x);
    let (sine, cosine) = sine_and_cosine(&r);
    let odd = is_odd(&q);
    let y = odd.select(&-&cosine, &sine) / odd.select(&sine, &cosine);
    tiny(x, &y.cast(DType::F32))
}
