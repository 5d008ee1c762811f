//! Operators of one operand that other families lack: MXNet's roundings, roots, and special functions.

use super::special::{self, by_result};
use super::truth;
use crate::prelude::*;

/// Halves away from zero.
pub(super) fn round(x: &Ex) -> Ex {
    if !x.dtype().is_float() {
        return x.clone();
    }
    let whole = x.trunc();
    let step = x.lt(&x.lit(0.0)).select(&x.lit(-1.0), &x.lit(1.0));
    let far = (x - &whole).abs().ge(&x.lit(0.5));
    far.select(&(&whole + step), &whole)
}

/// The nearest integer, halves down.
fn rint(x: &Ex) -> Ex {
    if !x.dtype().is_float() {
        return x.clone();
    }
    let (below, above) = (x.floor(), x.ceil());
    (x - &below).le(&(&above - x)).select(&below, &above)
}

fn roundings() -> Vec<OpDef> {
    vec![
        elementwise("mx_round", "The nearest integer, halves away from zero.", NUMBERS, &["data"], |_, a| round(&a[0]))
            .named(&["round"]),
        elementwise("mx_rint", "The nearest integer, halves down.", NUMBERS, &["data"], |_, a| rint(&a[0]))
            .named(&["rint"]),
        elementwise("mx_logical_not", "1 where data is 0, else 0.", NUMBERS, &["data"], |cx, a| {
            let not = !truth(&a[0]);
            not.cast(cx.inputs.first().copied().flatten().unwrap_or(a[0].dtype()))
        })
        .named(&["logical_not"]),
    ]
}

fn functions() -> Vec<OpDef> {
    let cbrt = elementwise("mx_cbrt", "∛x.", FLOATS, &["data"], |_, a| special::cbrt(&a[0]));
    let rcbrt = elementwise("mx_rcbrt", "1 / ∛x.", FLOATS, &["data"], |_, a| a[0].lit(1.0) / special::cbrt(&a[0]));
    let doc = "The inverse of erf on (-1, 1).";
    let erfinv = elementwise("mx_erfinv", doc, FLOATS, &["data"], |_, a| special::erfinv(&a[0]));
    vec![
        elementwise("mx_log10", "log₁₀ x.", FLOATS, &["data"], |_, a| a[0].log() * std::f64::consts::LOG10_E)
            .named(&["log10"])
            .ulp(3.0),
        elementwise("mx_degrees", "x · 180/π.", FLOATS, &["data"], |_, a| &a[0] * (180.0 / std::f64::consts::PI))
            .named(&["degrees"])
            .ulp(2.0),
        elementwise("mx_radians", "x · π/180.", FLOATS, &["data"], |_, a| &a[0] * (std::f64::consts::PI / 180.0))
            .named(&["radians"])
            .ulp(2.0),
        by_result(cbrt, |head, y| head / (y * y * 3.0)).named(&["cbrt"]).ulp(4.0),
        by_result(rcbrt, |head, y| head * (y * y * y * y) * (-1.0 / 3.0)).named(&["rcbrt"]).ulp(6.0),
        elementwise("mx_gamma", "Γ(x).", FLOATS, &["data"], |_, a| special::gamma(&a[0])).named(&["gamma"]).ulp(4.0),
        elementwise("mx_gammaln", "ln |Γ(x)|.", FLOATS, &["data"], |_, a| special::gammaln(&a[0]))
            .named(&["gammaln"])
            .ulp(4.0),
        by_result(erfinv, |head, y| head * (y * y).exp() * (std::f64::consts::PI.sqrt() / 2.0))
            .named(&["erfinv"])
            .ulp(16.0),
    ]
}

pub fn ops() -> Vec<OpDef> {
    [roundings(), functions()].into_iter().flatten().collect()
}
