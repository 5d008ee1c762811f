//! Operators that read and write elements at positions given by tensors.
//!
//! A negative index counts from the end of its axis. What is out of range after that is an error of the run, unless that is not
//! asked for; it is clamped to the axis, so that no memory outside the operands is touched.

use crate::blocks::{COPY_LANES, copy_run, in_blocks, in_short_steps, in_vectors};
use crate::kernel::coordinates;
use crate::owners::{Owners, ScatterColumn, Updates};
use crate::prelude::*;
use crate::rules::{axis_of, no_longer, open_rank_in, open_ranked};

pub fn ops() -> Vec<OpDef> {
    vec![
        gather(),
        gather_elements(),
        gather_nd(),
        scatter_elements(),
        scatter_nd(),
        crate::scatter_sum::scatter_sum(),
        tensor_scatter(),
        reverse_sequence(),
    ]
}

/// Elements that an iteration of the outermost loop of a kernel for processors copies at most, if they are more than one slice.
const MAX_RUN: i64 = 1024;

/// Columns of a result that an iteration of the outermost loop scatters to, some cache lines.
const MAX_COLUMNS: i64 = 256;

fn gather_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let (Some(data), Some(indices)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(0), data.len())?;
    let dims: Vec<Dim> = [&data[..axis], &indices[..], &data[axis + 1..]].concat();
    cx.set_output_dims(0, dims)
}

fn gather() -> OpDef {
    let compute = prim(|cx| Ok(Prim::Gather(Gather { axis: axis_of(cx, cx.input(0)?.rank())? })));
    define("gather", "Slices of `data` along `axis` at the given indices.", compute, shape_rule(gather_rule))
        .operand("data", &[])
        .operand("indices", INDICES)
        .param("axis", 0, "")
        .positions(1)
        .onnx("Gather", 1)
}

/// Axes of indices, and of what they index, as few as stand for all: neighbours are one where they cover the same, but for
/// the axis that is indexed. Returns its place among them, too.
fn merged_axes(indices: &Extents, data: &Extents, axis: usize) -> (Vec<[Extent; 2]>, usize) {
    let (mut merged, mut place): (Vec<[Extent; 2]>, usize) = (vec![], 0);
    for (i, pair) in indices.all().zip(data.all()).map(|(a, b)| [a, b]).enumerate() {
        let whole = pair[0].is_surely(pair[1]);
        match merged.last_mut() {
            Some([a, b]) if whole && i != axis && i != axis + 1 => (*a, *b) = (*a * pair[0], *b * pair[1]),
            _ => merged.push(pair),
        }
        if i == axis {
            place = merged.len() - 1;
        }
    }
    (merged, place)
}

fn gather_elements() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices) = (cx.input(0)?, cx.input(1)?);
        let axis = axis_of(cx, data.rank())?;
        let (axes, axis) = merged_axes(&indices.dims, &data.dims, axis);
        let [covered, whole] = [0, 1].map(|side| axes.iter().map(|pair| pair[side]).collect::<Extents>());
        let spread = |ty: &DenseType, dims: &Extents| DenseType::new(ty.dtype, dims);
        let k = &KernelScope::new("gather_elements");
        let [data, indices] = k.inputs(["data", "indices"], [&spread(data, &whole), &spread(indices, &covered)]);
        let out = k.output("out", &spread(&cx.outputs[0], &covered));
        let element = |at: &[Index]| {
            let mut from = at.to_vec();
            from[axis] = indices.position(at, whole.at(axis));
            out.set(at, data.get(&from));
        };
        let last = axes.len() - 1;
        match cx.grain {
            Grain::Fine => k.parallel(&covered, element),
            Grain::Coarse => {
                let rows = covered.range(..last);
                in_blocks(k, (rows.count(), covered.at(last)), MAX_RUN, |row, first, count| {
                    let row = coordinates(row, &rows);
                    in_short_steps(k, count, |i| element(&[&row[..], &[first.add(i)]].concat()));
                });
            }
        }
        k.prim()
    });
    let infer = shape_rule(|cx| {
        check_elements(cx)?;
        cx.copy_shape(0, 1)
    });
    define("gather_elements", "`out[…, i, …] = data[…, indices[…, i, …], …]` along `axis`.", compute, infer)
        .operand("data", &[])
        .operand("indices", INDICES)
        .param("axis", 0, "")
        .positions(1)
        .gradient(derivative(crate::adjoint::of_gather_elements))
        .onnx("GatherElements", 11)
}

