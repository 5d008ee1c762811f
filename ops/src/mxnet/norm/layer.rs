//! Normalisation over one axis, over groups of channels, over the spatial axes; and plain moments.

use crate::norm;
use crate::prelude::*;
use crate::rules::selected;

pub fn ops() -> Vec<OpDef> {
    vec![layer_norm(), group_norm(), instance_norm(), moments()]
}

/// How a normalisation sees its data: reshaped, averaged over some axes, scaled along one.
struct Frame {
    dims: Extents,
    axes: Vec<usize>,
    /// Extents of gamma and beta, shaped to broadcast with the data.
    affine: Extents,
}

impl Frame {
    fn count(&self) -> Extent {
        self.axes.iter().map(|&a| self.dims.at(a)).product()
    }
}

type Framing = fn(&NodeCtx<'_>, &DenseType) -> Result<Frame, OpError>;

/// One entry along `axis`.
pub(super) fn along(dims: &Extents, axis: usize) -> Extents {
    dims.all().enumerate().map(|(i, n)| if i == axis { n } else { Extent::ONE }).collect()
}

fn one_axis(cx: &NodeCtx<'_>, ty: &DenseType) -> Result<Frame, OpError> {
    let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), ty.rank())?;
    Ok(Frame { dims: ty.dims.clone(), axes: vec![axis], affine: along(&ty.dims, axis) })
}

fn groups(cx: &NodeCtx<'_>, ty: &DenseType) -> Result<Frame, OpError> {
    let groups = cx.params.int("num_groups").unwrap_or(1).max(1) as u64;
    let d = &ty.dims;
    let channels = (d.len() >= 3).then(|| d.at(1).fixed() as u64).filter(|channels| channels.is_multiple_of(groups));
    let Some(channels) = channels else {
        return Err(OpError(format!(
            "operand `data`: {} channels do not divide into {groups} groups",
            d.get(1).unwrap_or(&0)
        )));
    };
    let dims: Extents =
        [d.at(0), groups.into(), (channels / groups).into()].into_iter().chain(d.range(2..).all()).collect();
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

/// Mean, distance from it, and variance with epsilon, of data in the frame.
fn normalised<'g>(x: Tensor<'g>, frame: &Frame, epsilon: f64) -> [Tensor<'g>; 3] {
    let [mean, centred, variance] = norm::moments(x, &frame.axes);
    [mean, centred, variance + epsilon]
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, framing: Framing) -> Result<Vec<Tensor<'g>>> {
    let ty = &cx.outputs[0];
    let wide = compute_type(ty.dtype);
    let frame = g.check(framing(cx, ty))?;
    let x = g.operand(0).cast(wide).reshape(&frame.dims);
    let [mean, centred, variance] = normalised(x, &frame, epsilon(cx));
    let normal = centred * variance.rsqrt();
    let affine = |i: usize| g.operand(i).cast(wide).reshape(&frame.affine);
    let out = normal * affine(1) + affine(2);
    let mut results = vec![out.as_type(ty)];
    if let [_, first, second, ..] = cx.outputs {
        let deviation = variance.sqrt();
        results.extend([mean.as_type(first), deviation.as_type(second)]);
    }
    Ok(results)
}

/// With x̂ the normalised data and h the head: of beta Σh, of gamma Σh·x̂, of the data
/// (g - mean(g) - x̂·mean(g·x̂)) / deviation where g = h·gamma.
fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>, framing: Framing) -> Result<Vec<Option<Tensor<'g>>>> {
    let ty = &cx.node.outputs[0];
    let wide = compute_type(ty.dtype);
    let frame = g.check(framing(cx.node, ty))?;
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let (x, head) = (x.cast(wide), head.cast(wide));
    let (x, head) = (x.reshape(&frame.dims), head.reshape(&frame.dims));
    // Not from the results that show the statistics: what the gradient does not compute from the data, it could
    // not be differentiated by. The same nodes in the forward pass merge with these.
    let [_, centred, variance] = normalised(x, &frame, epsilon(cx.node));
    let inverse = variance.rsqrt();
    let normal = centred * inverse;
    let along = head * normal;
    let summed: Vec<usize> = (0..frame.dims.len()).filter(|&a| frame.affine.at(a).is_surely(1)).collect();
    let gamma = g.operand(1);
    let vector = gamma.ty()?;
    let mut vectors = vec![];
    for (i, value) in [(1, along), (2, head)] {
        vectors.push(Some(value.sum(&summed).reshape(&vector.dims).cast(g.operand(i).ty()?.dtype)));
    }
    let inner = head * gamma.cast(wide).reshape(&frame.affine);
    let tilted = inner * normal;
    let [mean, slope] = [inner, tilted].map(|x| x.sum(&frame.axes).over_extent(1.0, frame.count()));
    let tilt = normal * slope;
    let out = (inner - mean - tilt) * inverse;
    Ok([Some(out.as_type(ty))].into_iter().chain(vectors).collect())
}

