//! Operators that read and write elements at positions given by tensors.
//!
//! A negative index counts from the end of its axis; an index that is out of range after that is
//! clamped to the axis, so that no memory outside the operands is touched.

use tensorc_ir::kir::{Buf, KernelBuilder, LoopKind, Operand};
use tensorc_ir::op::Grain;
use tensorc_ir::prim::Gather;
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::nest::{Scalars, buffers, flat, int, kernel_prim, parallel, serial};
use crate::owners::{Owners, ScatterColumn, Updates, copied};
use crate::prelude::*;
use crate::rules::{axis_of, no_longer};

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

fn gather_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    let (Some(data), Some(indices)) = (cx.input_dims(0), cx.input_dims(1)) else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(0), data.len())?;
    let dims: Vec<Dim> = [&data[..axis], &indices[..], &data[axis + 1..]].concat();
    cx.set_output_dims(0, dims)
}

fn gather() -> OpDef {
    let compute = prim(|cx| Ok(Prim::Gather(Gather { axis: axis_of(cx, cx.input(0)?.rank())? })));
    define("gather", "Slices of `data` along `axis` at the given indices.", compute, rule(gather_rule))
        .operand("data", &[])
        .operand("indices", INDICES)
        .param("axis", ParamValue::Int(0), "")
        .onnx("Gather", 1)
}

fn gather_elements() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices) = (cx.input(0)?, cx.input(1)?);
        let axis = axis_of(cx, data.rank())?;
        let mut k = KernelBuilder::new("gather_elements");
        let bufs = buffers(&mut k, &[("data", data), ("indices", indices)], &[("out", &cx.outputs[0])]);
        parallel(&mut k, &indices.dims, |k, at| {
            let here = flat(at, &indices.dims);
            let index = k.load(bufs[1], here.clone());
            let mut from = at.to_vec();
            from[axis] = k.position(index, data.dims[axis]);
            let value = k.load(bufs[0], flat(&from, &data.dims));
            k.store(bufs[2], here, value);
            Ok(())
        })?;
        Ok(kernel_prim(k))
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        check_elements(cx)?;
        let shape = cx.input(1).shape;
        cx.set_output_shape(0, shape)
    });
    define("gather_elements", "`out[…, i, …] = data[…, indices[…, i, …], …]` along `axis`.", compute, infer)
        .operand("data", &[])
        .operand("indices", INDICES)
        .param("axis", ParamValue::Int(0), "")
        .gradient(crate::adjoint::of_gather_elements)
        .onnx("GatherElements", 11)
}

/// Loads the index tuple at `tuple` (a row of `indices`) as coordinates of the axes `batch..`.
fn load_tuple(
    k: &mut KernelBuilder,
    indices: Buf,
    ty: &DenseType,
    tuple: &[Index],
    batch: usize,
    data: &DenseType,
) -> Vec<Index> {
    let width = ty.dims[ty.rank() - 1];
    (0..width)
        .map(|j| {
            let at = [tuple, &[Index::constant(j as i64)]].concat();
            let value = k.load(indices, flat(&at, &ty.dims));
            k.position(value, data.dims[batch + j as usize])
        })
        .collect()
}

fn gather_nd() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices) = (cx.input(0)?, cx.input(1)?);
        let batch = cx.params.int("batch_dims").unwrap_or(0) as usize;
        let tuple_rank = indices.rank() - 1;
        let out = &cx.outputs[0];
        let mut k = KernelBuilder::new("gather_nd");
        let bufs = buffers(&mut k, &[("data", data), ("indices", indices)], &[("out", out)]);
        parallel(&mut k, &out.dims, |k, at| {
            let tuple = load_tuple(k, bufs[1], indices, &at[..tuple_rank], batch, data);
            let from = [&at[..batch], &tuple, &at[tuple_rank..]].concat();
            let value = k.load(bufs[0], flat(&from, &data.dims));
            k.store(bufs[2], flat(at, &out.dims), value);
            Ok(())
        })?;
        Ok(kernel_prim(k))
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        let (Some(data), Some(indices)) = (cx.input_dims(0), cx.input_dims(1)) else { return Ok(()) };
        let batch = cx.params.int("batch_dims").unwrap_or(0).max(0) as usize;
        let Some((Dim::Const(width), lead)) = indices.split_last().map(|(w, l)| (*w, l)) else { return Ok(()) };
        let used = batch + width as usize;
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
        .param("batch_dims", ParamValue::Int(0), "Leading axes that `data` and `indices` share.")
        .gradient(crate::adjoint::of_gather_nd)
        .onnx("GatherND", 11)
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
    Ok(match cx.params.str("reduction").unwrap_or("none") {
        "none" => Join::Replace,
        "add" => Join::Add,
        "mul" => Join::Mul,
        "max" => Join::Max,
        "min" => Join::Min,
        other => return Err(OpError(format!("parameter `reduction`: unknown value `{other}`"))),
    })
}

