//! Softmax, its logarithm, of the negative, over part of an axis, and as an activation.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![
        entry("mx_softmax", "eˣ / Σ eˣ of x / temperature along an axis; 0 from `length` on.", SoftmaxKind::Softmax)
            .named(&["softmax"]),
        entry("mx_log_softmax", "x - ln Σ eˣ of x / temperature along an axis.", SoftmaxKind::Log)
            .named(&["log_softmax"]),
        entry("mx_softmin", "Softmax of -x.", SoftmaxKind::Softmin).named(&["softmin"]),
        activation(),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SoftmaxKind {
    Softmax,
    Log,
    Softmin,
}

fn axis(g: GraphScope<'_>, params: &Params, rank: usize) -> Result<usize> {
    g.check(normalize_axis(params.int("axis").unwrap_or(-1), rank))
}

/// What the operand is multiplied by.
fn factor(params: &Params, kind: SoftmaxKind) -> f64 {
    let scale = 1.0 / params.float("temperature").filter(|t| *t != 0.0).unwrap_or(1.0);
    if kind == SoftmaxKind::Softmin { -scale } else { scale }
}

/// `x` before the length of the row, else a number. The lengths lack the axis.
fn before_length<'g>(x: Tensor<'g>, lengths: Tensor<'g>, axis: usize, other: f64) -> Result<Tensor<'g>> {
    let mut dims = x.dims()?;
    dims.set(axis, 1);
    Ok(x.map_with(&[lengths.reshaped(&dims)], |s, a| {
        let inside = s.coord(axis).lt(&a[1].cast(DType::I64));
        inside.select(&a[0], &a[0].lit(other))
    }))
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, kind: SoftmaxKind) -> Result<Tensor<'g>> {
    let x = g.operand(0);
    let axis = axis(g, cx.params, x.dims()?.len())?;
    let (mut x, factor) = (x.widened(), factor(cx.params, kind));
    if factor != 1.0 {
        x = x * factor;
    }
    let lengths = g.maybe(1).filter(|_| cx.params.flag("use_length"));
    if let Some(lengths) = lengths {
        x = before_length(x, lengths, axis, f64::NEG_INFINITY)?;
    }
    let along = Params::new().with("axis", axis as i64);
    let mut out = g.op(if kind == SoftmaxKind::Log { "log_softmax" } else { "softmax" }, &[x], along);
    if let (Some(lengths), true) = (lengths, kind != SoftmaxKind::Log) {
        // A row of length 0 has no maximum.
        out = before_length(out, lengths, axis, 0.0)?;
    }
    Ok(out.cast(cx.outputs[0].dtype))
}

/// `y·(h - Σ h·y)`, of the logarithm `h - e^y · Σ h`, times the factor.
fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>, kind: SoftmaxKind) -> Gradients<'g> {
    let (ty, head) = (g.operand(0).ty()?, g.head(cx, 0));
    let axis = axis(g, cx.node.params, ty.rank())?;
    let [head, y] = [head, g.value(cx.outputs[0])].map(|x| x.cast(compute_type(ty.dtype)));
    let out = combine([head, y], axis, kind, factor(cx.node.params, kind));
    Ok(vec![Some(out.cast(ty.dtype)), None])
}

fn combine<'g>([head, y]: [Tensor<'g>; 2], axis: usize, kind: SoftmaxKind, factor: f64) -> Tensor<'g> {
    let scaled = |out: Ex| if factor == 1.0 { out } else { out * factor };
    if kind == SoftmaxKind::Log {
        return head.map_with(&[y, head.sum(&[axis])], |_, a| scaled(&a[0] - a[1].exp() * &a[2]));
    }
    head.map_with(&[y, (head * y).sum(&[axis])], |_, a| scaled(&a[1] * (&a[0] - &a[2])))
}

fn infer(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    agree_shapes(cx, &[0], &[0])?;
    dtype_or_first(cx, "dtype")?;
    let Some(x) = cx.open_dims(0) else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(-1), x.len())?;
    let rest: Vec<Dim> = (0..x.len()).filter(|i| *i != axis).map(|i| x[i]).collect();
    cx.set_input_dims(1, rest)
}

fn entry(name: &'static str, doc: &'static str, kind: SoftmaxKind) -> OpDef {
    define(name, doc, formula(move |g, cx| body(g, cx, kind)), rule(infer))
        .operand("data", FLOATS)
        .optional("length", TypeRule::OneOf(INDICES))
        .present(|params, _| params.flag("use_length"))
        .param("axis", -1, "The axis normalised.")
        .maybe("temperature", ParamKind::Float, "Divides the operand; default: 1.")
        .maybe("dtype", ParamKind::DType, "The result's type, if not the operand's.")
        .param("use_length", false, "Only elements before `length` along the axis count.")
        .gradient(derivative(move |g, cx| gradient(g, cx, kind)))
        .ulp(8.0)
}

/// The operand in the shape that is normalised along axis 1.
fn activation_dims(params: &Params, dims: &Extents) -> Extents {
    match params.str("mode") {
        Some("channel") => dims.clone(),
        _ => [dims.range(..1).count(), dims.range(1..).count()].into_iter().collect(),
    }
}

fn activation() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0);
        let dims = x.dims()?;
        if dims.len() < 2 {
            return Err(g.fail(format!("operand `data`: expected rank at least 2, found rank {}", dims.len())));
        }
        let rows = x.reshaped(activation_dims(cx.params, &dims));
        Ok(g.op("softmax", &[rows], Params::new().with("axis", 1)).reshaped(&dims))
    });
    let gradient = derivative(|g, cx| {
        let ty = g.operand(0).ty()?;
        let dims = activation_dims(cx.node.params, &ty.dims);
        let pair = [g.head(cx, 0), g.value(cx.outputs[0])].map(|x| x.cast(compute_type(ty.dtype)));
        let out = combine(pair.map(|x| x.reshaped(&dims)), 1, SoftmaxKind::Softmax, 1.0);
        Ok(vec![Some(out.reshaped_to(&ty))])
    });
    define("mx_softmax_activation", "Softmax over a sample (instance) or over axis 1 (channel).", compute, rule(agree))
        .operand("data", FLOATS)
        .choice("mode", &["channel", "instance"], "instance", "What is normalised.")
        .gradient(gradient)
        .named(&["SoftmaxActivation"])
        .ulp(8.0)
}