/// Loads the index tuple at `tuple` (a row of `indices`) as coordinates of axes with the given extents.
fn load_tuple(indices: KernelTensor<'_>, tuple: &[Index], extents: &Extents) -> Vec<Index> {
    let position = |(j, n): (usize, Extent)| {
        let at = [tuple, &[Index::constant(j as i64)]].concat();
        indices.position(&at, n)
    };
    extents.all().enumerate().map(position).collect()
}

/// How many coordinates a tuple in the last axis of an operand has: a number in any case.
fn tuple_width(indices: &DenseType) -> usize {
    let last = indices.rank().checked_sub(1);
    last.map_or(0, |axis| indices.dims.at(axis).fixed().max(0) as usize)
}

/// The extents of the axes of operand 0 that tuples in operand 1 index, behind so many common ones.
fn indexed_axes(cx: &NodeCtx<'_>, batch: usize) -> Result<Vec<Extent>, OpError> {
    let (data, indices) = (cx.input(0)?, cx.input(1)?);
    let width = tuple_width(indices);
    match batch + width <= data.rank() {
        true => Ok((batch..batch + width).map(|axis| data.dims.at(axis)).collect()),
        false => Err("operand `indices`: more axes are indexed than there are".into()),
    }
}

fn gather_nd() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices) = (cx.input(0)?, cx.input(1)?);
        let batch = cx.params.int("batch_dims").unwrap_or(0) as usize;
        let width = tuple_width(indices);
        // All tuples of a batch in one axis, all elements of a slice in another.
        let shared = data.dims.range(..batch);
        let (indexed, slice) = (data.dims.range(batch..batch + width), data.dims.range(batch + width..).count());
        let tuples = indices.dims.range(batch..indices.rank() - 1).count();
        let joined = |parts: [&[Extent]; 2]| parts.concat().into_iter().collect::<Extents>();
        let (each_batch, all): (Vec<Extent>, Vec<Extent>) = (shared.all().collect(), indexed.all().collect());
        let from = joined([&[&each_batch[..], &all[..]].concat(), &[slice]]);
        let chosen = DenseType::new(indices.dtype, joined([&each_batch, &[tuples, width.into()]]));
        let to = joined([&each_batch, &[tuples, slice]]);
        let k = &KernelScope::new("gather_nd");
        let [data, indices] = k.inputs(["data", "indices"], [&DenseType::new(data.dtype, &from), &chosen]);
        let result = k.output("out", &DenseType::new(data.dtype(), &to));
        let start = |tuple: &[Index], element: &Index| {
            let found = load_tuple(indices, tuple, &indexed);
            linearize(&[&tuple[..batch], &found, std::slice::from_ref(element)].concat(), &from)
        };
        match cx.grain {
            Grain::Fine => k.parallel(&to, |at| {
                let (element, tuple) = (&at[batch + 1], &at[..=batch]);
                result.set(at, data.get(&start(tuple, element)));
            }),
            Grain::Coarse => {
                let block = (MAX_RUN / slice.example().max(1)).max(1);
                in_blocks(k, (shared.count(), tuples), block, |row, first, count| {
                    let row = coordinates(row, &shared);
                    k.each("i", count, |i| {
                        let tuple = [&row[..], &[first.add(i)]].concat();
                        let begin = linearize(&[&tuple[..], &[Index::default()]].concat(), &to);
                        copy_run(k, [(result, &begin), (data, &start(&tuple, &Index::default()))], slice);
                    });
                });
            }
        }
        k.prim()
    });
    let infer = shape_rule(|cx| {
        let (Some(data), Some(indices)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        let batch = match usize::try_from(cx.params.int("batch_dims").unwrap_or(0)) {
            Ok(batch) if batch <= data.len() => batch,
            _ => return Err(OpError(format!("parameter `batch_dims` is no number of axes of rank {}", data.len()))),
        };
        let Some((Some(width), lead)) = indices.split_last().map(|(w, l)| (w.as_const(), l)) else { return Ok(()) };
        let used = batch.saturating_add(width as usize);
        if used > data.len() || batch > lead.len() {
            return Err(OpError(format!("operand `indices`: {used} axes indexed, `data` has rank {}", data.len())));
        }
        for i in 0..batch {
            cx.unify_dims(data[i], lead[i], &format!("operand `indices`, axis {i}"))?;
        }
        cx.set_output_dims(0, [lead, &data[used..]].concat())
    });
    define("gather_nd", "Slices of `data` at index tuples (the last axis of `indices`).", compute, infer)
        .operand("data", &[])
        .operand("indices", INDICES)
        .param("batch_dims", 0, "Leading axes that `data` and `indices` share.")
        .demand(1, |cx| {
            let batch = cx.params.int("batch_dims").unwrap_or(0).max(0) as usize;
            Ok(Some(Allowed::Positions(indexed_axes(cx, batch)?)))
        })
        .gradient(derivative(crate::adjoint::of_gather_nd))
        .onnx("GatherND", 11)
        .contrib("GatherND")
}

