//! Ordering: top-k and sorting along an axis.

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::index::all_but;
use crate::nest::{Scalars, buffers, flat, int, parallel};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![topk(), sort(), argsort()]
}

/// Which results a ranking kernel writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RankResults {
    Both,
    Values,
    Indices,
}

/// Whether `a` comes before `b`: larger (or smaller) first, NaN before everything in a descending
/// and after everything in an ascending order.
fn before(k: &mut KernelBuilder, a: Operand, b: Operand, largest: bool) -> Operand {
    let wide = compute_type(k.dtype(a));
    let wide = if wide == DType::Bool { DType::U8 } else { wide };
    let (a, b) = (k.cast(a, wide), k.cast(b, wide));
    let strict = k.cmp(if largest { CmpOp::Gt } else { CmpOp::Lt }, a, b);
    if !wide.is_float() {
        return strict;
    }
    let (a_nan, b_nan) = (k.cmp(CmpOp::Ne, a, a), k.cmp(CmpOp::Ne, b, b));
    let (first, second) = if largest { (a_nan, b_nan) } else { (b_nan, a_nan) };
    let other = k.op(ScalarOp::Not, &[second]);
    let by_nan = k.bin(ScalarOp::And, first, other);
    k.bin(ScalarOp::Or, strict, by_nan)
}

/// The position within one line: `line[axis] = at`.
fn on_line(line: &[Index], axis: usize, at: Index, dims: &[u64]) -> Index {
    let mut coords = line.to_vec();
    coords.insert(axis, at);
    flat(&coords, dims)
}

