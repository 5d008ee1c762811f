//! Inverse trigonometric functions.

use tensorc_ir::scalar::Ex;

use super::{horner, with_sign_of};

const HALF_PI_HI: f64 = 1.570_796_370_506_286_6;
const HALF_PI_LO: f64 = -4.371_138_828_673_793e-8;
const PI_HI: f64 = 3.141_592_741_012_573_2;
const PI_LO: f64 = -8.742_277_657_347_586e-8;

/// `(arctan u - u) / u³` in `u²`, for `u ≤ 1`; error 2^-26.1.
const ATAN_TAIL: [f64; 10] = [
    -0.333_333_343_267_440_8,
    0.199_999_496_340_751_65,
    -0.142_840_042_710_304_26,
    0.110_882_617_533_206_94,
    -0.089_318_268_001_079_56,
    0.070_319_145_917_892_46,
    -0.048_960_514_366_626_74,
    0.026_305_001_229_047_775,
    -0.009_144_629_351_794_72,
    0.001_488_691_894_337_535,
];
/// `(arcsin u - u) / u³` in `u²`, for `u ≤ ½`; error 2^-28.4.
const ASIN_TAIL: [f64; 6] = [
    0.166_666_656_732_559_2,
    0.075_000_941_753_387_45,
    0.044_599_402_695_894_24,
    0.031_100_662_425_160_408,
    0.017_149_237_915_873_528,
    0.033_690_847_456_455_23,
];

/// Beyond 1, `π/2 - arctan(1/x)`.
pub fn atan(x: &Ex) -> Ex {
    let a = x.abs();
    let far = a.gt(&a.lit(1.0));
    let u = far.select(&(x.lit(-1.0) / &a), &a);
    let square = &u * &u;
    let tail = horner(&square, &ATAN_TAIL) * square;
    let zero = x.lit(0.0);
    let (hi, lo) = (far.select(&x.lit(HALF_PI_HI), &zero), far.select(&x.lit(HALF_PI_LO), &zero));
    with_sign_of(&(hi + (&u + tail.fma(&u, &lo))), x)
}

/// Whether `|x| < ½`, and `s` and `t` with `arcsin |x| = s + t` there; elsewhere `s + t` is half
/// of `arccos |x|`, the arcsine of `√((1 - |x|)/2)`.
fn half_angle(x: &Ex) -> (Ex, Ex, Ex) {
    let a = x.abs();
    let near = a.lt(&a.lit(0.5));
    let square = near.select(&(&a * &a), &((x.lit(1.0) - &a) * 0.5));
    let s = near.select(&a, &square.sqrt());
    let tail = horner(&square, &ASIN_TAIL) * square * &s;
    (near, s, tail)
}

pub fn asin(x: &Ex) -> Ex {
    let (near, s, t) = half_angle(x);
    let rest = std::f64::consts::FRAC_PI_2 - 1.0;
    let far = s.fma(&x.lit(-2.0), &x.lit(1.0)) + t.fma(&x.lit(-2.0), &x.lit(rest));
    with_sign_of(&near.select(&(s + t), &far), x)
}

pub fn acos(x: &Ex) -> Ex {
    let (near, s, t) = half_angle(x);
    let angle = s + t;
    let double = &angle * 2.0;
    let far = x.lt(&x.lit(0.0)).select(&(x.lit(PI_HI) - (&double - PI_LO)), &double);
    let middle = x.lit(HALF_PI_HI) - (with_sign_of(&angle, x) - HALF_PI_LO);
    near.select(&middle, &far)
}
