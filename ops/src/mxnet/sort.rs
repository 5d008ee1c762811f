//! Orders and greatest elements.
//!
//! Positions come as floats unless asked otherwise, as in MXNet. Equal elements keep their order.

use super::reduce::line;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![topk(), sort(), argsort()]
}

/// The axis, `None` for all in row-major order.
fn axis_param(params: &Params) -> Option<i64> {
    params.int("axis").filter(|a| *a != ParamValue::NONE)
}

/// The first `count` of every line in order: values and positions.
fn first(x: Tensor<'_>, axis: usize, count: Extent, largest: bool) -> [Tensor<'_>; 2] {
    let g = x.graph();
    let params = Params::new().with("axis", axis as i64).with("largest", largest);
    let found = g.op_multi("topk", &[Some(x), Some(g.extents(&Extents::from_iter([count])))], params, 2);
    [found[0], found[1]]
}

/// Zeros like the operand, with values at positions along the axis.
fn spread<'g>(like: Tensor<'g>, axis: usize, at: Tensor<'g>, values: Tensor<'g>) -> Result<Tensor<'g>> {
    let zeros = like.graph().filled(&like.ty()?, 0.0);
    Ok(like.graph().op("scatter_elements", &[zeros, at, values], Params::new().with("axis", axis as i64)))
}

/// How many elements are wanted of an axis: all of it where `k` is below 1.
fn wanted(params: &Params, n: Extent) -> Result<Extent, OpError> {
    match params.int("k").unwrap_or(1) {
        k if k < 1 => Ok(n),
        k if n < k => Err(OpError(format!("parameter `k`: {k} of {n} elements"))),
        k => Ok(k.into()),
    }
}

fn largest_first(params: &Params, ascending: bool) -> bool {
    !params.bool("is_ascend").unwrap_or(ascending)
}

/// The gradient of ordered values: each goes where the value came from.
fn back<'g>(
    g: GraphScope<'g>,
    cx: &GradCtx<'_>,
    count: impl Fn(Extent) -> Result<Extent, OpError>,
    ascending: bool,
) -> Result<Tensor<'g>> {
    let (x, head, params) = (g.operand(0), g.head(cx, 0), cx.node.params);
    let (flat, axis) = line(x, axis_param(params))?;
    let count = count(flat.dims()?.at(axis)).or_fail(&g)?;
    let [_, at] = first(flat, axis, count, largest_first(params, ascending));
    Ok(spread(flat, axis, at, head.reshaped(&at.dims()?))?.reshaped(&x.dims()?))
}

/// The shape of ordered values, `count` of every line.
fn ordered_dims(
    cx: &InferCtx<'_>,
    count: impl Fn(Extent) -> Result<Extent, OpError>,
) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(x) = cx.open_dims(0) else { return Ok(None) };
    let mut dims = x.to_vec();
    let axis = match axis_param(cx.params) {
        Some(axis) => cx.axis(axis, x.len())?,
        None => {
            let Some(n) = x.iter().map(|d| d.as_extent()).product::<Option<Extent>>() else { return Ok(None) };
            dims = vec![Dim::of(n)];
            0
        }
    };
    // Not knowing the extent, the number wanted may still be known.
    let (n, most) = (dims[axis].as_extent(), Extent::of(i64::MAX));
    let wanted = count(n.unwrap_or(most))?;
    if n.is_some() || wanted != most {
        dims[axis] = Dim::of(wanted);
    }
    Ok(Some(dims))
}

fn positions_type(params: &Params) -> DType {
    params.dtype("dtype").unwrap_or(DType::F32)
}

