//! Matching of rows with columns, the best pair first.

use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::mxnet::support::Describe;
use crate::nest::{Scalars, int};
use crate::prelude::*;

struct Rules {
    ascending: bool,
    threshold: f64,
    /// Pairs after which it ends.
    most: i64,
}

/// Goes through the pairs of each table `[rows, columns]` in order. A pair of a row and a column that are both free is
/// a match, if its score is good enough; else all that follow are not, either.
fn matching(tables: u64, [rows, columns]: [u64; 2], dtype: DType, rules: &Rules) -> Result<Kernel, OpError> {
    let mut k = KernelBuilder::new("bipartite_matching");
    let pairs = rows * columns;
    let scores = k.param("scores", dtype, tables * pairs, false);
    let order = k.param("order", DType::I64, tables * pairs, false);
    let of_row = k.param("of_row", DType::I64, tables * rows, true);
    let of_column = k.param("of_column", DType::I64, tables * columns, true);
    let wide = compute_type(dtype);
    let limit = Operand::Const(Scalar::from_f64(wide, f64::from(rules.threshold as f32)));
    let better = if rules.ascending { CmpOp::Lt } else { CmpOp::Gt };
    k.for_range("table", tables, LoopKind::Parallel, |k, table| {
        let left = k.alloc("left", DType::I64, 1, MemorySpace::Stack);
        k.store(left, Index::default(), int(rules.most));
        for (buf, n) in [(of_row, rows), (of_column, columns)] {
            k.for_range("clear", n, LoopKind::Serial, |k, i| {
                k.store(buf, table.scale(n as i64).add(&i), int(-1));
                Ok::<(), OpError>(())
            })?;
        }
        k.for_range("pair", pairs, LoopKind::Serial, |k, i| {
            let base = table.scale(pairs as i64);
            let pair = k.load(order, base.add(&i));
            let pair = k.position(pair, pairs);
            let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
            let (row, column) = (pair.floor_div(columns as i64, &free), pair.modulo(columns as i64, &free));
            let (row_at, column_at) = (table.scale(rows as i64).add(&row), table.scale(columns as i64).add(&column));
            let (held, taken) = (k.load(of_row, row_at.clone()), k.load(of_column, column_at.clone()));
            let free = [held, taken].map(|x| k.cmp(CmpOp::Lt, x, int(0)));
            let free = k.bin(ScalarOp::And, free[0], free[1]);
            let more = k.load(left, Index::default());
            let open = k.cmp(CmpOp::Gt, more, int(0));
            let tried = k.bin(ScalarOp::And, free, open);
            k.if_then(tried, |k| {
                let score = k.load(scores, base.add(&pair));
                let score = k.cast(score, wide);
                let good = k.cmp(better, score, limit);
                let fewer = k.bin(ScalarOp::Sub, more, int(1));
                let next = k.select(good, fewer, int(0));
                k.store(left, Index::default(), next);
                k.if_then(good, |k| {
                    let (row, column) = (k.index_value(row), k.index_value(column));
                    k.store(of_row, row_at, column);
                    k.store(of_column, column_at, row);
                    Ok::<(), OpError>(())
                })
            })
        })
    })?;
    Ok(k.finish())
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let data = operand(b, args, 0)?;
    let ty = b.ty(data)?;
    let (lead, sides) = ty.dims.split_at(ty.rank() - 2);
    let sides = [sides[0], sides[1]];
    let (tables, pairs) = (lead.iter().product::<u64>(), sides[0] * sides[1]);
    let rules = Rules {
        ascending: cx.params.bool("is_ascend") == Some(true),
        threshold: cx.params.float("threshold").unwrap_or(0.0),
        // MXNet stops after one more than it says.
        most: match cx.params.int("topk").unwrap_or(-1) {
            k if k > 0 => k.saturating_add(1),
            _ => i64::MAX,
        },
    };
    let flat = b.reshaped(data, &[tables, pairs])?;
    let params =
        Params::new().with("is_ascend", ParamValue::Bool(rules.ascending)).with("dtype", ParamValue::DType(DType::I64));
    let order = b.op("argsort", &[flat], params)?;
    let kernel = matching(tables, sides, ty.dtype, &rules).or_fail(b)?;
    let types = sides.map(|n| DenseType::new(DType::I64, &[tables, n]));
    let made = b.kernel(kernel, &[flat, order], &types);
    let shaped = |(found, out): (&Value, &DenseType)| {
        let found = b.converted(*found, out.dtype)?;
        b.reshaped(found, &out.dims)
    };
    made.iter().zip(cx.outputs).map(shaped).collect()
}

pub fn bipartite_matching() -> OpDef {
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        cx.same_dtype(1, 0)?;
        let Some(dims) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        let n = dims.len();
        cx.set_output_dims(0, dims[..n - 1].iter().copied())?;
        cx.set_output_dims(1, dims[..n - 2].iter().chain(&dims[n - 1..]).copied())
    });
    let doc = "Matches rows with columns of tables of scores, the best pair first: the column of each row, and the row of \
               each column, -1 for none.";
    define("mx_bipartite_matching", doc, Compute::Composite(Box::new(body)), infer)
        .operand("data", FLOATS)
        .param("is_ascend", ParamValue::Bool(false), "whether low scores are good")
        .required("threshold", ParamKind::Float, "scores that are no better than it do not match")
        .param("topk", ParamValue::Int(-1), "if positive, at most one match more than this")
        .outputs(2, 2)
        .no_gradient()
        .named(&["_contrib_bipartite_matching"])
}
