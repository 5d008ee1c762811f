//! Normalisations, written as mean, centre, variance and scale so that they fuse.

use crate::compose::{per_channel, widened};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    [softmaxes(), statistics(), channels()].into_iter().flatten().collect()
}

/// The result has the operand's type.
pub(crate) fn same_as_first() -> Infer {
    rule(like_first)
}

fn like_first(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let shape = cx.input(0).shape;
    cx.set_output_shape(0, shape)?;
    let output = cx.output(0).shape;
    cx.set_input_shape(0, output)?;
    cx.same_dtype(0, 0)
}

/// The result has the operand's type, which has the parameter's axis.
fn along_an_axis() -> Infer {
    rule(|cx| {
        like_first(cx)?;
        let Some(dims) = cx.input_dims(0) else { return Ok(()) };
        normalize_axis(cx.params.int("axis").unwrap_or(-1), dims.len()).map(drop)
    })
}

fn axis_of(b: &Builder<'_>, cx: &NodeCtx<'_>, default: i64) -> Result<usize> {
    let rank = cx.outputs[0].rank();
    normalize_axis(cx.params.int("axis").unwrap_or(default), rank)
        .map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0))
}

fn epsilon(cx: &NodeCtx<'_>) -> f64 {
    cx.params.float("epsilon").unwrap_or(1e-5)
}

/// `x` less its greatest element along `axis`, in the type arithmetic is done in.
fn shifted(b: &mut Builder<'_>, x: Value, axis: usize) -> Result<Value> {
    let x = widened(b, x)?;
    let peak = reduce(b, "reduce_peak", x, &[axis])?;
    b.call("sub", &[x, peak])
}

fn softmaxes() -> Vec<OpDef> {
    let softmax = composite(|b, cx, args| {
        let (x, axis) = (operand(b, args, 0)?, axis_of(b, cx, -1)?);
        let shifted = shifted(b, x, axis)?;
        let powers = b.call("exp", &[shifted])?;
        let sum = reduce(b, "reduce_sum", powers, &[axis])?;
        let share = b.call("reciprocal", &[sum])?;
        let out = b.call("mul", &[powers, share])?;
        cast(b, out, cx.outputs[0].dtype)
    });
    let log_softmax = composite(|b, cx, args| {
        let (x, axis) = (operand(b, args, 0)?, axis_of(b, cx, -1)?);
        let shifted = shifted(b, x, axis)?;
        let powers = b.call("exp", &[shifted])?;
        let sum = reduce(b, "reduce_sum", powers, &[axis])?;
        let log = b.call("log", &[sum])?;
        let out = b.call("sub", &[shifted, log])?;
        cast(b, out, cx.outputs[0].dtype)
    });
    let hardmax = composite(|b, cx, args| {
        let (x, axis) = (operand(b, args, 0)?, axis_of(b, cx, -1)?);
        let params = Params::new().with("axis", ParamValue::Int(axis as i64));
        let first = b.op("argmax", &[x], params.clone())?;
        let one = number(b, x, 1.0)?;
        let dims: Vec<i64> = cx.outputs[0].dims.iter().map(|&d| d as i64).collect();
        let dims = b.i64s(&dims);
        let ones = b.call("expand", &[one, dims])?;
        b.op("select_at", &[ones, first], params)
    });
    let entry = |name, doc, compute, onnx| {
        define(name, doc, compute, along_an_axis())
            .operand("x", FLOATS)
            .param("axis", ParamValue::Int(-1), "axis normalised")
            .onnx(onnx, 13)
    };
    vec![
        entry("softmax", "eˣ / Σ eˣ along an axis.", softmax, "Softmax")
            .gradient(|b, cx| {
                // dx = y · (g - Σ g·y)
                let (y, g) = (widened(b, cx.outputs[0])?, cx.head(b, 0)?);
                let (g, axis) = (widened(b, g)?, axis_of(b, cx.node, -1)?);
                let product = b.call("mul", &[g, y])?;
                let sum = reduce(b, "reduce_sum", product, &[axis])?;
                let part = b.call("sub", &[g, sum])?;
                let part = b.call("mul", &[part, y])?;
                Ok(vec![Some(cast(b, part, cx.node.outputs[0].dtype)?)])
            })
            .ulp(6.0),
        entry("log_softmax", "x - ln Σ eˣ along an axis.", log_softmax, "LogSoftmax")
            .gradient(|b, cx| {
                // dx = g - e^y · Σ g
                let (y, g) = (widened(b, cx.outputs[0])?, cx.head(b, 0)?);
                let (g, axis) = (widened(b, g)?, axis_of(b, cx.node, -1)?);
                let sum = reduce(b, "reduce_sum", g, &[axis])?;
                let share = b.call("exp", &[y])?;
                let taken = b.call("mul", &[share, sum])?;
                let part = b.call("sub", &[g, taken])?;
                Ok(vec![Some(cast(b, part, cx.node.outputs[0].dtype)?)])
            })
            .ulp(6.0),
        entry("hardmax", "1 at the first greatest element along an axis, else 0.", hardmax, "Hardmax").no_gradient(),
    ]
}

