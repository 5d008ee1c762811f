//! Exponentials: Cody–Waite reduction to `2ⁿ·eʳ`, `|r| ≤ ln2/2`, and a polynomial for `eʳ`.

use super::format::{FloatFormat, by_type, horner};
use crate::prelude::*;

const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// Greatest f32 whose exponential is finite.
const EXP_MAX: f64 = 88.722_831_726_074_22;
/// The same of f64.
const EXP_MAX_64: f64 = 709.782_712_893_384;

/// `(eʳ - 1 - r) / r²`, error 2^-27.9 of `eʳ`.
const EXP_TAIL: [f64; 5] =
    [0.5, 0.166_665_330_529_212_95, 0.041_667_237_877_845_764, 0.008_367_511_443_793_774, 0.001_386_376_912_705_600_3];
/// The same, error 2^-29.8 of `eʳ - 1`.
const EXPM1_TAIL: [f64; 6] = [
    0.5,
    0.166_666_656_732_559_2,
    0.041_666_481_643_915_176,
    0.008_333_419_449_627_4,
    0.001_393_329_119_309_783,
    0.000_198_241_177_713_498_47,
];
/// `(2ʳ - 1) / r`, error 2^-27.1 of `2ʳ`.
const EXP2_TAIL: [f64; 6] = [
    0.693_147_182_464_599_6,
    0.240_226_507_186_889_65,
    0.055_503_569_543_361_664,
    0.009_618_082_083_761_692,
    0.001_339_090_988_039_970_4,
    0.000_154_532_026_499_509_8,
];

/// `(eʳ - 1 - r) / r²`, error 2^-61.4 of `eʳ`.
const EXP_TAIL_64: [f64; 11] = [
    0.5,
    0.166_666_666_666_666_7,
    0.041_666_666_666_666_67,
    0.008_333_333_333_326_136,
    0.001_388_888_888_888_374_8,
    0.000_198_412_698_748_206_27,
    2.480_158_732_554_774_3e-5,
    2.755_725_540_020_642_2e-6,
    2.755_727_364_311_03e-7,
    2.510_521_700_472_074_5e-8,
    2.091_468_696_808_687_6e-9,
];
/// The same, error 2^-59.3 of `eʳ - 1`.
const EXPM1_TAIL_64: [f64; 12] = [
    0.5,
    0.166_666_666_666_666_66,
    0.041_666_666_666_666_68,
    0.008_333_333_333_333_333,
    0.001_388_888_888_887_907_3,
    0.000_198_412_698_412_632_98,
    2.480_158_733_644_223_6e-5,
    2.755_731_924_721_873e-6,
    2.755_726_327_908_85e-7,
    2.505_207_109_429_355e-8,
    2.091_813_773_764_273_6e-9,
    1.608_662_795_678_037e-10,
];
/// `(2ʳ - 1) / r`, error 2^-55.5 of `2ʳ`.
const EXP2_TAIL_64: [f64; 14] = [
    std::f64::consts::LN_2,
    0.240_226_506_959_100_72,
    0.055_504_108_664_821_58,
    0.009_618_129_107_628_477,
    0.001_333_355_814_642_845,
    0.000_154_035_303_933_816_11,
    1.525_273_380_404_574_5e-5,
    1.321_548_679_013_820_5e-6,
    1.017_808_602_534_122_8e-7,
    7.054_911_627_775_501e-9,
    4.445_528_830_801_714_5e-10,
    2.567_839_509_883_053e-11,
    1.371_893_439_548_737_4e-12,
    6.790_614_989_333_106e-14,
];

/// `x = n·ln2 + r`.
pub(super) struct Reduced {
    pub r: Ex,
    /// `n` in the place of an exponent, as an integer.
    pub exponent: Ex,
}

