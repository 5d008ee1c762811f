//! Batch normalisation: by the batch's statistics in training, by moving ones otherwise.

use crate::mxnet::support::{agree_dtypes, agree_shapes, vector};
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
    params.bool(OpDef::TRAINING) == Some(true) && params.bool("use_global_stats") != Some(true)
}

fn fixed_gamma(params: &Params) -> bool {
    params.bool("fix_gamma").unwrap_or(true)
}

/// What the body and its derivative know of a node.
struct Channels {
    rank: usize,
    axis: usize,
    /// Axes that are averaged over.
    rest: Vec<usize>,
    /// Extents of a vector over channels that broadcasts with the data.
    shaped: Vec<u64>,
    count: f64,
}

impl Channels {
    fn new(b: &Builder<'_>, params: &Params, dims: &[u64]) -> Result<Channels> {
        let axis = axis(params, dims.len()).map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0))?;
        let rest: Vec<usize> = (0..dims.len()).filter(|a| *a != axis).collect();
        let shaped = dims.iter().enumerate().map(|(a, &n)| if a == axis { n } else { 1 }).collect();
        let count = rest.iter().map(|&a| dims[a]).product::<u64>() as f64;
        Ok(Channels { rank: dims.len(), axis, rest, shaped, count })
    }

    /// A vector over channels in the type `dtype`, shaped to broadcast.
    fn spread(&self, b: &mut Builder<'_>, vector: Value, like: Value) -> Result<Value> {
        let dtype = b.ty(like)?.dtype;
        let vector = cast(b, vector, dtype)?;
        reshape(b, vector, &self.shaped)
    }

    fn flat(&self, b: &mut Builder<'_>, shaped: Value) -> Result<Value> {
        debug_assert_eq!(self.shaped.len(), self.rank);
        reshape(b, shaped, &[self.shaped[self.axis]])
    }
}

fn epsilon(params: &Params) -> f64 {
    params.float("eps").unwrap_or(1e-3)
}

fn inverse_deviation(b: &mut Builder<'_>, variance: Value, epsilon: f64) -> Result<Value> {
    let variance = with_number(b, "add", variance, epsilon)?;
    b.call("rsqrt", &[variance])
}

/// `old·momentum + new·(1 - momentum)`
fn running(b: &mut Builder<'_>, old: Value, new: Value, momentum: f64) -> Result<Value> {
    let kept = with_number(b, "mul", old, momentum)?;
    let added = with_number(b, "mul", new, 1.0 - momentum)?;
    b.call("add", &[kept, added])
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>], relu: bool) -> Result<Vec<Value>> {
    let ty = cx.outputs[0].clone();
    let channels = Channels::new(b, cx.params, &ty.dims)?;
    let x = operand(b, args, 0)?;
    let x = cast(b, x, compute_type(ty.dtype))?;
    let mut moving = [x; 2];
    for (i, slot) in moving.iter_mut().enumerate() {
        let v = operand(b, args, 3 + i)?;
        *slot = channels.spread(b, v, x)?;
    }
    let (mut mean, mut variance) = (moving[0], moving[1]);
    let mut next = moving;
    if of_batch(cx.params) {
        mean = reduce(b, "reduce_mean", x, &channels.rest)?;
        let centred = b.call("sub", &[x, mean])?;
        let square = b.call("mul", &[centred, centred])?;
        variance = reduce(b, "reduce_mean", square, &channels.rest)?;
        let momentum = cx.params.float("momentum").unwrap_or(0.9);
        next = [running(b, moving[0], mean, momentum)?, running(b, moving[1], variance, momentum)?];
    }
    let inverse = inverse_deviation(b, variance, epsilon(cx.params))?;
    let scale = match fixed_gamma(cx.params) {
        true => inverse,
        false => {
            let gamma = operand(b, args, 1)?;
            let gamma = channels.spread(b, gamma, x)?;
            b.call("mul", &[gamma, inverse])?
        }
    };
    let beta = operand(b, args, 2)?;
    let beta = channels.spread(b, beta, x)?;
    let moved = b.call("mul", &[mean, scale])?;
    let shift = b.call("sub", &[beta, moved])?;
    let scaled = b.call("mul", &[x, scale])?;
    let mut out = b.call("add", &[scaled, shift])?;
    if relu {
        out = b.call("relu", &[out])?;
    }
    let mut results = vec![cast(b, out, ty.dtype)?];
    for (i, value) in [mean, inverse, next[0], next[1]].into_iter().enumerate() {
        let Some(ty) = cx.outputs.get(1 + i) else { break };
        let value = channels.flat(b, value)?;
        results.push(cast(b, value, ty.dtype)?);
    }
    Ok(results)
}

/// Mean and inverse deviation as the node used them, shaped to broadcast.
fn statistics(b: &mut Builder<'_>, cx: &GradCtx<'_>, channels: &Channels, x: Value) -> Result<(Value, Value)> {
    if let [_, mean, inverse, ..] = cx.outputs {
        return Ok((channels.spread(b, *mean, x)?, channels.spread(b, *inverse, x)?));
    }
    let (mean, variance) = if of_batch(cx.node.params) {
        let mean = reduce(b, "reduce_mean", x, &channels.rest)?;
        let centred = b.call("sub", &[x, mean])?;
        let square = b.call("mul", &[centred, centred])?;
        (mean, reduce(b, "reduce_mean", square, &channels.rest)?)
    } else {
        let (mean, variance) = (cx.input(3)?, cx.input(4)?);
        (channels.spread(b, mean, x)?, channels.spread(b, variance, x)?)
    };
    Ok((mean, inverse_deviation(b, variance, epsilon(cx.node.params))?))
}