/// Mean over `axes` (kept), distance from it, and reciprocal of the standard deviation.
fn moments(b: &mut Builder<'_>, x: Value, axes: &[usize], epsilon: f64) -> Result<(Value, Value, Value)> {
    let mean = reduce(b, "reduce_mean", x, axes)?;
    let centred = b.call("sub", &[x, mean])?;
    let scale = inverse_rms(b, centred, axes, epsilon)?;
    Ok((mean, centred, scale))
}

/// `1 / √(mean(x²) + ε)`
fn inverse_rms(b: &mut Builder<'_>, x: Value, axes: &[usize], epsilon: f64) -> Result<Value> {
    let square = b.call("mul", &[x, x])?;
    let variance = reduce(b, "reduce_mean", square, axes)?;
    let variance = with_number(b, "add", variance, epsilon)?;
    b.call("rsqrt", &[variance])
}

/// `x·scale + bias`, the operands converted to the type of `x`.
fn affine(b: &mut Builder<'_>, x: Value, scale: Option<Value>, bias: Option<Value>) -> Result<Value> {
    let ty = b.ty(x)?.dtype;
    let mut out = x;
    for (op, operand) in [("mul", scale), ("add", bias)] {
        if let Some(v) = operand {
            let v = cast(b, v, ty)?;
            out = b.call(op, &[out, v])?;
        }
    }
    Ok(out)
}

fn statistics() -> Vec<OpDef> {
    let rms = composite(|b, cx, args| {
        let (x, axis) = (operand(b, args, 0)?, axis_of(b, cx, -1)?);
        let axes: Vec<usize> = (axis..cx.outputs[0].rank()).collect();
        let x = widened(b, x)?;
        let scale = inverse_rms(b, x, &axes, epsilon(cx))?;
        let normal = b.call("mul", &[x, scale])?;
        let out = affine(b, normal, args.get(1).copied().flatten(), None)?;
        cast(b, out, cx.outputs[0].dtype)
    });
    let lp = composite(|b, cx, args| {
        let (x, axis) = (operand(b, args, 0)?, axis_of(b, cx, -1)?);
        let wide = widened(b, x)?;
        let norm = match cx.params.int("p") {
            Some(1) => reduce(b, "reduce_l1", wide, &[axis])?,
            _ => reduce(b, "reduce_l2", wide, &[axis])?,
        };
        let (zero, one) = (number(b, norm, 0.0)?, number(b, norm, 1.0)?);
        let none = b.call("equal", &[norm, zero])?;
        let divisor = b.call("where", &[none, one, norm])?;
        let out = b.call("div", &[wide, divisor])?;
        cast(b, out, cx.outputs[0].dtype)
    });
    let mvn = composite(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let rank = cx.outputs[0].rank();
        let axes: Result<Vec<usize>, OpError> =
            cx.params.ints("axes").unwrap_or(&[0, 2, 3]).iter().map(|&a| normalize_axis(a, rank)).collect();
        let axes = axes.map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0))?;
        let x = widened(b, x)?;
        let mean = reduce(b, "reduce_mean", x, &axes)?;
        let centred = b.call("sub", &[x, mean])?;
        let square = b.call("mul", &[centred, centred])?;
        let variance = reduce(b, "reduce_mean", square, &axes)?;
        let deviation = b.call("sqrt", &[variance])?;
        let deviation = with_number(b, "add", deviation, 1e-9)?;
        let out = b.call("div", &[centred, deviation])?;
        cast(b, out, cx.outputs[0].dtype)
    });
    vec![
        layer_norm(),
        define("rms_norm", "x / √(mean x² + ε) · scale, over the axes from `axis` on.", rms, same_as_first())
            .operands(&["x", "scale"], FLOATS)
            .param("axis", ParamValue::Int(-1), "first axis normalised")
            .param("epsilon", ParamValue::Float(1e-5), "added to the mean square")
            .param("stash_type", ParamValue::Int(1), "ONNX type computed in; at least f32 is used")
            .onnx("RMSNormalization", 23)
            .ulp(8.0),
        define("lp_norm", "x / ‖x‖ₚ along an axis, 0 where the norm is.", lp, same_as_first())
            .operand("x", FLOATS)
            .param("axis", ParamValue::Int(-1), "axis normalised")
            .param("p", ParamValue::Int(2), "1 or 2")
            .onnx("LpNormalization", 1)
            .ulp(8.0),
        define("mean_variance_norm", "(x - mean) / (deviation + 1e-9).", mvn, same_as_first())
            .operand("x", FLOATS)
            .param("axes", ParamValue::Ints(vec![0, 2, 3]), "axes averaged over")
            .onnx("MeanVarianceNormalization", 9)
            .ulp(8.0),
    ]
}

