//! Products: gemm, syrk, trmm, Khatri-Rao.

use super::{alpha, is_lower, matmul, scaled, transposed_if, triangle};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![gemm(true), gemm(false), syrk(), trmm(), khatri_rao()]
}

/// The order of axes that moves `axis` to the place of rows, and the one back.
fn row_order(axis: i64, rank: usize) -> Result<[Vec<usize>; 2], OpError> {
    let axis = normalize_axis(axis, rank)?;
    reject_if(axis == rank - 1, || "parameter `axis`: rows cannot be in the last axis")?;
    let mut to: Vec<usize> = (0..rank).filter(|i| *i != axis).collect();
    to.insert(rank - 2, axis);
    let mut back = vec![0; rank];
    for (i, &from) in to.iter().enumerate() {
        back[from] = i;
    }
    Ok([to, back])
}

fn gemm_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, adds: bool) -> Result<Tensor<'g>> {
    let rank = cx.outputs[0].rank();
    let [to, back] = g.build(|b| row_order(cx.params.int("axis").unwrap_or(-2), rank).or_fail(b))?;
    let [x, y] = [(0, "transpose_a"), (1, "transpose_b")]
        .map(|(i, name)| transposed_if(g.operand(i).permute(&to), cx.params.flag(name)));
    let mut out = scaled(matmul(x, y), alpha(cx.params));
    if adds {
        out = out + scaled(g.operand(2).permute(&to), cx.params.float("beta").unwrap_or(1.0));
    }
    Ok(out.permute(&back))
}

fn gemm_shapes(cx: &mut InferCtx<'_>, adds: bool) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    let (Some(a), Some(b)) = (rank_in(cx, 0, 2..=usize::MAX)?, rank_in(cx, 1, 2..=usize::MAX)?) else {
        return Ok(());
    };
    reject_if(a.len() != b.len(), || format!("operand `B`: expected rank {}, found rank {}", a.len(), b.len()))?;
    let [to, back] = row_order(cx.params.int("axis").unwrap_or(-2), a.len())?;
    let (a, b): (Vec<Dim>, Vec<Dim>) = (to.iter().map(|&i| a[i]).collect(), to.iter().map(|&i| b[i]).collect());
    let rank = a.len();
    let pair = |d: &[Dim], t: bool| if t { (d[rank - 1], d[rank - 2]) } else { (d[rank - 2], d[rank - 1]) };
    let ((m, ka), (kb, n)) = (pair(&a, cx.params.flag("transpose_a")), pair(&b, cx.params.flag("transpose_b")));
    cx.unify_dims(ka, kb, "operand `B`, summed axis")?;
    for i in 0..rank - 2 {
        cx.unify_dims(a[i], b[i], &format!("operand `B`, batch axis {i}"))?;
    }
    let dims = [&a[..rank - 2], &[m, n]].concat();
    let dims: Vec<Dim> = back.iter().map(|&i| dims[i]).collect();
    if adds {
        shaped(cx, 2, &dims)?;
    }
    cx.set_output_dims(0, dims)
}

fn gemm(adds: bool) -> OpDef {
    let compute = formula(move |g, cx| gemm_body(g, cx, adds));
    let infer = rule(move |cx| gemm_shapes(cx, adds));
    let (name, doc) = match adds {
        true => ("mx_linalg_gemm", "`alpha · A · B + beta · C` on matrices, A and B transposed if asked."),
        false => ("mx_linalg_gemm2", "`alpha · A · B` on matrices, transposed if asked."),
    };
    let def = define(name, doc, compute, infer).groups(&["A", "B"], FLOATS);
    let def = if adds { def.group("C", FLOATS).param("beta", 1.0, "factor of C") } else { def };
    let def = def
        .param("transpose_a", false, "whether A is transposed")
        .param("transpose_b", false, "whether B is transposed")
        .param("alpha", 1.0, "factor of the product")
        .param("axis", -2, "axis of the rows; columns are in the last")
        .ulp(2.0);
    if adds { def.named(&["_linalg_gemm", "linalg_gemm"]) } else { def.named(&["_linalg_gemm2", "linalg_gemm2"]) }
}

