//! The error function and the distribution function of the normal distribution on f64.

use tensorc_ir::scalar::Ex;

use super::super::exp::{Scaling, exp};
use super::super::format::{horner, with_sign_of};

/// `erf(x)/x - 1` in `x²`, for `|x| ≤ 1`; error 2^-56.3.
const SMALL_TAIL: [f64; 14] = [
    0.128_379_167_095_512_6,
    -0.376_126_389_031_837_54,
    0.112_837_916_709_551_2,
    -0.026_866_170_645_129_84,
    0.005_223_977_625_423_298_5,
    -0.000_854_832_702_193_483,
    0.000_120_553_329_028_887_36,
    -1.492_564_756_751_933_2e-5,
    1.646_204_544_146_841_8e-6,
    -1.636_464_215_816_761_6e-7,
    1.479_240_120_940_481_3e-8,
    -1.216_456_005_728_345e-9,
    8.709_045_129_053_106e-11,
    -4.230_945_824_295_338e-12,
];
/// `erfc(t)·e^(t²)·(t + 5)` in `(t - 5)/(t + 5)`, for `0 ≤ t ≤ 27.7`, error 2^-54.4.
const TAIL: [f64; 25] = [
    1.107_046_377_330_686_2,
    -1.026_232_599_151_944_8,
    0.881_177_333_302_499_6,
    -0.699_691_959_578_868_6,
    0.512_433_477_962_637_5,
    -0.344_813_878_566_829_3,
    0.212_016_892_119_540_4,
    -0.118_196_338_428_279_09,
    0.059_064_351_245_063_006,
    -0.025_995_100_961_022_973,
    0.009_781_836_102_338_877,
    -0.002_968_406_964_763_927,
    0.000_620_609_812_631_058_6,
    -2.482_420_131_993_873e-5,
    -4.417_811_338_063_984e-5,
    1.905_523_777_505_802_5e-5,
    -2.459_137_329_042_363_6e-6,
    -1.123_758_772_778_584_7e-6,
    6.056_812_393_573_225e-7,
    -4.958_589_905_003_481_4e-8,
    -5.847_579_007_110_698e-8,
    2.069_619_885_708_114_3e-8,
    4.683_524_355_798_764e-9,
    -3.000_342_793_216_534_2e-9,
    -7.777_300_329_694_229e-10,
];
const CENTRE: f64 = 5.0;

/// `erfc(t)·e^(t²)`
fn tail(t: &Ex) -> Ex {
    let u = t.lit(1.0) / (t + CENTRE);
    let q = u.fma(&u.lit(-2.0 * CENTRE), &u.lit(1.0));
    horner(&q, &TAIL) * u
}

/// `e^(-c·a²)`; what the square loses in rounding counts.
fn gauss(a: &Ex, c: f64) -> Ex {
    let (square, lost) = super::product(a, a);
    let power = exp(&(square * -c), Scaling::Products);
    power.fma(&(lost * -c), &power)
}

/// `|x|` up to a bound.
fn bounded(x: &Ex, bound: f64) -> Ex {
    let (a, bound) = (x.abs(), x.lit(bound));
    a.gt(&bound).select(&bound, &a)
}

/// Beyond 1, 1 less the complement, which is 0 from 6 on.
pub fn erf(x: &Ex) -> Ex {
    let a = bounded(x, 6.5);
    let near = horner(&(&a * &a), &SMALL_TAIL).fma(&a, &a);
    let far = (gauss(&a, 1.0) * tail(&a)).fma(&a.lit(-1.0), &a.lit(1.0));
    with_sign_of(&a.lt(&a.lit(1.0)).select(&near, &far), x)
}

pub fn ndtr(x: &Ex) -> Ex {
    let a = bounded(x, 39.0);
    let tail = gauss(&a, 0.5) * (tail(&(&a * std::f64::consts::FRAC_1_SQRT_2)) * 0.5);
    x.lt(&x.lit(0.0)).select(&tail, &(x.lit(1.0) - &tail))
}