/// Sorts a permutation by merging bottom-up: `width` doubles until it covers the line.
///
/// `ids` and `spare` are where two strips of `n` positions begin in `buf`; the first holds the
/// order on entry and exit. The merge is stable, so equal elements keep ascending positions.
fn merge_sort(
    k: &mut KernelBuilder,
    n: u64,
    buf: Buf,
    (ids, spare): (Index, Index),
    element: &dyn Fn(&mut KernelBuilder, Operand) -> Operand,
    largest: bool,
) -> Result<(), OpError> {
    let last = Index::constant(n as i64 - 1);
    let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
    let bounded = |i: Index| i.maximum(&Index::default(), &free).minimum(&last, &free);
    let heads = k.alloc("heads", DType::I64, 2, MemorySpace::Stack);
    let (mut width, mut from, mut to) = (1, ids.clone(), spare);
    while width < n {
        k.for_loop(
            "run",
            (Index::default(), Index::constant(n as i64), 2 * width as i64),
            LoopKind::Serial,
            |k, run| {
                let end = |by: u64| run.offset((by * width) as i64).minimum(&Index::constant(n as i64), &free);
                let (mid, stop) = (k.index_value(end(1)), k.index_value(end(2)));
                let start = k.index_value(run.clone());
                k.store(heads, Index::constant(0), start);
                k.store(heads, Index::constant(1), mid);
                k.for_loop("o", (run.clone(), end(2), 1), LoopKind::Serial, |k, o| {
                    let (i, j) = (k.load(heads, Index::constant(0)), k.load(heads, Index::constant(1)));
                    let (at_i, at_j) = (bounded(k.as_index(i)), bounded(k.as_index(j)));
                    let (left, right) = (k.load(buf, from.add(&at_i)), k.load(buf, from.add(&at_j)));
                    let (a, b) = (element(k, left), element(k, right));
                    let right_first = before(k, b, a, largest);
                    let left_done = k.cmp(CmpOp::Ge, i, mid);
                    let right_left = k.cmp(CmpOp::Lt, j, stop);
                    let wins = k.bin(ScalarOp::Or, left_done, right_first);
                    let take_right = k.bin(ScalarOp::And, wins, right_left);
                    let chosen = k.select(take_right, right, left);
                    k.store(buf, to.add(&o), chosen);
                    let (next_i, next_j) = (k.bin(ScalarOp::Add, i, int(1)), k.bin(ScalarOp::Add, j, int(1)));
                    let (i, j) = (k.select(take_right, i, next_i), k.select(take_right, next_j, j));
                    k.store(heads, Index::constant(0), i);
                    k.store(heads, Index::constant(1), j);
                    Ok::<(), OpError>(())
                })
            },
        )?;
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    if from != ids {
        k.for_range("c", n, LoopKind::Serial, |k, i| {
            let id = k.load(buf, from.add(&i));
            k.store(buf, ids.add(&i), id);
            Ok::<(), OpError>(())
        })?;
    }
    Ok(())
}

/// Keeps the best `count` of `n` positions in `ids`, by insertion into a sorted prefix.
fn select_best(
    k: &mut KernelBuilder,
    (n, count): (u64, u64),
    ids: Buf,
    element: &dyn Fn(&mut KernelBuilder, Operand) -> Operand,
    largest: bool,
) -> Result<(), OpError> {
    let slot = k.alloc("slot", DType::I64, 1, MemorySpace::Stack);
    k.for_range("i", n, LoopKind::Serial, |k, i| {
        let id = k.index_value(i.clone());
        let value = element(k, id);
        k.store(slot, Index::default(), id);
        // The candidate sinks until it meets an element it does not precede; what it displaces
        // moves one place down, and out of the prefix at its end.
        k.for_range("j", count, LoopKind::Serial, |k, back| {
            let at = Index::constant(count as i64 - 1).sub(&back);
            let place = k.index_value(at.clone());
            let filled = k.cmp(CmpOp::Lt, place, id);
            let first = k.cmp(CmpOp::Eq, place, id);
            k.if_then(first, |k| {
                k.store(ids, at.clone(), id);
                Ok::<(), OpError>(())
            })?;
            k.if_then(filled, |k| {
                let old = k.load(ids, at.clone());
                let held = element(k, old);
                let wins = before(k, value, held, largest);
                k.if_then(wins, |k| {
                    let next = k.index_value(at.offset(1));
                    let room = k.cmp(CmpOp::Lt, next, int(count as i64));
                    k.if_then(room, |k| {
                        let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
                        let to = at.offset(1).minimum(&Index::constant(count as i64 - 1), &free);
                        k.store(ids, to, old);
                        Ok::<(), OpError>(())
                    })?;
                    k.store(ids, at.clone(), id);
                    Ok(())
                })
            })
        })
    })
}

/// Above this many wanted elements a line is sorted as a whole instead of by insertion.
const MAX_INSERTION_ELEMENTS: u64 = 16;

/// The first `count` elements of every line of `x` along `axis` in order.
fn ranking(b: &mut Builder<'_>, cx: &NodeCtx<'_>, x: Value, largest: bool, wanted: RankResults) -> Result<Vec<Value>> {
    let ty = b.ty(x)?;
    let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), ty.rank()).or_fail(b)?;
    let count = cx.outputs[0].dims[axis];
    let mut types = cx.outputs.to_vec();
    if count > MAX_INSERTION_ELEMENTS {
        let lines = ty.len() / ty.dims[axis].max(1);
        types.push(DenseType::new(DType::I64, &[lines, 2, ty.dims[axis]]));
    }
    let kernel = ranking_kernel(&ty, &types, axis, largest, wanted).or_fail(b)?;
    Ok(b.kernel(kernel, &[x], &types).into_iter().take(cx.outputs.len()).collect())
}