fn syrk() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, t) = (g.operand(0), cx.params.flag("transpose"));
        Ok(scaled(matmul(transposed_if(x, t), transposed_if(x, !t)), alpha(cx.params)))
    });
    let infer = shape_rule(|cx| {
        let Some(x) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        let rank = x.len();
        let n = if cx.params.flag("transpose") { x[rank - 1] } else { x[rank - 2] };
        cx.set_output_dims(0, [&x[..rank - 2], &[n, n]].concat())
    });
    define("mx_linalg_syrk", "`alpha · A · Aᵀ`, or `alpha · Aᵀ · A` if `transpose`.", compute, infer)
        .operand("A", FLOATS)
        .param("transpose", false, "whether the transpose comes first")
        .param("alpha", 1.0, "factor of the product")
        .ulp(2.0)
        .named(&["_linalg_syrk", "linalg_syrk"])
}

/// Square matrices A and a B of conforming shape, on the side that `rightside` says; the result is like B.
pub(super) fn sided_shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 1)?;
    let (Some(a), Some(b)) = (rank_in(cx, 0, 2..=usize::MAX)?, rank_in(cx, 1, 2..=usize::MAX)?) else {
        return Ok(());
    };
    let rank = b.len();
    let n = if cx.params.flag("rightside") { b[rank - 1] } else { b[rank - 2] };
    reject_if(a.len() != rank, || format!("operand `B`: expected rank {}, found rank {rank}", a.len()))?;
    shaped(cx, 0, &[&b[..rank - 2], &[n, n]].concat())
}

pub(super) fn sided(def: OpDef) -> OpDef {
    def.groups(&["A", "B"], FLOATS)
        .param("transpose", false, "whether A is transposed")
        .param("rightside", false, "whether A is on the right")
        .param("lower", true, "which triangle of A is used")
        .param("alpha", 1.0, "factor of B")
}

fn trmm() -> OpDef {
    let compute = formula(|g, cx| {
        let a = transposed_if(triangle(g.operand(0), is_lower(cx.params))?, cx.params.flag("transpose"));
        let x = g.operand(1);
        let out = if cx.params.flag("rightside") { matmul(x, a) } else { matmul(a, x) };
        Ok(scaled(out, alpha(cx.params)))
    });
    sided(define("mx_linalg_trmm", "`alpha · A · B` with a triangular A.", compute, rule(sided_shapes)))
        .ulp(2.0)
        .named(&["_linalg_trmm", "linalg_trmm"])
}

fn khatri_rao() -> OpDef {
    let compute = formula(|g, cx| {
        let mut all = g.operand(0);
        for next in g.given().into_iter().skip(1) {
            let (x, y) = (all.dims()?, next.dims()?);
            let product = all.reshape([x[0], 1, x[1]]) * next.reshape([1, y[0], y[1]]);
            all = product.reshape([x[0] * y[0], x[1]]);
        }
        Ok(all.reshape(&cx.outputs[0].dims))
    });
    let infer = shape_rule(|cx| {
        let mut rows = Some(1);
        for i in 0..cx.input_count() {
            let Some(x) = rank_in(cx, i, 2..=2)? else { return Ok(()) };
            if let (true, Some(first)) = (i > 0, rank_in(cx, 0, 2..=2)?) {
                cx.unify_dims(first[1], x[1], &format!("{}, axis 1", cx.input_name(i)))?;
            }
            rows = rows.zip(x[0].as_const()).map(|(n, m)| n * m);
        }
        match (rows, rank_in(cx, 0, 2..=2)?) {
            (Some(n), Some(first)) => cx.set_output_dims(0, [Dim::Const(n), first[1]]),
            _ => Ok(()),
        }
    });
    define("mx_khatri_rao", "Kronecker products of the columns of matrices.", compute, infer)
        .group("args", NUMBERS)
        .variadic()
        .maybe("num_args", ParamKind::Int, "number of operands")
        .mxnet("khatri_rao")
}
