//! Convolution and transposed convolution with MXNet's parameters.

use crate::conv::{grouped, spread, spread_offset};
use crate::prelude::*;
use crate::window::per_axis;

pub fn ops() -> Vec<OpDef> {
    vec![convolution(), deconvolution()]
}

/// Only the layouts with channels on axis 1 are supported.
pub fn check_layout(params: &Params, rank: usize) -> Result<(), OpError> {
    let expected = ["NCW", "NCHW", "NCDHW"].get(rank.wrapping_sub(1));
    match params.str("layout") {
        None | Some("None") => Ok(()),
        found if found == expected.copied() => Ok(()),
        Some(found) => Err(OpError(format!(
            "parameter `layout`: `{found}` is not supported, expected {}",
            expected.unwrap_or(&"one to three spatial axes")
        ))),
    }
}

/// The extents of the kernel, all positive.
pub fn kernel_of(params: &Params) -> Result<Vec<u64>, OpError> {
    match params.ints("kernel") {
        Some(list) if !list.is_empty() && list.iter().all(|k| *k > 0) => Ok(list.iter().map(|k| *k as u64).collect()),
        _ => Err("parameter `kernel`: expected positive extents".into()),
    }
}

/// The parameters of the entries that compute.
fn window_params(params: &Params) -> Result<(Params, Vec<u64>), OpError> {
    let kernel = kernel_of(params)?;
    let rank = kernel.len();
    check_layout(params, rank)?;
    let pads = per_axis(params, "pad", rank, 0)?;
    reject_if(pads.iter().any(|p| *p < 0), || "parameter `pad`: expected extents of at least 0")?;
    let out = Params::new()
        .with("kernel_shape", ParamValue::Ints(kernel.iter().map(|k| *k as i64).collect()))
        .with("strides", per_axis(params, "stride", rank, 1)?)
        .with("dilations", per_axis(params, "dilate", rank, 1)?)
        .with("pads", [&pads[..], &pads].concat())
        .with("group", groups(params)? as i64);
    Ok((out, kernel))
}

fn groups(params: &Params) -> Result<u64, OpError> {
    match params.int("num_group").unwrap_or(1) {
        n if n > 0 => Ok(n as u64),
        n => Err(OpError(format!("parameter `num_group` is {n}"))),
    }
}

/// Number of filters, a multiple of the groups.
fn filters(params: &Params) -> Result<u64, OpError> {
    let (filters, groups) = (params.int("num_filter").unwrap_or(0).max(0) as u64, groups(params)?);
    match filters % groups {
        0 => Ok(filters),
        _ => Err(OpError(format!("parameter `num_filter`: {filters} filters do not divide into {groups} groups"))),
    }
}

/// Data, weight and result with the axes that the parameters fix.
struct ConvAxes {
    data: Vec<Dim>,
    weight: Vec<Dim>,
    out: Vec<Dim>,
}

/// Ranks and types, and the axes of the weight that follow from the parameters.
fn common(cx: &mut InferCtx<'_>, kernel: &[u64]) -> Result<ConvAxes, OpError> {
    let inputs: Vec<usize> = (0..cx.input_count()).filter(|&i| cx.has_input(i)).collect();
    agree_dtypes(cx, &inputs, &[0])?;
    let rank = kernel.len() + 2;
    open_ranked(cx, 0, rank)?;
    let weight = open_ranked(cx, 1, rank)?;
    for (i, &k) in kernel.iter().enumerate() {
        cx.unify_dims(Dim::Const(k), weight[2 + i], &format!("operand `weight`, axis {}", 2 + i))?;
    }
    partial(cx, 0, &vec![None; rank])?;
    let filters = extent(filters(cx.params)? as i64, "num_filter")?;
    let out = output_dims(cx, 0);
    cx.unify_dims(filters, out[1], "output, axis 1")?;
    cx.set_input_dims(2, [filters])?;
    let data = open_ranked(cx, 0, rank)?;
    cx.unify_dims(data[0], out[0], "output, axis 0")?;
    Ok(ConvAxes { data, weight, out })
}

fn convolution_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let (params, kernel) = window_params(cx.params)?;
    let ConvAxes { data, weight, out } = common(cx, &kernel)?;
    cx.unify_dims(out[1], weight[0], "operand `weight`, axis 0")?;
    grouped(cx, data[1], weight[1], groups(cx.params)?, "operand `data`, axis 1 (channels)")?;
    let window = SpatialWindow::new(&params, kernel)?;
    (0..data.len() - 2).try_for_each(|i| window.relate(cx, i, data[2 + i], out[2 + i]))
}

/// Calls the entry that computes, with or without bias.
fn call<'g>(g: GraphScope<'g>, op: &str, no_bias: bool, params: Params) -> Tensor<'g> {
    let bias = g.maybe(2).filter(|_| !no_bias);
    let operands: Vec<_> = g.operands::<2>().into_iter().chain(bias).map(Some).collect();
    g.op_multi(op, &operands, params, 1)[0]
}

pub const LAYOUTS: &[&str] = &["None", "NCW", "NCHW", "NCDHW", "NHWC", "NDHWC", "NWC"];

