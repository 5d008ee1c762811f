//! Positions as tuples along the first axis of the indices: gather_nd, scatter_nd, ravel.

use super::in_range;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![gather_nd(), scatter_nd(), scatter_set_nd(), ravel(), unravel()]
}

/// Row-major offsets in axes `dims` from tuples along the first axis of `indices`; a component counts modulo its
/// extent. The result has the other axes flattened.
fn offsets(b: &mut Builder<'_>, indices: Value, dims: &[u64]) -> Result<Value, Diagnostic> {
    let ty = b.ty(indices)?;
    let count = ty.dims[1..].iter().product();
    let rows = reshape(b, indices, &[ty.dims[0], count])?;
    let mut parts = vec![];
    for i in 0..dims.len() as u64 {
        let row = b.slice_axis(rows, 0, i, 1)?;
        parts.push(b.reshaped(row, &[count])?);
    }
    b.map_as(&parts, DType::I64, &[count], |s, a| {
        a.iter().zip(dims).fold(s.number(DType::I64, 0.0), |at, (x, &n)| {
            &at * at.lit(n as f64) + in_range(&x.cast(DType::I64), n, true)
        })
    })
}

/// Extents indexed by tuples, and the axes of the slices behind them.
fn split<'a>(data: &'a DenseType, indices: &DenseType) -> (&'a [u64], &'a [u64]) {
    data.dims.split_at(indices.dims[0] as usize)
}

fn gathered(b: &mut Builder<'_>, data: Value, indices: Value) -> Result<Value, Diagnostic> {
    let (ty, index_ty) = (b.ty(data)?, b.ty(indices)?);
    let (indexed, slice) = split(&ty, &index_ty);
    let at = offsets(b, indices, indexed)?;
    let rows = [indexed.iter().product(), slice.iter().product()];
    let data = reshape(b, data, &rows)?;
    let out = b.gathered(data, at, 0)?;
    reshape(b, out, &[&index_ty.dims[1..], slice].concat())
}

/// `into` with slices at tuples written, the last where two have one position.
fn scattered(b: &mut Builder<'_>, into: Value, indices: Value, values: Value) -> Result<Value, Diagnostic> {
    let (ty, index_ty) = (b.ty(into)?, b.ty(indices)?);
    let (indexed, slice) = split(&ty, &index_ty);
    let at = offsets(b, indices, indexed)?;
    let count = b.ty(at)?.len();
    let at = reshape(b, at, &[count, 1])?;
    let width = slice.iter().product();
    let rows = reshape(b, into, &[indexed.iter().product(), width])?;
    let values = reshape(b, values, &[count, width])?;
    let out = b.call("scatter_nd", &[rows, at, values])?;
    reshape(b, out, &ty.dims)
}

/// Axes of the tuples, then those of the slices behind the axes indexed.
fn tuple_shape(cx: &InferCtx<'_>, data: &[Dim], indices: usize) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(indices) = rank_in(cx, indices, 1..=usize::MAX)? else { return Ok(None) };
    let Dim::Const(width) = indices[0] else { return Ok(None) };
    match data.get(width as usize..) {
        Some(slice) if !data[..width as usize].contains(&Dim::Const(0)) => Ok(Some([&indices[1..], slice].concat())),
        _ => Err(OpError(format!("operand `indices`: tuples of {width} positions in {} axes", data.len()))),
    }
}

fn gather_nd() -> OpDef {
    let compute = composite_of(|b, _, [data, indices]| gathered(b, data, indices));
    let infer = shape_rule(|cx| {
        let Some(data) = cx.input_dims(0) else { return Ok(()) };
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
    let compute = composite_of(|b, cx, [values, indices]| {
        let zeros = b.filled(&cx.outputs[0], 0.0)?;
        scattered(b, zeros, indices, values)
    });
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
        .gradient(|b, cx| {
            let (head, indices) = (cx.head(b, 0)?, cx.input(1)?);
            Ok(vec![Some(gathered(b, head, indices)?), None])
        })
        .mxnet("scatter_nd")
}

fn scatter_set_nd() -> OpDef {
    let compute = composite_of(|b, _, [into, values, indices]| scattered(b, into, indices, values));
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(dims) = cx.input_dims(0) else { return Ok(()) };
        match tuple_shape(cx, &dims, 2)? {
            Some(values) => shaped(cx, 1, &values),
            None => Ok(()),
        }
    });
    define("mx_scatter_set_nd", "`lhs` with `rhs` written at tuples; the last where two are equal.", compute, infer)
        .groups(&["lhs", "rhs"], NUMBERS)
        .operand("indices", NUMBERS)
        .required("shape", ParamKind::Ints, "No effect: the result has the shape of `lhs`.")
        .gradient(|b, cx| {
            let (head, indices) = (cx.head(b, 0)?, cx.input(2)?);
            let zeros = b.filled(cx.node.inputs[1].as_ref().unwrap_or(&cx.node.outputs[0]), 0.0)?;
            let lhs = scattered(b, head, indices, zeros)?;
            Ok(vec![Some(lhs), Some(gathered(b, head, indices)?), None])
        })
        .mxnet("_scatter_set_nd")
}

fn extents(shape: Option<&[i64]>) -> Vec<f64> {
    shape.unwrap_or_default().iter().map(|&n| n as f64).collect()
}

fn ravel() -> OpDef {
    let compute = composite_of(|b, cx, [data]| {
        let (dims, shape) = (b.dims(data)?, extents(cx.params.ints("shape")));
        let out = &cx.outputs[0];
        let mut parts = vec![];
        for i in 0..dims[0] {
            let row = b.slice_axis(data, 0, i, 1)?;
            parts.push(b.reshaped(row, &out.dims)?);
        }
        b.map_as(&parts, out.dtype, &out.dims, |s, a| {
            let start = s.number(DType::I64, 0.0);
            let at = a.iter().zip(&shape).fold(start, |at, (x, &n)| &at * at.lit(n) + x.cast(DType::I64));
            at.cast(out.dtype)
        })
    });
    let infer = shape_rule(|cx| {
        let count = cx.params.ints("shape").unwrap_or_default().len() as u64;
        let Some(data) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
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
    let compute = composite_of(|b, cx, [data]| {
        let (dims, shape) = (b.dims(data)?, extents(cx.params.ints("shape")));
        let out = &cx.outputs[0];
        let lead = reshape(b, data, &[&[1], &dims[..]].concat())?;
        b.map_as(&[lead], out.dtype, &out.dims, |s, a| {
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
        })
    });
    let infer = shape_rule(|cx| {
        let count = cx.params.ints("shape").unwrap_or_default().len() as u64;
        let Some(data) = cx.input_dims(0) else { return Ok(()) };
        cx.set_output_dims(0, [Dim::Const(count)].into_iter().chain(data.iter().copied()))
    });
    define("mx_unravel_index", "Tuples, along a new first axis, of row-major offsets.", compute, infer)
        .operand("data", NUMBERS)
        .param("shape", ParamValue::Ints(vec![]), "shape of the array that is indexed")
        .no_gradient()
        .named(&["_unravel_index", "unravel_index"])
}
