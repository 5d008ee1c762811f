//! Operators of an array and a number.
//!
//! The number has the array's type. Where `is_int` is false, that is f64 for an array of integers.

use super::{BinaryFunction, and, hypot, maximum, minimum, modulo, or, power, xor};
use crate::prelude::*;

/// Own name, documentation, function of element and number, MXNet's names, error bound.
type ScalarEntry = (&'static str, &'static str, BinaryFunction, &'static [&'static str], Option<f64>);

const ENTRIES: [ScalarEntry; 22] = [
    ("mx_plus_scalar", "data + scalar.", |x, s| x + s, &["_plus_scalar", "_PlusScalar", "_scatter_plus_scalar"], None),
    (
        "mx_minus_scalar",
        "data - scalar.",
        |x, s| x - s,
        &["_minus_scalar", "_MinusScalar", "_scatter_minus_scalar"],
        None,
    ),
    ("mx_rminus_scalar", "scalar - data.", |x, s| s - x, &["_rminus_scalar", "_RMinusScalar"], None),
    ("mx_mul_scalar", "data · scalar.", |x, s| x * s, &["_mul_scalar", "_MulScalar"], None),
    ("mx_div_scalar", "data / scalar.", |x, s| x / s, &["_div_scalar", "_DivScalar"], None),
    ("mx_rdiv_scalar", "scalar / data.", |x, s| s / x, &["_rdiv_scalar", "_RDivScalar"], None),
    (
        "mx_mod_scalar",
        "Remainder of data by scalar, with the sign of scalar.",
        modulo,
        &["_mod_scalar", "_ModScalar"],
        None,
    ),
    (
        "mx_rmod_scalar",
        "Remainder of scalar by data, with the sign of data.",
        |x, s| modulo(s, x),
        &["_rmod_scalar", "_RModScalar"],
        None,
    ),
    ("mx_power_scalar", "data to the power scalar.", power, &["_power_scalar", "_PowerScalar"], Some(4.0)),
    (
        "mx_rpower_scalar",
        "scalar to the power data.",
        |x, s| power(s, x),
        &["_rpower_scalar", "_RPowerScalar"],
        Some(4.0),
    ),
    ("mx_maximum_scalar", "The greater of data and scalar.", maximum, &["_maximum_scalar", "_MaximumScalar"], None),
    ("mx_minimum_scalar", "The lesser of data and scalar.", minimum, &["_minimum_scalar", "_MinimumScalar"], None),
    ("mx_hypot_scalar", "√(data² + scalar²).", hypot, &["_hypot_scalar", "_HypotScalar"], Some(3.0)),
    ("mx_equal_scalar", "data = scalar.", Ex::eq, &["_equal_scalar", "_EqualScalar"], None),
    ("mx_not_equal_scalar", "data ≠ scalar.", Ex::ne, &["_not_equal_scalar", "_NotEqualScalar"], None),
    ("mx_greater_scalar", "data > scalar.", Ex::gt, &["_greater_scalar", "_GreaterScalar"], None),
    ("mx_greater_equal_scalar", "data ≥ scalar.", Ex::ge, &["_greater_equal_scalar", "_GreaterEqualScalar"], None),
    ("mx_lesser_scalar", "data < scalar.", Ex::lt, &["_lesser_scalar", "_LesserScalar"], None),
    ("mx_lesser_equal_scalar", "data ≤ scalar.", Ex::le, &["_lesser_equal_scalar", "_LesserEqualScalar"], None),
    ("mx_logical_and_scalar", "Whether neither is 0.", and, &["_logical_and_scalar", "_LogicalAndScalar"], None),
    ("mx_logical_or_scalar", "Whether one is not 0.", or, &["_logical_or_scalar", "_LogicalOrScalar"], None),
    (
        "mx_logical_xor_scalar",
        "Whether exactly one is not 0.",
        xor,
        &["_logical_xor_scalar", "_LogicalXorScalar"],
        None,
    ),
];

/// The type of the result.
fn result_type(data: DType, params: &Params) -> DType {
    match (data, params.bool("is_int").unwrap_or(true)) {
        (DType::Bool, true) => DType::I64,
        (data, false) if !data.is_float() => DType::F64,
        (data, _) => data,
    }
}

fn result_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    agree_shapes(cx, &[0], &[0])?;
    match (cx.input(0).dtype, cx.output(0).dtype) {
        (Some(data), _) => {
            let out = result_type(data, cx.params);
            cx.set_output_dtype(0, out)
        }
        (None, Some(out)) if out.is_float() && cx.params.bool("is_int") != Some(false) => cx.set_input_dtype(0, out),
        _ => Ok(()),
    }
}

fn entry(&(own, doc, function, names, ulp): &ScalarEntry) -> OpDef {
    let body = scalar(move |_, cx, args| {
        let Some(Some(stored)) = args.first() else { return Err(OpError::from("operand `data` is missing")) };
        let out = result_type(stored.dtype(), cx.params);
        let x = widen(&stored.cast(out));
        Ok(function(&x, &x.lit(float_param(cx, "scalar"))).cast(out))
    });
    let def = define(own, doc, body, rule(result_rule))
        .operand("data", &DType::ALL)
        .param("scalar", 1.0, "The number.")
        .param("is_int", true, "False: integers become f64.")
        .named(names);
    match ulp {
        Some(n) => def.ulp(n),
        None => def,
    }
}

/// `0.5·σ²x²` where `|x| < 1/σ²`, else `|x| - 0.5/σ²`.
fn smooth_l1(cx: &ScalarCtx<'_>, a: &[Ex]) -> Ex {
    let (x, sigma) = (&a[0], float_param(cx, "scalar"));
    let square = sigma * sigma;
    let inside = x.abs().lt(&x.lit(1.0 / square));
    inside.select(&(x * x * (0.5 * square)), &(x.abs() - 0.5 / square))
}

pub fn ops() -> Vec<OpDef> {
    let others = [
        elementwise("mx_smooth_l1", "σ²x²/2 where |x| < 1/σ², else |x| - 1/(2σ²).", FLOATS, &["data"], smooth_l1)
            .edit(|d| d.infer = rule(agree))
            .param("scalar", 1.0, "σ: where the quadratic part ends.")
            .named(&["smooth_l1"])
            .ulp(2.0),
        elementwise("mx_quadratic", "a·x² + b·x + c.", NUMBERS, &["data"], |cx, a| {
            let x = &a[0];
            let number = |name: &str| x.lit(float_param(cx, name));
            x * (number("a") * x + number("b")) + number("c")
        })
        .edit(|d| d.infer = rule(agree))
        .param("a", 0.0, "Coefficient of the square.")
        .param("b", 0.0, "Coefficient of the linear term.")
        .param("c", 0.0, "Constant term.")
        .named(&["_contrib_quadratic", "quadratic"]),
        elementwise("mx_clip", "min(max(x, a_min), a_max); NaN stays NaN.", NUMBERS, &["data"], |cx, a| {
            let x = &a[0];
            let (low, high) = (x.lit(float_param(cx, "a_min")), x.lit(float_param(cx, "a_max")));
            let above = x.lt(&low).select(&low, x);
            x.gt(&high).select(&high, &above)
        })
        .edit(|d| d.infer = rule(agree))
        .required("a_min", ParamKind::Float, "Least result.")
        .required("a_max", ParamKind::Float, "Greatest result.")
        .named(&["clip"]),
    ];
    ENTRIES.iter().map(entry).chain(others).collect()
}
