//! Derivatives of operators that read, write or order elements by position.
//!
//! Where positions are written twice, the last write is the one that counts; reads of positions out of range
//! are clamped, and so are their gradients.

use crate::prelude::*;

fn with_axis(axis: usize) -> Params {
    Params::new().with("axis", axis as i64)
}

fn axis_of(g: GraphScope<'_>, cx: &NodeCtx<'_>, default: i64, rank: usize) -> Result<usize> {
    normalize_axis(cx.params.int("axis").unwrap_or(default), rank).or_fail(&g)
}

/// The numbers of the elements of a shape, row-major.
fn numbered<'g>(g: GraphScope<'g>, dims: &Extents) -> Tensor<'g> {
    g.map_with_extents(&[], dims, DType::I64, dims, |s, _, extents| row_major(s, extents))
}

/// `value` where two integer tensors agree, else zero.
fn where_equal<'g>(x: Tensor<'g>, y: Tensor<'g>, value: Tensor<'g>) -> Result<Tensor<'g>> {
    let ty = value.ty()?;
    let chosen = |a: &[Ex]| a[0].eq(&a[1]).select(&a[2], &a[2].lit(0.0));
    Ok(value.graph().map(&[x, y, value], ty.dtype, &ty.dims, |_, a| chosen(a)))
}

/// Elements of an index operand as positions on an axis of extent `n`.
fn position(index: &Ex, n: u64) -> Ex {
    let int = |n: i64| index.builder().constant(Scalar::i64(n));
    let index = index.cast(DType::I64);
    let wrapped = index.lt(&int(0)).select(&(&index + int(n as i64)), &index);
    wrapped.max(&int(0)).min(&int((n as i64 - 1).max(0)))
}

/// Index tuples into `data` (after `batch` shared axes) as numbers of slices, one dimension.
fn slices<'g>(indices: Tensor<'g>, data: &[u64], batch: usize) -> Result<Tensor<'g>> {
    let dims = indices.dims()?;
    let (lead, width) = dims.split_at(dims.len() - 1);
    let columns: Vec<_> = (0..width[0]).map(|j| indices.slice(lead.len(), j, 1).reshape(lead)).collect();
    let at = indices.graph().map(&columns, DType::I64, lead, |s, a| {
        let int = |n: u64| s.constant(Scalar::i64(n as i64));
        let shared: Vec<Ex> = data[..batch].iter().copied().map(int).collect();
        let add = |at: Ex, (index, &n): (&Ex, &u64)| at * int(n) + position(index, n);
        a.iter().zip(&data[batch..]).fold(row_major(s, &shared), add)
    });
    Ok(at.reshape([lead.iter().product()]))
}

/// The slices of `data` that tuples of `indices` name: how many, and the extent of each.
fn sliced(data: &[u64], indexed: usize) -> [u64; 2] {
    [data[..indexed].iter().product(), data[indexed..].iter().product()]
}

pub fn of_gather_elements<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let data = g.operand(0).ty()?;
    let axis = axis_of(g, cx.node, 0, data.rank())?;
    let zeros = g.filled(&data, 0.0);
    Ok(vec![Some(put_back(zeros, g.operand(1), g.head(cx, 0), axis)), None])
}

pub fn of_gather_nd<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (data, indices) = (g.operand(0).dims()?, g.operand(1));
    let batch = cx.node.params.int("batch_dims").unwrap_or(0) as usize;
    let width = *indices.dims()?.last().unwrap_or(&0) as usize;
    let [count, size] = sliced(&data, batch + width);
    let rows = slices(indices, &data, batch)?;
    let head = g.head(cx, 0).reshape([rows.dims()?[0], size]);
    let sums = g.op("scatter_sum", &[head, rows, g.i64s(&[count as i64])], with_axis(0));
    Ok(vec![Some(sums.reshape(&data)), None])
}

fn unsupported(g: GraphScope<'_>, reduction: &str) -> Diagnostic {
    g.fail(format!("no gradient for parameter `reduction` = {reduction}, only for none and add"))
}