/// How a scattered value joins the one already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    Replace,
    Add,
    Mul,
    Max,
    Min,
}

fn join(cx: &NodeCtx<'_>) -> Result<Join, OpError> {
    let dtype = cx.input(0)?.dtype;
    Ok(match cx.params.str("reduction").unwrap_or("none") {
        "none" => Join::Replace,
        _ if dtype.is_narrow() => return Err(OpError(format!("parameter `reduction`: not defined on {dtype}"))),
        "add" => Join::Add,
        "mul" => Join::Mul,
        "max" => Join::Max,
        "min" => Join::Min,
        other => return Err(OpError(format!("parameter `reduction`: unknown value `{other}`"))),
    })
}

/// `out[at] = join(out[at], value)`.
fn store_joined<'k>(k: &KernelScope, out: KernelTensor<'k>, at: &Index, value: KernelValue<'k>, how: Join) {
    let op = match how {
        Join::Replace => return out.set(at, value),
        Join::Add => ScalarOp::Add,
        Join::Mul => ScalarOp::Mul,
        Join::Max => ScalarOp::Max,
        Join::Min => ScalarOp::Min,
    };
    if out.dtype() == DType::Bool {
        return k.fail("parameter `reduction`: not defined on bool");
    }
    let wide = compute_type(out.dtype());
    let (old, value) = (out.get_as(at, wide), value.cast(wide));
    out.set_cast(at, old.binary(op, value));
}

/// `indices` name positions along `axis` of `data`, and the coordinate itself elsewhere.
fn check_elements(cx: &InferCtx<'_>) -> Result<(), OpError> {
    let Some(data) = open_rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
    let Some(indices) = open_rank_in(cx, 1, data.len()..=data.len())? else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(0), data.len())?;
    let mut pairs = indices.iter().zip(&data).enumerate();
    pairs.try_for_each(|(i, (found, most))| match (i == axis, most.as_extent()) {
        (true, Some(n)) if n > 0 => Ok(()),
        _ => no_longer(cx, 1, i, *found, *most),
    })
}

fn scatter_elements_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    check_elements(cx)?;
    if let Some(indices) = cx.open_dims(1) {
        shaped(cx, 2, &indices)?;
    }
    same(cx, 0, 0)
}

