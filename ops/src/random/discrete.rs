//! Integers, categories and permutations.

use super::rejection::WordStream;
use super::words::unit53;
use super::{Random, RandomKey, draw, kernel_key, shape_param};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![randint(), shuffle(), sample_multinomial(), multinomial()]
}

/// The least and the greatest value of an integer type that an i64 can state.
fn range_of(dtype: DType) -> (i64, i64) {
    match (dtype.size() as u32 * 8, dtype.is_signed_int()) {
        (64, true) => (i64::MIN, i64::MAX),
        (64, false) => (0, i64::MAX),
        (bits, true) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        (bits, false) => (0, (1 << bits) - 1),
    }
}

/// Type, lower bound and number of values.
fn interval(params: &Params) -> Result<(DType, i64, u64), OpError> {
    let dtype = params.dtype("dtype").unwrap_or(DType::I32);
    reject_if(!INTS.contains(&dtype), || format!("parameter `dtype` is {dtype}, expected an integer type"))?;
    let (low, high) = (params.int("low").unwrap_or(0), params.int("high").unwrap_or(0));
    reject_if(low >= high, || format!("parameter `low` is {low}, expected a value below parameter `high`, {high}"))?;
    let (least, greatest) = range_of(dtype);
    for (name, value) in [("low", low), ("high", high - 1)] {
        if !(least..=greatest).contains(&value) {
            let given = if name == "high" { high } else { low };
            return Err(OpError(format!("parameter `{name}` is {given}: {value} does not fit {dtype}")));
        }
    }
    Ok((dtype, low, high.wrapping_sub(low) as u64))
}

fn randint() -> OpDef {
    let compute = formula(|g, cx| {
        let (dtype, low, n) = interval(cx.params).or_fail(&g)?;
        Ok(draw(g, RandomKey::of(g, cx, 0), &[], &cx.outputs[0], |source, _| {
            let offset = source.below(n).cast(DType::I64);
            (offset.builder().constant(Scalar::i64(low)) + offset).cast(dtype)
        }))
    });
    let infer = rule(|cx| {
        let (dtype, ..) = interval(cx.params)?;
        cx.set_output_dtype(0, dtype)?;
        let dims = shape_param(cx)?;
        cx.set_output_dims(0, dims)
    });
    let doc = "Integers, uniform in [low, high): no probability differs from the others by a share of more than 2⁻³².";
    define("random_randint", doc, compute, infer)
        .required("low", ParamKind::Int, "lower bound")
        .required("high", ParamKind::Int, "upper bound, not reached")
        .required("shape", ParamKind::Ints, "the result's shape")
        .param("dtype", DType::I32, "the result's type")
        .maybe("ctx", ParamKind::Str, "No effect: whoever runs a graph says where.")
        .named(&["_random_randint", "random_randint"])
        .random()
}

fn shuffle() -> OpDef {
    let compute = formula(|g, cx| {
        let words = DenseType::new(DType::U64, cx.outputs[0].dims.range(..1));
        let words = draw(g, RandomKey::of(g, cx, 1), &[], &words, |source, _| source.u64(0));
        let order = g.op("argsort", &[words], Params::new().with("dtype", DType::I64));
        Ok(g.operand(0).gather(order, 0))
    });
    let infer = rule(|cx| {
        reject_if(cx.open_dims(0).is_some_and(|d| d.is_empty()), || "operand `data`: rank 0 has no axis to shuffle")?;
        same(cx, 0, 0)
    });
    let doc = "The slices along the first axis in random order: that of a random 64-bit number for each slice.";
    define("shuffle", doc, compute, infer).operand("data", &[]).named(&["_shuffle", "shuffle"]).random()
}

/// Types of category numbers.
fn category_type(cx: &InferCtx<'_>) -> Result<DType, OpError> {
    let dtype = cx.params.dtype("dtype").unwrap_or(DType::I32);
    match NUMBERS.contains(&dtype) {
        true => Ok(dtype),
        false => Err(OpError(format!("parameter `dtype` is {dtype}, expected a numeric type"))),
    }
}

fn check_categories(dims: &[Dim]) -> Result<(), OpError> {
    match dims.last() {
        None => Err("operand `data`: expected an axis of categories, found rank 0".into()),
        Some(Dim::Const(0)) => Err("operand `data`: no categories to draw from".into()),
        Some(_) => Ok(()),
    }
}

fn sample_multinomial() -> OpDef {
    let compute = formulas(|g, cx| {
        let weights = g.map(&[g.operand(0)], DType::F64, &g.operand(0).dims()?, |_, a| {
            let x = a[0].cast(DType::F64);
            x.lt(&x.lit(0.0)).select(&x.lit(0.0), &x)
        });
        categories(cx, weights)
    });
    let infer = rule(|cx| {
        let dtype = category_type(cx)?;
        cx.set_output_dtype(0, dtype)?;
        let logs = cx.output_count() > 1;
        if cx.params.flag("get_prob") && !logs {
            return Err("parameter `get_prob` is true, but there is no second result".into());
        }
        if logs {
            cx.same_dtype(1, 0)?;
        }
        let Some(dims) = cx.open_dims(0) else { return Ok(()) };
        check_categories(&dims)?;
        let shape: Vec<Dim> = dims[..dims.len() - 1].iter().copied().chain(shape_param(cx)?).collect();
        (0..cx.output_count()).try_for_each(|i| cx.set_output_dims(i, shape.iter().copied()))
    });
    let doc = "Categories drawn with the probabilities along the last axis, which need not add up to 1, and the \
               logarithm of the probability of each. A negative probability counts as 0; where none is positive, or \
               the sum is not finite, the category is -1 and the logarithm NaN.";
    define("sample_multinomial", doc, compute, infer)
        .operand("data", FLOATS)
        .param("shape", ParamValue::Ints(vec![]), "the shape of the draws from each distribution")
        .param("get_prob", false, "whether the second result is wanted")
        .param("dtype", DType::I32, "the type of the categories")
        .outputs(1, 2)
        .named(&["_sample_multinomial", "sample_multinomial"])
        .random()
}

