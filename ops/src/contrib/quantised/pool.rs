//! Means over windows, and convolutions of images whose channels may come last.

use super::{BYTES, ROUNDS, SCALE, real, requantised, scalars};
use crate::conv::{grouped, window_params};
use crate::pool::window_of;
use crate::prelude::*;
use crate::quantize::quantised_type;
use crate::rules::open_rank_in;

pub fn ops() -> Vec<OpDef> {
    vec![average_pool(), global_average_pool(), conv()]
}

/// Axes of an image with channels last, in the order with channels first.
pub(super) fn to_first(rank: usize) -> Vec<usize> {
    [0, rank - 1].into_iter().chain(1..rank - 1).collect()
}

/// Axes of an image with channels first, in the order with channels last.
pub(super) fn to_last(rank: usize) -> Vec<usize> {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

fn channels_last(params: &Params) -> bool {
    params.flag("channels_last")
}

/// The operands of a pool.
fn pooled(def: OpDef) -> OpDef {
    def.group("X", BYTES)
        .operand("x_scale", SCALE)
        .optional("x_zero_point", TypeRule::Group(0, BYTES))
        .operand("y_scale", SCALE)
        .optional("y_zero_point", TypeRule::Group(0, BYTES))
        .param("channels_last", false, "Channels are the last axis rather than the second.")
        .not_differentiable(ROUNDS)
}

/// Parameters of a node for another operator.
fn chosen(params: &Params, names: &[&'static str]) -> Params {
    let given = names.iter().filter_map(|name| Some((*name, params.get(name)?.clone())));
    given.fold(Params::new(), |all, (name, value)| all.with(name, value))
}

fn average_pool() -> OpDef {
    let names = ["auto_pad", "kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad"];
    let compute = formula(move |g, cx| {
        let (x, last, rank) = (real(g, 0), channels_last(cx.params), cx.outputs[0].rank());
        let x = if last { x.permute(&to_first(rank)) } else { x };
        let y = g.op("average_pool", &[x], chosen(cx.params, &names));
        let y = if last { y.permute(&to_last(rank)) } else { y };
        Ok(requantised(g, y, [3, 4], cx.outputs[0].dtype))
    });
    let infer = shape_rule(|cx| {
        scalars(cx, &[1, 2, 3, 4])?;
        let window = window_of(cx.params)?;
        let rank = window.kernel.len();
        let Some(x) = open_rank_in(cx, 0, rank + 2..=rank + 2)? else { return Ok(()) };
        partial(cx, 0, &vec![None; rank + 2])?;
        let out = output_dims(cx, 0);
        let (first, channel) = if channels_last(cx.params) { (1, rank + 1) } else { (2, 1) };
        for axis in [0, channel] {
            cx.unify_dims(x[axis], out[axis], &format!("output, axis {axis}"))?;
        }
        (0..rank).try_for_each(|i| window.relate(cx, i, x[first + i], out[first + i]))
    });
    let doc = "The mean of every window of a quantised image, quantised.";
    pooled(window_params(define("qlinear_average_pool", doc, compute, infer)))
        .param("ceil_mode", false, "Count windows that reach past the end.")
        .param("count_include_pad", false, "Padding counts as elements of value 0.")
        .contrib("QLinearAveragePool")
}

fn global_average_pool() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, out) = (g.operand(0), &cx.outputs[0]);
        let (d, rank) = (x.dims()?, out.rank());
        let axes: Vec<usize> = if channels_last(cx.params) { (1..rank - 1).collect() } else { (2..rank).collect() };
        let count = axes.iter().map(|&axis| d[axis]).product::<u64>() as f64;
        let steps = x.cast(DType::I32);
        let steps = g.maybe(2).map_or(steps, |zero| steps - zero.reshape([]).cast(DType::I32));
        let sum = steps.sum(&axes).cast(DType::F32);
        let factor = g.operand(1).reshape([]) / (g.operand(3).reshape([]) * count);
        let rounded = (sum * factor).call("round", &[]);
        let zero = g.maybe(4).map(|zero| zero.reshape([]).cast(DType::F32));
        Ok(zero.map_or(rounded, |zero| rounded + zero).cast(out.dtype))
    });
    let infer = shape_rule(|cx| {
        scalars(cx, &[1, 2, 3, 4])?;
        let Some(x) = open_rank_in(cx, 0, 3..=usize::MAX)? else { return Ok(()) };
        let channel = if channels_last(cx.params) { x.len() - 1 } else { 1 };
        let kept = |(i, d): (usize, &Dim)| if i == 0 || i == channel { *d } else { Dim::Const(1) };
        let dims: Vec<Dim> = x.iter().enumerate().map(kept).collect();
        cx.set_output_dims(0, dims)
    });
    let doc = "The mean over the spatial axes of a quantised image, quantised.";
    pooled(define("qlinear_global_average_pool", doc, compute, infer)).contrib("QLinearGlobalAveragePool")
}

