//! Dropout as MXNet has it: the mask is scaled, and a result.

use crate::prelude::*;

fn active(params: &Params) -> bool {
    let wanted = params.str("mode") == Some("always") || params.flag(OpDef::TRAINING);
    wanted && params.float("p").unwrap_or(0.5) > 0.0
}

/// Extents of the mask: one along the axes that share it.
fn mask_dims(params: &Params, dims: &Extents) -> Result<Extents, OpError> {
    let mut out = dims.clone();
    for &axis in params.ints("axes").unwrap_or(&[]) {
        out.set(normalize_axis(axis, dims.len())?, 1);
    }
    Ok(out)
}

/// Zeros with probability p, else 1 / (1 - p).
fn mask<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let ty = g.operand(0).ty()?;
    let dims = mask_dims(cx.params, &ty.dims).or_fail(&g)?;
    let p = cx.params.float("p").unwrap_or(0.5);
    let ratio = g.scalar(Scalar::from_f64(DType::F32, p));
    let template = g.filled(&DenseType::new(ty.dtype, &dims), 0.0);
    let kept = g.op_multi("dropout_mask", &[Some(template), Some(ratio), g.maybe(1)], Params::new(), 1)[0];
    Ok(g.map(&[kept], ty.dtype, &dims, |s, a| {
        let wide = compute_type(ty.dtype);
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        a[0].select(&s.number(wide, scale), &s.number(wide, 0.0))
    }))
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let x = g.operand(0);
    if active(cx.params) {
        let mask = mask(g, cx)?;
        return Ok(vec![x * mask, mask]);
    }
    Ok([x].into_iter().chain(cx.outputs.get(1).map(|ty| g.filled(ty, 1.0))).collect())
}

fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let head = g.head(cx, 0);
    if !active(cx.node.params) {
        return Ok(vec![Some(head), None]);
    }
    let mask = cx.outputs.get(1).map_or_else(|| mask(g, cx.node), |mask| Ok(g.value(*mask)))?;
    Ok(vec![Some(head * mask), None])
}

pub fn dropout() -> OpDef {
    let infer = rule(|cx| {
        let outputs: Vec<usize> = (0..cx.output_count()).collect();
        agree_dtypes(cx, &[0], &outputs)?;
        agree_shapes(cx, &[0], &[0])?;
        cx.set_input_dims(1, [Dim::Const(2)])?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        if cx.output_count() > 1 {
            let mut dims = x.to_vec();
            for &axis in cx.params.ints("axes").unwrap_or(&[]) {
                dims[normalize_axis(axis, x.len())?] = Dim::Const(1);
            }
            cx.set_output_dims(1, dims)?;
        }
        Ok(())
    });
    let doc = "In training, or always: elements are 0 with probability p, else multiplied by 1 / (1 - p). The second \
               result is that factor, 1 if nothing is dropped.";
    define("mx_dropout", doc, formulas(body), infer)
        .operand("data", FLOATS)
        .optional("key", TypeRule::OneOf(&[DType::U32]))
        .edit(|d| {
            d.key_input = Some(1);
            d.accuracy = tensorc_ir::op::Accuracy::Random;
        })
        .present(|_, _| false)
        .outputs(1, 2)
        .results(|_| ResultCount { visible: 1, listed: 2 })
        .result_names(&["output", "mask"])
        .share("p", 0.5, "Probability of 0.")
        .choice("mode", &["training", "always"], "training", "When elements are dropped.")
        .param("axes", ParamValue::Ints(vec![]), "Axes along which the mask is the same.")
        .ignored(&[("cudnn_off", ParamValue::Bool(false))])
        .param(OpDef::TRAINING, false, "Drop elements.")
        .gradient(derivative(gradient))
        .named(&["Dropout"])
}
