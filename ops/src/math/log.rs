//! Logarithms: `x = 2ᵏ·(1 + f)` with `1 + f` in `[√½, √2)`, and a polynomial for `ln(1 + f)`.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::horner;

const LN2_HI: f64 = 0.693_359_375;
const LN2_LO: f64 = -0.000_212_194_441_701_285_54;
const LOG2_E_HI: f64 = 1.442_695_021_629_333_5;
const LOG2_E_LO: f64 = 1.925_963_033_500_011e-8;
/// The representation of √½.
const ROOT_HALF: f64 = 0x3f35_04f3 as f64;
const LEAST_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// `(ln(1 + f) - f + f²/2) / f³`, error 2^-28.1 of the logarithm.
const LOG_TAIL: [f64; 9] = [
    0.333_333_313_465_118_4,
    -0.249_999_970_197_677_2,
    0.200_007_155_537_605_29,
    -0.166_678_026_318_550_1,
    0.142_490_580_677_985_15,
    -0.124_256_871_640_682_22,
    0.116_854_198_276_996_61,
    -0.114_797_338_843_345_64,
    0.069_716_118_276_119_23,
];
/// `(log₂(1 + f) - f·log₂e) / f²`, error 2^-27.3 of the logarithm.
const LOG2_TAIL: [f64; 10] = [
    -0.721_347_510_814_666_7,
    0.480_898_201_465_606_7,
    -0.360_673_904_418_945_3,
    0.288_559_883_832_931_5,
    -0.240_461_722_016_334_53,
    0.205_328_941_345_214_84,
    -0.179_194_480_180_740_36,
    0.170_413_106_679_916_38,
    -0.166_736_423_969_268_8,
    0.097_656_376_659_870_15,
];

/// `k` (as i32) and `1 + f` of a positive normal number.
fn split(x: &Ex) -> (Ex, Ex) {
    let bits = x.bitcast(DType::I32);
    let width = bits.lit(23.0);
    let k = (&bits - ROOT_HALF).shr(&width);
    let m = (bits - k.shl(&width)).bitcast(DType::F32);
    (k, m)
}

/// [`split`] for any positive number, with `k` as f32 and `f`.
fn split_any(x: &Ex) -> (Ex, Ex) {
    let small = x.lt(&x.lit(LEAST_NORMAL));
    let (k, m) = split(&small.select(&(x * 2f64.powi(23)), x));
    (k.cast(DType::F32) + small.select(&x.lit(-23.0), &x.lit(0.0)), m - 1.0)
}

/// `ln(2ᵏ·(1 + f))`
fn combine(k: &Ex, f: &Ex) -> Ex {
    let square = f * f;
    let tail = horner(f, &LOG_TAIL) * f * &square;
    let low = square.fma(&f.lit(-0.5), &k.fma(&f.lit(LN2_LO), &tail));
    k.fma(&f.lit(LN2_HI), &(f + low))
}

/// The values at 0 (-∞), below it (NaN), and at +∞ and NaN (themselves); `distance` is the
/// argument of the plain logarithm.
fn specials(distance: &Ex, x: &Ex, y: &Ex) -> Ex {
    let y = x.lt(&x.lit(f64::INFINITY)).select(y, x);
    let y = distance.lt(&x.lit(0.0)).select(&x.lit(f64::NAN), &y);
    distance.eq(&x.lit(0.0)).select(&x.lit(f64::NEG_INFINITY), &y)
}

pub fn log(x: &Ex) -> Ex {
    let (k, f) = split_any(x);
    specials(x, x, &combine(&k, &f))
}

pub fn log2(x: &Ex) -> Ex {
    let (k, f) = split_any(x);
    let tail = horner(&f, &LOG2_TAIL) * (&f * &f);
    let low = f.fma(&f.lit(LOG2_E_LO), &tail);
    // The fraction is at most ½, so adding it to k ≠ 0 loses nothing that matters.
    specials(x, x, &(k + f.fma(&f.lit(LOG2_E_HI), &low)))
}

/// `u = 1 + x` rounded, with the rounding error carried into `f`.
pub fn log1p(x: &Ex) -> Ex {
    let u = x + 1.0;
    let near = &u - 1.0;
    let error = (x.lit(1.0) - (&u - &near)) + (x - &near);
    let (k, m) = split(&u);
    let f = &m - 1.0;
    // Beyond 2⁶⁰ the error does not count, and its scale would not be a normal number.
    let unit = x.builder().number(DType::I32, f64::from(0x3f80_0000));
    let scale = (unit - k.shl(&k.lit(23.0))).bitcast(DType::F32);
    let f = x.lt(&x.lit(2f64.powi(60))).select(&error.fma(&scale, &f), &f);
    let y = specials(&u, x, &combine(&k.cast(DType::F32), &f));
    x.eq(&x.lit(0.0)).select(x, &y)
}
