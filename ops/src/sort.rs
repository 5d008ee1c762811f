//! Ordering: top-k and sorting along an axis.

use tensorc_ir::kir::MemorySpace;

use crate::index::all_but;
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
fn before<'k>(a: KernelValue<'k>, b: KernelValue<'k>, largest: bool) -> KernelValue<'k> {
    let wide = compute_type(a.dtype());
    let wide = if wide == DType::Bool { DType::U8 } else { wide };
    let (a, b) = (a.cast(wide), b.cast(wide));
    let strict = a.cmp(if largest { CmpOp::Gt } else { CmpOp::Lt }, b);
    if !wide.is_float() {
        return strict;
    }
    let (a_nan, b_nan) = (a.ne(a), b.ne(b));
    let (first, second) = if largest { (a_nan, b_nan) } else { (b_nan, a_nan) };
    let other = !second;
    strict | (first & other)
}

/// The position within one line: `line[axis] = at`.
fn on_line(line: &[Index], axis: usize, at: &Index) -> Vec<Index> {
    let mut coords = line.to_vec();
    coords.insert(axis, at.clone());
    coords
}

/// The elements of a line, by i64 positions.
type LineElements<'a, 'k> = &'a dyn Fn(KernelValue<'k>) -> KernelValue<'k>;

/// Sorts a permutation by merging bottom-up: `width` doubles until it covers the line.
///
/// `ids` and `spare` are where two strips of `n` positions begin in `buf`; the first holds the
/// order on entry and exit. The merge is stable, so equal elements keep ascending positions.
fn merge_sort<'k>(
    k: &'k KernelScope,
    n: u64,
    buf: KernelTensor<'k>,
    (ids, spare): (Index, Index),
    element: LineElements<'_, 'k>,
    largest: bool,
) {
    let line_end = Index::constant(n as i64);
    let heads = k.memory("heads", DType::I64, &[2], MemorySpace::Stack);
    let (first, second) = (Index::constant(0), Index::constant(1));
    let (mut width, mut from, mut to) = (1, ids.clone(), spare);
    while width < n {
        k.strided("run", (&Index::default(), &line_end, 2 * width as i64), |run| {
            let end = |by: u64| run.offset((by * width) as i64).minimum(&line_end, &unbounded);
            let (mid, stop) = (k.position(&end(1)), k.position(&end(2)));
            heads.set(&first, run);
            heads.set(&second, mid);
            k.range("o", (run, &end(2)), |o| {
                let (i, j) = (heads.get(&first), heads.get(&second));
                let at = |head: KernelValue<'k>| from.add(&bounded(&head.index(), n - 1));
                let (left, right) = (buf.get(&at(i)), buf.get(&at(j)));
                let (a, b) = (element(left), element(right));
                let right_first = before(b, a, largest);
                let (left_done, right_left) = (i.ge(mid), j.lt(stop));
                let take_right = (left_done | right_first) & right_left;
                buf.set(&to.add(o), take_right.select(right, left));
                let (next_i, next_j) = (i + 1, j + 1);
                let (i, j) = (take_right.select(i, next_i), take_right.select(next_j, j));
                heads.set(&first, i);
                heads.set(&second, j);
            });
        });
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    if from != ids {
        k.each("c", n, |i| buf.set(&ids.add(i), buf.get(&from.add(i))));
    }
}

/// Keeps the best `count` of `n` positions in `ids`, by insertion into a sorted prefix.
fn select_best<'k>(
    k: &'k KernelScope,
    (n, count): (u64, u64),
    ids: KernelTensor<'k>,
    element: LineElements<'_, 'k>,
    largest: bool,
) {
    let slot = k.cell("slot", DType::I64);
    k.each("i", n, |i| {
        let id = k.position(i);
        let value = element(id);
        slot.set(id);
        // The candidate sinks until it meets an element it does not precede; what it displaces
        // moves one place down, and out of the prefix at its end.
        k.each("j", count, |back| {
            let last = Index::constant(count as i64 - 1);
            let at = last.sub(back);
            let place = k.position(&at);
            let (filled, first) = (place.lt(id), place.eq(id));
            k.when(first, || ids.set(&at, id));
            k.when(filled, || {
                let old = ids.get(&at);
                let held = element(old);
                k.when(before(value, held, largest), || {
                    let next = at.offset(1);
                    let room = k.position(&next).lt(count as i64);
                    k.when(room, || ids.set(&next.minimum(&last, &unbounded), old));
                    ids.set(&at, id);
                });
            });
        });
    });
}

