//! Normalisation over one axis, over groups of channels, over the spatial axes; and plain moments.

use crate::mxnet::support::{agree_dtypes, agree_shapes, selected, vector};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![layer_norm(), group_norm(), instance_norm(), moments()]
}

/// How a normalisation sees its data: reshaped, averaged over some axes, scaled along one.
struct Frame {
    dims: Vec<u64>,
    axes: Vec<usize>,
    /// Extents of gamma and beta, shaped to broadcast with the data.
    affine: Vec<u64>,
}

impl Frame {
    fn count(&self) -> f64 {
        self.axes.iter().map(|&a| self.dims[a]).product::<u64>() as f64
    }
}

type Framing = fn(&NodeCtx<'_>, &DenseType) -> Result<Frame, OpError>;

/// One entry along `axis`.
fn along(dims: &[u64], axis: usize) -> Vec<u64> {
    dims.iter().enumerate().map(|(i, &n)| if i == axis { n } else { 1 }).collect()
}

fn one_axis(cx: &NodeCtx<'_>, ty: &DenseType) -> Result<Frame, OpError> {
    let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), ty.rank())?;
    Ok(Frame { dims: ty.dims.clone(), axes: vec![axis], affine: along(&ty.dims, axis) })
}

fn groups(cx: &NodeCtx<'_>, ty: &DenseType) -> Result<Frame, OpError> {
    let groups = cx.params.int("num_groups").unwrap_or(1).max(1) as u64;
    let d = &ty.dims;
    if d.len() < 3 || !d[1].is_multiple_of(groups) {
        return Err(OpError(format!(
            "operand `data`: {} channels do not divide into {groups} groups",
            d.get(1).unwrap_or(&0)
        )));
    }
    let dims = [&[d[0], groups, d[1] / groups], &d[2..]].concat();
    let axes = (2..dims.len()).collect();
    let affine = along(&dims, 1);
    Ok(Frame { dims, axes, affine })
}

fn spatial(_: &NodeCtx<'_>, ty: &DenseType) -> Result<Frame, OpError> {
    Ok(Frame { dims: ty.dims.clone(), axes: (2..ty.rank()).collect(), affine: along(&ty.dims, 1) })
}

fn epsilon(cx: &NodeCtx<'_>) -> f64 {
    cx.params.float("eps").unwrap_or(1e-5)
}

fn frame(b: &Builder<'_>, cx: &NodeCtx<'_>, ty: &DenseType, framing: Framing) -> Result<Frame> {
    framing(cx, ty).map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0))
}

/// Mean, distance from it, and standard deviation with epsilon, of data in the frame.
fn normalised(b: &mut Builder<'_>, x: Value, frame: &Frame, epsilon: f64) -> Result<(Value, Value, Value)> {
    let mean = reduce(b, "reduce_mean", x, &frame.axes)?;
    let centred = b.call("sub", &[x, mean])?;
    let square = b.call("mul", &[centred, centred])?;
    let variance = reduce(b, "reduce_mean", square, &frame.axes)?;
    Ok((mean, centred, with_number(b, "add", variance, epsilon)?))
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>], framing: Framing) -> Result<Vec<Value>> {
    let ty = cx.outputs[0].clone();
    let wide = compute_type(ty.dtype);
    let frame = frame(b, cx, &ty, framing)?;
    let x = operand(b, args, 0)?;
    let x = cast(b, x, wide)?;
    let x = reshape(b, x, &frame.dims)?;
    let (mean, centred, variance) = normalised(b, x, &frame, epsilon(cx))?;
    let inverse = b.call("rsqrt", &[variance])?;
    let normal = b.call("mul", &[centred, inverse])?;
    let mut out = normal;
    for (i, op) in [(1, "mul"), (2, "add")] {
        let v = operand(b, args, i)?;
        let v = cast(b, v, wide)?;
        let v = reshape(b, v, &frame.affine)?;
        out = b.call(op, &[out, v])?;
    }
    let out = reshape(b, out, &ty.dims)?;
    let mut results = vec![cast(b, out, ty.dtype)?];
    if let [_, first, second, ..] = cx.outputs {
        let deviation = b.call("sqrt", &[variance])?;
        for (value, ty) in [(mean, first), (deviation, second)] {
            let value = reshape(b, value, &ty.dims)?;
            results.push(cast(b, value, ty.dtype)?);
        }
    }
    Ok(results)
}