/// `types` are those of the results, followed by that of the scratch permutations if the lines are
/// sorted as a whole.
fn ranking_kernel(
    x: &DenseType,
    types: &[DenseType],
    axis: usize,
    largest: bool,
    wanted: RankResults,
) -> Result<Kernel, OpError> {
    let (n, count) = (x.dims[axis], types[0].dims[axis]);
    let mut lines = x.dims.clone();
    lines.remove(axis);
    let mut k = KernelBuilder::new("topk");
    let results: Vec<(&str, &DenseType)> = ["first", "second", "third"].into_iter().zip(types).collect();
    let bufs = buffers(&mut k, &[("x", x)], &results);
    let whole = count > MAX_INSERTION_ELEMENTS;
    parallel(&mut k, &lines, |k, line| {
        if n == 0 || count == 0 {
            return Ok(());
        }
        let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
        let element = |k: &mut KernelBuilder, id: Operand| {
            let at = k.as_index(id).maximum(&Index::default(), &free).minimum(&Index::constant(n as i64 - 1), &free);
            k.load(bufs[0], on_line(line, axis, at, &x.dims))
        };
        let (ids, base) = if whole {
            let scratch = bufs[bufs.len() - 1];
            let base = flat(line, &lines).scale(2 * n as i64);
            k.for_range("i", n, LoopKind::Serial, |k, i| {
                let id = k.index_value(i.clone());
                k.store(scratch, base.add(&i), id);
                Ok::<(), OpError>(())
            })?;
            merge_sort(k, n, scratch, (base.clone(), base.offset(n as i64)), &element, largest)?;
            (scratch, base)
        } else {
            let ids = k.alloc("ids", DType::I64, count, MemorySpace::Stack);
            select_best(k, (n, count), ids, &element, largest)?;
            (ids, Index::default())
        };
        k.for_range("o", count, LoopKind::Serial, |k, o| {
            let id = k.load(ids, base.add(&o));
            let at = on_line(line, axis, o, &types[0].dims);
            if wanted != RankResults::Indices {
                let value = element(k, id);
                k.store(bufs[1], at.clone(), value);
            }
            if wanted != RankResults::Values {
                let second = usize::from(wanted == RankResults::Both);
                let id = k.cast(id, types[second].dtype);
                k.store(bufs[1 + second], at, id);
            }
            Ok::<(), OpError>(())
        })
    })?;
    Ok(k.finish())
}

fn topk() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let x = operand(b, args, 0)?;
        ranking(b, cx, x, cx.params.bool("largest").unwrap_or(true), RankResults::Both)
    }));
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        cx.set_output_dtype(1, DType::I64)?;
        let Some(x) = cx.input_dims(0) else { return Ok(()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(-1), x.len())?;
        let k = ints(cx, 1).and_then(|k| k.first().copied());
        if let (Some(k), Dim::Const(n)) = (k, x[axis])
            && !(0..=n as i64).contains(&k)
        {
            return Err(OpError(format!("operand `K`: {k} of {n} elements")));
        }
        let extent = k.map(|k| Dim::Const(k.max(0) as u64));
        all_but(cx, 0, &x, axis, extent)?;
        let shape = cx.output(0).shape;
        cx.set_output_shape(1, shape)
    });
    let doc = "The K largest or smallest elements along `axis` in order, and their positions. Equal elements come in \
               ascending position; NaN counts as the largest value.";
    define("topk", doc, compute, infer)
        .operand("X", NUMBERS)
        .operand("K", INDICES)
        .static_value()
        .param("axis", ParamValue::Int(-1), "")
        .param("largest", ParamValue::Bool(true), "")
        .param("sorted", ParamValue::Bool(true), "The result is sorted in any case.")
        .outputs(2, 2)
        .gradient(crate::adjoint::of_topk)
        .onnx("TopK", 1)
}

fn order_rule(cx: &mut InferCtx<'_>, dtype: Option<DType>) -> Result<(), OpError> {
    match dtype {
        None => same(cx, 0, 0),
        Some(d) => {
            cx.set_output_dtype(0, d)?;
            let shape = cx.input(0).shape;
            cx.set_output_shape(0, shape)
        }
    }
}

fn sort() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let x = operand(b, args, 0)?;
        ranking(b, cx, x, !cx.params.bool("is_ascend").unwrap_or(true), RankResults::Values)
    }));
    define("sort", "The elements along `axis` in order.", compute, rule(|cx| order_rule(cx, None)))
        .operand("data", NUMBERS)
        .param("axis", ParamValue::Int(-1), "")
        .param("is_ascend", ParamValue::Bool(true), "")
        .gradient(crate::adjoint::of_sort)
}

fn argsort() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let x = operand(b, args, 0)?;
        ranking(b, cx, x, !cx.params.bool("is_ascend").unwrap_or(true), RankResults::Indices)
    }));
    let infer = rule(|cx| order_rule(cx, cx.params.dtype("dtype").or(Some(DType::F32))));
    define("argsort", "The positions along `axis` that would sort it.", compute, infer)
        .operand("data", NUMBERS)
        .param("axis", ParamValue::Int(-1), "")
        .param("is_ascend", ParamValue::Bool(true), "")
        .param("dtype", ParamValue::DType(DType::F32), "Type of the positions.")
        .no_gradient()
}