/// Data and result agree. Returns the data's axes once known.
fn common_rule(cx: &mut InferCtx<'_>) -> Result<Option<Vec<Dim>>, OpError> {
    agree_dtypes(cx, &[0, 1, 2], &[0])?;
    agree_shapes(cx, &[0], &[0])?;
    let dtype = cx.input_dtype(0);
    for i in 1..cx.output_count() {
        if let Some(dtype) = dtype {
            cx.set_output_dtype(i, dtype)?;
        }
    }
    Ok(cx.open_dims(0).map(|x| x.to_vec()))
}

/// As [`common_rule`], with gamma and beta along an axis of the data.
fn affine_rule(cx: &mut InferCtx<'_>, axis: i64) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(x) = common_rule(cx)? else { return Ok(None) };
    let channel = x[normalize_axis(axis, x.len())?];
    cx.set_input_dims(1, [channel])?;
    cx.set_input_dims(2, [channel])?;
    Ok(Some(x))
}

fn entry(name: &'static str, doc: &'static str, framing: Framing, infer: Infer) -> OpDef {
    define(name, doc, formulas(move |g, cx| body(g, cx, framing)), infer)
        .groups(&["data", "gamma", "beta"], FLOATS)
        .gradient(derivative(move |g, cx| gradient(g, cx, framing)))
        .ulp(8.0)
}

/// Two further results are shown if asked for.
pub fn with_mean_and_variance(params: &Params) -> ResultCount {
    ResultCount { visible: if params.flag("output_mean_var") { 3 } else { 1 }, listed: 3 }
}

/// Mean and deviation are results, shown if asked for.
fn with_statistics(def: OpDef) -> OpDef {
    def.outputs(1, 3).results(with_mean_and_variance).result_names(&["output", "mean", "std"]).param(
        "output_mean_var",
        false,
        "Show mean and standard deviation as results.",
    )
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
        .param("axis", -1, "The axis normalised and scaled.")
        .param("eps", 1e-5, "Added to the variance.")
        .named(&["LayerNorm"])
}

fn group_norm() -> OpDef {
    let infer = rule(|cx| {
        let x = common_rule(cx)?;
        let groups = Dim::Const(cx.params.int("num_groups").unwrap_or(1).max(1) as u64);
        cx.set_input_dims(1, [groups])?;
        cx.set_input_dims(2, [groups])?;
        let Some(x) = x else { return Ok(()) };
        (1..cx.output_count()).try_for_each(|i| cx.set_output_dims(i, [x[0], groups]))
    });
    let doc = "Per sample and group of channels: (x - mean) / √(variance + eps) · gamma + beta, one of each a group. \
               Further results: mean and √(variance + eps).";
    with_statistics(entry("mx_group_norm", doc, groups, infer))
        .param("num_groups", 1, "Groups of channels.")
        .within(1.0, i64::MAX as f64)
        .param("eps", 1e-5, "Added to the variance.")
        .named(&["GroupNorm"])
}

fn instance_norm() -> OpDef {
    let infer = rule(|cx| affine_rule(cx, 1).map(|_| ()));
    entry("mx_instance_norm", "Per sample and channel: (x - mean) / √(variance + eps) · gamma + beta.", spatial, infer)
        .param("eps", 1e-3, "Added to the variance.")
        .named(&["InstanceNorm"])
}

fn moments() -> OpDef {
    let compute = formulas(|g, cx| {
        let x = g.operand(0);
        let ty = x.ty()?;
        let axes = g.check(selected(cx.params.ints("axes"), false, ty.rank()))?;
        let [mean, _, variance] = norm::moments(x.widened(), &axes);
        Ok([mean, variance].map(|v| v.reshape(&cx.outputs[0].dims).cast(ty.dtype)).into())
    });
    let infer = rule(|cx| {
        (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axes = selected(cx.params.ints("axes"), false, x.len())?;
        let dims = super::super::reduce::kept(&x, &axes, cx.params.flag("keepdims"));
        let dims: Vec<Option<Dim>> = dims.into_iter().map(Some).collect();
        (0..cx.output_count()).try_for_each(|i| partial(cx, i, &dims))
    });
    define("mx_moments", "Mean and variance over axes.", compute, infer)
        .operand("data", FLOATS)
        .outputs(2, 2)
        .maybe("axes", ParamKind::Ints, "Axes averaged over; default: all.")
        .param("keepdims", false, "Keep the axes with extent 1.")
        .named(&["moments"])
        .ulp(8.0)
}
