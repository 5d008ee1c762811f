//! Distinct classes drawn from a log-uniform distribution, for sampled losses.

use tensorc_ir::kir::{Buf, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use super::rejection::WordStream;
use super::words::unit53;
use super::{RandomKey, kernel_key, random, shape_param};
use crate::nest::{Scalars, int};
use crate::prelude::*;

/// Attempts of one row, in loops within each other that a complete row leaves.
const ATTEMPTS: u64 = WIDTH.pow(LEVELS);
const LEVELS: u32 = 6;
const WIDTH: u64 = 16;

/// Rows whose attempts have words of their own: positions are below 2⁴⁸.
const MAX_ROWS: u64 = (1 << 48) / ATTEMPTS;

/// One row: classes so far, and how many.
struct SampledClasses {
    out: Buf,
    base: Index,
    wanted: u64,
    count: Buf,
    seen: Buf,
}

impl SampledClasses {
    fn is_open(&self, k: &mut KernelBuilder) -> Operand {
        let count = k.load(self.count, Index::default());
        k.cmp(CmpOp::Lt, count, int(self.wanted as i64))
    }

    /// Runs `body` at positions from `first` on, until the row is complete or [`ATTEMPTS`] are made.
    fn attempts(
        &self,
        k: &mut KernelBuilder,
        levels: u32,
        first: Index,
        body: &mut dyn FnMut(&mut KernelBuilder, Index) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let open = self.is_open(k);
        if levels == 0 {
            return k.if_then(open, |k| body(k, first));
        }
        let left = k.select(open, int(WIDTH as i64), int(0));
        let left = k.as_index(left);
        k.for_loop("attempt", (Index::default(), left, 1), LoopKind::Serial, |k, i| {
            let at = first.add(&i.scale(WIDTH.pow(levels - 1) as i64));
            self.attempts(k, levels - 1, at, body)
        })
    }

    /// Appends a class, unless it is there or the row is complete.
    fn offer(&self, k: &mut KernelBuilder, class: Operand) -> Result<(), OpError> {
        let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
        let count = k.load(self.count, Index::default());
        let end = k.as_index(count).maximum(&Index::default(), &free);
        let end = end.minimum(&Index::constant(self.wanted as i64), &free);
        let full = k.cmp(CmpOp::Ge, count, int(self.wanted as i64));
        k.store(self.seen, Index::default(), full);
        k.for_loop("s", (Index::default(), end, 1), LoopKind::Serial, |k, s| {
            let other = k.load(self.out, self.base.add(&s));
            let same = k.cmp(CmpOp::Eq, other, class);
            let old = k.load(self.seen, Index::default());
            let now = k.bin(ScalarOp::Or, old, same);
            k.store(self.seen, Index::default(), now);
            Ok::<(), OpError>(())
        })?;
        let seen = k.load(self.seen, Index::default());
        let fresh = k.op(ScalarOp::Not, &[seen]);
        k.if_then(fresh, |k| {
            let at = k.position(count, self.wanted);
            k.store(self.out, self.base.add(&at), class);
            let more = k.bin(ScalarOp::Add, count, int(1));
            k.store(self.count, Index::default(), more);
            Ok(())
        })
    }
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let (rows, wanted) = (cx.outputs[0].dims[0], cx.outputs[0].dims[1]);
    let range = cx.params.int("range_max").unwrap_or(1).max(1);
    let mut k = KernelBuilder::new("unique_zipfian");
    let mut inputs = vec![];
    let key = kernel_key(&mut k, &RandomKey::of(cx, args, 0), &mut inputs);
    let out = k.param("samples", DType::I64, rows * wanted, true);
    let tries = k.param("tries", DType::I64, rows, true);
    let made = k.for_range("row", rows, LoopKind::Parallel, |k, row| {
        let key = key.load(k);
        let state = SampledClasses {
            out,
            base: row.scale(wanted as i64),
            wanted,
            count: k.alloc("count", DType::I64, 1, MemorySpace::Stack),
            seen: k.alloc("seen", DType::Bool, 1, MemorySpace::Stack),
        };
        k.store(state.count, Index::default(), int(0));
        k.store(tries, row.clone(), int(0));
        let first = row.scale(ATTEMPTS as i64);
        state.attempts(k, LEVELS, first, &mut |k, position| {
            let stream = WordStream { key, position: k.index_value(position), short: false };
            let u = stream.eval(k, int(0), &[], |words, _| vec![unit53(&words(0))])?[0];
            let class = ScalarFn::build(&[DType::F64], |_, a| {
                let nearest = ((&a[0] * (range as f64).ln()).exp() + 0.5).floor() - 1.0;
                vec![nearest.max(&a[0].lit(0.0)).min(&a[0].lit((range - 1) as f64)).cast(DType::I64)]
            })?;
            let class = k.apply(&class, &[u], &[])[0];
            let old = k.load(tries, row.clone());
            let more = k.bin(ScalarOp::Add, old, int(1));
            k.store(tries, row.clone(), more);
            state.offer(k, class)
        })?;
        let open = state.is_open(k);
        // Of twice as many classes as are wanted, as many as are wanted are not there.
        let left = k.select(open, int(range.min(2 * wanted as i64)), int(0));
        let left = k.as_index(left);
        k.for_loop("rest", (Index::default(), left, 1), LoopKind::Serial, |k, class| {
            let class = k.index_value(class);
            state.offer(k, class)
        })
    });
    made.or_fail(b)?;
    Ok(b.kernel(k.finish(), &inputs, cx.outputs))
}

pub fn sample_unique_zipfian() -> OpDef {
    let infer = rule(|cx| {
        let range = cx.params.int("range_max").unwrap_or(0);
        if !(1..=1 << 52).contains(&range) {
            return Err(OpError(format!("parameter `range_max` is {range}, expected 1 to 2^52")));
        }
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
    let def = define("mx_sample_unique_zipfian", doc, Compute::Composite(Box::new(body)), infer)
        .required("range_max", ParamKind::Int, "number of classes")
        .required("shape", ParamKind::Ints, "rows, and classes in each")
        .outputs(2, 2)
        .mxnet("_sample_unique_zipfian");
    random(def)
}
