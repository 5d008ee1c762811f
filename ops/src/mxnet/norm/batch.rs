//! Batch normalisation: by the batch's statistics in training, by moving ones otherwise.

use super::layer::{along, with_mean_and_variance};
use crate::norm::{moments, running};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let names = ["BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm"];
    let relu = "Batch normalisation, then max(x, 0).";
    vec![
        entry("mx_batch_norm", DOC, false)
            .maybe("ndev", ParamKind::Int, "Number of devices; no effect.")
            .maybe("key", ParamKind::Str, "Of the exchange between devices; no effect.")
            .named(&names),
        entry("mx_batch_norm_with_relu", relu, true).named(&["_contrib_BatchNormWithReLU"]),
    ]
}

const DOC: &str = "Per channel: (x - mean) / √(variance + eps) · gamma + beta, with the batch's statistics in training \
                   unless `use_global_stats`, and the moving ones otherwise. Further results: mean and 1 / √(variance \
                   + eps) as used, and the next moving mean and variance.";

fn axis(params: &Params, rank: usize) -> Result<usize, OpError> {
    normalize_axis(params.int("axis").unwrap_or(1), rank)
}

/// Whether the statistics are those of the batch.
fn of_batch(params: &Params) -> bool {
    params.flag(OpDef::TRAINING) && !params.flag("use_global_stats")
}

fn fixed_gamma(params: &Params) -> bool {
    params.bool("fix_gamma").unwrap_or(true)
}

/// What the body and its derivative know of a node.
struct Channels {
    /// Axes that are averaged over.
    rest: Vec<usize>,
    /// Extents of a vector over channels that broadcasts with the data.
    shaped: Extents,
}

impl Channels {
    fn new(g: GraphScope<'_>, params: &Params, dims: &Extents) -> Result<Channels> {
        let axis = g.check(axis(params, dims.len()))?;
        let rest: Vec<usize> = (0..dims.len()).filter(|a| *a != axis).collect();
        Ok(Channels { rest, shaped: along(dims, axis) })
    }

    /// A vector over channels in the type `dtype`, shaped to broadcast.
    fn spread<'g>(&self, vector: Tensor<'g>, dtype: DType) -> Tensor<'g> {
        vector.cast(dtype).reshape(&self.shaped)
    }

    /// What a spread vector is as a result.
    fn flat<'g>(&self, vector: Tensor<'g>) -> Tensor<'g> {
        vector.reshape(Extents::of([self.shaped.count()]))
    }

    /// Mean and variance of the batch.
    fn statistics<'g>(&self, x: Tensor<'g>) -> [Tensor<'g>; 2] {
        let [mean, _, variance] = moments(x, &self.rest);
        [mean, variance]
    }

    /// What centred data is multiplied by.
    fn scale<'g>(&self, params: &Params, inverse: Tensor<'g>, dtype: DType) -> Tensor<'g> {
        if fixed_gamma(params) { inverse } else { self.spread(inverse.graph().operand(1), dtype) * inverse }
    }
}

fn epsilon(params: &Params) -> f64 {
    params.float("eps").unwrap_or(1e-3)
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, relu: bool) -> Result<Vec<Tensor<'g>>> {
    let ty = &cx.outputs[0];
    let wide = compute_type(ty.dtype);
    let channels = Channels::new(g, cx.params, &ty.dims)?;
    let x = g.operand(0).cast(wide);
    let moving = [3, 4].map(|i| channels.spread(g.operand(i), wide));
    let (used, next) = match of_batch(cx.params) {
        true => {
            let current = channels.statistics(x);
            let momentum = cx.params.float("momentum").unwrap_or(0.9);
            (current, [0, 1].map(|i| running(moving[i], current[i], momentum)))
        }
        false => (moving, moving),
    };
    let [mean, variance] = used;
    let inverse = (variance + epsilon(cx.params)).rsqrt();
    let scale = channels.scale(cx.params, inverse, wide);
    let beta = channels.spread(g.operand(2), wide);
    let shift = beta - mean * scale;
    let mut out = x * scale + shift;
    if relu {
        out = out.call("relu", &[]);
    }
    let vectors = [mean, inverse, next[0], next[1]].into_iter().zip(&cx.outputs[1..]);
    let vectors = vectors.map(|(value, ty)| channels.flat(value).cast(ty.dtype));
    Ok([out.cast(ty.dtype)].into_iter().chain(vectors).collect())
}