/// Above this many wanted elements a line is sorted as a whole instead of by insertion.
const MAX_INSERTION_ELEMENTS: u64 = 16;

/// The first `count` elements of every line of `x` along `axis` in order.
fn ranking(wanted: RankResults) -> Compute {
    formulas(move |g, cx| {
        let ty = g.operand(0).ty()?;
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), ty.rank()).or_fail(&g)?;
        let count = cx.outputs[0].dims[axis];
        let mut types = cx.outputs.to_vec();
        if count > MAX_INSERTION_ELEMENTS {
            let lines = ty.len() / ty.dims[axis].max(1);
            types.push(DenseType::new(DType::I64, [lines, 2, ty.dims[axis]]));
        }
        let largest = match wanted {
            RankResults::Both => cx.params.bool("largest").unwrap_or(true),
            RankResults::Values | RankResults::Indices => cx.params.bool("is_ascend") == Some(false),
        };
        let mut results = g.kernel(ranking_kernel(&ty, &types, axis, largest, wanted), &[g.operand(0)], &types)?;
        results.truncate(cx.outputs.len());
        Ok(results)
    })
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
    let mut lines = x.dims.to_vec();
    lines.remove(axis);
    let kept = [count];
    let k = &KernelScope::new("topk");
    let x = k.input("x", x);
    let results: Vec<_> = ["first", "second", "third"].iter().zip(types).map(|(name, ty)| k.output(name, ty)).collect();
    k.parallel(&lines, |line| {
        if n == 0 || count == 0 {
            return;
        }
        let element = |id: KernelValue<'_>| x.get(&on_line(line, axis, &bounded(&id.index(), n - 1)));
        let (ids, base) = if count > MAX_INSERTION_ELEMENTS {
            let scratch = results[results.len() - 1];
            let base = linearize(line, &lines).scale(2 * n as i64);
            k.each("i", n, |i| scratch.set(&base.add(i), i));
            merge_sort(k, n, scratch, (base.clone(), base.offset(n as i64)), &element, largest);
            (scratch, base)
        } else {
            let ids = k.memory("ids", DType::I64, &kept, MemorySpace::Stack);
            select_best(k, (n, count), ids, &element, largest);
            (ids, Index::default())
        };
        k.each("o", count, |o| {
            let id = ids.get(&base.add(o));
            let at = on_line(line, axis, o);
            if wanted != RankResults::Indices {
                results[0].set(&at, element(id));
            }
            if wanted != RankResults::Values {
                results[usize::from(wanted == RankResults::Both)].set_cast(&at, id);
            }
        });
    });
    k.finish()
}

fn topk() -> OpDef {
    let infer = shape_rule(|cx| {
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
    define("topk", doc, ranking(RankResults::Both), infer)
        .operand("X", NUMBERS)
        .static_operands(&["K"], INDICES)
        .param("axis", -1, "")
        .param("largest", true, "")
        .param("sorted", true, "The result is sorted in any case.")
        .outputs(2, 2)
        .gradient(derivative(crate::adjoint::of_topk))
        .onnx("TopK", 1)
}

fn order_rule(cx: &mut InferCtx<'_>, dtype: Option<DType>) -> Result<(), OpError> {
    match dtype {
        None => same(cx, 0, 0),
        Some(d) => {
            cx.set_output_dtype(0, d)?;
            cx.copy_shape(0, 0)
        }
    }
}

fn sort() -> OpDef {
    let infer = rule(|cx| order_rule(cx, None));
    define("sort", "The elements along `axis` in order.", ranking(RankResults::Values), infer)
        .operand("data", NUMBERS)
        .param("axis", -1, "")
        .param("is_ascend", true, "")
        .gradient(derivative(crate::adjoint::of_sort))
}

fn argsort() -> OpDef {
    let infer = rule(|cx| order_rule(cx, cx.params.dtype("dtype").or(Some(DType::F32))));
    define("argsort", "The positions along `axis` that would sort it.", ranking(RankResults::Indices), infer)
        .operand("data", NUMBERS)
        .param("axis", -1, "")
        .param("is_ascend", true, "")
        .param("dtype", DType::F32, "Type of the positions.")
        .no_gradient()
}