/// The elements of `values` that were the last to be written to their place along an axis of a tensor of extents
/// `dims`; the others zero.
fn last_along<'g>(dims: &[u64], places: Tensor<'g>, axis: usize, values: Tensor<'g>) -> Result<Tensor<'g>> {
    let g = places.graph();
    let own = numbered(g, &values.dims()?);
    let nobody = g.filled(&DenseType::new(DType::I64, dims), -1.0);
    let last = g.op("scatter_elements", &[nobody, places, own], with_axis(axis));
    where_equal(g.op("gather_elements", &[last, places], with_axis(axis)), own, values)
}

pub fn of_scatter_elements<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (data, indices, head) = (g.operand(0).dims()?, g.operand(1), g.head(cx, 0));
    let axis = axis_of(g, cx.node, 0, data.len())?;
    let taken = g.op("gather_elements", &[head, indices], with_axis(axis));
    match cx.node.params.str("reduction").unwrap_or("none") {
        "add" => Ok(vec![Some(head), None, Some(taken)]),
        "none" => {
            let zeros = g.filled(&g.operand(2).ty()?, 0.0);
            let kept = g.op("scatter_elements", &[head, indices, zeros], with_axis(axis));
            Ok(vec![Some(kept), None, Some(last_along(&data, indices, axis, taken)?)])
        }
        other => Err(unsupported(g, other)),
    }
}

pub fn of_scatter_nd<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (data, indices, head) = (g.operand(0).dims()?, g.operand(1), g.head(cx, 0));
    let updates = g.operand(2).ty()?;
    let width = *indices.dims()?.last().unwrap_or(&0) as usize;
    let [count, size] = sliced(&data, width);
    let rows = slices(indices, &data, 0)?;
    let taken = head.reshape([count, size]).gather(rows, 0);
    match cx.node.params.str("reduction").unwrap_or("none") {
        "add" => Ok(vec![Some(head), None, Some(taken.reshape(&updates.dims))]),
        "none" => {
            let kept = head.call("scatter_nd", &[indices, g.filled(&updates, 0.0)]);
            Ok(vec![Some(kept), None, Some(last_written(rows, count, taken)?.reshape(&updates.dims))])
        }
        other => Err(unsupported(g, other)),
    }
}

/// The rows of `values` ([n, size]) that were the last to be written to their place, of `count`; the others zero.
fn last_written<'g>(rows: Tensor<'g>, count: u64, values: Tensor<'g>) -> Result<Tensor<'g>> {
    let (g, n) = (rows.graph(), rows.ty()?.len());
    let own = numbered(g, &Extents::from([n]));
    let nobody = g.filled(&DenseType::new(DType::I64, [count]), -1.0);
    let last = g.op("scatter_elements", &[nobody, rows, own], with_axis(0)).gather(rows, 0);
    where_equal(last.reshape([n, 1]), own.reshape([n, 1]), values)
}

pub fn of_tensor_scatter<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (cache, update, head) = (g.operand(0).dims()?, g.operand(1).ty()?, g.head(cx, 0));
    let axis = axis_of(g, cx.node, -2, cache.len())?;
    let (starts, zeros) = (g.maybe(2), g.filled(&update, 0.0));
    let kept = g.op_multi("tensor_scatter", &[Some(head), Some(zeros), starts], cx.node.params.clone(), 1)[0];
    let lead: Vec<u64> = (0..update.rank()).map(|i| if i == 0 { update.dims[0] } else { 1 }).collect();
    let starts: Vec<_> = starts.map(|starts| starts.reshape(&lead)).into_iter().collect();
    let circular = cx.node.params.str("mode") == Some("circular");
    let places = g.map(&starts, DType::I64, &update.dims, |s, a| {
        let step = s.coord(axis);
        let at = a.first().map_or(step.clone(), |start| start.cast(DType::I64) + step);
        if circular { at % s.constant(Scalar::i64(cache[axis] as i64)) } else { at }
    });
    let taken = g.op("gather_elements", &[head, places], with_axis(axis));
    // Steps past the end were written over each other.
    Ok(vec![Some(kept), Some(last_along(&cache, places, axis, taken)?), None])
}

pub fn of_reverse_sequence<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    Ok(vec![Some(g.op("reverse_sequence", &[g.head(cx, 0), g.operand(1)], cx.node.params.clone())), None])
}