/// Mean and inverse deviation as the node used them, shaped to broadcast.
fn statistics<'g>(cx: &GradCtx<'_>, channels: &Channels, x: Tensor<'g>, wide: DType) -> [Tensor<'g>; 2] {
    let g = x.graph();
    if let [_, mean, inverse, ..] = cx.outputs {
        return [*mean, *inverse].map(|v| channels.spread(g.value(v), wide));
    }
    let [mean, variance] = match of_batch(cx.node.params) {
        true => channels.statistics(x),
        false => [3, 4].map(|i| channels.spread(g.operand(i), wide)),
    };
    [mean, (variance + epsilon(cx.node.params)).rsqrt()]
}

/// With x̂ the normalised data and h the head: of beta Σh, of gamma Σh·x̂ (0 if fixed), of the data
/// gamma/deviation · (h - Σh/n - x̂·Σhx̂/n), without the sums where the statistics are the moving ones.
fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>, relu: bool) -> Result<Vec<Option<Tensor<'g>>>> {
    let (params, ty) = (cx.node.params, &cx.node.outputs[0]);
    let wide = compute_type(ty.dtype);
    let channels = Channels::new(g, params, &ty.dims)?;
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let (x, mut head) = (x.cast(wide), head.cast(wide));
    if relu {
        let y = g.value(cx.outputs[0]).cast(wide);
        let zero = y.number(0.0);
        head = y.call("greater", &[zero]).call("where", &[head, zero]);
    }
    let [mean, inverse] = statistics(cx, &channels, x, wide);
    let normal = (x - mean) * inverse;
    let along = head * normal;
    let (of_beta, of_gamma) = (head.sum(&channels.rest), along.sum(&channels.rest));
    let scale = channels.scale(params, inverse, wide);
    let mut inner = head;
    if of_batch(params) {
        let count: Extent = channels.rest.iter().map(|axis| ty.dims.at(*axis)).product();
        let [share, slope] = [of_beta, of_gamma].map(|sum| sum.over_extent(1.0, count));
        let tilt = normal * slope;
        inner = inner - share - tilt;
    }
    let of_data = (inner * scale).cast(ty.dtype);
    let vector = |i: usize, value: Tensor<'g>| Ok(channels.flat(value).cast(g.operand(i).ty()?.dtype));
    let of_gamma = (!fixed_gamma(params)).then(|| vector(1, of_gamma)).transpose()?;
    Ok(vec![Some(of_data), of_gamma, Some(vector(2, of_beta)?), None, None])
}

fn infer(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    let dtype = cx.input_dtype(0).map(compute_type);
    let known = (1..5).find_map(|i| cx.input_dtype(i)).or(dtype);
    let rest: Vec<usize> = (1..cx.output_count()).collect();
    if let Some(dtype) = known {
        // Vectors over channels have one type, at least f32.
        (1..5).try_for_each(|i| if cx.input_dtype(i).is_none() { cx.set_input_dtype(i, dtype) } else { Ok(()) })?;
        for &i in &rest {
            let state = cx.input_dtype(if i < 3 { i + 2 } else { i }).unwrap_or(dtype);
            cx.set_output_dtype(i, state)?;
        }
    }
    let Some(x) = cx.open_dims(0) else { return Ok(()) };
    let channel = x[axis(cx.params, x.len())?];
    (1..5).try_for_each(|i| cx.set_input_dims(i, [channel]))?;
    rest.iter().try_for_each(|&i| cx.set_output_dims(i, [channel]))
}

fn entry(name: &'static str, doc: &'static str, relu: bool) -> OpDef {
    let compute = formulas(move |g, cx| body(g, cx, relu));
    define(name, doc, compute, rule(infer))
        .operands(&["data", "gamma", "beta", "moving_mean", "moving_var"], FLOATS)
        .outputs(1, 5)
        .state(3, 3)
        .state(4, 4)
        .fixed(|params, i| (i == 1 && fixed_gamma(params)).then_some(1.0))
        .results(with_mean_and_variance)
        .result_names(&["output", "mean", "var"])
        .param("eps", 1e-3, "Added to the variance.")
        .share("momentum", 0.9, "Weight of the old moving statistics.")
        .param("fix_gamma", true, "Take gamma as 1; its gradient is 0.")
        .param("use_global_stats", false, "The moving statistics even in training.")
        .param("output_mean_var", false, "Show the statistics as results.")
        .param("axis", 1, "The channel axis.")
        .ignored(&[("cudnn_off", ParamValue::Bool(false))])
        .maybe("min_calib_range", ParamKind::Float, "No effect.")
        .maybe("max_calib_range", ParamKind::Float, "No effect.")
        .param(OpDef::TRAINING, false, "Use the batch's statistics.")
        .gradient(derivative(move |g, cx| gradient(g, cx, relu)))
        .ulp(8.0)
}