/// With x̂ the normalised data and h the head: of beta Σh, of gamma Σh·x̂ (0 if fixed), of the data
/// gamma/deviation · (h - Σh/n - x̂·Σhx̂/n), without the sums where the statistics are the moving ones.
fn gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>, relu: bool) -> Result<Vec<Option<Value>>> {
    let params = cx.node.params;
    let ty = cx.node.outputs[0].clone();
    let wide = compute_type(ty.dtype);
    let channels = Channels::new(b, params, &ty.dims)?;
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let (x, mut head) = (cast(b, x, wide)?, cast(b, head, wide)?);
    if relu {
        let y = cast(b, cx.outputs[0], wide)?;
        let zero = number(b, y, 0.0)?;
        let positive = b.call("greater", &[y, zero])?;
        head = b.call("where", &[positive, head, zero])?;
    }
    let (mean, inverse) = statistics(b, cx, &channels, x)?;
    let centred = b.call("sub", &[x, mean])?;
    let normal = b.call("mul", &[centred, inverse])?;
    let along = b.call("mul", &[head, normal])?;
    let of_beta = reduce(b, "reduce_sum", head, &channels.rest)?;
    let of_gamma = reduce(b, "reduce_sum", along, &channels.rest)?;
    let scale = match fixed_gamma(params) {
        true => inverse,
        false => {
            let gamma = cx.input(1)?;
            let gamma = channels.spread(b, gamma, x)?;
            b.call("mul", &[gamma, inverse])?
        }
    };
    let mut inner = head;
    if of_batch(params) {
        let share = with_number(b, "mul", of_beta, 1.0 / channels.count)?;
        let slope = with_number(b, "mul", of_gamma, 1.0 / channels.count)?;
        let tilt = b.call("mul", &[normal, slope])?;
        inner = b.call("sub", &[inner, share])?;
        inner = b.call("sub", &[inner, tilt])?;
    }
    let of_data = b.call("mul", &[inner, scale])?;
    let of_data = cast(b, of_data, ty.dtype)?;
    let vectors = [(1, of_gamma), (2, of_beta)];
    let mut found = vec![Some(of_data)];
    for (i, value) in vectors {
        let of = cx.input(i)?;
        let of = b.ty(of)?;
        found.push(match i == 1 && fixed_gamma(params) {
            true => None,
            false => {
                let value = channels.flat(b, value)?;
                Some(cast(b, value, of.dtype)?)
            }
        });
    }
    found.extend([None, None]);
    Ok(found)
}

fn infer(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    agree_dtypes(cx, &[0], &[0])?;
    agree_shapes(cx, &[0], &[0])?;
    let dtype = cx.input(0).dtype.map(compute_type);
    let known = (1..5).find_map(|i| cx.input(i).dtype).or(dtype);
    let rest: Vec<usize> = (1..cx.output_count()).collect();
    if let Some(dtype) = known {
        // Vectors over channels have one type, at least f32.
        (1..5).try_for_each(|i| if cx.input(i).dtype.is_none() { cx.set_input_dtype(i, dtype) } else { Ok(()) })?;
        for &i in &rest {
            let state = cx.input(if i < 3 { i + 2 } else { i }).dtype.unwrap_or(dtype);
            cx.set_output_dtype(i, state)?;
        }
    }
    let Some(x) = cx.input_dims(0) else { return Ok(()) };
    let channel = x[axis(cx.params, x.len())?];
    (1..5).try_for_each(|i| vector(cx, i, channel))?;
    rest.iter().try_for_each(|&i| cx.set_output_dims(i, [channel]))
}

fn entry(name: &'static str, doc: &'static str, relu: bool) -> OpDef {
    let compute = Compute::Composite(Box::new(move |b, cx, args| body(b, cx, args, relu)));
    define(name, doc, compute, rule(infer))
        .operands(&["data", "gamma", "beta", "moving_mean", "moving_var"], FLOATS)
        .outputs(1, 5)
        .state(3, 3)
        .state(4, 4)
        .fixed(|params, i| (i == 1 && fixed_gamma(params)).then_some(1.0))
        .results(|params| {
            let visible = if params.bool("output_mean_var") == Some(true) { 3 } else { 1 };
            ResultCount { visible, listed: 3 }
        })
        .result_names(&["output", "mean", "var"])
        .param("eps", ParamValue::Float(1e-3), "Added to the variance.")
        .param("momentum", ParamValue::Float(0.9), "Weight of the old moving statistics.")
        .within(0.0, 1.0)
        .param("fix_gamma", ParamValue::Bool(true), "Take gamma as 1; its gradient is 0.")
        .param("use_global_stats", ParamValue::Bool(false), "The moving statistics even in training.")
        .param("output_mean_var", ParamValue::Bool(false), "Show the statistics as results.")
        .param("axis", ParamValue::Int(1), "The channel axis.")
        .ignored(&[("cudnn_off", ParamValue::Bool(false))])
        .maybe("min_calib_range", ParamKind::Float, "No effect.")
        .maybe("max_calib_range", ParamKind::Float, "No effect.")
        .param(OpDef::TRAINING, ParamValue::Bool(false), "Use the batch's statistics.")
        .gradient(move |b, cx| gradient(b, cx, relu))
        .ulp(8.0)
}
