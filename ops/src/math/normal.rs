//! The distribution function of the normal distribution: `e^(-t²/2)` times a quotient of polynomials for the tail,
//! and 1 less the tail on the other side.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::format::{FloatFormat, horner};

/// `2·ln 2`, of 16 bits, so that multiples up to 148 are exact. The power computed is `e^(-k·t²/2)` with
/// `k = 2·ln 2 / TWO_LN2 = 1 + 2.1e-6`, and the quotient has the rest: no second part of the logarithm is needed.
const TWO_LN2: f64 = 1.386_291_503_906_25;
/// `e^(-k·s/2)` for `|s| ≤ ln 2`, error 2^-28.9.
const POWER: [f64; 7] = [
    1.0,
    -0.500_001_013_278_961_2,
    0.125_000_461_935_997,
    -0.020_833_157_002_925_873,
    0.002_604_273_380_711_674_7,
    -0.000_261_696_317_465_975_9,
    0.000_021_629_213_733_831_42,
];
/// `Φ(-t)·e^(k·t²/2)` for `0 ≤ t ≤ 14.25`, of which this is the numerator, error 2^-23.1.
const NUMERATOR: [f64; 5] =
    [0.5, 0.327_895_134_687_423_7, 0.101_635_105_907_917_02, 0.013_084_199_279_546_738, 9.768_153_859_113_227e-7];
const DENOMINATOR: [f64; 5] =
    [1.0, 1.453_671_813_011_169_4, 0.863_163_769_245_147_7, 0.253_874_063_491_821_3, 0.032_855_294_644_832_61];
/// Where the tail rounds to 0.
const ZERO_FROM: f64 = 14.25;
/// Keeps the power a normal number; the numerator has its inverse.
const LIFT: f64 = (1u128 << 64) as f64;

pub fn ndtr(x: &Ex) -> Ex {
    let a = x.abs();
    let t = a.gt(&a.lit(ZERO_FROM)).select(&a.lit(ZERO_FROM), &a);
    // n·TWO_LN2 = s - t², n negative: exact, for the sum is.
    let format = FloatFormat::of(x);
    let rounded = (&t * &t).fma(&t.lit(-1.0 / TWO_LN2), &t.lit(format.rounder));
    let multiple = rounded.fma(&t.lit(TWO_LN2), &t.lit(-format.rounder * TWO_LN2));
    let s = t.fma(&t, &multiple);
    let exponent = rounded.bitcast(DType::I32);
    let exponent = exponent.shl(&exponent.lit(f64::from(format.fraction)));
    let power = (horner(&s, &POWER.map(|c| c * LIFT)).bitcast(DType::I32) + exponent).bitcast(DType::F32);
    let tail = power * horner(&t, &NUMERATOR.map(|c| c / LIFT)) / horner(&t, &DENOMINATOR);
    x.lt(&x.lit(0.0)).select(&tail, &(x.lit(1.0) - &tail))
}