/// Of results that are elements of the operand along an axis, at `positions`; `zeros` has its type.
fn put_back<'g>(zeros: Tensor<'g>, positions: Tensor<'g>, head: Tensor<'g>, axis: usize) -> Tensor<'g> {
    zeros.graph().op("scatter_elements", &[zeros, positions, head], with_axis(axis).with("reduction", "add"))
}

pub fn of_topk<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (x, head) = (g.operand(0).ty()?, g.head(cx, 0));
    let axis = axis_of(g, cx.node, -1, x.rank())?;
    Ok(vec![Some(put_back(g.filled(&x, 0.0), g.value(cx.outputs[1]), head, axis))])
}

pub fn of_sort<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let ty = x.ty()?;
    let axis = axis_of(g, cx.node, -1, ty.rank())?;
    let ascending = cx.node.params.bool("is_ascend").unwrap_or(true);
    let order = g.op("argsort", &[x], with_axis(axis).with("is_ascend", ascending).with("dtype", DType::I64));
    Ok(vec![Some(put_back(g.filled(&ty, 0.0), order, head, axis))])
}

/// A running sum or product with the parameters of another, in its direction or against it.
fn scan<'g>(cx: &GradCtx<'_>, op: &str, x: Tensor<'g>, exclusive: bool, against: bool) -> Tensor<'g> {
    let reverse = (cx.node.params.flag("reverse")) != against;
    let params = Params::new().with("exclusive", exclusive).with("reverse", reverse);
    let axis = cx.node.value(1).and_then(TensorData::item).map_or(0, |axis| axis.as_i64());
    let g = x.graph();
    g.op(op, &[x, g.scalar(Scalar::i64(axis))], params)
}

fn is_exclusive(cx: &GradCtx<'_>) -> bool {
    cx.node.params.flag("exclusive")
}

pub fn of_cumsum<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    Ok(vec![Some(scan(cx, "cumsum", g.head(cx, 0), is_exclusive(cx), true))])
}

/// `dx[k] = Σ_i g[i] · y[i] / x[k]` over the products that contain element k. The first zero of a line is the
/// only one with a gradient: that of the products with 1 in its place.
pub fn of_cumprod<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let stored = g.operand(0).ty()?.dtype;
    let (x, head) = (g.operand(0).widened(), g.head(cx, 0).widened());
    let exclusive = is_exclusive(cx);
    let zero = x.map(|x| x.eq(&x.lit(0.0)).select(&x.lit(1.0), &x.lit(0.0)));
    let before = scan(cx, "cumsum", zero, true, false);
    let filled = x.map_with(&[before], |_, a| {
        let first = a[0].eq(&a[0].lit(0.0)) & a[1].eq(&a[1].lit(0.0));
        first.select(&a[0].lit(1.0), &a[0])
    });
    let sums = [x, filled].map(|factors| {
        let terms = head * scan(cx, "cumprod", factors, exclusive, false);
        scan(cx, "cumsum", terms, exclusive, true)
    });
    let part = x.map_with(&[before, sums[0], sums[1]], |_, a| {
        let none = a[0].lit(0.0);
        let first = a[1].eq(&none).select(&a[3], &none);
        a[0].eq(&none).select(&first, &(&a[2] / &a[0]))
    });
    Ok(vec![Some(part.cast(stored))])
}

/// Reads the gradient where elements were put.
pub fn of_max_unpool<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>, natural: &[u64]) -> Gradients<'g> {
    let (ty, head) = (g.operand(0).ty()?, g.head(cx, 0));
    let len: u64 = natural.iter().product();
    let fill = (head.dims()? != natural).then(|| Scalar::zero(ty.dtype));
    let flat = head.view(vars(natural.len()), fill, natural).reshape([len, 1]);
    let places = g.map(&[g.operand(1)], DType::I64, &ty.dims, |_, a| position(&a[0], len));
    let places = places.reshape([ty.len()]);
    let taken = last_written(places, len, flat.gather(places, 0))?;
    Ok(vec![Some(taken.reshape(&ty.dims)), None])
}