/// Scatters along one of some axes, each given as what is covered by updates and what there is. Updates never leave their
/// coordinates along the other axes: so those before it are independent, and elements behind it are done side by side.
fn scatter_lines<'k>(
    k: &'k KernelScope,
    [data, indices, updates, out]: [KernelTensor<'k>; 4],
    (axes, axis): (&[[Extent; 2]], usize),
    how: Join,
) {
    let [covered, whole] = [0, 1].map(|side| axes.iter().map(|pair| pair[side]).collect::<Extents>());
    let (outer, extent, inner) = (whole.range(..axis), whole.at(axis), whole.range(axis + 1..));
    let side_by_side = inner.count();
    // Columns are divided only where each of them has updates, and a line has more than one task.
    let divided = covered.range(axis + 1..).all().zip(inner.all()).all(|(a, b)| a.is_surely(b));
    let width = if divided { MAX_COLUMNS } else { i64::MAX };
    let one = |lead: &[Index], along: &Index, tail: &[Index]| {
        let at = linearize(&[lead, std::slice::from_ref(along), tail].concat(), &covered);
        let to = indices.position(&at, extent);
        let to = linearize(&[lead, &[to], tail].concat(), &whole);
        store_joined(k, out, &to, updates.get(&at), how);
    };
    let columns = |row: &Index, first: &Index, count: Extent| {
        let lead = coordinates(row, &outer);
        let begin = |along: &Index| row.scale(extent * side_by_side).add(&along.scale(side_by_side)).add(first);
        match count.is_surely(side_by_side) {
            true => out.copy(data, &begin(&Index::default()), extent * side_by_side),
            false => k.each("z", extent, |z| copy_run(k, [(out, &begin(z)), (data, &begin(z))], count)),
        }
        let cut = lead.iter().enumerate().filter(|(i, _)| !covered.at(*i).is_surely_from(whole.at(*i)));
        let inside = cut.map(|(i, at)| k.in_range(at, 0, covered.at(i))).reduce(|all, ok| all & ok);
        k.when_all(inside, || {
            k.each("i", covered.at(axis), |i| match divided && inner.len() == 1 {
                true => k.each("c", count, |c| one(&lead, i, &[first.add(c)])),
                false => k.serial(&covered.range(axis + 1..), |tail| one(&lead, i, tail)),
            });
        });
    };
    match divided && inner.len() == 1 {
        true => {
            in_blocks(k, (outer.count(), side_by_side), width, |row, first, count| columns(row, first, count.into()))
        }
        false => k.parallel_each("row", outer.count(), |row| columns(row, &Index::default(), side_by_side)),
    }
}

fn scatter_elements() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices, updates) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let axis = axis_of(cx, data.rank())?;
        let how = join(cx)?;
        let k = &KernelScope::new("scatter_elements");
        let [data, indices, updates] = k.inputs(["data", "indices", "updates"], [data, indices, updates]);
        let out = k.output("out", &cx.outputs[0]);
        let (extents, covered) = (data.dims(), indices.dims());
        if cx.grain == Grain::Fine {
            let tail = axis + 1;
            let owners = Owners::new(extents.range(..axis), extents.at(axis), extents.range(tail..));
            let here = |column: &ScatterColumn, at: &[Index]| [&column.outer, at, &column.inner].concat();
            let updates = Updates {
                dims: covered.range(axis..tail),
                position: &|column, at| indices.position(&here(column, at), extents.at(axis)),
                store: &|column, at, to| store_joined(k, out, to, updates.get(&here(column, at)), how),
            };
            owners.scatter(k, out, &|at| data.get(at), [covered.range(..axis), covered.range(tail..)], &updates);
            return k.prim();
        }
        let (axes, axis) = merged_axes(&covered, &extents, axis);
        scatter_lines(k, [data, indices, updates, out], (&axes, axis), how);
        k.prim()
    });
    let doc = "`data` with `out[…, indices[…], …] = updates[…]` along `axis`.";
    define("scatter_elements", doc, compute, rule(scatter_elements_rule))
        .group("data", &[])
        .operand("indices", INDICES)
        .group("updates", &[])
        .param("axis", 0, "")
        .param("reduction", "none", "none, add, mul, max or min.")
        .positions(1)
        .gradient(derivative(crate::adjoint::of_scatter_elements))
        .onnx("ScatterElements", 11)
        .onnx("Scatter", 9)
}

/// Whether one of some axes is known to have no elements.
pub fn has_none(axes: &[Dim]) -> bool {
    axes.iter().any(|dim| dim.as_extent().is_some_and(|n| n == 0))
}

fn scatter_nd_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    let Some(data) = open_rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
    let Some(indices) = open_rank_in(cx, 1, 1..=usize::MAX)? else { return Ok(()) };
    let Some((Some(width), tuples)) = indices.split_last().map(|(w, t)| (w.as_const(), t)) else { return Ok(()) };
    no_longer(cx, 1, tuples.len(), Dim::Const(width), Dim::Const(data.len() as u64))?;
    let (indexed, slice) = data.split_at(width as usize);
    if has_none(indexed) && !has_none(tuples) {
        return Err(OpError(format!("{}: an axis without elements is indexed", cx.input_name(1))));
    }
    shaped(cx, 2, &[tuples, slice].concat())
}

