//! `xʸ = 2^(y·log₂|x|)` with the logarithm in f64, and the special cases of C.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

use super::format::{horner, with_sign_of};

/// `log₂((1 + s)/(1 - s)) / s` in `s²`, for `1 + f` in `[√½, √2)`, `s = f/(2 + f)`; error 2^-50.6.
const LOG2_SERIES: [f64; 7] = [
    2.885_390_081_777_927,
    0.961_796_693_924_332_5,
    0.577_078_017_247_236,
    0.412_198_401_900_165_77,
    0.320_616_398_922_117_7,
    0.261_443_890_737_714_35,
    0.242_920_517_553_120_75,
];
/// `2ʳ` for `|r| ≤ ½`, error 2^-40.2.
const EXP2: [f64; 9] = [
    1.0,
    0.693_147_180_545_933_5,
    0.240_226_506_958_129_9,
    0.055_504_109_412_059_33,
    0.009_618_129_159_402_558,
    0.001_333_345_056_800_064_5,
    0.000_154_034_558_524_538_5,
    1.531_007_980_224_929_6e-5,
    1.325_522_487_866_881_7e-6,
];

/// `log₂ a` in f64, for `a ≥ 0`.
fn wide_log2(a: &Ex) -> Ex {
    let small = a.lt(&a.lit(f64::from(f32::MIN_POSITIVE)));
    let bits = small.select(&(a * 2f64.powi(24)), a).bitcast(DType::I32);
    let width = bits.lit(23.0);
    let k = (&bits - f64::from(0x3f35_04f3)).shr(&width);
    let m = (bits - k.shl(&width)).bitcast(DType::F32).cast(DType::F64);
    let k = k.cast(DType::F64) + small.select(&m.lit(-24.0), &m.lit(0.0));
    let s = (&m - 1.0) / (&m + 1.0);
    let y = horner(&(&s * &s), &LOG2_SERIES).fma(&s, &k);
    let y = a.eq(&a.lit(0.0)).select(&m.lit(f64::NEG_INFINITY), &y);
    a.eq(&a.lit(f64::INFINITY)).select(&m.lit(f64::INFINITY), &y)
}

/// `2ᵗ` as f32 with one rounding; overflows to ∞ and underflows through the subnormals to 0.
fn narrow_exp2(t: &Ex) -> Ex {
    let (lo, hi) = (t.lit(-200.0), t.lit(200.0));
    let t = t.lt(&lo).select(&lo, t);
    let t = t.gt(&hi).select(&hi, &t);
    let n = t.round();
    let p = horner(&(&t - &n), &EXP2);
    let bits = (n.cast(DType::F32) + 12_582_912.0).bitcast(DType::I32);
    let n = &bits - f64::from(0x4b40_0000);
    let first = n.shr(&n.lit(1.0));
    let second = n - &first;
    let power = |n: &Ex| (n + 127.0).shl(&n.lit(23.0)).bitcast(DType::F32).cast(DType::F64);
    (p * power(&first) * power(&second)).cast(DType::F32)
}

pub fn pow(x: &Ex, y: &Ex) -> Ex {
    with_special_cases(x, y, |a| narrow_exp2(&(y.cast(DType::F64) * wide_log2(a))))
}

/// `xʸ` where `magnitude` gives `|x|ʸ` of numbers.
pub(super) fn with_special_cases(x: &Ex, y: &Ex, magnitude: impl FnOnce(&Ex) -> Ex) -> Ex {
    let (zero, one) = (x.lit(0.0), x.lit(1.0));
    let a = x.abs();
    let magnitude = a.eq(&one).select(&one, &magnitude(&a));
    let whole = y.floor().eq(y);
    let half = y * 0.5;
    let odd = &whole & &half.floor().ne(&half);
    let signed = odd.select(&with_sign_of(&magnitude, x), &magnitude);
    let finite = a.lt(&x.lit(f64::INFINITY));
    let undefined = x.lt(&zero) & finite & !&whole;
    let result = undefined.select(&x.lit(f64::NAN), &signed);
    let nan = x.ne(x) | y.ne(y);
    let result = nan.select(&(x + y), &result);
    (y.eq(&zero) | x.eq(&one)).select(&one, &result)
}
