//! Dropout as MXNet has it: the mask is scaled, and a result.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![dropout()]
}

fn active(params: &Params) -> bool {
    let wanted = params.str("mode") == Some("always") || params.flag(OpDef::TRAINING);
    wanted && params.float("p").unwrap_or(0.5) > 0.0
}

/// Extents of the mask: one along the axes that share it.
fn mask_dims(params: &Params, dims: &[u64]) -> Result<Vec<u64>, OpError> {
    let mut out = dims.to_vec();
    for &axis in params.ints("axes").unwrap_or(&[]) {
        out[normalize_axis(axis, dims.len())?] = 1;
    }
    Ok(out)
}

/// Zeros with probability p, else 1 / (1 - p).
fn mask(b: &mut Builder<'_>, cx: &NodeCtx<'_>, x: Value, key: Option<Value>) -> Result<Value> {
    let ty = b.ty(x)?;
    let dims = mask_dims(cx.params, &ty.dims).or_fail(b)?;
    let p = cx.params.float("p").unwrap_or(0.5);
    let ratio = b.scalar(Scalar::from_f64(DType::F32, p));
    let template = b.filled(&DenseType::new(ty.dtype, &dims), 0.0)?;
    let kept = b.op_multi("dropout_mask", &[Some(template), Some(ratio), key], Params::new(), 1)?[0];
    b.map_as(&[kept], ty.dtype, &dims, |s, a| {
        let wide = compute_type(ty.dtype);
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        a[0].select(&s.number(wide, scale), &s.number(wide, 0.0))
    })
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let x = operand(b, args, 0)?;
    if active(cx.params) {
        let mask = mask(b, cx, x, maybe(args, 1))?;
        return Ok(vec![b.call("mul", &[x, mask])?, mask]);
    }
    let mut results = vec![x];
    if let Some(ty) = cx.outputs.get(1) {
        results.push(b.filled(ty, 1.0)?);
    }
    Ok(results)
}

fn gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let head = cx.head(b, 0)?;
    if !active(cx.node.params) {
        return Ok(vec![Some(head), None]);
    }
    let mask = match cx.outputs.get(1) {
        Some(mask) => *mask,
        None => {
            let x = cx.input(0)?;
            mask(b, cx.node, x, maybe(cx.inputs, 1))?
        }
    };
    Ok(vec![Some(b.call("mul", &[head, mask])?), None])
}

fn dropout() -> OpDef {
    let infer = rule(|cx| {
        let outputs: Vec<usize> = (0..cx.output_count()).collect();
        agree_dtypes(cx, &[0], &outputs)?;
        agree_shapes(cx, &[0], &[0])?;
        cx.set_input_dims(1, [Dim::Const(2)])?;
        let Some(x) = cx.input_dims(0) else { return Ok(()) };
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
    define("mx_dropout", doc, Compute::Composite(Box::new(body)), infer)
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
        .gradient(gradient)
        .named(&["Dropout"])
}