pub(super) fn reduce(x: &Ex) -> Reduced {
    let format = FloatFormat::of(x);
    let rounded = x.fma(&x.lit(LOG2_E), &x.lit(format.rounder));
    let r = remainder(x, &(&rounded - format.rounder));
    Reduced { r, exponent: shifted(&rounded.bitcast(format.int), format.fraction) }
}

/// `x - n·ln2`
fn remainder(x: &Ex, n: &Ex) -> Ex {
    let (hi, lo) = FloatFormat::of(x).ln2;
    n.fma(&x.lit(-lo), &n.fma(&x.lit(-hi), x))
}

fn shifted(bits: &Ex, by: i32) -> Ex {
    bits.shl(&bits.lit(f64::from(by)))
}

/// `p·2ⁿ` for a normal result; `exponent` is `n` in its place.
pub(super) fn scale(p: &Ex, exponent: &Ex) -> Ex {
    (p.bitcast(exponent.dtype()) + exponent).bitcast(p.dtype())
}

/// `n` in the place of the exponent of `x`.
fn exponent_of(x: &Ex, n: i32) -> Ex {
    let format = FloatFormat::of(x);
    x.builder().constant(Scalar::from_i64(format.int, i64::from(n) << format.fraction))
}

/// `eʳ` on the reduced range.
pub(super) fn reduced_exp(r: &Ex) -> Ex {
    let tail = horner(r, by_type(r, &EXP_TAIL[..], &EXP_TAIL_64));
    tail.fma(r, &r.lit(1.0)).fma(r, &r.lit(1.0))
}

/// `p·2ⁿ` for any result: `2ⁿ` is split in two normal factors, so that only the last product rounds
/// to a subnormal number or overflows. `rounded` is `n` plus [`FloatFormat::biased_rounder`].
pub(super) fn scale_in_two(p: &Ex, rounded: &Ex) -> Ex {
    let format = FloatFormat::of(p);
    let bits = rounded.bitcast(format.int);
    let half = bits.shr(&bits.lit(1.0));
    let rest = bits - &half;
    let power = |exponent: &Ex| shifted(exponent, format.fraction).bitcast(p.dtype());
    p * power(&half) * power(&rest)
}

/// How a function multiplies by a power of two that may be out of range.
#[derive(Clone, Copy)]
pub(super) enum Scaling {
    /// In two multiplications, which every processor has.
    Products,
    /// By [`tensorc_ir::scalar::ScalarOp::Scale`].
    Instruction,
}

impl Scaling {
    /// Of `y` rounded to an integer by adding it to this.
    fn rounder(self, y: &Ex) -> Ex {
        match self {
            Scaling::Products => y.lit(FloatFormat::of(y).biased_rounder()),
            Scaling::Instruction => y.lit(FloatFormat::of(y).rounder),
        }
    }

    /// `p·2ⁿ`, `n` given also as `rounded`, its sum with the rounder.
    fn apply(self, p: &Ex, n: &Ex, rounded: &Ex) -> Ex {
        match self {
            Scaling::Products => scale_in_two(p, rounded),
            Scaling::Instruction => p.scale(n),
        }
    }
}

/// `y` up to `max`; beyond it +∞, and NaN for NaN.
fn overflow(x: &Ex, max: f64, y: &Ex) -> Ex {
    x.le(&x.lit(max)).select(y, &(x * f64::INFINITY))
}

fn at_least(x: &Ex, bound: f64) -> Ex {
    let bound = x.lit(bound);
    x.lt(&bound).select(&bound, x)
}

fn at_most(x: &Ex, bound: f64) -> Ex {
    let bound = x.lit(bound);
    x.gt(&bound).select(&bound, x)
}

pub fn exp(x: &Ex, scaling: Scaling) -> Ex {
    let x = at_most(&at_least(x, by_type(x, -104.0, -746.0)), by_type(x, 89.0, 710.0));
    let rounder = scaling.rounder(&x);
    let rounded = x.fma(&x.lit(LOG2_E), &rounder);
    let n = &rounded - &rounder;
    scaling.apply(&reduced_exp(&remainder(&x, &n)), &n, &rounded)
}