fn layer_norm() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let (x, axis) = (operand(b, args, 0)?, axis_of(b, cx, -1)?);
        let axes: Vec<usize> = (axis..cx.outputs[0].rank()).collect();
        let x = widened(b, x)?;
        let (mean, centred, scale) = moments(b, x, &axes, epsilon(cx))?;
        let normal = b.call("mul", &[centred, scale])?;
        let out = affine(b, normal, args.get(1).copied().flatten(), args.get(2).copied().flatten())?;
        Ok(vec![cast(b, out, cx.outputs[0].dtype)?, mean, scale])
    }));
    let infer = rule(|cx| {
        let shape = cx.input(0).shape;
        cx.set_output_shape(0, shape)?;
        cx.same_dtype(0, 0)?;
        let (Some(dims), Some(dtype)) = (cx.input_dims(0), cx.input(0).dtype) else { return Ok(()) };
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), dims.len())?;
        let kept = |(i, d): (usize, &Dim)| if i < axis { *d } else { Dim::Const(1) };
        let statistics: Vec<Dim> = dims.iter().enumerate().map(kept).collect();
        for i in 1..cx.output_count() {
            cx.set_output_dims(i, statistics.iter().copied())?;
            cx.set_output_dtype(i, compute_type(dtype))?;
        }
        Ok(())
    });
    define("layer_norm", "(x - mean) / √(variance + ε) · scale + bias, over the axes from `axis` on.", compute, infer)
        .operands(&["x", "scale"], FLOATS)
        .optional("bias", TypeRule::OneOf(FLOATS))
        .outputs(1, 3)
        .param("axis", ParamValue::Int(-1), "first axis normalised")
        .param("epsilon", ParamValue::Float(1e-5), "added to the variance")
        .param("stash_type", ParamValue::Int(1), "ONNX type of the statistics; at least f32 is used")
        .onnx("LayerNormalization", 17)
        .ulp(8.0)
}

fn channels() -> Vec<OpDef> {
    let instance = composite(|b, cx, args| {
        let (x, scale, bias) = (operand(b, args, 0)?, operand(b, args, 1)?, operand(b, args, 2)?);
        let rank = cx.outputs[0].rank();
        let axes: Vec<usize> = (2..rank).collect();
        let x = widened(b, x)?;
        let (_, centred, inverse) = moments(b, x, &axes, epsilon(cx))?;
        let normal = b.call("mul", &[centred, inverse])?;
        let (scale, bias) = (per_channel(b, scale, rank)?, per_channel(b, bias, rank)?);
        let out = affine(b, normal, Some(scale), Some(bias))?;
        cast(b, out, cx.outputs[0].dtype)
    });
    vec![
        batch_norm(),
        define(
            "instance_norm",
            "Per sample and channel: (x - mean) / √(variance + ε) · scale + bias.",
            instance,
            same_as_first(),
        )
        .operands(&["x", "scale", "bias"], FLOATS)
        .param("epsilon", ParamValue::Float(1e-5), "added to the variance")
        .onnx("InstanceNormalization", 6)
        .ulp(8.0),
        group_norm(),
        channel_windows(),
        lrn(),
    ]
}

