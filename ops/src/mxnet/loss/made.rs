//! Values declared to be losses, and a penalty on the mean activation.

use super::NORMALIZATIONS;
use crate::norm::running;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![make_loss_layer(), make_loss(), sparse_penalty()]
}

fn make_loss_layer() -> OpDef {
    let gradient = derivative(|g, cx| {
        let x = g.operand(0);
        let ty = x.ty()?;
        let float = |name: &str| cx.node.params.float(name).unwrap_or(0.0);
        let (scale, threshold) = (float("grad_scale"), float("valid_thresh"));
        let part = match cx.node.params.str("normalization") {
            Some("batch") => g.filled(&ty, scale / ty.dims.first().copied().unwrap_or(1).max(1) as f64),
            Some("valid") => {
                let wide = compute_type(ty.dtype);
                let valid = g.map(&[x], wide, &ty.dims, |s, a| {
                    a[0].gt(&a[0].lit(threshold)).select(&s.number(wide, 1.0), &s.number(wide, 0.0))
                });
                let count = valid.sum(&(0..ty.rank()).collect::<Vec<_>>());
                g.map(&[count], ty.dtype, &ty.dims, |_, a| a[0].lit(scale) / a[0].max(&a[0].lit(1.0)))
            }
            _ => g.filled(&ty, scale),
        };
        Ok(vec![Some(part)])
    });
    let doc = "The data, whose gradient is the constant `grad_scale` whatever the head.";
    let divided = "Divide the gradient by the batch or by the number of valid elements.";
    define("mx_make_loss_layer", doc, calling("identity"), rule(agree))
        .operand("data", FLOATS)
        .param("grad_scale", 1.0, "The gradient.")
        .param("valid_thresh", 0.0, "Elements above it are valid.")
        .choice("normalization", NORMALIZATIONS, "null", divided)
        .gradient(gradient)
        .loss()
        .named(&["MakeLoss"])
}

fn make_loss() -> OpDef {
    let gradient = derivative(|g, _| Ok(vec![Some(g.filled(&g.operand(0).ty()?, 1.0))]));
    let doc = "The data, whose gradient is 1 whatever the head.";
    define("mx_make_loss", doc, calling("identity"), rule(agree))
        .operand("data", FLOATS)
        .gradient(gradient)
        .loss()
        .named(&["make_loss"])
}

/// A batch as rows.
fn rows(dims: &[u64]) -> [u64; 2] {
    [dims[0], dims[1..].iter().product()]
}

/// The moving average after this batch, one row.
fn next_average<'g>(cx: &NodeCtx<'_>, x: Tensor<'g>, old: Tensor<'g>) -> Result<Tensor<'g>> {
    let (momentum, rows) = (cx.params.float("momentum").unwrap_or(0.9), rows(&x.dims()?));
    let mean = x.widened().reshaped(rows).mean(&[0]);
    Ok(running(old.cast(mean.ty()?.dtype).reshaped([1, rows[1]]), mean, momentum))
}

fn sparse_penalty() -> OpDef {
    let compute = formulas(|g, cx| {
        let [x, old] = g.operands();
        let mut results = vec![x.call("identity", &[])];
        if let Some(ty) = cx.outputs.get(1) {
            let next = if cx.params.flag(OpDef::TRAINING) { next_average(cx, x, old)? } else { old };
            results.push(next.reshaped_to(ty));
        }
        Ok(results)
    });
    let gradient = derivative(|g, cx| {
        let ([x, old], head) = (g.operands(), g.head(cx, 0));
        let dims = x.dims()?;
        let float = |name: &str, default| cx.node.params.float(name).unwrap_or(default);
        let (target, penalty) = (float("sparseness_target", 0.1), float("penalty", 0.001));
        let average = next_average(cx.node, x, old)?;
        let out = head.reshaped(rows(&dims)).map_with(&[average], |_, a| {
            let mean = &a[1];
            let pull = mean.lit(1.0 - target) / (mean.lit(1.0) - mean) - mean.lit(target) / mean;
            &a[0] + pull * penalty
        });
        Ok(vec![Some(out.reshaped(&dims)), None])
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        default_dtype(cx, 1, 0)?;
        let Some(x) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        cx.set_input_dims(1, [x[1]])?;
        if cx.output_count() > 1 {
            cx.same_dtype(1, 1)?;
            cx.set_output_dims(1, [x[1]])?;
        }
        Ok(())
    });
    let doc = "The data. Its gradient pulls the moving mean of each unit, in (0, 1), towards `sparseness_target`; the \
               next moving mean is the second result.";
    define("mx_identity_attach_kl_sparse_reg", doc, compute, infer)
        .operands(&["data", "moving_avg"], FLOATS)
        .outputs(1, 2)
        .state(1, 1)
        .results(|_| ResultCount { visible: 1, listed: 1 })
        .share("sparseness_target", 0.1, "The mean that has no penalty.")
        .param("penalty", 0.001, "Weight of the penalty.")
        .share("momentum", 0.9, "Weight of the old moving mean.")
        .param(OpDef::TRAINING, false, "Move the mean.")
        .gradient(gradient)
        .named(&["IdentityAttachKLSparseReg"])
}
