//! Losses.

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
    let infer = shape_rule(|cx| {
        let shapes = [cx.input_shape(0), cx.input_shape(1)];
        let Some(dims) = cx.broadcast(&shapes)? else { return Ok(()) };
        cx.axis(cx.params.int("axis").unwrap_or(-1), dims.len())?;
        cx.set_output_dims(0, dims)
    });
    define("select_at", "x where the coordinate along an axis is the index, else 0.", body, infer)
        .operand("x", FLOATS)
        .operand("index", INDICES)
        .param("axis", -1, "axis selected along")
}

/// What both losses take besides their scores.
fn parameters(def: OpDef) -> OpDef {
    def.operand("target", INDICES)
        .optional("weight", TypeRule::Group(0, FLOATS))
        .param("reduction", "mean", "none, sum or mean")
        .maybe("ignore_index", ParamKind::Int, "a target class without effect")
        .demand(1, |cx| {
            let classes = Allowed::below(cx.input(0)?.dims.at(1));
            Ok(Some(match (classes, cx.params.int("ignore_index")) {
                (Allowed::Within(first, last), Some(ignored)) => Allowed::WithinOr(first, last, ignored),
                (classes, _) => classes,
            }))
        })
}

fn loss_shape(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    if let Some(scores) = open_rank_in(cx, 0, 2..=usize::MAX)? {
        shaped(cx, 1, &[&scores[..1], &scores[2..]].concat())?;
        shaped(cx, 2, &scores[1..2])?;
    }
    match (cx.params.str("reduction"), cx.input_shape(1)) {
        (Some("none"), shape) => cx.set_output_shape(0, shape),
        (Some("sum" | "mean"), _) => cx.set_output_dims(0, std::iter::empty::<Dim>()),
        (other, _) => Err(OpError(format!("reduction `{}` is not none, sum or mean", other.unwrap_or_default()))),
    }
}

/// The loss from log-probabilities with classes along axis 1.
fn likelihood<'g>(cx: &NodeCtx<'_>, scores: Tensor<'g>) -> Result<Tensor<'g>> {
    let g = scores.graph();
    let target = g.operand(1);
    let scores = scores.widened();
    let ty = scores.ty()?;
    let rest = ty.dims.all().skip(2);
    let index = target.reshape([ty.dims.at(0), Extent::ONE].into_iter().chain(rest).collect::<Extents>());
    let axis = Params::new().with("axis", 1);
    let chosen = |x: Tensor<'g>| g.op("select_at", &[x, index], axis.clone()).sum(&[1]);
    let mut likelihood = chosen(scores);
    let mut weight = g.maybe(2).map(|w| chosen(w.cast(ty.dtype).per_channel(ty.rank())));
    if let Some(ignored) = cx.params.int("ignore_index") {
        let dtype = index.ty()?.dtype;
        let ignored = g.scalar(Scalar::from_i64(dtype, ignored));
        let same = index.call("equal", &[ignored]);
        let [zero, one] = [0.0, 1.0].map(|x| scores.number(x));
        weight = Some(same.call("where", &[zero, weight.unwrap_or(one)]));
        // What is not finite would stay so under a weight of 0.
        likelihood = same.call("where", &[zero, likelihood]);
    }
    let loss = -likelihood;
    let loss = weight.map_or(loss, |w| loss * w);
    let axes: Vec<usize> = (0..ty.rank()).collect();
    let loss = match (cx.params.str("reduction"), weight) {
        (Some("none"), _) => loss,
        (Some("sum"), _) => loss.sum(&axes),
        (_, None) => loss.mean(&axes),
        (_, Some(w)) => loss.sum(&axes) / w.sum(&axes),
    };
    Ok(loss.as_type(&cx.outputs[0]))
}

fn negative_log_likelihood() -> OpDef {
    let compute = formula(|g, cx| likelihood(cx, g.operand(0)));
    let doc = "-weight[target]·x[target], the class axis being 1; mean divides by the weights' sum.";
    parameters(define("nll_loss", doc, compute, rule(loss_shape)).group("x", FLOATS))
        .onnx("NegativeLogLikelihoodLoss", 12)
        .ulp(8.0)
}

fn softmax_cross_entropy() -> OpDef {
    let compute = formulas(|g, cx| {
        let scores = g.operand(0);
        let stored = scores.ty()?.dtype;
        let log = g.op("log_softmax", &[scores.widened()], Params::new().with("axis", 1));
        Ok(vec![likelihood(cx, log)?, log.cast(stored)])
    });
    let infer = rule(|cx| {
        loss_shape(cx)?;
        let shape = cx.input_shape(0);
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
