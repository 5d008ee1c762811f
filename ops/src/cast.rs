//! Changes of element type.

use crate::prelude::*;
use tensorc_ir::scalar::{NarrowRounding, ScaleRounding};

pub fn ops() -> Vec<OpDef> {
    let first = || {
        scalar(|_, _, args| match args {
            [Some(x), ..] => Ok(x.clone()),
            _ => Err(OpError::from("an operand is missing")),
        })
    };
    let cast = scalar(|_, cx, args| match (args, cx.params.dtype("to")) {
        ([Some(x)], Some(to)) => Ok(x.convert(to, rounding(cx.params))),
        _ => Err(OpError::from("one operand expected")),
    });
    let like = formula(|g, cx| {
        let to = Params::new().with("to", g.operand(1).ty()?.dtype);
        let given =
            ["saturate", "round_mode"].into_iter().filter_map(|name| Some((name, cx.params.get(name)?.clone())));
        Ok(g.op("cast", &[g.operand(0)], given.fold(to, |params, (name, value)| params.with(name, value))))
    });
    let like_rule = rule(|cx| {
        cx.copy_shape(0, 0)?;
        cx.same_dtype(0, 1)
    });
    vec![
        define("identity", "x.", first(), Infer::Derived)
            .operand("data", &[])
            .onnx("Identity", 1)
            .named(&["_copy", "identity"]),
        define("stop_gradient", "x, constant to differentiation.", first(), Infer::Derived)
            .operand("data", &[])
            .no_gradient()
            .named(&["BlockGrad", "stop_gradient"]),
        define("cast", "x converted: floats to nearest even, integers truncate and saturate.", cast, Infer::Derived)
            .operand("x", &[])
            .required("to", ParamKind::DType, "the result's type")
            .param("saturate", true, SATURATE)
            .choice("round_mode", &["up", "down", "nearest"], "up", "Of f8e8m0.")
            .onnx("Cast", 6),
        define("cast_like", "x converted to the type of another tensor.", like, like_rule)
            .operands(&["x", "like"], &[])
            .param("saturate", true, SATURATE)
            .choice("round_mode", &["up", "down", "nearest"], "up", "Of f8e8m0.")
            .onnx("CastLike", 15),
    ]
}

const SATURATE: &str = "Of narrow floats: what is too large becomes the greatest number, not an infinity or NaN.";

/// How parameters say that narrow floats are made.
fn rounding(params: &Params) -> NarrowRounding {
    let scale = match params.str("round_mode") {
        Some("down") => ScaleRounding::Down,
        Some("nearest") => ScaleRounding::Nearest,
        _ => ScaleRounding::Up,
    };
    NarrowRounding { saturate: params.bool("saturate").unwrap_or(true), scale }
}
