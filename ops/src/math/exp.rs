//! Exponentials: Cody–Waite reduction to `2ⁿ·eʳ`, `|r| ≤ ln2/2`, and a polynomial for `eʳ`.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::horner;

const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// `ln 2` in two parts; the first has 9 bits, so that its multiples by an exponent are exact.
const LN2_HI: f64 = 0.693_359_375;
const LN2_LO: f64 = -0.000_212_194_441_701_285_54;
/// Adding 1.5·2²³ leaves the nearest integer in the low bits of the representation.
pub(super) const ROUNDER: f64 = 12_582_912.0;
/// One in the exponent field.
pub(super) const EXPONENT: i32 = 23;
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
    let r = remainder(x, &(&rounded - ROUNDER));
    Reduced { r, exponent: shifted(&rounded.bitcast(DType::I32), EXPONENT) }
}

/// `x - n·ln2`
fn remainder(x: &Ex, n: &Ex) -> Ex {
    n.fma(&x.lit(-LN2_LO), &n.fma(&x.lit(-LN2_HI), x))
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

/// As [`ROUNDER`], biased so that the low bits hold `n` plus the exponents' bias of two factors.
const BIASED_ROUNDER: f64 = ROUNDER + 254.0;

/// `p·2ⁿ` for any result: `2ⁿ` is split in two normal factors, so that only the last product rounds
/// to a subnormal number or overflows. `rounded` is `n + BIASED_ROUNDER`.
fn scale_in_two(p: &Ex, rounded: &Ex) -> Ex {
    let bits = rounded.bitcast(DType::I32);
    let half = bits.shr(&bits.lit(1.0));
    let rest = bits - &half;
    let power = |exponent: &Ex| shifted(exponent, EXPONENT).bitcast(DType::F32);
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
            Scaling::Products => y.lit(BIASED_ROUNDER),
            Scaling::Instruction => y.lit(ROUNDER),
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
    let x = at_most(&at_least(x, -104.0), 89.0);
    let rounder = scaling.rounder(&x);
    let rounded = x.fma(&x.lit(LOG2_E), &rounder);
    let n = &rounded - &rounder;
    scaling.apply(&reduced_exp(&remainder(&x, &n)), &n, &rounded)
}

pub fn exp2(x: &Ex, scaling: Scaling) -> Ex {
    let x = at_most(&at_least(x, -151.0), 129.0);
    let rounder = scaling.rounder(&x);
    let rounded = &x + &rounder;
    let n = &rounded - &rounder;
    let r = &x - &n;
    let p = horner(&r, &EXP2_TAIL).fma(&r, &r.lit(1.0));
    scaling.apply(&p, &n, &rounded)
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
