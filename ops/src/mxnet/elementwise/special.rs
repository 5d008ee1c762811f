//! Cube root, gamma function and inverse error function as expressions.

use crate::prelude::*;

/// A power of 1/3 and one step of Newton's iteration.
pub fn cbrt(x: &Ex) -> Ex {
    let size = x.abs();
    let guess = size.pow(&x.lit(1.0 / 3.0));
    let better = &guess - (&guess - &size / (&guess * &guess)) / 3.0;
    let plain = size.eq(&x.lit(0.0)) | size.eq(&x.lit(f64::INFINITY));
    let root = plain.select(&size, &better);
    x.lt(&x.lit(0.0)).select(&-&root, &root)
}

/// A function whose gradient is one of head and result.
pub fn by_result(def: OpDef, gradient: fn(&Ex, &Ex) -> Ex) -> OpDef {
    def.gradient(derivative(move |g, cx| {
        let inputs = [g.operand(0), g.value(cx.outputs[0])];
        Ok(vec![Some(g.head(cx, 0).map_with(&inputs, |_, a| gradient(&a[0], &a[2])))])
    }))
}

/// Lanczos' coefficients for g = 7.
const LANCZOS: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// `ln Γ(x)` for `x ≥ 1/2`, as f64.
fn log_gamma(x: &Ex) -> Ex {
    let x = x - 1.0;
    let series = LANCZOS[1..]
        .iter()
        .enumerate()
        .fold(x.lit(LANCZOS[0]), |sum, (i, &c)| sum + x.lit(c) / (&x + (i as f64 + 1.0)));
    let t = &x + 7.5;
    let half_log_two_pi = 0.5 * (2.0 * std::f64::consts::PI).ln();
    (&x + 0.5) * t.log() - &t + series.log() + half_log_two_pi
}

/// `sin πx`, reduced so that it vanishes at integers.
fn sin_pi(x: &Ex) -> Ex {
    let r = x - (x * 0.5).floor() * 2.0;
    let integer = r.eq(&r.floor());
    integer.select(&r.lit(0.0), &(&r * std::f64::consts::PI).sin())
}

/// Argument, whether it is reflected, and the argument that is at least 1/2: all f64.
fn reflected(x: &Ex) -> (Ex, Ex, Ex) {
    let x = x.cast(DType::F64);
    let low = x.lt(&x.lit(0.5));
    let argument = low.select(&(x.lit(1.0) - &x), &x);
    (x, low, argument)
}

pub fn gamma(x: &Ex) -> Ex {
    let (wide, low, argument) = reflected(x);
    let direct = log_gamma(&argument).exp();
    let mirrored = wide.lit(std::f64::consts::PI) / (sin_pi(&wide) * &direct);
    low.select(&mirrored, &direct).cast(x.dtype())
}

pub fn gammaln(x: &Ex) -> Ex {
    let (wide, low, argument) = reflected(x);
    let direct = log_gamma(&argument);
    let mirrored = (wide.lit(std::f64::consts::PI) / sin_pi(&wide).abs()).log() - &direct;
    low.select(&mirrored, &direct).cast(x.dtype())
}

/// Giles' approximation, and for f64 two steps of Newton's iteration.
pub fn erfinv(x: &Ex) -> Ex {
    const CENTRE: [f64; 9] = [
        2.810_226_36e-8,
        3.432_739_39e-7,
        -3.523_387_7e-6,
        -4.391_506_54e-6,
        0.000_218_580_87,
        -0.001_253_725_03,
        -0.004_177_681_64,
        0.246_640_727,
        1.501_409_41,
    ];
    const TAIL: [f64; 9] = [
        -0.000_200_214_257,
        0.000_100_950_558,
        0.001_349_343_22,
        -0.003_673_428_44,
        0.005_739_507_73,
        -0.007_622_461_3,
        0.009_438_870_47,
        1.001_674_06,
        2.832_976_82,
    ];
    let series = |w: &Ex, c: &[f64; 9]| c[1..].iter().fold(w.lit(c[0]), |sum, &c| sum.fma(w, &w.lit(c)));
    let w = -((x.lit(1.0) - x) * (x + 1.0)).log();
    let centre = series(&(&w - 2.5), &CENTRE);
    let tail = series(&(w.sqrt() - 3.0), &TAIL);
    let mut y = x * w.lt(&w.lit(5.0)).select(&centre, &tail);
    if x.dtype() == DType::F64 {
        for _ in 0..2 {
            let slope = (-(&y * &y)).exp() * (2.0 / std::f64::consts::PI.sqrt());
            y = &y - (y.erf() - x) / slope;
        }
    }
    let end = x.abs().eq(&x.lit(1.0));
    end.select(&(x * f64::INFINITY), &y)
}
