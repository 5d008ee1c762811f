//! Inverse trigonometric functions.

use tensorc_ir::scalar::Ex;

use super::format::{by_type, horner, with_sign_of};

/// `π` in two parts, for f32 and for f64.
const PI: [(f64, f64); 2] =
    [(3.141_592_741_012_573_2, -8.742_277_657_347_586e-8), (std::f64::consts::PI, 1.224_646_799_147_353_2e-16)];

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

/// `(arctan u - u) / u³` in `u²`, for `u ≤ 1`; error 2^-57.0.
const ATAN_TAIL_64: [f64; 23] = [
    -0.333_333_333_333_333_3,
    0.199_999_999_999_999_84,
    -0.142_857_142_857_117_18,
    0.111_111_111_109_298_07,
    -0.090_909_090_840_935_06,
    0.076_923_075_343_699_85,
    -0.066_666_642_034_786_07,
    0.058_823_255_392_006_9,
    -0.052_629_313_805_217_79,
    0.047_604_710_493_954_62,
    -0.043_407_182_638_729_704,
    0.039_719_081_069_244_52,
    -0.036_139_320_776_507_194,
    0.032_135_441_333_078_27,
    -0.027_181_553_330_815_64,
    0.021_121_594_179_966_983,
    -0.014_503_079_564_732_733,
    0.008_449_892_403_970_37,
    -0.004_000_209_679_906_822,
    0.001_461_744_905_420_538_5,
    -0.000_383_940_379_729_994_67,
    6.417_524_965_866_564e-5,
    -5.108_841_038_822_666_5e-6,
];
/// `(arcsin u - u) / u³` in `u²`, for `u ≤ ½`; error 2^-57.4.
const ASIN_TAIL_64: [f64; 13] = [
    0.166_666_666_666_666_69,
    0.074_999_999_999_984_33,
    0.044_642_857_146_355_43,
    0.030_381_944_138_531_247,
    0.022_372_172_942_149_89,
    0.017_352_392_720_869_973,
    0.013_971_212_973_552_933,
    0.011_479_177_415_184_906,
    0.010_322_814_350_185_78,
    0.005_457_506_718_640_358,
    0.017_400_879_442_694_02,
    -0.014_851_887_071_247_204,
    0.028_757_851_367_421_566,
];

fn pi(x: &Ex) -> (f64, f64) {
    by_type(x, PI[0], PI[1])
}

/// Beyond 1, `π/2 - arctan(1/x)`.
pub fn atan(x: &Ex) -> Ex {
    let a = x.abs();
    let far = a.gt(&a.lit(1.0));
    let u = far.select(&(x.lit(-1.0) / &a), &a);
    let square = &u * &u;
    let tail = horner(&square, by_type(x, &ATAN_TAIL[..], &ATAN_TAIL_64)) * square;
    let zero = x.lit(0.0);
    let (hi, lo) = pi(x);
    let (hi, lo) = (far.select(&x.lit(hi * 0.5), &zero), far.select(&x.lit(lo * 0.5), &zero));
    with_sign_of(&(hi + (&u + tail.fma(&u, &lo))), x)
}

/// Whether `|x| < ½`, and `s` and `t` with `arcsin |x| = s + t` there; elsewhere `s + t` is half
/// of `arccos |x|`, the arcsine of `√((1 - |x|)/2)`.
fn half_angle(x: &Ex) -> (Ex, Ex, Ex) {
    let a = x.abs();
    let near = a.lt(&a.lit(0.5));
    let square = near.select(&(&a * &a), &((x.lit(1.0) - &a) * 0.5));
    let s = near.select(&a, &square.sqrt());
    let tail = horner(&square, by_type(x, &ASIN_TAIL[..], &ASIN_TAIL_64)) * square * &s;
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
    let (hi, lo) = pi(x);
    let angle = s + t;
    let double = &angle * 2.0;
    let far = x.lt(&x.lit(0.0)).select(&(x.lit(hi) - (&double - lo)), &double);
    let middle = x.lit(hi * 0.5) - (with_sign_of(&angle, x) - lo * 0.5);
    near.select(&middle, &far)
}