/// `buf[at] = join(buf[at], value)`.
fn store_joined(k: &mut KernelBuilder, buf: Buf, at: Index, value: Operand, how: Join) -> Result<(), OpError> {
    let op = match how {
        Join::Replace => {
            k.store(buf, at, value);
            return Ok(());
        }
        Join::Add => ScalarOp::Add,
        Join::Mul => ScalarOp::Mul,
        Join::Max => ScalarOp::Max,
        Join::Min => ScalarOp::Min,
    };
    let dtype = k.dtype(value);
    if dtype == DType::Bool {
        return Err("parameter `reduction`: not defined on bool".into());
    }
    let wide = compute_type(dtype);
    let old = k.load(buf, at.clone());
    let (old, value) = (k.cast(old, wide), k.cast(value, wide));
    let new = k.bin(op, old, value);
    let new = k.cast(new, dtype);
    k.store(buf, at, new);
    Ok(())
}

fn copy(k: &mut KernelBuilder, from: Buf, to: Buf, start: &Index, len: u64) -> Result<(), OpError> {
    k.for_range("c", len, LoopKind::Serial, |k, i| {
        let at = start.add(&i);
        let value = k.load(from, at.clone());
        k.store(to, at, value);
        Ok(())
    })
}

/// `indices` name positions along `axis` of `data`, and the coordinate itself elsewhere.
fn check_elements(cx: &InferCtx<'_>) -> Result<(), OpError> {
    let Some(data) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
    let Some(indices) = rank_in(cx, 1, data.len()..=data.len())? else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(0), data.len())?;
    let mut pairs = indices.iter().zip(&data).enumerate();
    pairs.try_for_each(|(i, (found, most))| match (i == axis, *most) {
        (true, Dim::Const(n)) if n > 0 => Ok(()),
        _ => no_longer(cx, 1, i, *found, *most),
    })
}

fn scatter_elements_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    check_elements(cx)?;
    if let Some(indices) = cx.input_dims(1) {
        shaped(cx, 2, &indices)?;
    }
    same(cx, 0, 0)
}

fn scatter_elements() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices, updates) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let axis = axis_of(cx, data.rank())?;
        let how = join(cx)?;
        let mut k = KernelBuilder::new("scatter_elements");
        let bufs =
            buffers(&mut k, &[("data", data), ("indices", indices), ("updates", updates)], &[("out", &cx.outputs[0])]);
        if cx.grain == Grain::Fine {
            let (dims, tail) = (&indices.dims, axis + 1);
            let owners = Owners::new(&data.dims[..axis], data.dims[axis], &data.dims[tail..]);
            let here = |column: &ScatterColumn, at: &[Index]| flat(&[&column.outer, at, &column.inner].concat(), dims);
            let updates = Updates {
                dims: &dims[axis..tail],
                position: &|k, column, at| {
                    let index = k.load(bufs[1], here(column, at));
                    k.position(index, data.dims[axis])
                },
                store: &|k, column, at, to| {
                    let value = k.load(bufs[2], here(column, at));
                    store_joined(k, bufs[3], to, value, how)
                },
            };
            owners.scatter(&mut k, bufs[3], &copied(bufs[0]), [&dims[..axis], &dims[tail..]], &updates)?;
            return Ok(kernel_prim(k));
        }
        // Updates never leave the coordinates before `axis`: those are independent.
        let (outer, inner) = (&data.dims[..axis], data.dims[axis..].iter().product::<u64>());
        parallel(&mut k, outer, |k, lead| {
            copy(k, bufs[0], bufs[3], &flat(lead, outer).scale(inner as i64), inner)?;
            let mut update = |k: &mut KernelBuilder, tail: &[Index]| {
                let at = [lead, tail].concat();
                let here = flat(&at, &indices.dims);
                let index = k.load(bufs[1], here.clone());
                let value = k.load(bufs[2], here);
                let mut to = at;
                to[axis] = k.position(index, data.dims[axis]);
                store_joined(k, bufs[3], flat(&to, &data.dims), value, how)
            };
            let mut inside = None;
            for (i, at) in lead.iter().enumerate().filter(|(i, _)| indices.dims[*i] < data.dims[*i]) {
                let ok = k.in_range(at, 0, indices.dims[i] as i64);
                inside = Some(inside.map_or(ok, |all| k.bin(ScalarOp::And, all, ok)));
            }
            match inside {
                Some(cond) => k.if_then(cond, |k| serial(k, &indices.dims[axis..], &mut update)),
                None => serial(k, &indices.dims[axis..], &mut update),
            }
        })?;
        Ok(kernel_prim(k))
    });
    define(
        "scatter_elements",
        "`data` with `out[…, indices[…], …] = updates[…]` along `axis`.",
        compute,
        rule(scatter_elements_rule),
    )
    .group("data", &[])
    .operand("indices", INDICES)
    .group("updates", &[])
    .param("axis", ParamValue::Int(0), "")
    .param("reduction", ParamValue::Str("none".into()), "none, add, mul, max or min.")
    .gradient(crate::adjoint::of_scatter_elements)
    .onnx("ScatterElements", 11)
    .onnx("Scatter", 9)
}