/// `2ʳ` for `|r| ≤ ½`.
pub(super) fn reduced_exp2(r: &Ex) -> Ex {
    horner(r, by_type(r, &EXP2_TAIL[..], &EXP2_TAIL_64)).fma(r, &r.lit(1.0))
}

pub fn exp2(x: &Ex, scaling: Scaling) -> Ex {
    let x = at_most(&at_least(x, by_type(x, -151.0, -1076.0)), by_type(x, 129.0, 1025.0));
    let rounder = scaling.rounder(&x);
    let rounded = &x + &rounder;
    let n = &rounded - &rounder;
    scaling.apply(&reduced_exp2(&(&x - &n)), &n, &rounded)
}

/// `eʳ - 1` on the reduced range, without cancellation.
fn reduced_expm1(r: &Ex) -> Ex {
    horner(r, by_type(r, &EXPM1_TAIL[..], &EXPM1_TAIL_64)).fma(&(r * r), r)
}

/// Where `eˣ` does not count beside 1.
fn least(x: &Ex) -> f64 {
    by_type(x, -20.0, -40.0)
}

/// `eˣ - 1` and `eˣ + 1`, each rounded once, for `x ≤ 0`; below a bound as there.
pub(super) fn expm1_negative(x: &Ex) -> (Ex, Ex) {
    let Reduced { r, exponent } = reduce(&at_least(x, least(x)));
    let power = (exponent + exponent_of(x, FloatFormat::of(x).bias)).bitcast(x.dtype());
    let p = reduced_expm1(&r);
    (power.fma(&p, &(&power - 1.0)), power.fma(&p, &(&power + 1.0)))
}

/// `2·(2ⁿ⁻¹·(eʳ - 1) + (2ⁿ⁻¹ - ½))`, halved so that the greatest `n` stays finite.
pub fn expm1(x: &Ex) -> Ex {
    let Reduced { r, exponent } = reduce(&at_least(x, least(x)));
    let power = (exponent + exponent_of(x, FloatFormat::of(x).bias - 1)).bitcast(x.dtype());
    let y = power.fma(&reduced_expm1(&r), &(&power - 0.5)) * 2.0;
    let y = overflow(x, by_type(x, EXP_MAX, EXP_MAX_64), &y);
    x.abs().lt(&x.lit(by_type(x, 2f64.powi(-25), 2f64.powi(-54)))).select(x, &y)
}

/// `eˣ / 2` for `0 ≤ x`, finite as long as the result is, then +∞.
pub(super) fn half_exp(x: &Ex) -> Ex {
    let Reduced { r, exponent } = reduce(x);
    let y = scale(&reduced_exp(&r), &(exponent - exponent_of(x, 1)));
    overflow(x, by_type(x, 89.415_985_107_421_88, 710.475_860_073_943_9), &y)
}

/// [`tensorc_ir::scalar::ScalarOp::Scale`] on f32, where the product in f64 is exact.
pub(super) fn scale_any(x: &Ex, n: &Ex) -> Ex {
    let (zero, infinity) = (n.lit(0.0), n.lit(f64::INFINITY));
    let whole = at_most(&at_least(&n.floor(), -300.0), 300.0).cast(DType::I64);
    let power = shifted(&(whole + 1023.0), 52).bitcast(DType::F64);
    let limit = n.eq(n).select(&n.gt(&zero).select(&infinity, &zero), n);
    let is_finite = n.abs().lt(&infinity);
    let y = (x.cast(DType::F64) * is_finite.select(&power, &limit.cast(DType::F64))).cast(DType::F32);
    let bits = x.bitcast(DType::I32);
    let quiet = (&bits & &bits.lit(f64::from(0x0040_0000))).ne(&bits.lit(0.0));
    (x.ne(x) & quiet & n.abs().eq(&infinity)).select(&limit, &y)
}