fn scatter_nd() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices, updates) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let how = join(cx)?;
        let width = tuple_width(indices);
        let tuples = indices.dims.range(..indices.rank() - 1);
        let k = &KernelScope::new("scatter_nd");
        let [data, indices, updates] = k.inputs(["data", "indices", "updates"], [data, indices, updates]);
        let out = k.output("out", &cx.outputs[0]);
        let (indexed, slice) = (data.dims().range(..width), data.dims().range(width..));
        if cx.grain == Grain::Fine {
            let owners = Owners::new(Extents::default(), indexed.count(), slice.clone());
            let updates = Updates {
                dims: tuples,
                position: &|_, tuple| linearize(&load_tuple(indices, tuple, &indexed), &indexed),
                store: &|column, tuple, to| {
                    store_joined(k, out, to, updates.get(&[tuple, &column.inner].concat()), how);
                },
            };
            owners.scatter(k, out, &|at| data.get(at), [Extents::default(), slice], &updates);
            return k.prim();
        }
        // Tuples may be equal, so all of them are one after the other; columns of slices are independent.
        let (rows, columns, count) = (indexed.count(), slice.count(), tuples.count());
        in_blocks(k, (Extent::ONE, columns), MAX_COLUMNS, |_, first, width| {
            let begin = |row: &Index| row.scale(columns).add(first);
            match columns.known() == Some(width) {
                true => out.copy(data, &Index::default(), rows * columns),
                false => k.each("z", rows, |z| copy_run(k, [(out, &begin(z)), (data, &begin(z))], width.into())),
            }
            k.each("i", count, |i| {
                let to = linearize(&load_tuple(indices, &coordinates(i, &tuples), &indexed), &indexed);
                let (to, from) = (begin(&to), begin(i));
                in_vectors(k, (&Index::default(), &Index::constant(width)), COPY_LANES, |c| {
                    store_joined(k, out, &to.add(c), updates.get(&from.add(c)), how);
                });
            });
        });
        k.prim()
    });
    let doc = "`data` with slices at index tuples replaced by `updates`, in order.";
    define("scatter_nd", doc, compute, rule(scatter_nd_rule))
        .group("data", &[])
        .operand("indices", INDICES)
        .group("updates", &[])
        .param("reduction", "none", "none, add, mul, max or min.")
        .demand(1, |cx| Ok(Some(Allowed::Positions(indexed_axes(cx, 0)?))))
        .gradient(derivative(crate::adjoint::of_scatter_nd))
        .onnx("ScatterND", 11)
}

fn tensor_scatter_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    let Some(cache) = open_rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(-2), cache.len())?;
    if let Some(update) = open_rank_in(cx, 1, cache.len()..=cache.len())? {
        no_longer(cx, 1, axis, update[axis], cache[axis])?;
        let mut expected = cache.clone();
        expected[axis] = update[axis];
        shaped(cx, 1, &expected)?;
    }
    reject_if(axis == 0, || "parameter `axis`: axis 0 is the batch, which is not written along")?;
    shaped(cx, 2, &cache[..1])
}

/// The position that is written `step` behind `start` along an axis of `extent`.
fn written(start: KernelValue<'_>, step: &Index, (extent, circular): (Extent, bool)) -> Index {
    let at = start + step;
    let at = if circular { at % extent } else { at };
    at.position(extent)
}

