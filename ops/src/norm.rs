//! Normalisations, written as mean, centre, variance and scale so that they fuse.

use crate::prelude::*;
use crate::reduce::{Extreme, position_type};
use crate::rules::{broadcasts_to, open_rank_in};

pub fn ops() -> Vec<OpDef> {
    [softmaxes(), statistics(), channels()].into_iter().flatten().collect()
}

/// The result has the operand's type.
pub(crate) fn same_as_first() -> Infer {
    rule(like_first)
}

/// As [`like_first`]; the scale does not enlarge the operand.
fn scaled_as_first(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    like_first(cx)?;
    match cx.open_dims(0) {
        Some(dims) => broadcasts_to(cx, 1, &dims),
        None => Ok(()),
    }
}

fn like_first(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.copy_shape(0, 0)?;
    let output = cx.output_shape(0);
    cx.set_input_shape(0, output)?;
    cx.same_dtype(0, 0)
}

/// The result has the operand's type, which has the parameter's axis.
fn along_an_axis() -> Infer {
    rule(|cx| {
        like_first(cx)?;
        let Some(dims) = cx.open_dims(0) else { return Ok(()) };
        normalize_axis(cx.params.int("axis").unwrap_or(-1), dims.len()).map(drop)
    })
}

pub(crate) fn axis_of(g: GraphScope<'_>, cx: &NodeCtx<'_>) -> Result<usize> {
    g.check(normalize_axis(cx.params.int("axis").unwrap_or(-1), cx.outputs[0].rank()))
}

pub(crate) fn epsilon(cx: &NodeCtx<'_>) -> f64 {
    cx.params.float("epsilon").unwrap_or(1e-5)
}

/// `x` less its greatest element along `axis`, in the type arithmetic is done in.
fn shifted(x: Tensor<'_>, axis: usize) -> Tensor<'_> {
    let x = x.widened();
    x - x.reduce("reduce_peak", &[axis])
}

fn softmaxes() -> Vec<OpDef> {
    let softmax = formula(|g, cx| {
        let axis = axis_of(g, cx)?;
        let powers = shifted(g.operand(0), axis).exp();
        let share = powers.sum(&[axis]).call("reciprocal", &[]);
        Ok((powers * share).cast(cx.outputs[0].dtype))
    });
    let log_softmax = formula(|g, cx| {
        let axis = axis_of(g, cx)?;
        let shifted = shifted(g.operand(0), axis);
        Ok((shifted - shifted.exp().sum(&[axis]).log()).cast(cx.outputs[0].dtype))
    });
    let hardmax = formula(|g, cx| {
        let (x, axis) = (g.operand(0), axis_of(g, cx)?);
        let (out, at) = (&cx.outputs[0], position_type(x.dims()?.at(axis)));
        let first = Extreme { greatest: true, last: false }.positions(g, x, axis, at)?;
        Ok(g.map(&[first], out.dtype, &out.dims, |s, a| {
            let [one, zero] = [1.0, 0.0].map(|v| s.constant(Scalar::from_f64(out.dtype, v)));
            s.coord(axis).cast(at).eq(&a[0]).select(&one, &zero)
        }))
    });
    let entry = |name, doc, compute, onnx| {
        define(name, doc, compute, along_an_axis())
            .operand("x", FLOATS)
            .param("axis", -1, "axis normalised")
            .onnx(onnx, 13)
    };
    vec![
        entry("softmax", "eˣ / Σ eˣ along an axis.", softmax, "Softmax")
            .gradient(derivative(|g, cx| {
                // dx = y · (g - Σ g·y)
                let (y, head) = (g.value(cx.outputs[0]).widened(), g.head(cx, 0));
                let (head, axis) = (head.widened(), axis_of(g, cx.node)?);
                let part = (head - (head * y).sum(&[axis])) * y;
                Ok(vec![Some(part.cast(cx.node.outputs[0].dtype))])
            }))
            .ulp(6.0),
        entry("log_softmax", "x - ln Σ eˣ along an axis.", log_softmax, "LogSoftmax")
            .gradient(derivative(|g, cx| {
                // dx = g - e^y · Σ g
                let (y, head) = (g.value(cx.outputs[0]).widened(), g.head(cx, 0));
                let (head, axis) = (head.widened(), axis_of(g, cx.node)?);
                let sum = head.sum(&[axis]);
                Ok(vec![Some((head - y.exp() * sum).cast(cx.node.outputs[0].dtype))])
            }))
            .ulp(6.0),
        entry("hardmax", "1 at the first greatest element along an axis, else 0.", hardmax, "Hardmax").no_gradient(),
    ]
}

/// Mean over `axes` (kept), distance from it, and variance.
pub(crate) fn moments<'g>(x: Tensor<'g>, axes: &[usize]) -> [Tensor<'g>; 3] {
    let mean = x.mean(axes);
    let centred = x - mean;
    [mean, centred, (centred * centred).mean(axes)]
}

