//! Values declared to be losses, and a penalty on the mean activation.

use super::NORMALIZATIONS;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![make_loss_layer(), make_loss(), sparse_penalty()]
}

fn make_loss_layer() -> OpDef {
    let gradient = |b: &mut Builder<'_>, cx: &GradCtx<'_>| {
        let x = cx.input(0)?;
        let ty = b.ty(x)?;
        let float = |name: &str| cx.node.params.float(name).unwrap_or(0.0);
        let (scale, threshold) = (float("grad_scale"), float("valid_thresh"));
        match cx.node.params.str("normalization") {
            Some("batch") => {
                let batch = ty.dims.first().copied().unwrap_or(1).max(1) as f64;
                Ok(vec![Some(b.filled(&ty, scale / batch)?)])
            }
            Some("valid") => {
                let wide = compute_type(ty.dtype);
                let valid = b.map_as(&[x], wide, &ty.dims, |s, a| {
                    a[0].gt(&a[0].lit(threshold)).select(&s.number(wide, 1.0), &s.number(wide, 0.0))
                })?;
                let axes: Vec<usize> = (0..ty.rank()).collect();
                let count = reduce(b, "reduce_sum", valid, &axes)?;
                let out = b.map_as(&[count], ty.dtype, &ty.dims, |_, a| a[0].lit(scale) / a[0].max(&a[0].lit(1.0)))?;
                Ok(vec![Some(out)])
            }
            _ => Ok(vec![Some(b.filled(&ty, scale)?)]),
        }
    };
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
    let gradient = |b: &mut Builder<'_>, cx: &GradCtx<'_>| {
        let x = cx.input(0)?;
        let ty = b.ty(x)?;
        Ok(vec![Some(b.filled(&ty, 1.0)?)])
    };
    let doc = "The data, whose gradient is 1 whatever the head.";
    define("mx_make_loss", doc, calling("identity"), rule(agree))
        .operand("data", FLOATS)
        .gradient(gradient)
        .loss()
        .named(&["make_loss"])
}

/// The mean over axis 0 of rows.
fn mean_of_rows(b: &mut Builder<'_>, x: Value) -> Result<(Value, [u64; 2])> {
    let ty = b.ty(x)?;
    let rows = [ty.dims[0], ty.dims[1..].iter().product()];
    let x = cast(b, x, compute_type(ty.dtype))?;
    let x = reshape(b, x, &rows)?;
    let mean = reduce(b, "reduce_mean", x, &[0])?;
    Ok((mean, rows))
}

/// The moving average after this batch, one row.
fn next_average(b: &mut Builder<'_>, cx: &NodeCtx<'_>, x: Value, old: Value) -> Result<Value> {
    let momentum = cx.params.float("momentum").unwrap_or(0.9);
    let (mean, rows) = mean_of_rows(b, x)?;
    let wide = b.ty(mean)?.dtype;
    let old = cast(b, old, wide)?;
    let old = reshape(b, old, &[1, rows[1]])?;
    let kept = with_number(b, "mul", old, momentum)?;
    let added = with_number(b, "mul", mean, 1.0 - momentum)?;
    b.call("add", &[kept, added])
}

fn sparse_penalty() -> OpDef {
    let compute = composites_of(|b, cx, [x, old]| {
        let mut results = vec![b.call("identity", &[x])?];
        if let Some(ty) = cx.outputs.get(1) {
            let next = match cx.params.bool(OpDef::TRAINING) {
                Some(true) => next_average(b, cx, x, old)?,
                _ => old,
            };
            let next = reshape(b, next, &ty.dims)?;
            results.push(cast(b, next, ty.dtype)?);
        }
        Ok(results)
    });
    let gradient = |b: &mut Builder<'_>, cx: &GradCtx<'_>| {
        let (x, old, head) = (cx.input(0)?, cx.input(1)?, cx.head(b, 0)?);
        let ty = b.ty(x)?;
        let float = |name: &str, default| cx.node.params.float(name).unwrap_or(default);
        let (target, penalty) = (float("sparseness_target", 0.1), float("penalty", 0.001));
        let average = next_average(b, cx.node, x, old)?;
        let rows = [ty.dims[0], ty.dims[1..].iter().product()];
        let head = reshape(b, head, &rows)?;
        let out = b.map_as(&[head, average], ty.dtype, &rows, |_, a| {
            let mean = &a[1];
            let pull = mean.lit(1.0 - target) / (mean.lit(1.0) - mean) - mean.lit(target) / mean;
            &a[0] + pull * penalty
        })?;
        Ok(vec![Some(reshape(b, out, &ty.dims)?), None])
    };
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
