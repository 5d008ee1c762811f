//! Changes of element type.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let first = || {
        scalar(|_, _, args| match args {
            [Some(x), ..] => Ok(x.clone()),
            _ => Err(OpError::from("an operand is missing")),
        })
    };
    let cast = scalar(|_, cx, args| match (args, cx.params.dtype("to")) {
        ([Some(x)], Some(to)) => Ok(x.cast(to)),
        _ => Err(OpError::from("one operand expected")),
    });
    let like = formula(|g, _| {
        let to = g.operand(1).ty()?.dtype;
        Ok(g.op("cast", &[g.operand(0)], Params::new().with("to", to)))
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
            .param("saturate", true, "of 8-bit float results")
            .param("round_mode", "up", "of 8-bit float scales")
            .onnx("Cast", 6),
        define("cast_like", "x converted to the type of another tensor.", like, like_rule)
            .operands(&["x", "like"], &[])
            .param("saturate", true, "of 8-bit float results")
            .param("round_mode", "up", "of 8-bit float scales")
            .onnx("CastLike", 15),
    ]
}
