//! Logarithms: `x = 2ᵏ·(1 + f)` with `1 + f` in `[√½, √2)`, and a polynomial for `ln(1 + f)`.

use tensorc_ir::scalar::{Ex, Scalar};

use super::format::{FloatFormat, by_type, horner};

/// `log₂ e` in two parts, for f32 and for f64.
const LOG2_E: [(f64, f64); 2] =
    [(1.442_695_021_629_333_5, 1.925_963_033_500_011e-8), (std::f64::consts::LOG2_E, 2.035_527_374_093_103_3e-17)];
/// The representation of √½.
const ROOT_HALF: [i64; 2] = [0x3f35_04f3, 0x3fe6_a09e_667f_3bcd];

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

/// `(ln(1 + f) - f + f²/2) / f³`, error 2^-57.2 of the logarithm.
const LOG_TAIL_64: [f64; 21] = [
    0.333_333_333_333_333_3,
    -0.250_000_000_000_000_4,
    0.199_999_999_999_994_6,
    -0.166_666_666_666_432_23,
    0.142_857_142_858_507_73,
    -0.125_000_000_043_235_91,
    0.111_111_110_998_404_68,
    -0.099_999_996_347_807_17,
    0.090_909_093_716_499_86,
    -0.083_333_500_329_535_88,
    0.076_923_158_900_287_49,
    -0.071_424_150_395_472_02,
    0.066_660_153_564_322_7,
    -0.062_567_819_457_417_66,
    0.058_985_283_682_262_26,
    -0.055_007_045_724_057_43,
    0.050_654_096_664_845_7,
    -0.051_385_304_688_066_284,
    0.059_187_907_228_572_23,
    -0.053_961_619_312_197_895,
    0.023_264_220_927_877_086,
];
/// `(log₂(1 + f) - f·log₂e) / f²`, error 2^-57.0 of the logarithm.
const LOG2_TAIL_64: [f64; 22] = [
    -0.721_347_520_444_481_7,
    0.480_898_346_962_987_9,
    -0.360_673_760_222_243_7,
    0.288_539_008_177_752_74,
    -0.240_449_173_480_517_4,
    0.206_099_291_562_325_48,
    -0.180_336_880_244_011_34,
    0.160_299_448_521_230_57,
    -0.144_269_494_823_518_14,
    0.131_154_107_964_725_43,
    -0.120_224_957_612_412_7,
    0.110_976_535_475_936_04,
    -0.103_040_737_271_734_49,
    0.096_170_188_598_324_74,
    -0.090_295_590_499_924_68,
    0.085_120_575_230_981_89,
    -0.079_169_528_595_391_97,
    0.072_820_131_674_483_12,
    -0.074_688_557_857_957_36,
    0.086_451_709_422_013_84,
    -0.077_542_643_858_906_79,
    0.032_578_471_039_801_014,
];

/// `k` (as an integer) and `1 + f` of a positive normal number.
pub(super) fn split(x: &Ex) -> (Ex, Ex) {
    let format = FloatFormat::of(x);
    let bits = x.bitcast(format.int);
    let width = bits.lit(f64::from(format.fraction));
    let root_half = bits.builder().constant(Scalar::from_i64(format.int, by_type(x, ROOT_HALF[0], ROOT_HALF[1])));
    let k = (&bits - &root_half).shr(&width);
    let m = (bits - k.shl(&width)).bitcast(x.dtype());
    (k, m)
}

/// [`split`] for any positive number, with `k` in the type of `x`.
pub(super) fn split_any(x: &Ex) -> (Ex, Ex) {
    let format = FloatFormat::of(x);
    let small = x.lt(&x.lit(format.least_normal));
    let (k, m) = split(&small.select(&(x * 2f64.powi(format.fraction)), x));
    (k.cast(x.dtype()) + small.select(&x.lit(f64::from(-format.fraction)), &x.lit(0.0)), m)
}

/// `ln(2ᵏ·(1 + f))`
fn combine(k: &Ex, f: &Ex) -> Ex {
    let (hi, lo) = FloatFormat::of(f).ln2;
    let square = f * f;
    let tail = horner(f, by_type(f, &LOG_TAIL[..], &LOG_TAIL_64)) * f * &square;
    let low = square.fma(&f.lit(-0.5), &k.fma(&f.lit(lo), &tail));
    k.fma(&f.lit(hi), &(f + low))
}

/// The values at 0 (-∞), below it (NaN), and at +∞ and NaN (themselves); `distance` is the
/// argument of the plain logarithm.
fn specials(distance: &Ex, x: &Ex, y: &Ex) -> Ex {
    let y = x.lt(&x.lit(f64::INFINITY)).select(y, x);
    let y = distance.lt(&x.lit(0.0)).select(&x.lit(f64::NAN), &y);
    distance.eq(&x.lit(0.0)).select(&x.lit(f64::NEG_INFINITY), &y)
}

pub fn log(x: &Ex) -> Ex {
    let (k, m) = split_any(x);
    specials(x, x, &combine(&k, &(m - 1.0)))
}

pub fn log2(x: &Ex) -> Ex {
    let (k, m) = split_any(x);
    let f = m - 1.0;
    let (hi, lo) = by_type(x, LOG2_E[0], LOG2_E[1]);
    let tail = horner(&f, by_type(x, &LOG2_TAIL[..], &LOG2_TAIL_64)) * (&f * &f);
    let low = f.fma(&f.lit(lo), &tail);
    // The fraction is at most ½, so adding it to k ≠ 0 loses nothing that matters.
    specials(x, x, &(k + f.fma(&f.lit(hi), &low)))
}

/// `u = 1 + x` rounded, with the rounding error carried into `f`.
pub fn log1p(x: &Ex) -> Ex {
    let u = x + 1.0;
    let near = &u - 1.0;
    let error = (x.lit(1.0) - (&u - &near)) + (x - &near);
    let (k, m) = split(&u);
    let f = &m - 1.0;
    // Beyond 2⁶⁰ the error does not count, and its scale would not be a normal number.
    let unit = x.lit(1.0).bitcast(k.dtype());
    let scale = (unit - k.shl(&k.lit(f64::from(FloatFormat::of(x).fraction)))).bitcast(x.dtype());
    let f = x.lt(&x.lit(2f64.powi(60))).select(&error.fma(&scale, &f), &f);
    let y = specials(&u, x, &combine(&k.cast(x.dtype()), &f));
    x.eq(&x.lit(0.0)).select(x, &y)
}
