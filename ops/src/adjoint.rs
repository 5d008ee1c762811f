//! Derivatives of operators that read, write or order elements by position.
//!
//! Where positions are written twice, the last write is the one that counts; reads of positions out of range
//! are clamped, and so are their gradients.

use crate::compose;
use crate::prelude::*;

/// The gradients of operands.
pub type OperandGradients = Result<Vec<Option<Value>>>;

fn with_axis(axis: usize) -> Params {
    Params::new().with("axis", axis as i64)
}

fn axis_of(b: &Builder<'_>, cx: &NodeCtx<'_>, default: i64, rank: usize) -> Result<usize> {
    normalize_axis(cx.params.int("axis").unwrap_or(default), rank).or_fail(b)
}

fn type_of(b: &Builder<'_>, cx: &GradCtx<'_>, i: usize) -> Result<DenseType> {
    b.ty(cx.input(i)?)
}

/// The numbers of the elements of a shape, row-major.
fn numbered(b: &mut Builder<'_>, dims: &[u64]) -> Result<Value> {
    b.map_as(&[], DType::I64, dims, |s, _| {
        dims.iter()
            .enumerate()
            .fold(s.constant(Scalar::i64(0)), |at, (i, n)| at * s.constant(Scalar::i64(*n as i64)) + s.coord(i))
    })
}

/// `value` where two integer tensors agree, else zero.
fn where_equal(b: &mut Builder<'_>, x: Value, y: Value, value: Value) -> Result<Value> {
    let ty = b.ty(value)?;
    b.map_as(&[x, y, value], ty.dtype, &ty.dims, |_, a| a[0].eq(&a[1]).select(&a[2], &a[2].lit(0.0)))
}

/// Elements of an index operand as positions on an axis of extent `n`.
fn position(index: &Ex, n: u64) -> Ex {
    let int = |n: i64| index.builder().constant(Scalar::i64(n));
    let index = index.cast(DType::I64);
    let wrapped = index.lt(&int(0)).select(&(&index + int(n as i64)), &index);
    wrapped.max(&int(0)).min(&int((n as i64 - 1).max(0)))
}

/// Index tuples into `data` (after `batch` shared axes) as numbers of slices, one dimension.
fn slices(b: &mut Builder<'_>, indices: Value, data: &[u64], batch: usize) -> Result<Value> {
    let ty = b.ty(indices)?;
    let (lead, width) = ty.dims.split_at(ty.rank() - 1);
    let width = width[0];
    let count: u64 = lead.iter().product();
    let mut columns = vec![];
    for j in 0..width {
        let column = b.slice_axis(indices, lead.len(), j, 1)?;
        columns.push(b.reshaped(column, lead)?);
    }
    let at = b.map_as(&columns, DType::I64, lead, |s, a| {
        let start = (0..batch)
            .fold(s.constant(Scalar::i64(0)), |at, i| at * s.constant(Scalar::i64(data[i] as i64)) + s.coord(i));
        a.iter().enumerate().fold(start, |at, (j, index)| {
            let n = data[batch + j];
            at * s.constant(Scalar::i64(n as i64)) + position(index, n)
        })
    })?;
    b.reshaped(at, &[count])
}

/// The slices of `data` that tuples of `indices` name: how many, and the extent of each.
fn sliced(data: &[u64], indexed: usize) -> [u64; 2] {
    [data[..indexed].iter().product(), data[indexed..].iter().product()]
}

fn scatter_sum(b: &mut Builder<'_>, updates: Value, indices: Value, axis: usize, extent: u64) -> Result<Value> {
    b.op("scatter_sum", &[updates, indices], with_axis(axis).with("extent", extent as i64))
}

pub fn of_gather_elements(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let data = type_of(b, cx, 0)?;
    let axis = axis_of(b, cx.node, 0, data.rank())?;
    let (zeros, head) = (b.filled(&data, 0.0)?, cx.head(b, 0)?);
    let params = with_axis(axis).with("reduction", "add");
    Ok(vec![Some(b.op("scatter_elements", &[zeros, cx.input(1)?, head], params)?), None])
}

pub fn of_gather_nd(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let (data, indices) = (type_of(b, cx, 0)?, cx.input(1)?);
    let batch = cx.node.params.int("batch_dims").unwrap_or(0) as usize;
    let width = *b.dims(indices)?.last().unwrap_or(&0) as usize;
    let [count, size] = sliced(&data.dims, batch + width);
    let rows = slices(b, indices, &data.dims, batch)?;
    let (head, n) = (cx.head(b, 0)?, b.ty(rows)?.len());
    let head = b.reshaped(head, &[n, size])?;
    let sums = scatter_sum(b, head, rows, 0, count)?;
    Ok(vec![Some(b.reshaped(sums, &data.dims)?), None])
}

fn unsupported(b: &Builder<'_>, reduction: &str) -> Diagnostic {
    b.fail(format!("no gradient for parameter `reduction` = {reduction}, only for none and add"))
}

