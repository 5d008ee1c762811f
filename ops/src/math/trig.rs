//! Sine, cosine and tangent for every f32 argument, reduced and evaluated in f64.
//!
//! `x·2/π` modulo 4 is formed exactly enough even for the largest arguments (Payne and Hanek): 2/π
//! is cut into 24-bit parts, so that each product with a 24-bit `x` is exact, and whole multiples
//! of 4 are dropped from each product before it is added.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::format::horner;

/// 192 bits of 2/π in parts of 24.
const TWO_OVER_PI: [f64; 8] = [
    0.636_619_746_685_028_1,
    2.568_255_297_319_410_6e-8,
    2.937_095_214_933_759e-16,
    3.254_379_400_173_245_6e-23,
    1.208_961_370_882_853_7e-29,
    5.667_556_795_740_071e-37,
    2.620_403_111_209_721_5e-44,
    7.053_957_680_880_629e-52,
];
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

/// `x = (q + r·2/π)·π/2` with `|r| ≤ π/4`: `r` as f64 and `q` modulo 4 in the low bits of an i32.
fn reduce(x: &Ex) -> (Ex, Ex) {
    let x = x.cast(DType::F64);
    let (mut fraction, mut quarter) = (x.lit(0.0), x.lit(0.0));
    for part in TWO_OVER_PI {
        let product = &x * part;
        let rest = (&product * 0.25).round().fma(&x.lit(-4.0), &product);
        let sum = &fraction + &rest;
        let whole = sum.round();
        fraction = sum - &whole;
        quarter = quarter + whole;
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

fn has_bit(q: &Ex, bit: f64) -> Ex {
    (q & &q.lit(bit)).ne(&q.lit(0.0))
}

/// The sine of `r + q·π/2`.
fn sine_at(r: &Ex, q: &Ex) -> Ex {
    let (sine, cosine) = sine_and_cosine(r);
    let value = has_bit(q, 1.0).select(&cosine, &sine);
    has_bit(q, 2.0).select(&-&value, &value).cast(DType::F32)
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
    let odd = has_bit(&q, 1.0);
    let y = odd.select(&-&cosine, &sine) / odd.select(&sine, &cosine);
    tiny(x, &y.cast(DType::F32))
}
