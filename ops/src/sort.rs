//! Ordering: top-k and sorting along an axis.

use crate::index::all_but;
use crate::merge::Merge;
use crate::prelude::*;
use crate::ranking::{Radix, RankOrder};

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

/// The position within one line: `line[axis] = at`.
fn on_line(line: &[Index], axis: usize, at: &Index) -> Vec<Index> {
    let mut coords = line.to_vec();
    coords.insert(axis, at.clone());
    coords
}

/// Above this many wanted elements a line is sorted as a whole instead of by insertion.
const MAX_INSERTION_ELEMENTS: i64 = 32;

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
        let (n, count, mut types) = (ty.dims.at(axis), cx.outputs[0].dims.at(axis), cx.outputs.to_vec());
        let strips = match (inserted(count), cx.grain) {
            (Some(_), _) => None,
            (None, Grain::Coarse) => Some(Radix::strips(ty.dtype, n)),
            (None, Grain::Fine) => Some(2),
        };
        if let Some(strips) = strips {
            let lines = lines(&ty, axis).count();
            types.push(DenseType::new(DType::I64, Extents::of([lines, strips.into(), n])));
        }
        let largest = match wanted {
            RankResults::Both => cx.params.bool("largest").unwrap_or(true),
            RankResults::Values | RankResults::Indices => cx.params.bool("is_ascend") == Some(false),
        };
        let kernel = ranking_kernel((&ty, &types), axis, largest, wanted, cx.grain);
        let mut results = g.kernel(kernel, &[g.operand(0)], &types)?;
        results.truncate(cx.outputs.len());
        Ok(results)
    })
}

/// A kernel that ranks lines, but for their places.
struct RankKernel<'k> {
    k: &'k KernelScope,
    x: KernelTensor<'k>,
    /// What is wanted, followed by working memory if lines are sorted as a whole.
    results: Vec<KernelTensor<'k>>,
    axis: usize,
    /// Elements of a line, and how many are wanted.
    n: Extent,
    count: Extent,
    largest: bool,
    wanted: RankResults,
}

impl<'k> RankKernel<'k> {
    fn element(&self, line: &[Index], id: KernelValue<'k>) -> KernelValue<'k> {
        self.x.get(&on_line(line, self.axis, &bounded(&id.index(), self.n - 1)))
    }

    /// Writes the results of a line, of which `id` has the positions in order.
    fn write(&self, line: &[Index], id: &dyn Fn(&Index) -> KernelValue<'k>) {
        self.k.each("o", self.count, |o| {
            let (id, at) = (id(o), on_line(line, self.axis, o));
            if self.wanted != RankResults::Indices {
                self.results[0].set(&at, self.element(line, id));
            }
            if self.wanted != RankResults::Values {
                self.results[usize::from(self.wanted == RankResults::Both)].set_cast(&at, id);
            }
        });
    }

    /// Ranks a line, the `number`th of all.
    fn line(&self, line: &[Index], number: &Index, grain: Grain) {
        let (k, n, buf) = (self.k, self.n, self.results[self.results.len() - 1]);
        let element = |at: &Index| self.x.get(&on_line(line, self.axis, at));
        let (dtype, largest) = (self.x.dtype(), self.largest);
        let order = RankOrder { k, dtype, n, count: self.count, largest, element: &element };
        match (inserted(self.count), grain) {
            (Some(count), _) => {
                let ids = order.insertion(count);
                self.write(line, &|o| ids.get(o));
            }
            (None, Grain::Coarse) => {
                let strips = Radix::strips(dtype, n);
                let radix = Radix { order, buf, base: number.scale(n * strips), strips };
                let sorted = radix.sort();
                self.write(line, &|o| radix.id(&sorted, o));
            }
            (None, Grain::Fine) => {
                let base = number.scale(n * 2);
                k.each("i", n, |i| buf.set(&base.add(i), i));
                let heads = k.memory("heads", DType::I64, [2], MemorySpace::Stack);
                let by_id = |id| self.element(line, id);
                let sorted = Merge { k, n, buf, heads, element: &by_id, largest }.sort(&base);
                self.write(line, &|o| buf.get(&sorted.add(o)));
            }
        }
    }
}

/// `types` are those of the results, followed by that of working memory if the lines are sorted as a whole.
fn ranking_kernel(
    (x, types): (&DenseType, &[DenseType]),
    axis: usize,
    largest: bool,
    wanted: RankResults,
    grain: Grain,
) -> Result<Kernel, OpError> {
    let (n, count, lines) = (x.dims.at(axis), types[0].dims.at(axis), lines(x, axis));
    let k = &KernelScope::new("topk");
    let x = k.input("x", x);
    let results: Vec<_> = ["first", "second", "third"].iter().zip(types).map(|(name, ty)| k.output(name, ty)).collect();
    let kernel = RankKernel { k, x, results, axis, n, count, largest, wanted };
    k.parallel(&lines, |line| {
        if !n.is_surely(0) && !count.is_surely(0) {
            kernel.line(line, &linearize(line, &lines), grain);
        }
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