fn multinomial() -> OpDef {
    let compute = formulas(|g, cx| {
        let x = g.operand(0).cast(DType::F64);
        categories(cx, (x - x.reduce("reduce_max", &[1])).exp())
    });
    let infer = rule(|cx| {
        let dtype = category_type(cx)?;
        cx.set_output_dtype(0, dtype)?;
        let n = cx.params.int("sample_size").unwrap_or(1);
        let n =
            u64::try_from(n).map_err(|_| OpError(format!("parameter `sample_size` is {n}, expected at least 0")))?;
        let dims = open_ranked(cx, 0, 2)?;
        check_categories(&dims)?;
        cx.set_output_dims(0, [dims[0], Dim::Const(n)])
    });
    let doc = "Categories drawn with probabilities given by their logarithms up to a constant, one distribution in \
               each row. A row that holds NaN or +∞, or only -∞, gives -1.";
    define("multinomial", doc, compute, infer)
        .operand("data", FLOATS)
        .param("sample_size", 1, "draws from each row")
        .param("dtype", DType::I32, "the result's type")
        .onnx("Multinomial", 7)
        .random()
}

/// Categories by weights along the last axis, f64, and the logarithms of their probabilities if there
/// is a second result.
fn categories<'g>(cx: &NodeCtx<'_>, weights: Tensor<'g>) -> Result<Vec<Tensor<'g>>> {
    let g = weights.graph();
    let sums = weights.call("cumsum", &[g.scalar(Scalar::i64(-1))]);
    let dims = weights.dims()?;
    let lead = dims.len().saturating_sub(1);
    let (rows, count) = (dims.range(..lead).count(), dims.at(lead).fixed().unsigned_abs());
    let k = &KernelScope::new("categories");
    let mut inputs = vec![sums, weights];
    let spread = Extents::of([rows, count.into()]);
    let of = |name| k.param(name, DType::F64, &spread, false);
    let table = Table { k, sums: of("sums"), weights: of("weights"), count };
    let key = kernel_key(k, RandomKey::of(g, cx, 1), &mut inputs);
    let results: Vec<_> = cx.outputs.iter().map(|ty| k.output("out", ty)).collect();
    let drawn = &cx.outputs[0].dims;
    let (n, each) = (drawn.count(), drawn.range(lead..).count().as_divisor());
    k.parallel_each("p", n, |p| {
        let row = p.floor_div(each, &|_: u32| (Extent::ZERO, n.last_position()));
        let stream = WordStream { k, key: key.load(), position: k.position(p), short: super::is_short(n) };
        let [u] = stream.eval(k.int(0), &[], |words, _| [unit53(&words(0))]);
        for (out, value) in results.iter().zip(table.find(&row, u)) {
            out.set_cast(p, value);
        }
    });
    g.kernel(k.finish(), &inputs, cx.outputs)
}

/// Weights of categories and their running sums, row by row.
struct Table<'k> {
    k: &'k KernelScope,
    sums: KernelTensor<'k>,
    weights: KernelTensor<'k>,
    count: u64,
}

impl<'k> Table<'k> {
    /// The first category whose running sum exceeds the share `u` of the total, by bisection, and the
    /// logarithm of its probability. The share is below the total in f64, and a category of weight 0
    /// has the sum of the one before it, so one of positive weight is found.
    fn find(&self, row: &Index, u: KernelValue<'k>) -> [KernelValue<'k>; 2] {
        let last = self.count as i64 - 1;
        let base = row.scale(self.count as i64);
        let within = |at: KernelValue<'k>| base.add(&at.clamped(self.count));
        let total = self.sums.get(&base.offset(last));
        let target = u * total;
        let mut found = self.k.int(0);
        let mut width = self.count.next_power_of_two() as i64;
        while width > 0 {
            let end = found + width;
            let sum = self.sums.get(&within(end - 1));
            let skip = sum.le(target) & end.le(last);
            found = skip.select(end, found);
            width /= 2;
        }
        let weight = self.weights.get(&within(found));
        self.k.eval(&[found, total, weight], |a| {
            let (total, weight) = (&a[1], &a[2]);
            let valid = total.gt(&total.lit(0.0)) & total.lt(&total.lit(f64::INFINITY));
            let log = (weight / total).log();
            [valid.select(&a[0], &a[0].lit(-1.0)), valid.select(&log, &log.lit(f64::NAN))]
        })
    }
}
