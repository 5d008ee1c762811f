//! Orders and greatest elements.
//!
//! Positions come as floats unless asked otherwise, as in MXNet. Equal elements keep their order.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![topk(), sort(), argsort()]
}

/// The axis, `None` for all in row-major order.
fn axis_param(params: &Params) -> Option<i64> {
    params.int("axis").filter(|a| *a != ParamValue::NONE)
}

/// The operand as it is ordered, flat where no axis is given, and the axis in it.
fn line(b: &mut Builder<'_>, params: &Params, x: Value) -> Result<(Value, usize), Diagnostic> {
    let dims = b.dims(x)?;
    match axis_param(params) {
        Some(axis) => Ok((x, normalize_axis(axis, dims.len()).or_fail(b)?)),
        None => Ok((reshape(b, x, &[dims.iter().product()])?, 0)),
    }
}

/// The first `count` of every line in order: values and positions.
fn first(b: &mut Builder<'_>, x: Value, axis: usize, count: u64, largest: bool) -> Result<[Value; 2], Diagnostic> {
    let k = b.i64s(&[count as i64]);
    let params = Params::new().with("axis", axis as i64).with("largest", largest);
    let found = b.op_multi("topk", &[Some(x), Some(k)], params, 2)?;
    Ok([found[0], found[1]])
}

/// Zeros like the operand, with values at positions along the axis.
fn spread(b: &mut Builder<'_>, like: Value, axis: usize, at: Value, values: Value) -> Result<Value, Diagnostic> {
    let ty = b.ty(like)?;
    let zeros = b.filled(&ty, 0.0)?;
    b.op("scatter_elements", &[zeros, at, values], Params::new().with("axis", axis as i64))
}

/// How many elements are wanted of an axis: all of it where `k` is below 1.
fn wanted(params: &Params, n: u64) -> Result<u64, OpError> {
    match params.int("k").unwrap_or(1) {
        k if k < 1 => Ok(n),
        k if k as u64 > n => Err(OpError(format!("parameter `k`: {k} of {n} elements"))),
        k => Ok(k as u64),
    }
}

fn largest_first(params: &Params, ascending: bool) -> bool {
    !params.bool("is_ascend").unwrap_or(ascending)
}

/// The gradient of ordered values: each goes where the value came from.
fn back(
    b: &mut Builder<'_>,
    params: &Params,
    (x, head): (Value, Value),
    count: impl Fn(u64) -> Result<u64, OpError>,
    largest: bool,
) -> Result<Value, Diagnostic> {
    let dims = b.dims(x)?;
    let (flat, axis) = line(b, params, x)?;
    let count = count(b.dims(flat)?[axis]).or_fail(b)?;
    let [_, at] = first(b, flat, axis, count, largest)?;
    let at_dims = b.dims(at)?;
    let head = reshape(b, head, &at_dims)?;
    let gradient = spread(b, flat, axis, at, head)?;
    reshape(b, gradient, &dims)
}

/// The shape of ordered values, `count` of every line.
fn ordered_dims(cx: &InferCtx<'_>, count: impl Fn(u64) -> Result<u64, OpError>) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(x) = cx.input_dims(0) else { return Ok(None) };
    let mut dims = x.to_vec();
    let axis = match axis_param(cx.params) {
        Some(axis) => cx.axis(axis, x.len())?,
        None => {
            let Some(n) = x.iter().map(|d| d.as_const()).product::<Option<u64>>() else { return Ok(None) };
            dims = vec![Dim::Const(n)];
            0
        }
    };
    match dims[axis] {
        Dim::Const(n) => dims[axis] = Dim::Const(count(n)?),
        // Not knowing the extent, the number wanted may still be known.
        Dim::Sym(_) if count(u64::MAX)? == u64::MAX => {}
        Dim::Sym(_) => dims[axis] = Dim::Const(count(u64::MAX)?),
    }
    Ok(Some(dims))
}

fn positions_type(params: &Params) -> DType {
    params.dtype("dtype").unwrap_or(DType::F32)
}

fn topk() -> OpDef {
    let compute = composites_of(|b, cx, [x]| {
        let (flat, axis) = line(b, cx.params, x)?;
        let count = wanted(cx.params, b.dims(flat)?[axis]).or_fail(b)?;
        let [values, at] = first(b, flat, axis, count, largest_first(cx.params, false))?;
        let positions = cast(b, at, positions_type(cx.params))?;
        match cx.params.str("ret_typ") {
            Some("value" | "both") => Ok(vec![values, positions]),
            Some("mask") => {
                let ty = b.ty(values)?;
                let ones = b.filled(&ty, 1.0)?;
                let mask = spread(b, flat, axis, at, ones)?;
                Ok(vec![reshape(b, mask, &cx.outputs[0].dims)?])
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
        .gradient(|b, cx| match cx.node.params.str("ret_typ") {
            Some("value" | "both") => {
                let (x, head, params) = (cx.input(0)?, cx.head(b, 0)?, cx.node.params);
                let largest = largest_first(params, false);
                Ok(vec![Some(back(b, params, (x, head), |n| wanted(params, n), largest)?)])
            }
            _ => Ok(vec![None]),
        })
        .mxnet("topk")
}

fn sort() -> OpDef {
    let compute = composites_of(|b, cx, [x]| {
        let (flat, axis) = line(b, cx.params, x)?;
        let count = b.dims(flat)?[axis];
        Ok(vec![first(b, flat, axis, count, largest_first(cx.params, true))?[0]])
    });
    let infer = shape_rule(|cx| match ordered_dims(cx, Ok)? {
        Some(dims) => cx.set_output_dims(0, dims),
        None => Ok(()),
    });
    define("mx_sort", "The elements of every line in order.", compute, infer)
        .operand("data", NUMBERS)
        .param("axis", -1, "axis ordered; None: the flattened operand")
        .param("is_ascend", true, "least elements first")
        .gradient(|b, cx| {
            let (x, head, params) = (cx.input(0)?, cx.head(b, 0)?, cx.node.params);
            Ok(vec![Some(back(b, params, (x, head), Ok, largest_first(params, true))?)])
        })
        .result_names(&["output0"])
        .mxnet("sort")
}

fn argsort() -> OpDef {
    let compute = composites_of(|b, cx, [x]| {
        let (flat, axis) = line(b, cx.params, x)?;
        let count = b.dims(flat)?[axis];
        let [_, at] = first(b, flat, axis, count, largest_first(cx.params, true))?;
        Ok(vec![cast(b, at, positions_type(cx.params))?])
    });
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
