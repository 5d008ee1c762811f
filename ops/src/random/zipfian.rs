//! Distinct classes drawn from a log-uniform distribution, for sampled losses.

use super::rejection::WordStream;
use super::words::unit53;
use super::{Random, RandomKey, kernel_key, shape_param};
use crate::kernel::KernelCell;
use crate::prelude::*;

/// Attempts of one row, in loops within each other that a complete row leaves.
const ATTEMPTS: u64 = WIDTH.pow(LEVELS);
const LEVELS: u32 = 6;
const WIDTH: u64 = 16;

/// Rows whose attempts have words of their own: positions are below 2⁴⁸.
const MAX_ROWS: u64 = (1 << 48) / ATTEMPTS;

/// One row: classes so far, and how many.
struct SampledClasses<'k> {
    k: &'k KernelScope,
    out: KernelTensor<'k>,
    base: Index,
    wanted: u64,
    count: KernelCell<'k>,
    seen: KernelCell<'k>,
}

impl<'k> SampledClasses<'k> {
    fn is_open(&self) -> KernelValue<'k> {
        self.count.get().lt(self.wanted as i64)
    }

    /// Runs `body` at positions from `first` on, until the row is complete or [`ATTEMPTS`] are made.
    fn attempts(&self, levels: u32, first: &Index, body: &dyn Fn(&Index)) {
        let open = self.is_open();
        if levels == 0 {
            return self.k.when(open, || body(first));
        }
        let left = open.select(WIDTH as i64, 0).index();
        self.k.range("attempt", (&Index::default(), &left), |i| {
            let at = first.add(&i.scale(WIDTH.pow(levels - 1) as i64));
            self.attempts(levels - 1, &at, body);
        });
    }

    /// Appends a class, unless it is there or the row is complete.
    fn offer(&self, class: KernelValue<'k>) {
        let (k, seen) = (self.k, self.seen);
        let count = self.count.get();
        let end = bounded(&count.index(), self.wanted);
        seen.set(count.ge(self.wanted as i64));
        k.range("s", (&Index::default(), &end), |s| {
            let same = self.out.get(&self.base.add(s)).eq(class);
            seen.set(seen.get() | same);
        });
        k.when(!seen.get(), || {
            let at = count.position(self.wanted);
            self.out.set(&self.base.add(&at), class);
            self.count.set(count + 1);
        });
    }
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let (rows, wanted) = (cx.outputs[0].dims[0], cx.outputs[0].dims[1]);
    let range = cx.params.int("range_max").unwrap_or(1).max(1);
    let k = &KernelScope::new("unique_zipfian");
    let mut inputs = vec![];
    let key = kernel_key(k, RandomKey::of(g, cx, 0), &mut inputs);
    let (out, tries) = (k.output("samples", &cx.outputs[0]), k.output("tries", &cx.outputs[1]));
    k.parallel_each("row", rows, |row| {
        let key = key.load();
        let (count, seen) = (k.cell("count", DType::I64), k.cell("seen", DType::Bool));
        let state = SampledClasses { k, out, base: row.scale(wanted as i64), wanted, count, seen };
        count.set(0);
        tries.set(row, 0);
        let first = row.scale(ATTEMPTS as i64);
        state.attempts(LEVELS, &first, &|position| {
            let stream = WordStream { k, key, position: k.position(position), short: false };
            let [u] = stream.eval(k.int(0), &[], |words, _| [unit53(&words(0))]);
            let [class] = k.eval(&[u], |a| {
                let nearest = ((&a[0] * (range as f64).ln()).exp() + 0.5).floor() - 1.0;
                [nearest.max(&a[0].lit(0.0)).min(&a[0].lit((range - 1) as f64)).cast(DType::I64)]
            });
            tries.set(row, tries.get(row) + 1);
            state.offer(class);
        });
        // Of twice as many classes as are wanted, as many as are wanted are not there.
        let left = state.is_open().select(range.min(2 * wanted as i64), 0).index();
        k.range("rest", (&Index::default(), &left), |class| state.offer(k.position(class)));
    });
    g.kernel(k.finish(), &inputs, cx.outputs)
}

pub fn sample_unique_zipfian() -> OpDef {
    let infer = rule(|cx| {
        let range = cx.params.int("range_max").unwrap_or(0);
        reject_if(!(1..=1 << 52).contains(&range), || format!("parameter `range_max` is {range}, expected 1 to 2^52"))?;
        let shape = shape_param(cx)?;
        let [rows, wanted] = shape[..] else {
            return Err(OpError(format!("parameter `shape` has {} extents, expected rows and classes", shape.len())));
        };
        if let Some(n) = rows.as_const().filter(|n| *n > MAX_ROWS) {
            return Err(OpError(format!("parameter `shape`: {n} rows are wanted, at most {MAX_ROWS} are supported")));
        }
        if let Some(n) = wanted.as_const().filter(|n| *n > range as u64) {
            return Err(OpError(format!("parameter `shape`: {n} classes are wanted, there are {range}")));
        }
        (0..2).try_for_each(|i| cx.set_output_dtype(i, DType::I64))?;
        cx.set_output_dims(0, [rows, wanted])?;
        cx.set_output_dims(1, [rows])
    });
    let doc = "Rows of distinct classes in 0..range_max, and the number of draws that each row took. A draw is \
               round(range_max^u) - 1 for a uniform u, so a class k between the ends has the probability \
               ln((k + 3/2) / (k + 1/2)) / ln(range_max). After 2²⁴ draws a row is filled with the first classes that \
               it lacks.";
    define("mx_sample_unique_zipfian", doc, formulas(body), infer)
        .required("range_max", ParamKind::Int, "number of classes")
        .required("shape", ParamKind::Ints, "rows, and classes in each")
        .outputs(2, 2)
        .mxnet("_sample_unique_zipfian")
        .random()
}