/// As [`moments`], with the reciprocal of the standard deviation.
pub(crate) fn scaled_moments<'g>(x: Tensor<'g>, axes: &[usize], epsilon: f64) -> [Tensor<'g>; 3] {
    let [mean, centred, variance] = moments(x, axes);
    [mean, centred, (variance + epsilon).rsqrt()]
}

/// `1 / √(mean(x²) + ε)`
pub(crate) fn inverse_rms<'g>(x: Tensor<'g>, axes: &[usize], epsilon: f64) -> Tensor<'g> {
    ((x * x).mean(axes) + epsilon).rsqrt()
}

/// `x·scale + bias`, the operands converted to the type of `x`.
pub(crate) fn affine<'g>(x: Tensor<'g>, scale: Option<Tensor<'g>>, bias: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
    let dtype = x.ty()?.dtype;
    let scaled = scale.map_or(x, |scale| x * scale.cast(dtype));
    Ok(bias.map_or(scaled, |bias| scaled + bias.cast(dtype)))
}

fn statistics() -> Vec<OpDef> {
    let rms = formula(|g, cx| {
        let (x, axis) = (g.operand(0).widened(), axis_of(g, cx)?);
        let axes: Vec<usize> = (axis..cx.outputs[0].rank()).collect();
        let normal = x * inverse_rms(x, &axes, epsilon(cx));
        Ok(affine(normal, g.maybe(1), None)?.cast(cx.outputs[0].dtype))
    });
    let lp = formula(|g, cx| {
        let (x, axis) = (g.operand(0).widened(), axis_of(g, cx)?);
        let norm = x.reduce(if cx.params.int("p") == Some(1) { "reduce_l1" } else { "reduce_l2" }, &[axis]);
        let [zero, one] = [0.0, 1.0].map(|n| norm.number(n));
        let divisor = norm.call("equal", &[zero]).call("where", &[one, norm]);
        Ok((x / divisor).cast(cx.outputs[0].dtype))
    });
    let mvn = formula(|g, cx| {
        let rank = cx.outputs[0].rank();
        let given = cx.params.ints("axes").unwrap_or(&[0, 2, 3]);
        let axes: Vec<usize> = g.check(given.iter().map(|&a| normalize_axis(a, rank)).collect())?;
        let x = g.operand(0).widened();
        let [_, centred, variance] = moments(x, &axes);
        Ok((centred / (variance.sqrt() + 1e-9)).cast(cx.outputs[0].dtype))
    });
    vec![
        layer_norm(),
        define("rms_norm", "x / √(mean x² + ε) · scale, over the axes from `axis` on.", rms, rule(scaled_as_first))
            .operands(&["x", "scale"], FLOATS)
            .param("axis", -1, "first axis normalised")
            .param("epsilon", 1e-5, "added to the mean square")
            .param("stash_type", 1, "ONNX type computed in; at least f32 is used")
            .onnx("RMSNormalization", 23)
            .ulp(8.0),
        define("lp_norm", "x / ‖x‖ₚ along an axis, 0 where the norm is.", lp, same_as_first())
            .operand("x", FLOATS)
            .param("axis", -1, "axis normalised")
            .param("p", 2, "1 or 2")
            .onnx("LpNormalization", 1)
            .ulp(8.0),
        define("mean_variance_norm", "(x - mean) / (deviation + 1e-9).", mvn, same_as_first())
            .operand("x", FLOATS)
            .param("axes", vec![0, 2, 3], "axes averaged over")
            .onnx("MeanVarianceNormalization", 9)
            .ulp(8.0),
    ]
}

