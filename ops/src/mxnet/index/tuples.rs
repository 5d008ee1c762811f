//! Positions as tuples along the first axis of the indices: gather_nd, scatter_nd, ravel.

use super::in_range;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![gather_nd(), scatter_nd(), scatter_set_nd(), ravel(), unravel()]
}

/// The rows of [count, …], each in another shape.
fn rows<'g>(x: Tensor<'g>, count: u64, dims: &Extents) -> Vec<Tensor<'g>> {
    (0..count).map(|i| x.slice(0, i, 1).reshape(dims)).collect()
}

/// Row-major offsets in axes `dims` from tuples along the first axis of `indices`; a component counts modulo its
/// extent. The result has the other axes flattened.
fn offsets<'g>(indices: Tensor<'g>, dims: &Extents) -> Result<Tensor<'g>> {
    let own = indices.dims()?;
    let flat = Extents::of([own.range(1..).count()]);
    let lines = Extents::of([own.at(0), flat.at(0)]);
    let parts = rows(indices.reshaped(lines), dims.len() as u64, &flat);
    Ok(indices.graph().map(&parts, DType::I64, &flat, |s, a| {
        a.iter().zip(dims).fold(s.number(DType::I64, 0.0), |at, (x, &n)| {
            &at * at.lit(n as f64) + in_range(&x.cast(DType::I64), n, true)
        })
    }))
}

/// Extents indexed by tuples, and the axes of the slices behind them.
fn split(data: &Extents, indices: &Extents) -> (Extents, Extents) {
    let width = indices.at(0).fixed().max(0) as usize;
    (data.range(..width), data.range(width..))
}

/// The data as a matrix: a row for each slice.
fn flattened(indexed: &Extents, slice: &Extents) -> Extents {
    [indexed.count(), slice.count()].into_iter().collect()
}

fn gathered<'g>(data: Tensor<'g>, indices: Tensor<'g>) -> Result<Tensor<'g>> {
    let (dims, index_dims) = (data.dims()?, indices.dims()?);
    let (indexed, slice) = split(&dims, &index_dims);
    let at = offsets(indices, &indexed)?;
    let out: Extents = index_dims.range(1..).all().chain(slice.all()).collect();
    Ok(data.reshaped(flattened(&indexed, &slice)).gather(at, 0).reshaped(out))
}

/// `into` with slices at tuples written, the last where two have one position.
fn scattered<'g>(into: Tensor<'g>, indices: Tensor<'g>, values: Tensor<'g>) -> Result<Tensor<'g>> {
    let (dims, index_dims) = (into.dims()?, indices.dims()?);
    let (indexed, slice) = split(&dims, &index_dims);
    let at = offsets(indices, &indexed)?;
    let (count, width) = (at.dims()?.at(0), slice.count());
    let at = at.reshaped(Extents::of([count, Extent::ONE]));
    let rows = into.reshaped(flattened(&indexed, &slice));
    Ok(rows.call("scatter_nd", &[at, values.reshaped(Extents::of([count, width]))]).reshaped(&dims))
}

/// Axes of the tuples, then those of the slices behind the axes indexed.
fn tuple_shape(cx: &InferCtx<'_>, data: &[Dim], indices: usize) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(indices) = open_rank_in(cx, indices, 1..=usize::MAX)? else { return Ok(None) };
    let Some(width) = indices[0].as_extent().map(|n| n.fixed().max(0)) else { return Ok(None) };
    match data.get(width as usize..) {
        Some(slice) if !data[..width as usize].contains(&Dim::Const(0)) => Ok(Some([&indices[1..], slice].concat())),
        _ => Err(OpError(format!("operand `indices`: tuples of {width} positions in {} axes", data.len()))),
    }
}

fn gather_nd() -> OpDef {
    let compute = formula(|g, _| gathered(g.operand(0), g.operand(1)));
    let infer = shape_rule(|cx| {
        let Some(data) = cx.open_dims(0) else { return Ok(()) };
        match tuple_shape(cx, &data, 1)? {
            Some(dims) => cx.set_output_dims(0, dims),
            None => Ok(()),
        }
    });
    define("mx_gather_nd", "Slices of `data` at tuples along the first axis of `indices`.", compute, infer)
        .operand("data", &[])
        .operand("indices", NUMBERS)
        .mxnet("gather_nd")
}

fn shape_of(cx: &InferCtx<'_>) -> Vec<Dim> {
    cx.params.ints("shape").unwrap_or_default().iter().map(|&n| Dim::Const(n.max(0) as u64)).collect()
}