pub fn of_scatter_elements(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let (data, indices, head) = (type_of(b, cx, 0)?, cx.input(1)?, cx.head(b, 0)?);
    let axis = axis_of(b, cx.node, 0, data.rank())?;
    let updates = type_of(b, cx, 2)?;
    let taken = b.op("gather_elements", &[head, indices], with_axis(axis))?;
    match cx.node.params.str("reduction").unwrap_or("none") {
        "add" => Ok(vec![Some(head), None, Some(taken)]),
        "none" => {
            let zeros = b.filled(&updates, 0.0)?;
            let kept = b.op("scatter_elements", &[head, indices, zeros], with_axis(axis))?;
            let own = numbered(b, &updates.dims)?;
            let nobody = b.filled(&DenseType::new(DType::I64, &data.dims), -1.0)?;
            let last = b.op("scatter_elements", &[nobody, indices, own], with_axis(axis))?;
            let last = b.op("gather_elements", &[last, indices], with_axis(axis))?;
            let taken = where_equal(b, last, own, taken)?;
            Ok(vec![Some(kept), None, Some(taken)])
        }
        other => Err(unsupported(b, other)),
    }
}

pub fn of_scatter_nd(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let (data, indices, head) = (type_of(b, cx, 0)?, cx.input(1)?, cx.head(b, 0)?);
    let updates = type_of(b, cx, 2)?;
    let reduction = cx.node.params.str("reduction").unwrap_or("none");
    let width = *b.dims(indices)?.last().unwrap_or(&0) as usize;
    let [count, size] = sliced(&data.dims, width);
    let rows = slices(b, indices, &data.dims, 0)?;
    let flat = b.reshaped(head, &[count, size])?;
    let taken = b.gathered(flat, rows, 0)?;
    match reduction {
        "add" => {
            let taken = b.reshaped(taken, &updates.dims)?;
            Ok(vec![Some(head), None, Some(taken)])
        }
        "none" => {
            let zeros = b.filled(&updates, 0.0)?;
            let kept = b.call("scatter_nd", &[head, indices, zeros])?;
            let taken = last_written(b, rows, count, taken)?;
            let taken = b.reshaped(taken, &updates.dims)?;
            Ok(vec![Some(kept), None, Some(taken)])
        }
        other => Err(unsupported(b, other)),
    }
}

/// The rows of `values` ([n, size]) that were the last to be written to their place, of `count`; the others zero.
fn last_written(b: &mut Builder<'_>, rows: Value, count: u64, values: Value) -> Result<Value> {
    let n = b.ty(rows)?.len();
    let own = numbered(b, &[n])?;
    let nobody = b.filled(&DenseType::new(DType::I64, &[count]), -1.0)?;
    let last = b.op("scatter_elements", &[nobody, rows, own], with_axis(0))?;
    let last = b.gathered(last, rows, 0)?;
    let (last, own) = (b.reshaped(last, &[n, 1])?, b.reshaped(own, &[n, 1])?);
    where_equal(b, last, own, values)
}

pub fn of_tensor_scatter(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let (cache, update, head) = (type_of(b, cx, 0)?, type_of(b, cx, 1)?, cx.head(b, 0)?);
    let axis = axis_of(b, cx.node, -2, cache.rank())?;
    let starts = cx.inputs.get(2).copied().flatten();
    let zeros = b.filled(&update, 0.0)?;
    let kept = b.op_multi("tensor_scatter", &[Some(head), Some(zeros), starts], cx.node.params.clone(), 1)?[0];
    let mut inputs = vec![];
    if let Some(starts) = starts {
        let lead: Vec<u64> = (0..update.rank()).map(|i| if i == 0 { update.dims[0] } else { 1 }).collect();
        inputs.push(b.reshaped(starts, &lead)?);
    }
    let circular = cx.node.params.str("mode") == Some("circular");
    let places = b.map_as(&inputs, DType::I64, &update.dims, |s, a| {
        let step = s.coord(axis);
        let at = a.first().map_or(step.clone(), |start| start.cast(DType::I64) + step);
        if circular { at % s.constant(Scalar::i64(cache.dims[axis] as i64)) } else { at }
    })?;
    let taken = b.op("gather_elements", &[head, places], with_axis(axis))?;
    // Steps past the end were written over each other.
    let own = numbered(b, &update.dims)?;
    let nobody = b.filled(&DenseType::new(DType::I64, &cache.dims), -1.0)?;
    let last = b.op("scatter_elements", &[nobody, places, own], with_axis(axis))?;
    let last = b.op("gather_elements", &[last, places], with_axis(axis))?;
    let taken = where_equal(b, last, own, taken)?;
    Ok(vec![Some(kept), Some(taken), None])
}