fn topk() -> OpDef {
    let compute = formulas(|g, cx| {
        let (flat, axis) = line(g.operand(0), axis_param(cx.params))?;
        let count = wanted(cx.params, flat.dims()?.at(axis)).or_fail(&g)?;
        let [values, at] = first(flat, axis, count, largest_first(cx.params, false));
        let positions = at.cast(positions_type(cx.params));
        match cx.params.str("ret_typ") {
            Some("value" | "both") => Ok(vec![values, positions]),
            Some("mask") => {
                let ones = g.filled(&values.ty()?, 1.0);
                Ok(vec![spread(flat, axis, at, ones)?.reshaped(&cx.outputs[0].dims)])
            }
            _ => Ok(vec![positions]),
        }
    });
    let infer = rule(|cx| {
        let typ = cx.params.str("ret_typ").unwrap_or("indices").to_owned();
        match typ.as_str() {
            "indices" => cx.set_output_dtype(0, positions_type(cx.params))?,
            _ => cx.same_dtype(0, 0)?,
        }
        if cx.output_count() > 1 {
            cx.set_output_dtype(1, positions_type(cx.params))?;
        }
        let count = cx.output_count();
        if count == 1 && typ == "both" || count == 2 && !matches!(typ.as_str(), "both" | "value") {
            return Err("parameter `ret_typ`: `both` has two results, `indices` and `mask` have one".into());
        }
        let Some(dims) = ordered_dims(cx, |n| wanted(cx.params, n))? else { return Ok(()) };
        if typ == "mask" {
            return cx.copy_shape(0, 0);
        }
        (0..cx.output_count()).try_for_each(|i| cx.set_output_dims(i, dims.iter().copied()))
    });
    let doc = "The k greatest (or least) elements of every line, their positions, both, or a mask of them.";
    define("mx_topk", doc, compute, infer)
        .operand("data", NUMBERS)
        .param("axis", -1, "axis ordered; None: the flattened operand")
        .param("k", 1, "how many; below 1: all")
        .choice("ret_typ", &["indices", "value", "both", "mask"], "indices", "what is wanted")
        .param("is_ascend", false, "least elements first")
        .param("dtype", DType::F32, "type of the positions")
        .outputs(1, 2)
        .results(|p| {
            let (visible, listed) = match p.str("ret_typ") {
                Some("both") => (2, 2),
                // The positions are there and hidden.
                Some("value") => (1, 2),
                _ => (1, 1),
            };
            ResultCount { visible, listed }
        })
        .gradient(derivative(|g, cx| match cx.node.params.str("ret_typ") {
            Some("value" | "both") => Ok(vec![Some(back(g, cx, |n| wanted(cx.node.params, n), false)?)]),
            _ => Ok(vec![None]),
        }))
        .mxnet("topk")
}

/// Values and positions of whole lines in order.
fn whole<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<[Tensor<'g>; 2]> {
    let (flat, axis) = line(g.operand(0), axis_param(cx.params))?;
    Ok(first(flat, axis, flat.dims()?.at(axis), largest_first(cx.params, true)))
}

fn sort() -> OpDef {
    let compute = formula(|g, cx| Ok(whole(g, cx)?[0]));
    let infer = shape_rule(|cx| match ordered_dims(cx, Ok)? {
        Some(dims) => cx.set_output_dims(0, dims),
        None => Ok(()),
    });
    define("mx_sort", "The elements of every line in order.", compute, infer)
        .operand("data", NUMBERS)
        .param("axis", -1, "axis ordered; None: the flattened operand")
        .param("is_ascend", true, "least elements first")
        .gradient(derivative(|g, cx| Ok(vec![Some(back(g, cx, Ok, true)?)])))
        .result_names(&["output0"])
        .mxnet("sort")
}

fn argsort() -> OpDef {
    let compute = formula(|g, cx| Ok(whole(g, cx)?[1].cast(positions_type(cx.params))));
    let infer = rule(|cx| {
        cx.set_output_dtype(0, positions_type(cx.params))?;
        match ordered_dims(cx, Ok)? {
            Some(dims) => cx.set_output_dims(0, dims),
            None => Ok(()),
        }
    });
    define("mx_argsort", "The positions that would order every line.", compute, infer)
        .operand("data", NUMBERS)
        .param("axis", -1, "axis ordered; None: the flattened operand")
        .param("is_ascend", true, "least elements first")
        .param("dtype", DType::F32, "type of the positions")
        .no_gradient()
        .mxnet("argsort")
}