/// With x̂ the normalised data and h the head: of beta Σh, of gamma Σh·x̂, of the data
/// (g - mean(g) - x̂·mean(g·x̂)) / deviation where g = h·gamma.
fn gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>, framing: Framing) -> Result<Vec<Option<Value>>> {
    let ty = cx.node.outputs[0].clone();
    let wide = compute_type(ty.dtype);
    let frame = frame(b, cx.node, &ty, framing)?;
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let (x, head) = (cast(b, x, wide)?, cast(b, head, wide)?);
    let (x, head) = (reshape(b, x, &frame.dims)?, reshape(b, head, &frame.dims)?);
    // Not from the results that show the statistics: what the gradient does not compute from the data, it could
    // not be differentiated by. The same nodes in the forward pass merge with these.
    let (_, centred, variance) = normalised(b, x, &frame, epsilon(cx.node))?;
    let inverse = b.call("rsqrt", &[variance])?;
    let normal = b.call("mul", &[centred, inverse])?;
    let along = b.call("mul", &[head, normal])?;
    let summed: Vec<usize> = (0..frame.dims.len()).filter(|&a| frame.affine[a] == 1).collect();
    let gamma = cx.input(1)?;
    let vector = b.ty(gamma)?;
    let mut vectors = vec![];
    for (i, value) in [(1, along), (2, head)] {
        let sum = reduce(b, "reduce_sum", value, &summed)?;
        let sum = reshape(b, sum, &vector.dims)?;
        let of = cx.input(i)?;
        let of = b.ty(of)?;
        vectors.push(Some(cast(b, sum, of.dtype)?));
    }
    let gamma = cast(b, gamma, wide)?;
    let gamma = reshape(b, gamma, &frame.affine)?;
    let inner = b.call("mul", &[head, gamma])?;
    let tilted = b.call("mul", &[inner, normal])?;
    let mean = reduce(b, "reduce_sum", inner, &frame.axes)?;
    let mean = with_number(b, "mul", mean, 1.0 / frame.count())?;
    let slope = reduce(b, "reduce_sum", tilted, &frame.axes)?;
    let slope = with_number(b, "mul", slope, 1.0 / frame.count())?;
    let tilt = b.call("mul", &[normal, slope])?;
    let out = b.call("sub", &[inner, mean])?;
    let out = b.call("sub", &[out, tilt])?;
    let out = b.call("mul", &[out, inverse])?;
    let out = reshape(b, out, &ty.dims)?;
    let mut found = vec![Some(cast(b, out, ty.dtype)?)];
    found.extend(vectors);
    Ok(found)
}

/// Data and result agree. Returns the data's axes once known.
fn common_rule(cx: &mut InferCtx<'_>) -> Result<Option<Vec<Dim>>, OpError> {
    agree_dtypes(cx, &[0, 1, 2], &[0])?;
    agree_shapes(cx, &[0], &[0])?;
    let dtype = cx.input(0).dtype;
    for i in 1..cx.output_count() {
        if let Some(dtype) = dtype {
            cx.set_output_dtype(i, dtype)?;
        }
    }
    Ok(cx.input_dims(0).map(|x| x.to_vec()))
}

/// As [`common_rule`], with gamma and beta along an axis of the data.
fn affine_rule(cx: &mut InferCtx<'_>, axis: i64) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(x) = common_rule(cx)? else { return Ok(None) };
    let channel = x[normalize_axis(axis, x.len())?];
    vector(cx, 1, channel)?;
    vector(cx, 2, channel)?;
    Ok(Some(x))
}

fn entry(name: &'static str, doc: &'static str, framing: Framing, infer: Infer) -> OpDef {
    define(name, doc, Compute::Composite(Box::new(move |b, cx, args| body(b, cx, args, framing))), infer)
        .groups(&["data", "gamma", "beta"], FLOATS)
        .gradient(move |b, cx| gradient(b, cx, framing))
        .ulp(8.0)
}

