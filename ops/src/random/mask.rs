//! Random masks: Bernoulli and dropout.

use super::{Random, RandomKey, draw};
use crate::prelude::*;

pub fn bernoulli() -> OpDef {
    let compute = formula(|g, cx| {
        Ok(draw(g, RandomKey::of(g, cx, 1), &[g.operand(0)], &cx.outputs[0], |source, a| {
            source.unit(0, a[0].dtype()).lt(&a[0]).cast(cx.outputs[0].dtype)
        }))
    });
    let doc = "1 with probability x, else 0, to a resolution of 2⁻²³ (f64: 2⁻⁵³). A probability below 0 or NaN counts \
               as 0, one above 1 as 1.";
    define("bernoulli", doc, compute, super::shaped_like())
        .operand("x", FLOATS)
        .maybe("dtype", ParamKind::DType, "the result's type, if not the operand's")
        .onnx("Bernoulli", 15)
        .random()
}

pub fn dropout_mask() -> OpDef {
    let compute = formula(|g, cx| {
        let (ratio, key) = (g.operand(1).cast(DType::F32), RandomKey::of(g, cx, 2));
        Ok(draw(g, key, &[ratio], &cx.outputs[0], |source, a| source.unit(0, DType::F32).ge(&a[0])))
    });
    let infer = rule(|cx| {
        if let Some(x) = cx.open_dims(0) {
            broadcasts_to(cx, 1, &x)?;
        }
        cx.copy_shape(0, 0)?;
        cx.set_output_dtype(0, DType::Bool)
    });
    define("dropout_mask", "False with probability `ratio`; shaped like x.", compute, infer)
        .operands(&["x", "ratio"], FLOATS)
        .random()
}

pub fn dropout() -> OpDef {
    let compute = formulas(|g, cx| {
        let x = g.operand(0);
        let training = cx.value(2).and_then(|v| v.item()).is_some_and(|v| v.as_bool());
        let ratio = g.maybe(1).map_or_else(|| x.number(0.5), |ratio| ratio.cast(cx.outputs[0].dtype));
        let ratio = if training { ratio } else { x.number(0.0) };
        let seed = Params::new().with("seed", cx.params.float("seed").unwrap_or(0.0));
        let mask = g.op_multi("dropout_mask", &[Some(x), Some(ratio), g.maybe(3)], seed, 1)[0];
        if !training {
            return Ok(vec![x.call("identity", &[]), mask]);
        }
        let kept = mask.call("where", &[x, x.number(0.0)]);
        Ok(vec![kept / (-ratio + 1.0), mask])
    });
    let infer = rule(|cx| {
        let shape = cx.input_shape(0);
        cx.same_dtype(0, 0)?;
        if cx.output_count() > 1 {
            cx.set_output_dtype(1, DType::Bool)?;
        }
        (0..cx.output_count()).try_for_each(|i| cx.set_output_shape(i, shape.clone()))
    });
    let doc = "x; in training, elements survive with probability 1 - ratio and are scaled.";
    define("dropout", doc, compute, infer)
        .operand("x", FLOATS)
        .optional("ratio", TypeRule::OneOf(FLOATS))
        .static_optionals(&["training_mode"], BOOLS)
        .outputs(1, 2)
        .onnx("Dropout", 12)
        .random()
}