fn layer_norm() -> OpDef {
    let compute = formulas(|g, cx| {
        let (x, axis) = (g.operand(0).widened(), axis_of(g, cx)?);
        let axes: Vec<usize> = (axis..cx.outputs[0].rank()).collect();
        let [mean, centred, scale] = scaled_moments(x, &axes, epsilon(cx));
        let out = affine(centred * scale, g.maybe(1), g.maybe(2))?;
        Ok(vec![out.cast(cx.outputs[0].dtype), mean, scale])
    });
    let infer = rule(|cx| {
        cx.copy_shape(0, 0)?;
        cx.same_dtype(0, 0)?;
        let (Some(dims), Some(dtype)) = (cx.open_dims(0), cx.input_dtype(0)) else { return Ok(()) };
        (1..3).try_for_each(|i| broadcasts_to(cx, i, &dims))?;
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
        .param("axis", -1, "first axis normalised")
        .param("epsilon", 1e-5, "added to the variance")
        .param("stash_type", 1, "ONNX type of the statistics; at least f32 is used")
        .onnx("LayerNormalization", 17)
        .ulp(8.0)
}

fn channels() -> Vec<OpDef> {
    let instance = formula(|g, cx| {
        let rank = cx.outputs[0].rank();
        let axes: Vec<usize> = (2..rank).collect();
        let [_, centred, inverse] = scaled_moments(g.operand(0).widened(), &axes, epsilon(cx));
        let normal = centred * inverse;
        let (scale, bias) = (g.operand(1).per_channel(rank), g.operand(2).per_channel(rank));
        Ok(affine(normal, Some(scale), Some(bias))?.cast(cx.outputs[0].dtype))
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
        .param("epsilon", 1e-5, "added to the variance")
        .onnx("InstanceNormalization", 6)
        .ulp(8.0),
        group_norm(),
        channel_windows(),
        lrn(),
    ]
}

fn group_norm() -> OpDef {
    let compute = formula(|g, cx| {
        let dims = &cx.outputs[0].dims;
        let groups = cx.params.int("num_groups").unwrap_or(1).max(1) as u64;
        let channels = if dims.len() < 2 { None } else { dims.at(1).sure_quotient(groups) };
        let Some(channels) = channels else {
            return g.check(Err(OpError(format!("channels do not divide into {groups} groups"))));
        };
        let lead = [dims.at(0), groups.into(), channels];
        let grouped: Extents = lead.into_iter().chain(dims.all().skip(2)).collect();
        let axes: Vec<usize> = (2..grouped.len()).collect();
        let x = g.operand(0).widened().reshape(&grouped);
        let [_, centred, inverse] = scaled_moments(x, &axes, epsilon(cx));
        let normal = (centred * inverse).reshape(dims);
        let (scale, bias) = (g.operand(1).per_channel(dims.len()), g.operand(2).per_channel(dims.len()));
        Ok(affine(normal, Some(scale), Some(bias))?.cast(cx.outputs[0].dtype))
    });
    let doc = "Per sample and group of channels: (x - mean) / √(variance + ε) · scale + bias.";
    define("group_norm", doc, compute, same_as_first())
        .operands(&["x", "scale", "bias"], FLOATS)
        .required("num_groups", ParamKind::Int, "number of groups")
        .param("epsilon", 1e-5, "added to the variance")
        .param("stash_type", 1, "ONNX type computed in; at least f32 is used")
        .onnx("GroupNormalization", 21)
        .ulp(8.0)
}

/// Scale and shift that apply statistics: `x·s + t` is `(x - mean)·scale/√(variance + ε) + bias`.
fn applied([scale, bias, mean, variance]: [Tensor<'_>; 4], epsilon: f64) -> [Tensor<'_>; 2] {
    let s = scale * (variance + epsilon).rsqrt();
    [s, bias - mean * s]
}

/// `old·momentum + new·(1 - momentum)`
pub(crate) fn running<'g>(old: Tensor<'g>, new: Tensor<'g>, momentum: f64) -> Tensor<'g> {
    old * momentum + new * (1.0 - momentum)
}

/// Of `batch_norm`, by distances from the mean, which do not cancel as sums of squares do.
fn batch_norm_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Result<Vec<Option<Tensor<'g>>>> {
    let (node, rank) = (cx.node, cx.node.outputs[0].rank());
    let x = g.operand(0).widened();
    let [scale, _, mean, variance] = [1, 2, 3, 4].map(|i| g.operand(i).widened().per_channel(rank));
    let head = g.head(cx, 0).widened();
    let axes: Vec<usize> = (0..rank).filter(|&a| a != 1).collect();
    let training = node.params.flag("training_mode");
    let [_, centred, inverse] = match training {
        true => scaled_moments(x, &axes, epsilon(node)),
        false => [mean, x - mean, (variance + epsilon(node)).rsqrt()],
    };
    let product = head * centred;
    let (shift, spread) = (head.sum(&axes), product.sum(&axes));
    let slope = scale * inverse;
    let mut parts = vec![None, Some(spread * inverse), Some(shift), None, None];
    if training {
        // dx = scale/σ · (g - mean(g) - (x - mean)/σ² · mean(g · (x - mean)))
        let count = axes.iter().map(|&a| node.outputs[0].dims[a]).product::<u64>() as f64;
        let curve = inverse * inverse * spread / count;
        let mean = shift / count;
        let bent = centred * curve;
        parts[0] = Some((head - mean - bent) * slope);
    } else {
        parts[0] = Some(head * slope);
        parts[3] = Some(-(shift * slope));
        // d/dv (v + ε)^-½ = -½ (v + ε)^-3/2
        let cube = inverse * inverse * slope;
        parts[4] = Some(spread * cube * -0.5);
    }
    for (part, ty) in parts.iter_mut().zip(node.inputs) {
        *part = part.zip(ty.as_ref()).map(|(part, ty)| part.as_type(ty)).or(*part);
    }
    // The running statistics keep `momentum` of the old ones; what they take from the batch is constant to
    // differentiation.
    let momentum = node.params.float("momentum").unwrap_or(0.9);
    for (result, operand) in [(1, 3), (2, 4)] {
        if let Some(head) = cx.heads.get(result).copied().flatten() {
            parts[operand] = Some(g.value(head) * momentum);
        }
    }
    Ok(parts)
}

fn batch_norm() -> OpDef {
    let compute = formulas(|g, cx| {
        let ty = &cx.outputs[0];
        let [x, scale, bias, mut mean, mut variance] =
            [0, 1, 2, 3, 4].map(|i| g.operand(i).cast(compute_type(ty.dtype)));
        let mut results = vec![];
        if cx.params.flag("training_mode") {
            let axes: Vec<usize> = (0..ty.rank()).filter(|&a| a != 1).collect();
            let [batch_mean, _, batch_variance] = moments(x, &axes);
            let momentum = cx.params.float("momentum").unwrap_or(0.9);
            let channels = g.operand(1).dims()?;
            for (i, moving, current) in [(3, &mut mean, batch_mean), (4, &mut variance, batch_variance)] {
                let current = current.reshape(&channels);
                results.push(running(*moving, current, momentum).cast(g.operand(i).ty()?.dtype));
                *moving = current;
            }
        }
        let factors = applied([scale, bias, mean, variance], epsilon(cx));
        let [s, t] = factors.map(|v| v.per_channel(ty.rank()));
        results.insert(0, affine(x, Some(s), Some(t))?.cast(ty.dtype));
        Ok(results)
    });
    let infer = rule(|cx| {
        reject_if(
            cx.output_count() > 1 && cx.params.bool("training_mode") != Some(true),
            || "results after the first need parameter `training_mode`",
        )?;
        open_rank_in(cx, 0, 1..=usize::MAX)?;
        cx.copy_shape(0, 0)?;
        cx.same_dtype(0, 0)?;
        if let Some(channels) = cx.open_dims(0).and_then(|d| d.get(1).copied()) {
            (1..5).try_for_each(|i| cx.set_input_dims(i, [channels]))?;
        }
        for i in 1..cx.output_count() {
            cx.copy_shape(i, i + 2)?;
            cx.same_dtype(i, i + 2)?;
        }
        Ok(())
    });
    define("batch_norm", "Per channel: (x - mean) / √(variance + ε) · scale + bias.", compute, infer)
        .operands(&["x", "scale", "bias", "mean", "variance"], FLOATS)
        .outputs(1, 3)
        .param("epsilon", 1e-5, "added to the variance")
        .param("momentum", 0.9, "weight of the running statistics")
        .param("training_mode", false, "use the batch's statistics and return running ones")
        .gradient(derivative(batch_norm_gradient))
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
    let infer = shape_rule(|cx: &mut InferCtx<'_>| {
        let Some(mut dims) = cx.open_dims(0) else { return Ok(()) };
        reject_if(dims.len() < 2, || "the operand needs a channel axis")?;
        dims.insert(1, Dim::Const(cx.params.int("size").unwrap_or(1).max(1) as u64));
        cx.set_output_dims(0, dims)
    });
    define("channel_windows", "The neighbouring channels of each channel, as a new axis 1.", compute, infer)
        .operand("x", FLOATS)
        .required("size", ParamKind::Int, "number of channels seen")
}

fn lrn() -> OpDef {
    let compute = formula(|g, cx| {
        let float = |name, default| cx.params.float(name).unwrap_or(default);
        let size = cx.params.int("size").unwrap_or(1);
        let x = g.operand(0).widened();
        // No channel sees more than all of them.
        let dims = &cx.outputs[0].dims;
        let most = if dims.len() < 2 { 0 } else { (dims.at(1).fixed() - 1).max(0) };
        let seen = ((size - 1) / 2).min(most) + (size / 2).min(most) + 1;
        let windows = g.op("channel_windows", &[x * x], Params::new().with("size", seen));
        let sum = windows.sum(&[1]).reshape(&cx.outputs[0].dims);
        let base = sum * (float("alpha", 1e-4) / size as f64) + float("bias", 1.0);
        Ok((x / power(base, float("beta", 0.75))).cast(cx.outputs[0].dtype))
    });
    define("lrn", "x / (bias + alpha/size · Σ x² over `size` channels)^beta.", compute, same_as_first())
        .operand("x", FLOATS)
        .param("alpha", 1e-4, "weight of the squares")
        .param("beta", 0.75, "exponent")
        .param("bias", 1.0, "constant term")
        .count("size", "channels summed over")
        .onnx("LRN", 1)
        .ulp(8.0)
}

/// `x^exponent`; the usual quarters by square roots.
fn power(x: Tensor<'_>, exponent: f64) -> Tensor<'_> {
    match exponent {
        1.0 => x,
        0.5 => x.sqrt(),
        0.75 => {
            let half = x.sqrt();
            half * half.sqrt()
        }
        _ => x.with_number("pow", exponent),
    }
}
