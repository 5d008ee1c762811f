//! Matching of rows with columns, the best pair first.

use crate::prelude::*;

struct Rules {
    ascending: bool,
    threshold: f64,
    /// Pairs after which it ends.
    most: i64,
}

/// Goes through the pairs of each table `[rows, columns]` in order. A pair of a row and a column that are both free is
/// a match, if its score is good enough; else all that follow are not, either.
fn matching(scores: &DenseType, order: &DenseType, results: [&DenseType; 2], rules: &Rules) -> Result<Kernel, OpError> {
    let [(tables, rows), (_, columns)] = results.map(|ty| (ty.dims[0], ty.dims[1]));
    let k = &KernelScope::new("bipartite_matching");
    let [scores, order] = k.inputs(["scores", "order"], [scores, order]);
    let [of_row, of_column] = k.outputs(["of_row", "of_column"], results);
    let pairs = rows * columns;
    let limit = f64::from(rules.threshold as f32);
    let better = if rules.ascending { CmpOp::Lt } else { CmpOp::Gt };
    k.parallel_each("table", tables, |table| {
        let left = k.cell("left", DType::I64).holding(rules.most);
        for (matches, n) in [(of_row, rows), (of_column, columns)] {
            k.each("clear", n, |i| matches.set([table, i], -1));
        }
        k.each("pair", pairs, |i| {
            let pair = order.position([table, i], pairs);
            // Tables without columns have no pairs.
            let divisor = columns.max(1) as i64;
            let (row, column) = (pair.floor_div(divisor, &unbounded), pair.modulo(divisor, &unbounded));
            let (held, taken) = (of_row.get([table, &row]), of_column.get([table, &column]));
            let (row_free, column_free) = (held.lt(0), taken.lt(0));
            let free = row_free & column_free;
            let more = left.get();
            k.when(free & more.gt(0), || {
                let score = scores.get_as([table, &pair], compute_type(scores.dtype()));
                let good = score.cmp(better, limit);
                let fewer = more - 1;
                left.set(good.select(fewer, 0));
                k.when(good, || {
                    let (row_number, column_number) = (k.position(&row), k.position(&column));
                    of_row.set([table, &row], column_number);
                    of_column.set([table, &column], row_number);
                });
            });
        });
    });
    k.finish()
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let ty = g.operand(0).ty()?;
    let (lead, sides) = ty.dims.split_at(ty.rank() - 2);
    let sides = [sides[0], sides[1]];
    let (tables, pairs) = (lead.iter().product::<u64>(), sides[0] * sides[1]);
    let rules = Rules {
        ascending: cx.params.flag("is_ascend"),
        threshold: cx.params.float("threshold").unwrap_or(0.0),
        // MXNet stops after one more than it says.
        most: match cx.params.int("topk").unwrap_or(-1) {
            k if k > 0 => k.saturating_add(1),
            _ => i64::MAX,
        },
    };
    let flat = g.operand(0).reshape([tables, pairs]);
    let params = Params::new().with("is_ascend", rules.ascending).with("dtype", DType::I64);
    let order = g.op("argsort", &[flat], params);
    let types = sides.map(|n| DenseType::new(DType::I64, [tables, n]));
    let kernel = matching(&flat.ty()?, &order.ty()?, types.each_ref(), &rules);
    let made = g.kernel(kernel, &[flat, order], &types)?;
    Ok(made.iter().zip(cx.outputs).map(|(found, out)| found.convert(out.dtype).reshape(&out.dims)).collect())
}

pub fn bipartite_matching() -> OpDef {
    let infer = shape_rule(|cx| {
        cx.same_dtype(1, 0)?;
        let Some(dims) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        let n = dims.len();
        cx.set_output_dims(0, dims[..n - 1].iter().copied())?;
        cx.set_output_dims(1, dims[..n - 2].iter().chain(&dims[n - 1..]).copied())
    });
    let doc = "Matches rows with columns of tables of scores, the best pair first: the column of each row, and the row of \
               each column, -1 for none.";
    define("mx_bipartite_matching", doc, formulas(body), infer)
        .operand("data", FLOATS)
        .param("is_ascend", false, "whether low scores are good")
        .required("threshold", ParamKind::Float, "scores that are no better than it do not match")
        .param("topk", -1, "if positive, at most one match more than this")
        .outputs(2, 2)
        .no_gradient()
        .named(&["_contrib_bipartite_matching"])
}