fn scatter_nd_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    let Some(data) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
    let Some(indices) = rank_in(cx, 1, 1..=usize::MAX)? else { return Ok(()) };
    let Some((Dim::Const(width), tuples)) = indices.split_last() else { return Ok(()) };
    no_longer(cx, 1, tuples.len(), Dim::Const(*width), Dim::Const(data.len() as u64))?;
    let (indexed, slice) = data.split_at(*width as usize);
    if indexed.contains(&Dim::Const(0)) && !tuples.contains(&Dim::Const(0)) {
        return Err(OpError(format!("{}: an axis without elements is indexed", cx.input_name(1))));
    }
    shaped(cx, 2, &[tuples, slice].concat())
}

fn scatter_nd() -> OpDef {
    let compute = prim(|cx| {
        let (data, indices, updates) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let how = join(cx)?;
        let width = indices.dims[indices.rank() - 1] as usize;
        let tuples = &indices.dims[..indices.rank() - 1];
        let mut k = KernelBuilder::new("scatter_nd");
        let bufs =
            buffers(&mut k, &[("data", data), ("indices", indices), ("updates", updates)], &[("out", &cx.outputs[0])]);
        if cx.grain == Grain::Fine {
            let ((indexed, slice), update_dims) = (data.dims.split_at(width), &updates.dims);
            let owners = Owners::new(&[], indexed.iter().product(), slice);
            let updates = Updates {
                dims: tuples,
                position: &|k, _, tuple| flat(&load_tuple(k, bufs[1], indices, tuple, 0, data), indexed),
                store: &|k, column, tuple, to| {
                    let value = k.load(bufs[2], flat(&[tuple, &column.inner].concat(), update_dims));
                    store_joined(k, bufs[3], to, value, how)
                },
            };
            owners.scatter(&mut k, bufs[3], &copied(bufs[0]), [&[], slice], &updates)?;
            return Ok(kernel_prim(k));
        }
        copy(&mut k, bufs[0], bufs[3], &Index::default(), data.len())?;
        serial(&mut k, tuples, &mut |k, tuple| {
            let to = load_tuple(k, bufs[1], indices, tuple, 0, data);
            serial(k, &data.dims[width..], &mut |k, tail| {
                let from = [tuple, tail].concat();
                let value = k.load(bufs[2], flat(&from, &updates.dims));
                let at = [&to, tail].concat();
                store_joined(k, bufs[3], flat(&at, &data.dims), value, how)
            })
        })?;
        Ok(kernel_prim(k))
    });
    define(
        "scatter_nd",
        "`data` with slices at index tuples replaced by `updates`, in order.",
        compute,
        rule(scatter_nd_rule),
    )
    .group("data", &[])
    .operand("indices", INDICES)
    .group("updates", &[])
    .param("reduction", ParamValue::Str("none".into()), "none, add, mul, max or min.")
    .gradient(crate::adjoint::of_scatter_nd)
    .onnx("ScatterND", 11)
}

fn tensor_scatter_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    let Some(cache) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
    let axis = cx.axis(cx.params.int("axis").unwrap_or(-2), cache.len())?;
    if let Some(update) = rank_in(cx, 1, cache.len()..=cache.len())? {
        no_longer(cx, 1, axis, update[axis], cache[axis])?;
        let mut expected = cache.clone();
        expected[axis] = update[axis];
        shaped(cx, 1, &expected)?;
    }
    if axis == 0 {
        return Err("parameter `axis`: axis 0 is the batch, which is not written along".into());
    }
    shaped(cx, 2, &cache[..1])
}

/// The position that is written `step` behind `start` along an axis of `extent`.
fn written(k: &mut KernelBuilder, start: Operand, step: &Index, (extent, circular): (u64, bool)) -> Index {
    let step = k.index_value(step.clone());
    let mut at = k.bin(ScalarOp::Add, start, step);
    if circular {
        at = k.bin(ScalarOp::Rem, at, int(extent as i64));
    }
    k.position(at, extent)
}

