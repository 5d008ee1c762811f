//! AdaGrad with one learning rate for each row of the weight.

use super::entry::{CLIP, bounded};
use crate::prelude::*;

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let ty = &cx.outputs[0];
    let [weight, grad, history] = g.operands().map(|x| x.cast(compute_type(ty.dtype)));
    let number = |name: &str, default: f64| cx.params.float(name).unwrap_or(default);
    let (rate, factor, epsilon) = (number("lr", 0.0), number("rescale_grad", 1.0), number("epsilon", 1e-5));
    let limit = cx.params.float("clip_gradient");
    let grad = grad.map(|grad| bounded(&(grad * factor), limit));
    let mean = (grad * grad).mean(&(1..ty.rank()).collect::<Vec<_>>());
    let by_row: Vec<u64> = ty.dims.iter().enumerate().map(|(axis, &n)| if axis == 0 { n } else { 1 }).collect();
    let history = history.reshaped(&by_row) + mean;
    let moved = weight.map_with(&[grad, history], |_, a| &a[0] - &a[1] * rate / (&a[2] + epsilon).sqrt());
    let next = |ty: &DenseType| history.reshaped_to(ty);
    Ok([moved.cast(ty.dtype)].into_iter().chain(cx.outputs.get(1).map(next)).collect())
}

pub fn group_adagrad() -> OpDef {
    let infer = rule(|cx| {
        agree_shapes(cx, &[0, 1], &[0])?;
        cx.same_dtype(0, 0)?;
        let states = cx.output_count() > 1;
        if states {
            cx.same_dtype(1, 2)?;
        }
        let Some(weight) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        shaped(cx, 2, &[weight[0], Dim::Const(1)])?;
        if states { cx.set_output_dims(1, [weight[0], Dim::Const(1)]) } else { Ok(()) }
    });
    let doc = "AdaGrad by rows: h ← h + the mean of g² over the row, w - lr·g / √(h + epsilon).";
    define("mx_group_adagrad_update", doc, formulas(body), infer)
        .groups(&["weight", "grad", "history"], FLOATS)
        .required("lr", ParamKind::Float, "learning rate")
        .param("rescale_grad", 1.0, "factor of the gradient")
        .param("clip_gradient", -1.0, CLIP)
        .param("epsilon", 1e-5, "keeps divisors from zero")
        .outputs(1, 2)
        .state(2, 1)
        .not_differentiable("it is a step of an optimizer")
        .ulp(16.0)
        .named(&["_contrib_group_adagrad_update"])
}