fn group_norm() -> OpDef {
    let compute = composite(|b, cx, args| {
        let (x, scale, bias) = (operand(b, args, 0)?, operand(b, args, 1)?, operand(b, args, 2)?);
        let dims = &cx.outputs[0].dims;
        let groups = cx.params.int("num_groups").unwrap_or(1).max(1) as u64;
        if dims.len() < 2 || dims[1] % groups != 0 {
            return Err(b.error(DiagnosticCode::TypeConflict, format!("channels do not divide into {groups} groups")));
        }
        let grouped = [&[dims[0], groups, dims[1] / groups], &dims[2..]].concat();
        let x = widened(b, x)?;
        let x = reshape(b, x, &grouped)?;
        let axes: Vec<usize> = (2..grouped.len()).collect();
        let (_, centred, inverse) = moments(b, x, &axes, epsilon(cx))?;
        let normal = b.call("mul", &[centred, inverse])?;
        let normal = reshape(b, normal, dims)?;
        let (scale, bias) = (per_channel(b, scale, dims.len())?, per_channel(b, bias, dims.len())?);
        let out = affine(b, normal, Some(scale), Some(bias))?;
        cast(b, out, cx.outputs[0].dtype)
    });
    define(
        "group_norm",
        "Per sample and group of channels: (x - mean) / √(variance + ε) · scale + bias.",
        compute,
        same_as_first(),
    )
    .operands(&["x", "scale", "bias"], FLOATS)
    .required("num_groups", ParamKind::Int, "number of groups")
    .param("epsilon", ParamValue::Float(1e-5), "added to the variance")
    .param("stash_type", ParamValue::Int(1), "ONNX type computed in; at least f32 is used")
    .onnx("GroupNormalization", 21)
    .ulp(8.0)
}

/// Scale and shift that apply statistics: `x·s + t` is `(x - mean)·scale/√(variance + ε) + bias`.
fn applied(b: &mut Builder<'_>, [scale, bias, mean, variance]: [Value; 4], epsilon: f64) -> Result<(Value, Value)> {
    let variance = with_number(b, "add", variance, epsilon)?;
    let inverse = b.call("rsqrt", &[variance])?;
    let s = b.call("mul", &[scale, inverse])?;
    let moved = b.call("mul", &[mean, s])?;
    Ok((s, b.call("sub", &[bias, moved])?))
}

/// `old·momentum + new·(1 - momentum)`
fn running(b: &mut Builder<'_>, old: Value, new: Value, momentum: f64) -> Result<Value> {
    let kept = with_number(b, "mul", old, momentum)?;
    let added = with_number(b, "mul", new, 1.0 - momentum)?;
    b.call("add", &[kept, added])
}