pub fn of_reverse_sequence(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let head = cx.head(b, 0)?;
    Ok(vec![Some(b.op("reverse_sequence", &[head, cx.input(1)?], cx.node.params.clone())?), None])
}

/// Of results that are elements of the operand along an axis, at `positions`.
fn put_back(b: &mut Builder<'_>, x: &DenseType, positions: Value, head: Value, axis: usize) -> OperandGradients {
    let zeros = b.filled(x, 0.0)?;
    let params = with_axis(axis).with("reduction", "add");
    Ok(vec![Some(b.op("scatter_elements", &[zeros, positions, head], params)?)])
}

pub fn of_topk(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let x = type_of(b, cx, 0)?;
    let (axis, head) = (axis_of(b, cx.node, -1, x.rank())?, cx.head(b, 0)?);
    put_back(b, &x, cx.outputs[1], head, axis)
}

pub fn of_sort(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let x = type_of(b, cx, 0)?;
    let (axis, head) = (axis_of(b, cx.node, -1, x.rank())?, cx.head(b, 0)?);
    let ascending = cx.node.params.bool("is_ascend").unwrap_or(true);
    let params = with_axis(axis).with("is_ascend", ascending).with("dtype", DType::I64);
    let order = b.op("argsort", &[cx.input(0)?], params)?;
    put_back(b, &x, order, head, axis)
}

/// A running sum or product with the parameters of another, in its direction or against it.
fn scan(b: &mut Builder<'_>, cx: &GradCtx<'_>, op: &str, x: Value, exclusive: bool, against: bool) -> Result<Value> {
    let reverse = (cx.node.params.flag("reverse")) != against;
    let params = Params::new().with("exclusive", exclusive).with("reverse", reverse);
    let axis = cx.node.value(1).and_then(TensorData::item).map_or(0, |axis| axis.as_i64());
    let axis = b.constant(TensorData::scalar(Scalar::i64(axis)));
    b.op(op, &[x, axis], params)
}

fn is_exclusive(cx: &GradCtx<'_>) -> bool {
    cx.node.params.flag("exclusive")
}

pub fn of_cumsum(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let head = cx.head(b, 0)?;
    Ok(vec![Some(scan(b, cx, "cumsum", head, is_exclusive(cx), true)?)])
}

/// `dx[k] = Σ_i g[i] · y[i] / x[k]` over the products that contain element k. The first zero of a line is the
/// only one with a gradient: that of the products with 1 in its place.
pub fn of_cumprod(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> OperandGradients {
    let stored = type_of(b, cx, 0)?.dtype;
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let (x, head) = (compose::widened(b, x)?, compose::widened(b, head)?);
    let ty = b.ty(x)?;
    let exclusive = is_exclusive(cx);
    let zero =
        b.map_as(&[x], ty.dtype, &ty.dims, |_, a| a[0].eq(&a[0].lit(0.0)).select(&a[0].lit(1.0), &a[0].lit(0.0)))?;
    let before = scan(b, cx, "cumsum", zero, true, false)?;
    let filled = b.map_as(&[x, before], ty.dtype, &ty.dims, |_, a| {
        let first = a[0].eq(&a[0].lit(0.0)) & a[1].eq(&a[1].lit(0.0));
        first.select(&a[0].lit(1.0), &a[0])
    })?;
    let mut sums = vec![];
    for factors in [x, filled] {
        let products = scan(b, cx, "cumprod", factors, exclusive, false)?;
        let terms = b.call("mul", &[head, products])?;
        sums.push(scan(b, cx, "cumsum", terms, exclusive, true)?);
    }
    let part = b.map_as(&[x, before, sums[0], sums[1]], ty.dtype, &ty.dims, |_, a| {
        let none = a[0].lit(0.0);
        let first = a[1].eq(&none).select(&a[3], &none);
        a[0].eq(&none).select(&first, &(&a[2] / &a[0]))
    })?;
    Ok(vec![Some(compose::cast(b, part, stored)?)])
}

/// Reads the gradient where elements were put.
pub fn of_max_unpool(b: &mut Builder<'_>, cx: &GradCtx<'_>, natural: &[u64]) -> OperandGradients {
    let (ty, indices, head) = (type_of(b, cx, 0)?, cx.input(1)?, cx.head(b, 0)?);
    let len: u64 = natural.iter().product();
    let dims = b.dims(head)?;
    let map = vars(natural.len());
    let fill = (dims != natural).then(|| Scalar::zero(ty.dtype));
    let whole = b.view(head, View { map, fill }, natural)?;
    let flat = b.reshaped(whole, &[len, 1])?;
    let places = b.map_as(&[indices], DType::I64, &ty.dims, |_, a| position(&a[0], len))?;
    let places = b.reshaped(places, &[ty.len()])?;
    let taken = b.gathered(flat, places, 0)?;
    let taken = last_written(b, places, len, taken)?;
    Ok(vec![Some(b.reshaped(taken, &ty.dims)?), None])
}