fn scatter_nd() -> OpDef {
    let compute = formula(|g, cx| scattered(g.filled(&cx.outputs[0], 0.0), g.operand(1), g.operand(0)));
    let infer = shape_rule(|cx| {
        let dims = shape_of(cx);
        if let Some(values) = tuple_shape(cx, &dims, 1)? {
            shaped(cx, 0, &values)?;
        }
        cx.set_output_dims(0, dims)
    });
    define("mx_scatter_nd", "Zeros with `data` written at tuples; the last where two are equal.", compute, infer)
        .operands(&["data", "indices"], NUMBERS)
        .required("shape", ParamKind::Ints, "shape of the result")
        .gradient(derivative(|g, cx| Ok(vec![Some(gathered(g.head(cx, 0), g.operand(1))?), None])))
        .mxnet("scatter_nd")
}

fn scatter_set_nd() -> OpDef {
    let compute = formula(|g, _| scattered(g.operand(0), g.operand(2), g.operand(1)));
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(dims) = cx.open_dims(0) else { return Ok(()) };
        match tuple_shape(cx, &dims, 2)? {
            Some(values) => shaped(cx, 1, &values),
            None => Ok(()),
        }
    });
    define("mx_scatter_set_nd", "`lhs` with `rhs` written at tuples; the last where two are equal.", compute, infer)
        .groups(&["lhs", "rhs"], NUMBERS)
        .operand("indices", NUMBERS)
        .required("shape", ParamKind::Ints, "No effect: the result has the shape of `lhs`.")
        .gradient(derivative(|g, cx| {
            let (head, indices) = (g.head(cx, 0), g.operand(2));
            let zeros = g.filled(cx.node.inputs[1].as_ref().unwrap_or(&cx.node.outputs[0]), 0.0);
            let lhs = scattered(head, indices, zeros)?;
            Ok(vec![Some(lhs), Some(gathered(head, indices)?), None])
        }))
        .mxnet("_scatter_set_nd")
}

fn extents(shape: Option<&[i64]>) -> Vec<f64> {
    shape.unwrap_or_default().iter().map(|&n| n as f64).collect()
}

fn ravel() -> OpDef {
    let compute = formula(|g, cx| {
        let (data, out, shape) = (g.operand(0), &cx.outputs[0], extents(cx.params.ints("shape")));
        let parts = rows(data, shape.len() as u64, &out.dims);
        Ok(g.map(&parts, out.dtype, &out.dims, |s, a| {
            let start = s.number(DType::I64, 0.0);
            let at = a.iter().zip(&shape).fold(start, |at, (x, &n)| &at * at.lit(n) + x.cast(DType::I64));
            at.cast(out.dtype)
        }))
    });
    let infer = shape_rule(|cx| {
        let count = cx.params.ints("shape").unwrap_or_default().len() as u64;
        let Some(data) = open_rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        cx.unify_dims(Dim::Const(count), data[0], "operand `data`, axis 0")?;
        cx.set_output_dims(0, data[1..].iter().copied())
    });
    define("mx_ravel_multi_index", "Row-major offsets of tuples along the first axis.", compute, infer)
        .operand("data", NUMBERS)
        .param("shape", ParamValue::Ints(vec![]), "shape of the array that is indexed")
        .no_gradient()
        .named(&["_ravel_multi_index", "ravel_multi_index"])
}

fn unravel() -> OpDef {
    let compute = formula(|g, cx| {
        let (data, out, shape) = (g.operand(0), &cx.outputs[0], extents(cx.params.ints("shape")));
        let own = data.dims()?;
        let lead = data.reshaped(std::iter::once(Extent::ONE).chain(own.all()).collect::<Extents>());
        Ok(g.map(&[lead], out.dtype, &out.dims, |s, a| {
            let (mut rest, which) = (a[0].cast(DType::I64), s.coord(0));
            let mut value = rest.lit(0.0);
            for (axis, &n) in shape.iter().enumerate().rev() {
                let n = rest.lit(n);
                // The first extent bounds nothing: what is left is its coordinate.
                let digit = if axis == 0 { rest.clone() } else { &rest % &n };
                value = which.eq(&which.lit(axis as f64)).select(&digit, &value);
                rest = &rest / &n;
            }
            value.cast(out.dtype)
        }))
    });
    let infer = shape_rule(|cx| {
        let count = cx.params.ints("shape").unwrap_or_default().len() as u64;
        let Some(data) = cx.open_dims(0) else { return Ok(()) };
        cx.set_output_dims(0, [Dim::Const(count)].into_iter().chain(data.iter().copied()))
    });
    define("mx_unravel_index", "Tuples, along a new first axis, of row-major offsets.", compute, infer)
        .operand("data", NUMBERS)
        .param("shape", ParamValue::Ints(vec![]), "shape of the array that is indexed")
        .no_gradient()
        .named(&["_unravel_index", "unravel_index"])
}