/// Of `batch_norm`, by distances from the mean, which do not cancel as sums of squares do.
fn batch_norm_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (node, rank) = (cx.node, cx.node.outputs[0].rank());
    let training = node.params.bool("training_mode") == Some(true);
    let mut per = vec![];
    for i in 0..5 {
        let v = cx.input(i)?;
        let v = widened(b, v)?;
        per.push(if i == 0 { v } else { per_channel(b, v, rank)? });
    }
    let head = cx.head(b, 0)?;
    let g = widened(b, head)?;
    let axes: Vec<usize> = (0..rank).filter(|&a| a != 1).collect();
    let (centred, inverse) = match training {
        true => {
            let (_, centred, inverse) = moments(b, per[0], &axes, epsilon(node))?;
            (centred, inverse)
        }
        false => {
            let centred = b.call("sub", &[per[0], per[3]])?;
            let variance = with_number(b, "add", per[4], epsilon(node))?;
            (centred, b.call("rsqrt", &[variance])?)
        }
    };
    let product = b.call("mul", &[g, centred])?;
    let (shift, spread) = (reduce(b, "reduce_sum", g, &axes)?, reduce(b, "reduce_sum", product, &axes)?);
    let slope = b.call("mul", &[per[1], inverse])?;
    let dscale = b.call("mul", &[spread, inverse])?;
    let mut parts = vec![None, Some(dscale), Some(shift), None, None];
    if training {
        // dx = scale/σ · (g - mean(g) - (x - mean)/σ² · mean(g · (x - mean)))
        let count = axes.iter().map(|&a| node.outputs[0].dims[a]).product::<u64>() as f64;
        let curve = b.call("mul", &[inverse, inverse])?;
        let curve = b.call("mul", &[curve, spread])?;
        let curve = with_number(b, "div", curve, count)?;
        let mean = with_number(b, "div", shift, count)?;
        let bent = b.call("mul", &[centred, curve])?;
        let part = b.call("sub", &[g, mean])?;
        let part = b.call("sub", &[part, bent])?;
        parts[0] = Some(b.call("mul", &[part, slope])?);
    } else {
        parts[0] = Some(b.call("mul", &[g, slope])?);
        let moved = b.call("mul", &[shift, slope])?;
        parts[3] = Some(b.call("neg", &[moved])?);
        // d/dv (v + ε)^-½ = -½ (v + ε)^-3/2
        let cube = b.call("mul", &[inverse, inverse])?;
        let cube = b.call("mul", &[cube, slope])?;
        let part = b.call("mul", &[spread, cube])?;
        parts[4] = Some(with_number(b, "mul", part, -0.5)?);
    }
    for (part, ty) in parts.iter_mut().zip(node.inputs) {
        if let (Some(v), Some(ty)) = (*part, ty) {
            let v = reshape(b, v, &ty.dims)?;
            *part = Some(cast(b, v, ty.dtype)?);
        }
    }
    running_gradients(b, cx, &mut parts)?;
    Ok(parts)
}

/// The running statistics keep `momentum` of the old ones; what they take from the batch is constant to
/// differentiation.
fn running_gradients(b: &mut Builder<'_>, cx: &GradCtx<'_>, parts: &mut [Option<Value>]) -> Result<()> {
    let momentum = cx.node.params.float("momentum").unwrap_or(0.9);
    for (result, operand) in [(1, 3), (2, 4)] {
        if let Some(head) = cx.heads.get(result).copied().flatten() {
            parts[operand] = Some(with_number(b, "mul", head, momentum)?);
        }
    }
    Ok(())
}

fn batch_norm() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let ty = cx.outputs[0].clone();
        let wide = compute_type(ty.dtype);
        let x = operand(b, args, 0)?;
        let x = cast(b, x, wide)?;
        let mut per = [x; 4];
        for (i, slot) in per.iter_mut().enumerate() {
            let v = operand(b, args, i + 1)?;
            *slot = cast(b, v, wide)?;
        }
        let mut results = vec![];
        if cx.params.bool("training_mode") == Some(true) {
            let axes: Vec<usize> = (0..ty.rank()).filter(|&a| a != 1).collect();
            let channels = cx.input(1).map_err(|e| b.error(DiagnosticCode::Operands, e.0))?.dims.clone();
            let mean = reduce(b, "reduce_mean", x, &axes)?;
            let centred = b.call("sub", &[x, mean])?;
            let square = b.call("mul", &[centred, centred])?;
            let variance = reduce(b, "reduce_mean", square, &axes)?;
            let momentum = cx.params.float("momentum").unwrap_or(0.9);
            for (slot, current) in [(2, mean), (3, variance)] {
                let current = reshape(b, current, &channels)?;
                let next = running(b, per[slot], current, momentum)?;
                let stored = cx.input(slot + 1).map_err(|e| b.error(DiagnosticCode::Operands, e.0))?.dtype;
                results.push(cast(b, next, stored)?);
                per[slot] = current;
            }
        }
        let (s, t) = applied(b, per, epsilon(cx))?;
        let (s, t) = (per_channel(b, s, ty.rank())?, per_channel(b, t, ty.rank())?);
        let out = affine(b, x, Some(s), Some(t))?;
        results.insert(0, cast(b, out, ty.dtype)?);
        Ok(results)
    }));
    let infer = rule(|cx| {
        let shape = cx.input(0).shape;
        cx.set_output_shape(0, shape)?;
        cx.same_dtype(0, 0)?;
        if let Some(channels) = cx.input_dims(0).and_then(|d| d.get(1).copied()) {
            (1..5).try_for_each(|i| cx.set_input_shape(i, Shape::Ranked([channels].into_iter().collect())))?;
        }
        for i in 1..cx.output_count() {
            let shape = cx.input(i + 2).shape;
            cx.set_output_shape(i, shape)?;
            cx.same_dtype(i, i + 2)?;
        }
        Ok(())
    });
    define("batch_norm", "Per channel: (x - mean) / √(variance + ε) · scale + bias.", compute, infer)
        .operands(&["x", "scale", "bias", "mean", "variance"], FLOATS)
        .outputs(1, 3)
        .param("epsilon", ParamValue::Float(1e-5), "added to the variance")
        .param("momentum", ParamValue::Float(0.9), "weight of the running statistics")
        .param("training_mode", ParamValue::Bool(false), "use the batch's statistics and return running ones")
        .gradient(batch_norm_gradient)
        .onnx("BatchNormalization", 9)
        .ulp(8.0)
}

