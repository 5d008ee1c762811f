//! The distribution function of the normal distribution: an odd polynomial near 0, beyond 1 its tail as
//! `e^(-t²/2)` times a polynomial.

use tensorc_ir::scalar::Ex;

use super::exp::exp;
use super::horner;

/// `Φ(-t)·e^(t²/2)·(t + 7/2)` in `(t - 7/2)/(t + 7/2)`, for `0 ≤ t ≤ 14.6`, error 2^-27.0.
const TAIL: [f64; 10] = [
    0.744_416_074_035_297,
    -0.565_561_743_806_058_1,
    0.315_425_056_715_349_65,
    -0.116_053_070_059_383_7,
    0.017_406_270_542_282_543,
    0.006_493_252_456_525_275,
    -0.003_174_816_310_516_913,
    -0.000_494_988_278_152_256_6,
    0.000_421_168_636_818_133_4,
    0.000_110_290_430_814_686_76,
];
/// `(Φ(x) - 1/2)/x` in `x²`, for `|x| ≤ 1`, error 2^-32.8 of `Φ(x)`.
const NEAR: [f64; 6] = [
    0.398_942_278_713_824_37,
    -0.066_490_332_347_464_6,
    0.009_973_170_936_322_875,
    -0.001_185_984_717_920_790_5,
    0.000_113_143_671_132_095_2,
    -7.530_316_582_073_51e-6,
];
/// Where the tail rounds to 0.
const ZERO_FROM: f64 = 14.6;
const CENTRE: f64 = 3.5;

pub fn ndtr(x: &Ex) -> Ex {
    let a = x.abs();
    let t = a.gt(&a.lit(ZERO_FROM)).select(&a.lit(ZERO_FROM), &a);
    let u = t.lit(1.0) / (&t + CENTRE);
    let q = u.fma(&u.lit(-2.0 * CENTRE), &u.lit(1.0));
    let square = &t * &t;
    // What the square lost in rounding counts in the exponent.
    let lost = t.fma(&t, &-&square);
    let power = exp(&(&square * -0.5));
    let power = power.fma(&(lost * -0.5), &power);
    let tail = power * (horner(&q, &TAIL) * u);
    let far = x.lt(&x.lit(0.0)).select(&tail, &(x.lit(1.0) - &tail));
    let near = horner(&square, &NEAR).fma(x, &x.lit(0.5));
    a.lt(&a.lit(1.0)).select(&near, &far)
}