/// What both layers declare.
fn layer(def: OpDef, no_bias: bool, workspace: i64) -> OpDef {
    def.required("kernel", ParamKind::Ints, "Extents of the kernel, one to three.")
        .param("stride", ParamValue::Ints(vec![]), "Default: 1 along every axis.")
        .param("dilate", ParamValue::Ints(vec![]), "Default: 1 along every axis.")
        .param("pad", ParamValue::Ints(vec![]), "Zeros on both sides. Default: 0.")
        .count("num_filter", "Channels of the result.")
        .param("num_group", 1, "Groups of channels.")
        .within(1.0, i64::MAX as f64)
        .param("no_bias", no_bias, "Leave out the bias.")
        .choice("layout", LAYOUTS, "None", "Only those with channels on axis 1 are supported.")
        .ignored(&[("workspace", ParamValue::Int(workspace)), ("cudnn_off", ParamValue::Bool(false))])
        .choice("cudnn_tune", &["None", "fastest", "limited_workspace", "off"], "None", "No effect.")
        .present(|params, _| !params.flag("no_bias"))
}

fn convolution() -> OpDef {
    let compute = formula(|g, cx| {
        let (params, _) = window_params(cx.params).or_fail(&g)?;
        Ok(call(g, "conv", cx.params.flag("no_bias"), params))
    });
    let doc = "Cross-correlation of [n, c, spatial…] with [num_filter, c / num_group, kernel…].";
    let def = define("mx_convolution", doc, compute, rule(convolution_rule))
        .groups(&["data", "weight"], NUMBERS)
        .optional("bias", TypeRule::Group(0, NUMBERS));
    layer(def, false, 1024).named(&["Convolution", "Convolution_v1"]).ulp(1.0)
}

/// The parameters of a transposed convolution: `target_shape` decides the pads if it is given.
fn transposed_params(params: &Params) -> Result<(Params, Vec<u64>), OpError> {
    let (mut out, kernel) = window_params(params)?;
    let rank = kernel.len();
    let target = per_axis(params, "target_shape", rank, 0)?;
    let adj = per_axis(params, "adj", rank, 0)?;
    let stride = per_axis(params, "stride", rank, 1)?;
    if target.iter().any(|n| *n > 0) {
        out.set("pads", ParamValue::Ints(vec![0; 2 * rank]));
        out.set("output_shape", ParamValue::Ints(target));
        return Ok((out, kernel));
    }
    if let Some(i) = (0..rank).find(|&i| !(0..stride[i]).contains(&adj[i])) {
        return Err(OpError(format!("parameter `adj`: {} is not below the stride {}", adj[i], stride[i])));
    }
    out.set("output_padding", ParamValue::Ints(adj));
    Ok((out, kernel))
}

fn deconvolution_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let (params, kernel) = transposed_params(cx.params)?;
    let ConvAxes { data, weight, out } = common(cx, &kernel)?;
    cx.unify_dims(data[1], weight[0], "operand `weight`, axis 0 (channels)")?;
    grouped(cx, out[1], weight[1], groups(cx.params)?, "operand `weight`, axis 1")?;
    let window = SpatialWindow::new(&params, kernel)?;
    let target = params.ints("output_shape").map(<[i64]>::to_vec);
    for i in 0..window.kernel.len() {
        let what = format!("output, axis {}", 2 + i);
        let input = cx.resolve(data[2 + i]);
        match (input.as_extent(), &target) {
            (Some(n), Some(target)) => {
                let full = (n - 1) * window.strides[i] + window.span(i);
                reject_if(full < target[i], || format!("parameter `target_shape`: {} exceeds {full}", target[i]))?;
                cx.unify_dims(extent(target[i], "target_shape")?, out[2 + i], &what)?;
            }
            (None, Some(target)) => cx.unify_dims(extent(target[i], "target_shape")?, out[2 + i], &what)?,
            (Some(n), None) => {
                let found = spread(&window, &params, i, n)?.out;
                cx.unify_dims(Dim::of(found), out[2 + i], &what)?;
            }
            (None, None) => {
                let (mul, add) = (window.strides[i], spread_offset(&window, &params, i));
                cx.relate(Equation::Affine { out: out[2 + i], input, mul, add, div: 1 })?;
            }
        }
    }
    Ok(())
}

fn deconvolution() -> OpDef {
    let compute = formula(|g, cx| {
        let (params, _) = transposed_params(cx.params).or_fail(&g)?;
        Ok(call(g, "conv_transpose", cx.params.bool("no_bias") != Some(false), params))
    });
    let doc = "The transpose of a convolution: spreads [n, c, spatial…] with [c, num_filter / num_group, kernel…].";
    let def = define("mx_deconvolution", doc, compute, rule(deconvolution_rule))
        .groups(&["data", "weight"], FLOATS)
        .optional("bias", TypeRule::Group(0, FLOATS));
    layer(def, true, 512)
        .param("adj", ParamValue::Ints(vec![]), "Extra extent after every spatial axis, below the stride.")
        .param("target_shape", ParamValue::Ints(vec![]), "Extents of the result; `pad` and `adj` then do not count.")
        .named(&["Deconvolution"])
        .ulp(1.0)
}