/// Mean and deviation are results, shown if asked for.
fn with_statistics(def: OpDef) -> OpDef {
    def.outputs(1, 3)
        .results(|params| {
            let visible = if params.bool("output_mean_var") == Some(true) { 3 } else { 1 };
            ResultCount { visible, listed: 3 }
        })
        .result_names(&["output", "mean", "std"])
        .param("output_mean_var", ParamValue::Bool(false), "Show mean and standard deviation as results.")
}

fn layer_norm() -> OpDef {
    let infer = rule(|cx| {
        let axis = cx.params.int("axis").unwrap_or(-1);
        let Some(x) = affine_rule(cx, axis)? else { return Ok(()) };
        let axis = normalize_axis(axis, x.len())?;
        let kept: Vec<Dim> = x.iter().enumerate().map(|(i, d)| if i == axis { Dim::Const(1) } else { *d }).collect();
        (1..cx.output_count()).try_for_each(|i| cx.set_output_dims(i, kept.iter().copied()))
    });
    let doc =
        "(x - mean) / √(variance + eps) · gamma + beta along one axis. Further results: mean and √(variance + eps).";
    with_statistics(entry("mx_layer_norm", doc, one_axis, infer))
        .param("axis", ParamValue::Int(-1), "The axis normalised and scaled.")
        .param("eps", ParamValue::Float(1e-5), "Added to the variance.")
        .named(&["LayerNorm"])
}

fn group_norm() -> OpDef {
    let infer = rule(|cx| {
        let x = common_rule(cx)?;
        let groups = Dim::Const(cx.params.int("num_groups").unwrap_or(1).max(1) as u64);
        vector(cx, 1, groups)?;
        vector(cx, 2, groups)?;
        let Some(x) = x else { return Ok(()) };
        (1..cx.output_count()).try_for_each(|i| cx.set_output_dims(i, [x[0], groups]))
    });
    let doc = "Per sample and group of channels: (x - mean) / √(variance + eps) · gamma + beta, one of each a group. \
               Further results: mean and √(variance + eps).";
    with_statistics(entry("mx_group_norm", doc, groups, infer))
        .param("num_groups", ParamValue::Int(1), "Groups of channels.")
        .within(1.0, i64::MAX as f64)
        .param("eps", ParamValue::Float(1e-5), "Added to the variance.")
        .named(&["GroupNorm"])
}

fn instance_norm() -> OpDef {
    let infer = rule(|cx| affine_rule(cx, 1).map(|_| ()));
    entry("mx_instance_norm", "Per sample and channel: (x - mean) / √(variance + eps) · gamma + beta.", spatial, infer)
        .param("eps", ParamValue::Float(1e-3), "Added to the variance.")
        .named(&["InstanceNorm"])
}

fn moments() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let ty = b.ty(x)?;
        let axes = selected(cx.params.ints("axes"), false, ty.rank())
            .map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0))?;
        let x = cast(b, x, compute_type(ty.dtype))?;
        let mean = reduce(b, "reduce_mean", x, &axes)?;
        let centred = b.call("sub", &[x, mean])?;
        let square = b.call("mul", &[centred, centred])?;
        let variance = reduce(b, "reduce_mean", square, &axes)?;
        let mut results = vec![];
        for value in [mean, variance] {
            let value = reshape(b, value, &cx.outputs[0].dims)?;
            results.push(cast(b, value, ty.dtype)?);
        }
        Ok(results)
    }));
    let infer = rule(|cx| {
        (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(x) = cx.input_dims(0) else { return Ok(()) };
        let axes = selected(cx.params.ints("axes"), false, x.len())?;
        let dims = super::super::reduce::kept(&x, &axes, cx.params.bool("keepdims") == Some(true));
        let dims: Vec<Option<Dim>> = dims.into_iter().map(Some).collect();
        (0..cx.output_count()).try_for_each(|i| partial(cx, i, &dims))
    });
    define("mx_moments", "Mean and variance over axes.", compute, infer)
        .operand("data", FLOATS)
        .outputs(2, 2)
        .maybe("axes", ParamKind::Ints, "Axes averaged over; default: all.")
        .param("keepdims", ParamValue::Bool(false), "Keep the axes with extent 1.")
        .named(&["moments"])
        .ulp(8.0)
}
