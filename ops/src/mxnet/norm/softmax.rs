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

fn axis(b: &Builder<'_>, params: &Params, rank: usize) -> Result<usize> {
    normalize_axis(params.int("axis").unwrap_or(-1), rank).map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0))
}

/// What the operand is multiplied by.
fn factor(params: &Params, kind: SoftmaxKind) -> f64 {
    let scale = 1.0 / params.float("temperature").filter(|t| *t != 0.0).unwrap_or(1.0);
    if kind == SoftmaxKind::Softmin { -scale } else { scale }
}

/// `yes` before the length of the row, else `no`. The lengths lack the axis.
fn before_length(b: &mut Builder<'_>, x: Value, lengths: Value, axis: usize, other: f64) -> Result<Value> {
    let ty = b.ty(x)?;
    let mut dims = ty.dims.clone();
    dims[axis] = 1;
    let lengths = reshape(b, lengths, &dims)?;
    b.map_as(&[x, lengths], ty.dtype, &ty.dims, |s, a| {
        let inside = s.coord(axis).lt(&a[1].cast(DType::I64));
        inside.select(&a[0], &a[0].lit(other))
    })
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>], kind: SoftmaxKind) -> Result<Value> {
    let x = operand(b, args, 0)?;
    let ty = b.ty(x)?;
    let axis = axis(b, cx.params, ty.rank())?;
    let mut x = cast(b, x, compute_type(ty.dtype))?;
    let factor = factor(cx.params, kind);
    if factor != 1.0 {
        x = with_number(b, "mul", x, factor)?;
    }
    let lengths = maybe(args, 1).filter(|_| cx.params.flag("use_length"));
    if let Some(lengths) = lengths {
        x = before_length(b, x, lengths, axis, f64::NEG_INFINITY)?;
    }
    let along = Params::new().with("axis", axis as i64);
    let mut out = b.op(if kind == SoftmaxKind::Log { "log_softmax" } else { "softmax" }, &[x], along)?;
    if let (Some(lengths), true) = (lengths, kind != SoftmaxKind::Log) {
        // A row of length 0 has no maximum.
        out = before_length(b, out, lengths, axis, 0.0)?;
    }
    cast(b, out, cx.outputs[0].dtype)
}

/// `y·(h - Σ h·y)`, of the logarithm `h - e^y · Σ h`, times the factor.
fn gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>, kind: SoftmaxKind) -> Result<Vec<Option<Value>>> {
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let ty = b.ty(x)?;
    let wide = compute_type(ty.dtype);
    let axis = axis(b, cx.node.params, ty.rank())?;
    let (head, y) = (cast(b, head, wide)?, cast(b, cx.outputs[0], wide)?);
    let factor = factor(cx.node.params, kind);
    let out = combine(b, [head, y], axis, kind, factor)?;
    Ok(vec![Some(cast(b, out, ty.dtype)?), None])
}

fn combine(b: &mut Builder<'_>, [head, y]: [Value; 2], axis: usize, kind: SoftmaxKind, factor: f64) -> Result<Value> {
    let ty = b.ty(y)?;
    let scaled = |out: Ex| if factor == 1.0 { out } else { out * factor };
    if kind == SoftmaxKind::Log {
        let sum = reduce(b, "reduce_sum", head, &[axis])?;
        return b.map_as(&[head, y, sum], ty.dtype, &ty.dims, |_, a| scaled(&a[0] - a[1].exp() * &a[2]));
    }
    let along = b.call("mul", &[head, y])?;
    let sum = reduce(b, "reduce_sum", along, &[axis])?;
    b.map_as(&[head, y, sum], ty.dtype, &ty.dims, |_, a| scaled(&a[1] * (&a[0] - &a[2])))
}

fn infer(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    agree_shapes(cx, &[0], &[0])?;
    match cx.params.dtype("dtype") {
        Some(dtype) => cx.set_output_dtype(0, dtype)?,
        None => cx.same_dtype(0, 0)?,
    }
    let Some(x) = cx.input_dims(0) else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(-1), x.len())?;
    let rest: Vec<Dim> = (0..x.len()).filter(|i| *i != axis).map(|i| x[i]).collect();
    cx.set_input_dims(1, rest)
}

fn entry(name: &'static str, doc: &'static str, kind: SoftmaxKind) -> OpDef {
    define(name, doc, composite(move |b, cx, args| body(b, cx, args, kind)), rule(infer))
        .operand("data", FLOATS)
        .optional("length", TypeRule::OneOf(INDICES))
        .present(|params, _| params.flag("use_length"))
        .param("axis", -1, "The axis normalised.")
        .maybe("temperature", ParamKind::Float, "Divides the operand; default: 1.")
        .maybe("dtype", ParamKind::DType, "The result's type, if not the operand's.")
        .param("use_length", false, "Only elements before `length` along the axis count.")
        .gradient(move |b, cx| gradient(b, cx, kind))
        .ulp(8.0)
}

/// The operand in the shape that is normalised along axis 1.
fn activation_dims(params: &Params, dims: &[u64]) -> Vec<u64> {
    match params.str("mode") {
        Some("channel") => dims.to_vec(),
        _ => vec![dims.first().copied().unwrap_or(1), dims.iter().skip(1).product()],
    }
}

fn activation() -> OpDef {
    let compute = composite_of(|b, cx, [x]| {
        let dims = b.dims(x)?;
        if dims.len() < 2 {
            return Err(b.fail(format!("operand `data`: expected rank at least 2, found rank {}", dims.len())));
        }
        let rows = reshape(b, x, &activation_dims(cx.params, &dims))?;
        let out = b.op("softmax", &[rows], Params::new().with("axis", 1))?;
        reshape(b, out, &dims)
    });
    let gradient = |b: &mut Builder<'_>, cx: &GradCtx<'_>| {
        let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
        let ty = b.ty(x)?;
        let wide = compute_type(ty.dtype);
        let dims = activation_dims(cx.node.params, &ty.dims);
        let (head, y) = (cast(b, head, wide)?, cast(b, cx.outputs[0], wide)?);
        let (head, y) = (reshape(b, head, &dims)?, reshape(b, y, &dims)?);
        let out = combine(b, [head, y], 1, SoftmaxKind::Softmax, 1.0)?;
        let out = reshape(b, out, &ty.dims)?;
        Ok(vec![Some(cast(b, out, ty.dtype)?)])
    };
    define("mx_softmax_activation", "Softmax over a sample (instance) or over axis 1 (channel).", compute, rule(agree))
        .operand("data", FLOATS)
        .choice("mode", &["channel", "instance"], "instance", "What is normalised.")
        .gradient(gradient)
        .named(&["SoftmaxActivation"])
        .ulp(8.0)
}