fn tensor_scatter() -> OpDef {
    let compute = prim(|cx| {
        let (cache, update) = (cx.input(0)?, cx.input(1)?);
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-2), cache.rank())?;
        let circular = cx.params.str("mode") == Some("circular");
        let starts = if cx.has_input(2) { Some(cx.input(2)?) } else { None };
        let k = &KernelScope::new("tensor_scatter");
        let [cache, update] = k.inputs(["past_cache", "update"], [cache, update]);
        let starts = starts.map(|ty| k.input("write_indices", ty));
        let out = k.output("out", &cx.outputs[0]);
        let (extents, dims) = (cache.dims(), update.dims());
        let start = |batch: &Index| starts.map_or(k.int(0), |starts| starts.get_as(batch, DType::I64));
        if cx.grain == Grain::Fine {
            let tail = axis + 1;
            let owners = Owners::new(extents.range(..axis), extents.at(axis), extents.range(tail..));
            let updates = Updates {
                dims: dims.range(axis..tail),
                position: &|column, at| written(start(&column.outer[0]), &at[0], (extents.at(axis), circular)),
                store: &|column, at, to| out.set(to, update.get(&[&column.outer, at, &column.inner].concat())),
            };
            owners.scatter(k, out, &|at| cache.get(at), [dims.range(..axis), dims.range(tail..)], &updates);
            return k.prim();
        }
        let per_batch = extents.range(1..).count();
        let slice = extents.range(axis + 1..).count();
        k.parallel(&extents.range(..1), |batch| {
            out.copy(cache, &batch[0].scale(per_batch), per_batch);
            let start = start(&batch[0]);
            k.serial(&dims.range(1..=axis), |steps| {
                let mut at = [batch, steps].concat();
                let from = linearize(&at, &dims.range(..=axis)).scale(slice);
                at[axis] = written(start, &at[axis], (extents.at(axis), circular));
                let to = linearize(&at, &extents.range(..=axis)).scale(slice);
                copy_run(k, [(out, &to), (update, &from)], slice);
            });
        });
        k.prim()
    });
    let doc = "A cache with `update` written along `axis` from each batch's write index.";
    define("tensor_scatter", doc, compute, rule(tensor_scatter_rule))
        .groups(&["past_cache", "update"], &[])
        .optional("write_indices", TypeRule::OneOf(INDICES))
        .param("axis", -2, "")
        .param("mode", "linear", "linear, or circular: positions wrap around the axis.")
        .demand(2, |cx| {
            let (cache, update) = (cx.input(0)?, cx.input(1)?);
            let axis = normalize_axis(cx.params.int("axis").unwrap_or(-2), cache.rank())?;
            Ok(Some(match cx.params.str("mode") {
                Some("circular") => Allowed::below(cache.dims.at(axis)),
                _ => Allowed::up_to(cache.dims.at(axis) - update.dims.at(axis)),
            }))
        })
        .gradient(derivative(crate::adjoint::of_tensor_scatter))
        .onnx("TensorScatter", 24)
}

fn reverse_sequence() -> OpDef {
    let compute = prim(|cx| {
        let (x, lens) = (cx.input(0)?, cx.input(1)?);
        let batch = normalize_axis(cx.params.int("batch_axis").unwrap_or(1), x.rank())?;
        let time = normalize_axis(cx.params.int("time_axis").unwrap_or(0), x.rank())?;
        let k = &KernelScope::new("reverse_sequence");
        let [input, lens] = k.inputs(["input", "sequence_lens"], [x, lens]);
        let out = k.output("out", &cx.outputs[0]);
        k.parallel(&x.dims, |at| {
            let len = lens.get_as(&at[batch], DType::I64);
            let t = k.position(&at[time]);
            let mirrored = len - 1 - t;
            let source = t.lt(len).select(mirrored, t);
            let mut from = at.to_vec();
            from[time] = source.position(x.dims.at(time));
            out.set(at, input.get(&from));
        });
        k.prim()
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(dims) = cx.open_dims(0) else { return Ok(()) };
        let batch = cx.axis(cx.params.int("batch_axis").unwrap_or(1), dims.len())?;
        let lens = open_ranked(cx, 1, 1)?;
        cx.unify_dims(dims[batch], lens[0], "operand `sequence_lens`, axis 0")
    });
    define("reverse_sequence", "Reverses the first `sequence_lens` steps of every batch.", compute, infer)
        .operand("input", &[])
        .operand("sequence_lens", INTS)
        .param("batch_axis", 1, "")
        .param("time_axis", 0, "")
        .demand(1, |cx| {
            let x = cx.input(0)?;
            let time = normalize_axis(cx.params.int("time_axis").unwrap_or(0), x.rank())?;
            Ok(Some(Allowed::up_to(x.dims.at(time))))
        })
        .gradient(derivative(crate::adjoint::of_reverse_sequence))
        .onnx("ReverseSequence", 10)
}

/// Checks that an output keeps the rank of an operand, every axis but one.
pub fn all_but(
    cx: &mut InferCtx<'_>,
    output: usize,
    dims: &[Dim],
    axis: usize,
    extent: Option<Dim>,
) -> Result<(), OpError> {
    let mut out: Vec<Option<Dim>> = dims.iter().copied().map(Some).collect();
    out[axis] = extent;
    partial(cx, output, &out)
}
