//! Normalisation by neighbouring channels, and by the Euclidean norm.

use crate::mxnet::support::agree;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![lrn(), l2_normalization()]
}

fn float(cx: &NodeCtx<'_>, name: &str, default: f64) -> f64 {
    cx.params.float(name).unwrap_or(default)
}

/// The sum over the neighbouring channels of each channel.
fn neighbours(b: &mut Builder<'_>, x: Value, size: i64) -> Result<Value> {
    let dims = b.dims(x)?;
    let windows = b.op("channel_windows", &[x], Params::new().with("size", ParamValue::Int(size)))?;
    let sum = reduce(b, "reduce_sum", windows, &[1])?;
    reshape(b, sum, &dims)
}

/// `knorm + alpha/nsize · Σ x²`
fn base(b: &mut Builder<'_>, cx: &NodeCtx<'_>, x: Value) -> Result<Value> {
    let size = cx.params.int("nsize").unwrap_or(1);
    let square = b.call("mul", &[x, x])?;
    let sum = neighbours(b, square, size)?;
    let scaled = with_number(b, "mul", sum, float(cx, "alpha", 1e-4) / size as f64)?;
    with_number(b, "add", scaled, float(cx, "knorm", 2.0))
}

/// With s the base and β the exponent: `h·s^-β - 2αβ/n · x · Σ h·x·s^(-β-1)`.
fn lrn_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let ty = b.ty(x)?;
    let wide = compute_type(ty.dtype);
    let (x, head) = (cast(b, x, wide)?, cast(b, head, wide)?);
    let size = cx.node.params.int("nsize").unwrap_or(1);
    let (alpha, beta) = (float(cx.node, "alpha", 1e-4), float(cx.node, "beta", 0.75));
    let base = base(b, cx.node, x)?;
    let parts = b.map_as(&[head, x, base], wide, &ty.dims, |_, a| {
        let power = a[2].pow(&a[2].lit(-beta));
        &a[0] * &a[1] * power / &a[2]
    })?;
    let sum = neighbours(b, parts, size)?;
    let out = b.map_as(&[head, x, base, sum], wide, &ty.dims, |_, a| {
        let power = a[2].pow(&a[2].lit(-beta));
        &a[0] * power - &a[1] * &a[3] * (2.0 * alpha * beta / size as f64)
    })?;
    Ok(vec![Some(cast(b, out, ty.dtype)?)])
}

fn lrn() -> OpDef {
    let compute = composite(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let params = Params::new()
            .with("size", ParamValue::Int(cx.params.int("nsize").unwrap_or(1)))
            .with("alpha", ParamValue::Float(float(cx, "alpha", 1e-4)))
            .with("beta", ParamValue::Float(float(cx, "beta", 0.75)))
            .with("bias", ParamValue::Float(float(cx, "knorm", 2.0)));
        if cx.params.int("nsize").is_some_and(|n| n % 2 == 0) {
            return Err(b.error(DiagnosticCode::Unsupported, "parameter `nsize` is even"));
        }
        b.op("lrn", &[x], params)
    });
    define("mx_lrn", "x / (knorm + alpha/nsize · Σ x²)^beta, over nsize neighbouring channels.", compute, rule(agree))
        .operand("data", FLOATS)
        .param("alpha", ParamValue::Float(1e-4), "Weight of the squares.")
        .param("beta", ParamValue::Float(0.75), "Exponent.")
        .param("knorm", ParamValue::Float(2.0), "Constant term.")
        .required("nsize", ParamKind::Int, "Channels summed over, an odd number.")
        .within(1.0, i64::MAX as f64)
        .gradient(lrn_gradient)
        .named(&["LRN"])
        .ulp(16.0)
}

/// The axes that the norm of one vector covers.
fn vector_axes(params: &Params, rank: usize) -> Vec<usize> {
    match params.str("mode") {
        Some("channel") => vec![1],
        Some("spatial") => (2..rank).collect(),
        _ => (1..rank).collect(),
    }
}

fn norm(b: &mut Builder<'_>, x: Value, axes: &[usize], epsilon: f64) -> Result<Value> {
    let square = b.call("mul", &[x, x])?;
    let sum = reduce(b, "reduce_sum", square, axes)?;
    let sum = with_number(b, "add", sum, epsilon)?;
    b.call("sqrt", &[sum])
}

/// With n the norm and y the result: `(h - y·Σ h·y) / n`.
fn l2_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let ty = b.ty(x)?;
    let wide = compute_type(ty.dtype);
    let axes = vector_axes(cx.node.params, ty.rank());
    let (x, head, y) = (cast(b, x, wide)?, cast(b, head, wide)?, cast(b, cx.outputs[0], wide)?);
    let norm = norm(b, x, &axes, float(cx.node, "eps", 1e-10))?;
    let along = b.call("mul", &[head, y])?;
    let along = reduce(b, "reduce_sum", along, &axes)?;
    let tilt = b.call("mul", &[y, along])?;
    let out = b.call("sub", &[head, tilt])?;
    let out = b.call("div", &[out, norm])?;
    Ok(vec![Some(cast(b, out, ty.dtype)?)])
}

fn l2_normalization() -> OpDef {
    let compute = composite(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let ty = b.ty(x)?;
        if ty.rank() < 2 || (ty.rank() < 3 && cx.params.str("mode") == Some("spatial")) {
            return Err(b.error(DiagnosticCode::Unsupported, format!("operand `data`: rank {} is too low", ty.rank())));
        }
        let x = cast(b, x, compute_type(ty.dtype))?;
        let norm = norm(b, x, &vector_axes(cx.params, ty.rank()), float(cx, "eps", 1e-10))?;
        let out = b.call("div", &[x, norm])?;
        cast(b, out, ty.dtype)
    });
    let doc = "x / √(Σ x² + eps): over a sample (instance), its channels at each position (channel), or each channel \
               (spatial).";
    define("mx_l2_normalization", doc, compute, rule(agree))
        .operand("data", FLOATS)
        .param("eps", ParamValue::Float(1e-10), "Added to the sum.")
        .choice("mode", &["channel", "instance", "spatial"], "instance", "What one norm covers.")
        .gradient(l2_gradient)
        .named(&["L2Normalization"])
        .ulp(8.0)
}
