//! Operators of an array and a number.
//!
//! The number has the array's type. Where `is_int` is false, that is f64 for an array of integers.

use super::{BinaryFunction, and, hypot, maximum, minimum, modulo, or, power, xor};
use crate::prelude::*;

/// Own name, documentation, function of element and number, MXNet's names, error bound.
type ScalarEntry = (&'static str, &'static str, BinaryFunction, &'static [&'static str], Option<f64>);

/// An entry by its name without what all have in common, with MXNet's further names.
macro_rules! entry {
    ($name:literal, $doc:literal, $f:expr, [$($more:literal),*] $(, $ulp:literal)?) => {
        (
            concat!("mx_", $name, "_scalar"),
            $doc,
            $f,
            &[concat!("_", $name, "_scalar"), $($more),*],
            [$($ulp,)?].first().copied(),
        )
    };
}

const ENTRIES: [ScalarEntry; 22] = [
    entry!("plus", "data + scalar.", |x, s| x + s, ["_PlusScalar", "_scatter_plus_scalar"]),
    entry!("minus", "data - scalar.", |x, s| x - s, ["_MinusScalar", "_scatter_minus_scalar"]),
    entry!("rminus", "scalar - data.", |x, s| s - x, ["_RMinusScalar"]),
    entry!("mul", "data · scalar.", |x, s| x * s, ["_MulScalar"]),
    entry!("div", "data / scalar.", |x, s| x / s, ["_DivScalar"]),
    entry!("rdiv", "scalar / data.", |x, s| s / x, ["_RDivScalar"]),
    entry!("mod", "Remainder of data by scalar, with the sign of scalar.", modulo, ["_ModScalar"]),
    entry!("rmod", "Remainder of scalar by data, with the sign of data.", |x, s| modulo(s, x), ["_RModScalar"]),
    entry!("power", "data to the power scalar.", power, ["_PowerScalar"], 4.0),
    entry!("rpower", "scalar to the power data.", |x, s| power(s, x), ["_RPowerScalar"], 4.0),
    entry!("maximum", "The greater of data and scalar.", maximum, ["_MaximumScalar"]),
    entry!("minimum", "The lesser of data and scalar.", minimum, ["_MinimumScalar"]),
    entry!("hypot", "√(data² + scalar²).", hypot, ["_HypotScalar"], 3.0),
    entry!("equal", "data = scalar.", Ex::eq, ["_EqualScalar"]),
    entry!("not_equal", "data ≠ scalar.", Ex::ne, ["_NotEqualScalar"]),
    entry!("greater", "data > scalar.", Ex::gt, ["_GreaterScalar"]),
    entry!("greater_equal", "data ≥ scalar.", Ex::ge, ["_GreaterEqualScalar"]),
    entry!("lesser", "data < scalar.", Ex::lt, ["_LesserScalar"]),
    entry!("lesser_equal", "data ≤ scalar.", Ex::le, ["_LesserEqualScalar"]),
    entry!("logical_and", "Whether neither is 0.", and, ["_LogicalAndScalar"]),
    entry!("logical_or", "Whether one is not 0.", or, ["_LogicalOrScalar"]),
    entry!("logical_xor", "Whether exactly one is not 0.", xor, ["_LogicalXorScalar"]),
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
    match (cx.input_dtype(0), cx.output_dtype(0)) {
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
        .operand("data", &DType::COMPUTED)
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