/// Channel `c` sees channels `c - ⌊(size-1)/2⌋ ..` as a new axis 1; 0 outside.
fn channel_windows() -> OpDef {
    let compute = prim(|cx| {
        let x = cx.input(0)?;
        let size = cx.params.int("size").unwrap_or(1);
        let channel = Index::var(2).add(&Index::var(1)).offset(-((size - 1) / 2));
        let map = (0..x.rank() as u32).map(|axis| match axis {
            0 => Index::var(0),
            1 => channel.clone(),
            a => Index::var(a + 1),
        });
        Ok(Prim::View(View { map: map.collect(), fill: Some(Scalar::zero(x.dtype)) }.into()))
    });
    let infer = rule(|cx: &mut InferCtx<'_>| {
        cx.same_dtype(0, 0)?;
        let Some(mut dims) = cx.input_dims(0) else { return Ok(()) };
        if dims.len() < 2 {
            return Err(OpError::from("the operand needs a channel axis"));
        }
        dims.insert(1, Dim::Const(cx.params.int("size").unwrap_or(1).max(1) as u64));
        cx.set_output_dims(0, dims)
    });
    define("channel_windows", "The neighbouring channels of each channel, as a new axis 1.", compute, infer)
        .operand("x", FLOATS)
        .required("size", ParamKind::Int, "number of channels seen")
}

fn lrn() -> OpDef {
    let compute = composite(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let float = |name, default| cx.params.float(name).unwrap_or(default);
        let size = cx.params.int("size").unwrap_or(1);
        let x = widened(b, x)?;
        let square = b.call("mul", &[x, x])?;
        let params = Params::new().with("size", ParamValue::Int(size));
        let windows = b.op("channel_windows", &[square], params)?;
        let sum = reduce(b, "reduce_sum", windows, &[1])?;
        let sum = reshape(b, sum, &cx.outputs[0].dims)?;
        let scaled = with_number(b, "mul", sum, float("alpha", 1e-4) / size as f64)?;
        let base = with_number(b, "add", scaled, float("bias", 1.0))?;
        let divisor = power(b, base, float("beta", 0.75))?;
        let out = b.call("div", &[x, divisor])?;
        cast(b, out, cx.outputs[0].dtype)
    });
    define("lrn", "x / (bias + alpha/size · Σ x² over `size` channels)^beta.", compute, same_as_first())
        .operand("x", FLOATS)
        .param("alpha", ParamValue::Float(1e-4), "weight of the squares")
        .param("beta", ParamValue::Float(0.75), "exponent")
        .param("bias", ParamValue::Float(1.0), "constant term")
        .required("size", ParamKind::Int, "channels summed over")
        .onnx("LRN", 1)
        .ulp(8.0)
}

/// `x^exponent`; the usual quarters by square roots.
fn power(b: &mut Builder<'_>, x: Value, exponent: f64) -> Result<Value> {
    match exponent {
        1.0 => Ok(x),
        0.5 => b.call("sqrt", &[x]),
        0.75 => {
            let half = b.call("sqrt", &[x])?;
            let quarter = b.call("sqrt", &[half])?;
            b.call("mul", &[half, quarter])
        }
        _ => with_number(b, "pow", x, exponent),
    }
}
