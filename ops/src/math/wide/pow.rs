//! `xʸ` on f64, by a logarithm of twice the precision.

use tensorc_ir::scalar::Ex;

use super::super::exp::{reduced_exp2, scale_in_two};
use super::super::format::{FloatFormat, horner};
use super::super::log::split_any;
use super::super::pow::with_special_cases;
use super::{fast_sum, product};

/// `(artanh(s)/s - 1 - z/3) / z²`, `z = s²`; error 2^-66.5
const SERIES: [f64; 9] = [
    0.2,
    0.142_857_142_857_142_82,
    0.111_111_111_111_142_15,
    0.090_909_090_898_284_63,
    0.076_923_078_805_850_86,
    0.066_666_482_672_164_71,
    0.058_834_065_605_171_064,
    0.052_281_636_347_422_57,
    0.053_812_122_097_824,
];
/// `2/ln 2` and `1/3` in two parts.
const TWO_LOG2_E: (f64, f64) = (2.885_390_081_777_926_8, 4.071_054_748_186_206_6e-17);
const THIRD: (f64, f64) = (0.333_333_333_333_333_3, 1.850_371_707_708_594e-17);
/// Powers of two beyond either way are 0 or infinite.
const MAX_EXPONENT: f64 = 1100.0;

/// A number in two parts, the second less than a unit of the first.
type DoubleDouble = (Ex, Ex);

fn times(a: &DoubleDouble, b: &DoubleDouble) -> DoubleDouble {
    let (high, lost) = product(&a.0, &b.0);
    let low = a.0.fma(&b.1, &a.1.fma(&b.0, &lost));
    fast_sum(&high, &low)
}

fn constant(x: &Ex, c: (f64, f64)) -> DoubleDouble {
    (x.lit(c.0), x.lit(c.1))
}

/// `log₂ a` for finite `a > 0`: `k + 2·artanh(s)/ln 2` with `s = (m - 1)/(m + 1)`.
fn log2(a: &Ex) -> DoubleDouble {
    let (k, m) = split_any(a);
    let one = a.lit(1.0);
    let numerator = &m - &one;
    let denominator = &m + &one;
    let of_m = &denominator - &one;
    let lost = (&m - &of_m) + (&one - &(&denominator - &of_m));
    let s = &numerator / &denominator;
    let rest = (-&s).fma(&denominator, &numerator) - &s * lost;
    let s = (s, rest / denominator);
    let z = times(&s, &s);
    let (third, low) = times(&z, &constant(a, THIRD));
    let small = (&z.0 * &z.0).fma(&horner(&z.0, &SERIES), &low);
    let (sum, lost) = fast_sum(&one, &third);
    let series = fast_sum(&sum, &(lost + small));
    let (high, low) = times(&times(&s, &constant(a, TWO_LOG2_E)), &series);
    let (sum, lost) = fast_sum(&k, &high);
    fast_sum(&sum, &(lost + low))
}

/// `2ᵗ`, of which `rest` is the second part of `t`.
fn exp2(t: &Ex, rest: &Ex) -> Ex {
    let bound = t.lit(MAX_EXPONENT);
    let far = t.abs().gt(&bound);
    let limit = t.lt(&t.lit(0.0)).select(&-&bound, &bound);
    let (t, rest) = (far.select(&limit, t), far.select(&t.lit(0.0), rest));
    let rounder = t.lit(FloatFormat::of(&t).biased_rounder());
    let rounded = &t + &rounder;
    let r = (&t - &(&rounded - &rounder)) + rest;
    scale_in_two(&reduced_exp2(&r), &rounded)
}

pub fn pow(x: &Ex, y: &Ex) -> Ex {
    with_special_cases(x, y, |a| {
        let (high, low) = log2(a);
        let infinity = a.lit(f64::INFINITY);
        let high = a.eq(&a.lit(0.0)).select(&-&infinity, &a.eq(&infinity).select(&infinity, &high));
        let (t, lost) = product(y, &high);
        exp2(&t, &y.fma(&low, &lost))
    })
}
