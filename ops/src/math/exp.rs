//! Exponentials: Cody–Waite reduction to `2ⁿ·eʳ`, `|r| ≤ ln2/2`, and a polynomial for `eʳ`.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::horner;

const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// `ln 2` in two parts; the first has 9 bits, so that its multiples by an exponent are exact.
const LN2_HI: f64 = 0.693_359_375;
const LN2_LO: f64 = -0.000_212_194_441_701_285_54;
/// Adding 1.5·2²³ leaves the nearest integer in the low bits of the representation.
const ROUNDER: f64 = 12_582_912.0;
/// One in the exponent field.
const EXPONENT: i32 = 23;
/// Greatest f32 whose exponential is finite.
const EXP_MAX: f64 = 88.722_831_726_074_22;

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

/// `x = n·ln2 + r`.
pub(super) struct Reduced {
    pub r: Ex,
    /// `n` in the place of an f32 exponent: `n·2²³` as i32.
    pub exponent: Ex,
}

pub(super) fn reduce(x: &Ex) -> Reduced {
    let rounded = x.fma(&x.lit(LOG2_E), &x.lit(ROUNDER));
    let n = &rounded - ROUNDER;
    let r = n.fma(&x.lit(-LN2_LO), &n.fma(&x.lit(-LN2_HI), x));
    Reduced { r, exponent: shifted(&rounded.bitcast(DType::I32), EXPONENT) }
}

fn shifted(bits: &Ex, by: i32) -> Ex {
    bits.shl(&bits.lit(f64::from(by)))
}

/// `p·2ⁿ` for a normal result; `exponent` is `n·2²³`.
pub(super) fn scale(p: &Ex, exponent: &Ex) -> Ex {
    (p.bitcast(DType::I32) + exponent).bitcast(DType::F32)
}

fn exponent_of(x: &Ex, n: i32) -> Ex {
    x.builder().number(DType::I32, f64::from(n) * f64::from(1 << EXPONENT))
}

/// `eʳ` on the reduced range.
pub(super) fn reduced_exp(r: &Ex) -> Ex {
    let tail = horner(r, &EXP_TAIL);
    tail.fma(r, &r.lit(1.0)).fma(r, &r.lit(1.0))
}

/// `p·2ⁿ` where the result may be subnormal: there, 2⁶⁴ is added to the exponent and divided out.
fn finish(p: &Ex, exponent: &Ex, x: &Ex, subnormal_below: f64) -> Ex {
    let small = x.lt(&x.lit(subnormal_below));
    let lift = small.select(&exponent_of(x, 64), &exponent_of(x, 0));
    scale(p, &(exponent + lift)) * small.select(&x.lit(2f64.powi(-64)), &x.lit(1.0))
}

/// `y` up to `max`; beyond it +∞, and NaN for NaN.
fn overflow(x: &Ex, max: f64, y: &Ex) -> Ex {
    x.le(&x.lit(max)).select(y, &(x * f64::INFINITY))
}

fn at_least(x: &Ex, bound: f64) -> Ex {
    let bound = x.lit(bound);
    x.lt(&bound).select(&bound, x)
}

pub fn exp(x: &Ex) -> Ex {
    let clamped = at_least(x, -104.0);
    let Reduced { r, exponent } = reduce(&clamped);
    overflow(x, EXP_MAX, &finish(&reduced_exp(&r), &exponent, &clamped, -80.0))
}

pub fn exp2(x: &Ex) -> Ex {
    let clamped = at_least(x, -151.0);
    let rounded = &clamped + ROUNDER;
    let r = &clamped - (&rounded - ROUNDER);
    let exponent = shifted(&rounded.bitcast(DType::I32), EXPONENT);
    let p = horner(&r, &EXP2_TAIL).fma(&r, &r.lit(1.0));
    overflow(x, 127.999_992_370_605_47, &finish(&p, &exponent, &clamped, -120.0))
}

/// `eʳ - 1` on the reduced range, without cancellation.
fn reduced_expm1(r: &Ex) -> Ex {
    horner(r, &EXPM1_TAIL).fma(&(r * r), r)
}

/// `eˣ - 1` and `eˣ + 1`, each rounded once, for `x ≤ 0`; below -20 as at -20.
pub(super) fn expm1_negative(x: &Ex) -> (Ex, Ex) {
    let Reduced { r, exponent } = reduce(&at_least(x, -20.0));
    let power = (exponent + exponent_of(x, 127)).bitcast(DType::F32);
    let p = reduced_expm1(&r);
    (power.fma(&p, &(&power - 1.0)), power.fma(&p, &(&power + 1.0)))
}

/// `2·(2ⁿ⁻¹·(eʳ - 1) + (2ⁿ⁻¹ - ½))`, halved so that `n = 128` stays finite.
pub fn expm1(x: &Ex) -> Ex {
    let Reduced { r, exponent } = reduce(&at_least(x, -20.0));
    let power = (exponent + exponent_of(x, 126)).bitcast(DType::F32);
    let y = power.fma(&reduced_expm1(&r), &(&power - 0.5)) * 2.0;
    let y = overflow(x, EXP_MAX, &y);
    x.abs().lt(&x.lit(2f64.powi(-25))).select(x, &y)
}

/// `eˣ / 2` for `0 ≤ x`, finite as long as the result is (about 89.4), then +∞.
pub(super) fn half_exp(x: &Ex) -> Ex {
    let Reduced { r, exponent } = reduce(x);
    let y = scale(&reduced_exp(&r), &(exponent - exponent_of(x, 1)));
    overflow(x, 89.415_985_107_421_88, &y)
}
