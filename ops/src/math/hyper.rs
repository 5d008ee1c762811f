//! Hyperbolic functions and their inverses.

use tensorc_ir::scalar::Ex;

use super::exp::{expm1_negative, half_exp};
use super::format::{by_type, horner, with_sign_of};
use super::log::log1p;

/// `(sinh u - u) / u³` in `u²`, for `u ≤ 1`; error 2^-27.9.
const SINH_TAIL: [f64; 4] =
    [0.166_666_671_633_720_4, 0.008_333_339_355_885_983, 0.000_198_381_021_618_843_08, 2.806_280_235_745_362e-6];
/// `(sinh u - u) / u³` in `u²`, for `u ≤ 1`; error 2^-56.8.
const SINH_TAIL_64: [f64; 8] = [
    0.166_666_666_666_666_66,
    0.008_333_333_333_333_333,
    0.000_198_412_698_412_697_73,
    2.755_731_922_404_034e-6,
    2.505_210_836_405_804e-8,
    1.605_904_839_635_056_2e-10,
    7.646_625_361_656_657e-13,
    2.844_526_416_989_528_5e-15,
];
/// Where `√(x² ± 1)` is `x`, and `x²` is finite.
const HUGE: (f64, f64) = (1e15, 1e150);

/// `|t| / (t + 2)` with `t = e^(-2|x|) - 1`; where `t` is near -1, `1 - 2·(t + 1) / (t + 2)`, whose
/// quotient is small and exact enough.
pub fn tanh(x: &Ex) -> Ex {
    let (t, t_plus_two) = expm1_negative(&(x.abs() * -2.0));
    let far = t.lt(&t.lit(-0.8));
    let quotient = far.select(&t.fma(&t.lit(2.0), &t.lit(2.0)), &t.abs()) / t_plus_two;
    with_sign_of(&far.select(&(x.lit(1.0) - &quotient), &quotient), x)
}

pub fn sinh(x: &Ex) -> Ex {
    let a = x.abs();
    let square = &a * &a;
    let near = (horner(&square, by_type(x, &SINH_TAIL[..], &SINH_TAIL_64)) * &square).fma(&a, &a);
    let half = half_exp(&a);
    let far = &half - x.lit(0.25) / &half;
    with_sign_of(&a.lt(&a.lit(1.0)).select(&near, &far), x)
}

pub fn cosh(x: &Ex) -> Ex {
    let half = half_exp(&x.abs());
    x.lit(0.25) / &half + &half
}

/// `ln(1 + v)`, or `ln x + ln 2` where `x` is huge.
fn log1p_or_log(x: &Ex, v: &Ex) -> Ex {
    let huge = x.gt(&x.lit(by_type(x, HUGE.0, HUGE.1)));
    let extra = huge.select(&x.lit(std::f64::consts::LN_2), &x.lit(0.0));
    log1p(&huge.select(x, v)) + extra
}

pub fn asinh(x: &Ex) -> Ex {
    let a = x.abs();
    let square = &a * &a;
    let v = &square / ((&square + 1.0).sqrt() + 1.0) + &a;
    with_sign_of(&log1p_or_log(&a, &v), x)
}

pub fn acosh(x: &Ex) -> Ex {
    let t = x - 1.0;
    let v = t.fma(&t, &(&t * 2.0)).sqrt() + &t;
    x.lt(&x.lit(1.0)).select(&x.lit(f64::NAN), &log1p_or_log(x, &v))
}

pub fn atanh(x: &Ex) -> Ex {
    let a = x.abs();
    let v = &a * 2.0 / (x.lit(1.0) - &a);
    with_sign_of(&(log1p(&v) * 0.5), x)
}
