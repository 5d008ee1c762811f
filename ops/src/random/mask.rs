//! Random masks: Bernoulli and dropout.

use super::{Random, RandomKey, draw};
use crate::prelude::*;

pub fn bernoulli() -> OpDef {
    let compute = composite(|b, cx, args| {
        let p = operand(b, args, 0)?;
        draw(b, &RandomKey::of(cx, args, 1), &[p], &cx.outputs[0], |source, a| {
            source.unit(0, a[0].dtype()).lt(&a[0]).cast(cx.outputs[0].dtype)
        })
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
    let compute = composite(|b, cx, args| {
        let ratio = operand(b, args, 1)?;
        let ratio = cast(b, ratio, DType::F32)?;
        draw(b, &RandomKey::of(cx, args, 2), &[ratio], &cx.outputs[0], |source, a| source.unit(0, DType::F32).ge(&a[0]))
    });
    let infer = rule(|cx| {
        if let Some(x) = cx.input_dims(0) {
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
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let training = cx.value(2).and_then(|v| v.item()).is_some_and(|v| v.as_bool());
        let ratio = match args.get(1).copied().flatten() {
            Some(ratio) => cast(b, ratio, cx.outputs[0].dtype)?,
            None => number(b, x, 0.5)?,
        };
        let ratio = if training { ratio } else { number(b, x, 0.0)? };
        let seed = Params::new().with("seed", cx.params.float("seed").unwrap_or(0.0));
        let key = args.get(3).copied().flatten();
        let mask = b.op_multi("dropout_mask", &[Some(x), Some(ratio), key], seed, 1)?[0];
        if !training {
            return Ok(vec![b.call("identity", &[x])?, mask]);
        }
        let zero = number(b, x, 0.0)?;
        let kept = b.call("where", &[mask, x, zero])?;
        let dropped = b.call("neg", &[ratio])?;
        let share = with_number(b, "add", dropped, 1.0)?;
        Ok(vec![b.call("div", &[kept, share])?, mask])
    }));
    let infer = rule(|cx| {
        let shape = cx.input(0).shape;
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
