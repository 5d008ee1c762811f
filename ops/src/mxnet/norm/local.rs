//! Normalisation by neighbouring channels, and by the Euclidean norm.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![lrn(), l2_normalization()]
}

fn float(cx: &NodeCtx<'_>, name: &str, default: f64) -> f64 {
    cx.params.float(name).unwrap_or(default)
}

/// The sum over the neighbouring channels of each channel.
fn neighbours(x: Tensor<'_>, size: i64) -> Result<Tensor<'_>> {
    let windows = x.graph().op("channel_windows", &[x], Params::new().with("size", size));
    Ok(windows.sum(&[1]).reshape(&x.dims()?))
}

/// `knorm + alpha/nsize · Σ x²`
fn base<'g>(cx: &NodeCtx<'_>, x: Tensor<'g>) -> Result<Tensor<'g>> {
    let size = cx.params.int("nsize").unwrap_or(1);
    Ok(neighbours(x * x, size)? * (float(cx, "alpha", 1e-4) / size as f64) + float(cx, "knorm", 2.0))
}

/// With s the base and β the exponent: `h·s^-β - 2αβ/n · x · Σ h·x·s^(-β-1)`.
fn lrn_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Result<Vec<Option<Tensor<'g>>>> {
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let dtype = x.ty()?.dtype;
    let (x, head) = (x.widened(), head.widened());
    let size = cx.node.params.int("nsize").unwrap_or(1);
    let (alpha, beta) = (float(cx.node, "alpha", 1e-4), float(cx.node, "beta", 0.75));
    let base = base(cx.node, x)?;
    let parts = head.map_with(&[x, base], |_, a| {
        let power = a[2].pow(&a[2].lit(-beta));
        &a[0] * &a[1] * power / &a[2]
    });
    let sum = neighbours(parts, size)?;
    let out = head.map_with(&[x, base, sum], |_, a| {
        let power = a[2].pow(&a[2].lit(-beta));
        &a[0] * power - &a[1] * &a[3] * (2.0 * alpha * beta / size as f64)
    });
    Ok(vec![Some(out.cast(dtype))])
}

fn lrn() -> OpDef {
    let compute = formula(|g, cx| {
        let params = Params::new()
            .with("size", cx.params.int("nsize").unwrap_or(1))
            .with("alpha", float(cx, "alpha", 1e-4))
            .with("beta", float(cx, "beta", 0.75))
            .with("bias", float(cx, "knorm", 2.0));
        if cx.params.int("nsize").is_some_and(|n| n % 2 == 0) {
            return Err(g.fail("parameter `nsize` is even"));
        }
        Ok(g.op("lrn", &[g.operand(0)], params))
    });
    define("mx_lrn", "x / (knorm + alpha/nsize · Σ x²)^beta, over nsize neighbouring channels.", compute, rule(agree))
        .operand("data", FLOATS)
        .param("alpha", 1e-4, "Weight of the squares.")
        .param("beta", 0.75, "Exponent.")
        .param("knorm", 2.0, "Constant term.")
        .count("nsize", "Channels summed over, an odd number.")
        .gradient(derivative(lrn_gradient))
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

fn norm<'g>(x: Tensor<'g>, axes: &[usize], epsilon: f64) -> Tensor<'g> {
    ((x * x).sum(axes) + epsilon).sqrt()
}

/// With n the norm and y the result: `(h - y·Σ h·y) / n`.
fn l2_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Result<Vec<Option<Tensor<'g>>>> {
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let ty = x.ty()?;
    let axes = vector_axes(cx.node.params, ty.rank());
    let (x, head, y) = (x.widened(), head.widened(), g.value(cx.outputs[0]).widened());
    let norm = norm(x, &axes, float(cx.node, "eps", 1e-10));
    let along = (head * y).sum(&axes);
    let out = (head - y * along) / norm;
    Ok(vec![Some(out.cast(ty.dtype))])
}

fn l2_normalization() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0);
        let ty = x.ty()?;
        if ty.rank() < 2 || (ty.rank() < 3 && cx.params.str("mode") == Some("spatial")) {
            return g.build(|b| Err(b.fail(format!("operand `data`: rank {} is too low", ty.rank()))));
        }
        let x = x.widened();
        let norm = norm(x, &vector_axes(cx.params, ty.rank()), float(cx, "eps", 1e-10));
        Ok((x / norm).cast(ty.dtype))
    });
    let doc = "x / √(Σ x² + eps): over a sample (instance), its channels at each position (channel), or each channel \
               (spatial).";
    define("mx_l2_normalization", doc, compute, rule(agree))
        .operand("data", FLOATS)
        .param("eps", 1e-10, "Added to the sum.")
        .choice("mode", &["channel", "instance", "spatial"], "instance", "What one norm covers.")
        .gradient(derivative(l2_gradient))
        .named(&["L2Normalization"])
        .ulp(8.0)
}