fn tensor_scatter() -> OpDef {
    let compute = prim(|cx| {
        let (cache, update) = (cx.input(0)?, cx.input(1)?);
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-2), cache.rank())?;
        let circular = cx.params.str("mode") == Some("circular");
        let starts = if cx.has_input(2) { Some(cx.input(2)?) } else { None };
        let mut inputs = vec![("past_cache", cache), ("update", update)];
        inputs.extend(starts.map(|s| ("write_indices", s)));
        let mut k = KernelBuilder::new("tensor_scatter");
        let bufs = buffers(&mut k, &inputs, &[("out", &cx.outputs[0])]);
        let out = bufs[inputs.len()];
        if cx.grain == Grain::Fine {
            let (dims, tail) = (&update.dims, axis + 1);
            let owners = Owners::new(&cache.dims[..axis], cache.dims[axis], &cache.dims[tail..]);
            let updates = Updates {
                dims: &dims[axis..tail],
                position: &|k, column, at| {
                    let start = starts.map_or(int(0), |_| k.load_i64(bufs[2], column.outer[0].clone()));
                    written(k, start, &at[0], (cache.dims[axis], circular))
                },
                store: &|k, column, at, to| {
                    let value = k.load(bufs[1], flat(&[&column.outer, at, &column.inner].concat(), dims));
                    k.store(out, to, value);
                    Ok(())
                },
            };
            owners.scatter(&mut k, out, &copied(bufs[0]), [&dims[..axis], &dims[tail..]], &updates)?;
            return Ok(kernel_prim(k));
        }
        let per_batch = cache.dims[1..].iter().product::<u64>();
        parallel(&mut k, &cache.dims[..1], |k, batch| {
            copy(k, bufs[0], out, &batch[0].scale(per_batch as i64), per_batch)?;
            let start = match starts {
                Some(_) => k.load_i64(bufs[2], batch[0].clone()),
                None => int(0),
            };
            serial(k, &update.dims[1..], &mut |k, tail| {
                let from = [batch, tail].concat();
                let value = k.load(bufs[1], flat(&from, &update.dims));
                let mut to = from;
                to[axis] = written(k, start, &to[axis], (cache.dims[axis], circular));
                k.store(out, flat(&to, &cache.dims), value);
                Ok(())
            })
        })?;
        Ok(kernel_prim(k))
    });
    define(
        "tensor_scatter",
        "A cache with `update` written along `axis` from each batch's write index.",
        compute,
        rule(tensor_scatter_rule),
    )
    .group("past_cache", &[])
    .group("update", &[])
    .optional("write_indices", TypeRule::OneOf(INDICES))
    .param("axis", ParamValue::Int(-2), "")
    .param("mode", ParamValue::Str("linear".into()), "linear, or circular: positions wrap around the axis.")
    .gradient(crate::adjoint::of_tensor_scatter)
    .onnx("TensorScatter", 24)
}

fn reverse_sequence() -> OpDef {
    let compute = prim(|cx| {
        let (x, lens) = (cx.input(0)?, cx.input(1)?);
        let batch = normalize_axis(cx.params.int("batch_axis").unwrap_or(1), x.rank())?;
        let time = normalize_axis(cx.params.int("time_axis").unwrap_or(0), x.rank())?;
        let mut k = KernelBuilder::new("reverse_sequence");
        let bufs = buffers(&mut k, &[("input", x), ("sequence_lens", lens)], &[("out", &cx.outputs[0])]);
        parallel(&mut k, &x.dims, |k, at| {
            let len = k.load_i64(bufs[1], at[batch].clone());
            let t = k.index_value(at[time].clone());
            let last = k.bin(ScalarOp::Sub, len, int(1));
            let mirrored = k.bin(ScalarOp::Sub, last, t);
            let inside = k.cmp(CmpOp::Lt, t, len);
            let source = k.select(inside, mirrored, t);
            let mut from = at.to_vec();
            from[time] = k.position(source, x.dims[time]);
            let value = k.load(bufs[0], flat(&from, &x.dims));
            k.store(bufs[2], flat(at, &x.dims), value);
            Ok(())
        })?;
        Ok(kernel_prim(k))
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(dims) = cx.input_dims(0) else { return Ok(()) };
        let batch = cx.axis(cx.params.int("batch_axis").unwrap_or(1), dims.len())?;
        let lens = ranked(cx, 1, 1)?;
        cx.unify_dims(dims[batch], lens[0], "operand `sequence_lens`, axis 0")
    });
    define("reverse_sequence", "Reverses the first `sequence_lens` steps of every batch.", compute, infer)
        .operand("input", &[])
        .operand("sequence_lens", INTS)
        .param("batch_axis", ParamValue::Int(1), "")
        .param("time_axis", ParamValue::Int(0), "")
        .gradient(crate::adjoint::of_reverse_sequence)
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
