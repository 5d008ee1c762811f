//! AdaGrad with one learning rate for each row of the weight.

use super::entry::{CLIP, bounded};
use crate::prelude::*;

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let ty = cx.outputs[0].clone();
    let wide = compute_type(ty.dtype);
    let mut held = [operand(b, args, 0)?, operand(b, args, 1)?, operand(b, args, 2)?];
    for v in &mut held {
        *v = cast(b, *v, wide)?;
    }
    let [weight, grad, history] = held;
    let number = |name: &str, default: f64| cx.params.float(name).unwrap_or(default);
    let (rate, factor, epsilon) = (number("lr", 0.0), number("rescale_grad", 1.0), number("epsilon", 1e-5));
    let limit = cx.params.float("clip_gradient");
    let grad = b.map_as(&[grad], wide, &ty.dims, |_, a| bounded(&(&a[0] * factor), limit))?;
    let squares = b.call("mul", &[grad, grad])?;
    let rest: Vec<usize> = (1..ty.rank()).collect();
    let mean = reduce(b, "reduce_mean", squares, &rest)?;
    let by_row: Vec<u64> = ty.dims.iter().enumerate().map(|(axis, &n)| if axis == 0 { n } else { 1 }).collect();
    let history = reshape(b, history, &by_row)?;
    let history = b.call("add", &[history, mean])?;
    let moved =
        b.map_as(&[weight, grad, history], wide, &ty.dims, |_, a| &a[0] - &a[1] * rate / (&a[2] + epsilon).sqrt())?;
    let mut results = vec![cast(b, moved, ty.dtype)?];
    if let Some(next) = cx.outputs.get(1) {
        let history = reshape(b, history, &next.dims)?;
        results.push(cast(b, history, next.dtype)?);
    }
    Ok(results)
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
    define("mx_group_adagrad_update", doc, Compute::Composite(Box::new(body)), infer)
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
