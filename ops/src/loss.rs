//! Losses.

use crate::compose::{per_channel, widened};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![select_at(), negative_log_likelihood(), softmax_cross_entropy()]
}

fn select_at() -> OpDef {
    let body = scalar(|b, cx, args| {
        let [Some(x), Some(index)] = args else { return Err(OpError::from("two operands expected")) };
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), cx.rank)?;
        Ok(index.cast(DType::I64).eq(&b.coord(axis)).select(x, &x.lit(0.0)))
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        let shapes = [cx.input(0).shape, cx.input(1).shape];
        let Some(dims) = cx.broadcast(&shapes)? else { return Ok(()) };
        cx.axis(cx.params.int("axis").unwrap_or(-1), dims.len())?;
        cx.set_output_dims(0, dims)
    });
    define("select_at", "x where the coordinate along an axis is the index, else 0.", body, infer)
        .operand("x", FLOATS)
        .operand("index", INDICES)
        .param("axis", ParamValue::Int(-1), "axis selected along")
}

/// What both losses take besides their scores.
fn parameters(def: OpDef) -> OpDef {
    def.operand("target", INDICES)
        .optional("weight", TypeRule::Group(0, FLOATS))
        .param("reduction", ParamValue::Str("mean".into()), "none, sum or mean")
        .maybe("ignore_index", ParamKind::Int, "a target class without effect")
}

fn loss_shape(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    if let Some(scores) = rank_in(cx, 0, 2..=usize::MAX)? {
        shaped(cx, 1, &[&scores[..1], &scores[2..]].concat())?;
        shaped(cx, 2, &scores[1..2])?;
    }
    match (cx.params.str("reduction"), cx.input(1).shape) {
        (Some("none"), shape) => cx.set_output_shape(0, shape),
        (Some("sum" | "mean"), _) => cx.set_output_dims(0, std::iter::empty::<Dim>()),
        (other, _) => Err(OpError(format!("reduction `{}` is not none, sum or mean", other.unwrap_or_default()))),
    }
}

/// The loss from log-probabilities with classes along axis 1.
fn likelihood(b: &mut Builder<'_>, cx: &NodeCtx<'_>, scores: Value, args: &[Option<Value>]) -> Result<Value> {
    let target = operand(b, args, 1)?;
    let scores = widened(b, scores)?;
    let ty = b.ty(scores)?;
    let classes = [&ty.dims[..1], &[1], &ty.dims[2..]].concat();
    let index = reshape(b, target, &classes)?;
    let axis = Params::new().with("axis", ParamValue::Int(1));
    let chosen = b.op("select_at", &[scores, index], axis.clone())?;
    let chosen = reduce(b, "reduce_sum", chosen, &[1])?;
    let mut weight = match args.get(2).copied().flatten() {
        Some(w) => {
            let w = cast(b, w, ty.dtype)?;
            let w = per_channel(b, w, ty.rank())?;
            let w = b.op("select_at", &[w, index], axis)?;
            Some(reduce(b, "reduce_sum", w, &[1])?)
        }
        None => None,
    };
    if let Some(ignored) = cx.params.int("ignore_index") {
        let dtype = b.ty(index)?.dtype;
        let ignored = b.scalar(Scalar::from_i64(dtype, ignored));
        let same = b.call("equal", &[index, ignored])?;
        let (zero, one) = (number(b, scores, 0.0)?, number(b, scores, 1.0)?);
        weight = Some(b.call("where", &[same, zero, weight.unwrap_or(one)])?);
    }
    let loss = b.call("neg", &[chosen])?;
    let loss = match weight {
        Some(w) => b.call("mul", &[loss, w])?,
        None => loss,
    };
    let axes: Vec<usize> = (0..ty.rank()).collect();
    let loss = match (cx.params.str("reduction"), weight) {
        (Some("none"), _) => loss,
        (Some("sum"), _) => reduce(b, "reduce_sum", loss, &axes)?,
        (_, None) => reduce(b, "reduce_mean", loss, &axes)?,
        (_, Some(w)) => {
            let (total, weights) = (reduce(b, "reduce_sum", loss, &axes)?, reduce(b, "reduce_sum", w, &axes)?);
            b.call("div", &[total, weights])?
        }
    };
    let loss = reshape(b, loss, &cx.outputs[0].dims)?;
    cast(b, loss, cx.outputs[0].dtype)
}

fn negative_log_likelihood() -> OpDef {
    let compute = composite(|b, cx, args| {
        let scores = operand(b, args, 0)?;
        likelihood(b, cx, scores, args)
    });
    let doc = "-weight[target]·x[target], the class axis being 1; mean divides by the weights' sum.";
    parameters(define("nll_loss", doc, compute, rule(loss_shape)).group("x", FLOATS))
        .onnx("NegativeLogLikelihoodLoss", 12)
        .ulp(8.0)
}

fn softmax_cross_entropy() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let scores = operand(b, args, 0)?;
        let stored = b.ty(scores)?.dtype;
        let wide = widened(b, scores)?;
        let log = b.op("log_softmax", &[wide], Params::new().with("axis", ParamValue::Int(1)))?;
        let loss = likelihood(b, cx, log, args)?;
        Ok(vec![loss, cast(b, log, stored)?])
    }));
    let infer = rule(|cx| {
        loss_shape(cx)?;
        let shape = cx.input(0).shape;
        if cx.output_count() > 1 {
            cx.set_output_shape(1, shape)?;
            cx.same_dtype(1, 0)?;
        }
        Ok(())
    });
    let doc = "Negative log-likelihood of log_softmax(x, axis 1), which is the second result.";
    parameters(define("softmax_cross_entropy_loss", doc, compute, infer).group("x", FLOATS))
        .outputs(1, 2)
        .onnx("SoftmaxCrossEntropyLoss", 12)
        .ulp(8.0)
}
