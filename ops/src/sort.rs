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

/// How lines of positions are merged.
struct Merge<'a, 'k> {
    k: &'k KernelScope,
    /// Elements of a line.
    n: Extent,
    /// Holds two strips of `n` positions for each line.
    buf: KernelTensor<'k>,
    /// The next position of either of two runs.
    heads: KernelTensor<'k>,
    element: LineElements<'a, 'k>,
    largest: bool,
}

/// Doublings of a run of one element that no line is longer than.
const MAX_DOUBLINGS: u64 = 40;

impl Merge<'_, '_> {
    /// Merges the runs `run..mid` and `mid..stop` of the strip that begins at `from`; `to` is where positions of the other strip lie.
    fn runs(&self, [run, mid, stop]: [&Index; 3], from: &Index, to: &dyn Fn(&Index) -> Index) {
        let (k, buf, heads) = (self.k, self.buf, self.heads);
        let (first, second) = (Index::constant(0), Index::constant(1));
        let (middle, end) = (k.position(mid), k.position(stop));
        heads.set(&first, run);
        heads.set(&second, middle);
        k.range("o", (run, stop), |o| {
            let (i, j) = (heads.get(&first), heads.get(&second));
            let at = |head: KernelValue<'_>| from.add(&bounded(&head.index(), self.n - 1));
            let (left, right) = (buf.get(&at(i)), buf.get(&at(j)));
            let (a, b) = ((self.element)(left), (self.element)(right));
            let right_first = before(b, a, self.largest);
            let (left_done, right_left) = (i.ge(middle), j.lt(end));
            let take_right = (left_done | right_first) & right_left;
            buf.set(&to(o), take_right.select(right, left));
            let (next_i, next_j) = (i + 1, j + 1);
            let (i, j) = (take_right.select(i, next_i), take_right.select(next_j, j));
            heads.set(&first, i);
            heads.set(&second, j);
        });
    }

    /// Sorts a permutation by merging bottom-up: `width` doubles until it covers the line. Two strips begin at `base`, of which the
    /// first holds the order on entry. Returns where the strip begins that holds it on exit.
    ///
    /// The merge is stable, so equal elements keep ascending positions.
    fn sort(&self, base: &Index) -> Index {
        let Some(n) = self.n.known() else { return self.sort_any(base) };
        let (k, line_end) = (self.k, Index::constant(n));
        let (mut width, mut from, mut to) = (1, base.clone(), base.offset(n));
        while width < n {
            k.strided("run", (&Index::default(), &line_end, 2 * width), |run| {
                let end = |by: i64| run.offset(by * width).minimum(&line_end, &unbounded);
                self.runs([run, &end(1), &end(2)], &from, &|o| to.add(o));
            });
            std::mem::swap(&mut from, &mut to);
            width *= 2;
        }
        if from != *base {
            k.each("c", n, |i| self.buf.set(&base.add(i), self.buf.get(&from.add(i))));
        }
        base.clone()
    }

    /// As [`Merge::sort`], of lines of any length.
    fn sort_any(&self, base: &Index) -> Index {
        let (k, n) = (self.k, self.n);
        let width = k.cell("width", DType::I64).holding(1);
        let strip = k.cell("strip", DType::I64).holding(0);
        let begins = |strip: KernelValue<'_>| base.add(&bounded(&strip.index(), n));
        k.each("pass", MAX_DOUBLINGS, |_| {
            let half = width.get();
            k.when(half.lt(n), || {
                let (whole, here) = (half + half, strip.get());
                let (pairs, there) = ((whole + (n - 1)) / whole, -here + n);
                let (from, to) = (begins(here), begins(there));
                k.range("run", (&Index::default(), &pairs.index()), |pair| {
                    let run = k.position(pair) * whole;
                    let (mid, stop) = ((run + half).min(n), (run + whole).min(n));
                    let ends = [run, mid, stop].map(KernelValue::index);
                    self.runs(ends.each_ref(), &from, &|o| to.add(&bounded(o, n - 1)));
                });
                width.set(whole);
                strip.set(there);
            });
        });
        begins(strip.get())
    }
}

/// Keeps the best `count` of `n` positions in `ids`, by insertion into a sorted prefix.
fn select_best<'k>(
    k: &'k KernelScope,
    (n, count): (Extent, i64),
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
            let last = Index::constant(count - 1);
            let at = last.sub(back);
            let place = k.position(&at);
            let (filled, first) = (place.lt(id), place.eq(id));
            k.when(first, || ids.set(&at, id));
            k.when(filled, || {
                let old = ids.get(&at);
                let held = element(old);
                k.when(before(value, held, largest), || {
                    let next = at.offset(1);
                    let room = k.position(&next).lt(count);
                    k.when(room, || ids.set(&next.minimum(&last, &unbounded), old));
                    ids.set(&at, id);
                });
            });
        });
    });
}

/// Above this many wanted elements a line is sorted as a whole instead of by insertion.
const MAX_INSERTION_ELEMENTS: i64 = 16;

/// How many elements are wanted, if they are selected by insertion.
fn inserted(count: Extent) -> Option<i64> {
    count.known().filter(|count| *count <= MAX_INSERTION_ELEMENTS)
}

/// The axes that lines along one have their places in.
fn lines(x: &DenseType, axis: usize) -> Extents {
    x.dims.all().enumerate().filter(|(other, _)| *other != axis).map(|(_, n)| n).collect()
}

/// The first `count` elements of every line of `x` along `axis` in order.
fn ranking(wanted: RankResults) -> Compute {
    formulas(move |g, cx| {
        let ty = g.operand(0).ty()?;
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), ty.rank()).or_fail(&g)?;
        let mut types = cx.outputs.to_vec();
        if inserted(cx.outputs[0].dims.at(axis)).is_none() {
            let lines: Extent = lines(&ty, axis).count();
            types
                .push(DenseType::new(DType::I64, [lines, 2.into(), ty.dims.at(axis)].into_iter().collect::<Extents>()));
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
    let (n, count, lines) = (x.dims.at(axis), types[0].dims.at(axis), lines(x, axis));
    let k = &KernelScope::new("topk");
    let x = k.input("x", x);
    let results: Vec<_> = ["first", "second", "third"].iter().zip(types).map(|(name, ty)| k.output(name, ty)).collect();
    k.parallel(&lines, |line| {
        if n.is_surely(0) || count.is_surely(0) {
            return;
        }
        let element = |id: KernelValue<'_>| x.get(&on_line(line, axis, &bounded(&id.index(), n - 1)));
        let (ids, base) = if let Some(count) = inserted(count) {
            let ids = k.memory("ids", DType::I64, [count as u64], MemorySpace::Stack);
            select_best(k, (n, count), ids, &element, largest);
            (ids, Index::default())
        } else {
            let buf = results[results.len() - 1];
            let base = linearize(line, &lines).scale(n * 2);
            k.each("i", n, |i| buf.set(&base.add(i), i));
            let heads = k.memory("heads", DType::I64, [2], MemorySpace::Stack);
            let sorted = Merge { k, n, buf, heads, element: &element, largest }.sort(&base);
            (buf, sorted)
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
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(-1), x.len())?;
        let k = extents(cx, 1).and_then(|k| k.first().copied());
        if let (Some(k), Some(n)) = (k, x[axis].as_extent())
            && (k < 0 || k > n)
        {
            return Err(OpError(format!("operand `K`: {k} of {n} elements")));
        }
        all_but(cx, 0, &x, axis, k.map(|k| Dim::of(k.greatest(0))))?;
        let shape = cx.output_shape(0);
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