fn conv() -> OpDef {
    let names = ["auto_pad", "kernel_shape", "strides", "dilations", "pads", "group"];
    let compute = formula(move |g, cx| {
        let (last, rank) = (channels_last(cx.params), cx.outputs[0].rank());
        let mut operands: Vec<Option<Tensor<'_>>> = (0..9).map(|i| g.maybe(i)).collect();
        if last {
            operands[0] = operands[0].map(|x| x.permute(&to_first(rank)));
        }
        let y = g.op_multi("qlinear_conv", &operands, chosen(cx.params, &names), 1)[0];
        Ok(if last { y.permute(&to_last(rank)) } else { y })
    });
    let infer = rule(|cx| {
        quantised_type(cx, 7, None)?;
        let (Some(x), Some(w)) = (open_rank_in(cx, 0, 3..=usize::MAX)?, open_rank_in(cx, 3, 3..=usize::MAX)?) else {
            return Ok(());
        };
        let (rank, group) = (x.len(), cx.params.int("group").unwrap_or(1));
        reject_if(group < 1, || format!("parameter `group` is {group}"))?;
        reject_if(w.len() != rank, || format!("operand `w`: expected rank {rank}, found rank {}", w.len()))?;
        partial(cx, 0, &vec![None; rank])?;
        let out = output_dims(cx, 0);
        let order = if channels_last(cx.params) { to_first(rank) } else { (0..rank).collect() };
        let (x, y) = (|i: usize| x[order[i]], |i: usize| out[order[i]]);
        grouped(cx, x(1), w[1], group as u64, "operand `w`, axis 1 (channels)")?;
        cx.unify_dims(x(0), y(0), "output, axis 0")?;
        cx.unify_dims(w[0], y(1), "output, channels")?;
        if cx.has_input(8) {
            shaped(cx, 8, &[w[0]])?;
        }
        let Some(kernel) = w[2..].iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>() else { return Ok(()) };
        let window = SpatialWindow::new(cx.params, kernel)?;
        (2..rank).try_for_each(|i| window.relate(cx, i - 2, x(i), y(i)))
    });
    let doc = "`qlinear_conv` of images whose channels may come last.";
    window_params(define("qlinear_conv_channels", doc, compute, infer))
        .operand("x", BYTES)
        .operand("x_scale", SCALE)
        .operand("x_zero_point", BYTES)
        .operand("w", BYTES)
        .operand("w_scale", SCALE)
        .operand("w_zero_point", BYTES)
        .operand("y_scale", SCALE)
        .operand("y_zero_point", BYTES)
        .optional("B", TypeRule::OneOf(&[DType::I32]))
        .param("group", 1, "Number of channel groups.")
        .param("channels_last", false, "Channels are the last axis rather than the second.")
        .contrib("QLinearConv")
        .not_differentiable(ROUNDS)
}
