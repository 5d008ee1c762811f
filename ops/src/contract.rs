//! Products that sum over axes: matmul, gemm, dot.

use crate::prelude::*;
use crate::rules::{broadcast, open_ranked};

pub fn ops() -> Vec<OpDef> {
    vec![matmul(), gemm(), dot(), batch_dot(), fully_connected()]
}

/// The contraction of `matmul(a, b)` for operands of rank at least 1 and conforming shapes.
pub(crate) fn matmul_contraction(a: &Extents, b: &Extents, out: &Extents) -> Contraction {
    let k_extent = a.at(a.len() - 1);
    let (has_m, has_n) = (a.len() > 1, b.len() > 1);
    let batch = out.len() - usize::from(has_m) - usize::from(has_n);
    let k = Index::var(out.len() as u32);
    let batch_index = |dims: &Extents| -> Vec<Index> {
        let own = dims.len().saturating_sub(2);
        let axes = (0..own).map(|i| (i, batch - own + i));
        axes.map(|(i, o)| if dims.at(i) == 1 && out.at(o) != 1 { Index::default() } else { Index::var(o as u32) })
            .collect()
    };
    let (mut lhs, mut rhs) = (batch_index(a), batch_index(b));
    if has_m {
        lhs.push(Index::var(batch as u32));
    }
    lhs.push(k.clone());
    rhs.push(k);
    if has_n {
        rhs.push(Index::var(out.len() as u32 - 1));
    }
    let extents: Extents = out.all().chain([k_extent]).collect();
    Contraction::new(extents, out.len(), lhs, rhs)
}

fn matmul() -> OpDef {
    let compute = prim(|cx| {
        let (a, b) = (cx.input(0)?, cx.input(1)?);
        Ok(Prim::Contract(matmul_contraction(&a.dims, &b.dims, &cx.outputs[0].dims).into()))
    });
    let doc = "The matrix product of the last two axes, broadcasting the others.";
    define("matmul", doc, compute, shape_rule(matmul_rule)).groups(&["a", "b"], NUMBERS).onnx("MatMul", 1).ulp(1.0)
}

fn matmul_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    matmul_shape(cx, [0, 1])
}

/// The shape of the product of two operands.
pub(crate) fn matmul_shape(cx: &mut InferCtx<'_>, operands: [usize; 2]) -> Result<(), OpError> {
    let [Some(a), Some(b)] = operands.map(|i| cx.open_dims(i)) else { return Ok(()) };
    for (i, dims) in operands.into_iter().zip([&a, &b]) {
        reject_if(dims.is_empty(), || format!("{}: expected rank at least 1, found rank 0", cx.input_name(i)))?;
    }
    product_shape(cx, &a, &b)
}

/// The shape of the product of tensors with these axes, of which there is at least one.
pub(crate) fn product_shape(cx: &mut InferCtx<'_>, a: &[Dim], b: &[Dim]) -> Result<(), OpError> {
    let k_axis = b.len().saturating_sub(2);
    let what = format!("operand `b`, axis {k_axis} (against the last axis of `a`)");
    cx.unify_dims(a[a.len() - 1], b[k_axis], &what)?;
    let batch = |d: &[Dim]| d[..d.len().saturating_sub(2)].to_vec();
    let mut out = broadcast(&[&batch(a), &batch(b)])?;
    if a.len() > 1 {
        out.push(Some(a[a.len() - 2]));
    }
    if b.len() > 1 {
        out.push(Some(b[b.len() - 1]));
    }
    partial(cx, 0, &out)
}

/// `alpha · y + beta · c`, leaving out what does nothing.
fn scale_add<'g>(y: Tensor<'g>, c: Option<Tensor<'g>>, alpha: f64, beta: f64) -> Tensor<'g> {
    let scaled = |x: &Ex, k: f64| if k == 1.0 { x.clone() } else { x * k };
    match c.filter(|_| beta != 0.0) {
        None if alpha == 1.0 => y,
        None => y.map(|y| y * alpha),
        Some(c) => y.map_with(&[c], |_, a| scaled(&a[0], alpha) + scaled(&a[1], beta)),
    }
}

pub(crate) fn gemm() -> OpDef {
    let compute = formula(|g, cx| {
        let ([x, y], out) = (g.operands(), &cx.outputs[0].dims);
        let (ta, tb) = (cx.params.flag("transA"), cx.params.flag("transB"));
        let [m, n, k] = [0, 1, 2].map(Index::var);
        let inner = x.dims()?.at(usize::from(!ta));
        let lhs = if ta { vec![k.clone(), m] } else { vec![m, k.clone()] };
        let rhs = if tb { vec![n, k] } else { vec![k, n] };
        let product = x.contract(y, Contraction::new(Extents::from_iter([out.at(0), out.at(1), inner]), 2, lhs, rhs));
        let (alpha, beta) = (cx.params.float("alpha").unwrap_or(1.0), cx.params.float("beta").unwrap_or(1.0));
        Ok(scale_add(product, g.maybe(2), alpha, beta))
    });
    let infer = shape_rule(|cx| {
        let (a, b) = (open_ranked(cx, 0, 2)?, open_ranked(cx, 1, 2)?);
        let (ta, tb) = (cx.params.flag("transA"), cx.params.flag("transB"));
        let (m, k) = if ta { (a[1], a[0]) } else { (a[0], a[1]) };
        let (k2, n) = if tb { (b[1], b[0]) } else { (b[0], b[1]) };
        cx.unify_dims(k, k2, &format!("operand `B`, axis {}", usize::from(tb)))?;
        if let Some(c) = cx.open_dims(2) {
            reject_if(c.len() > 2, || format!("operand `C`: expected rank at most 2, found rank {}", c.len()))?;
            for (i, &d) in c.iter().rev().enumerate() {
                let expected = if i == 0 { n } else { m };
                if let (Some(found), Some(expected)) = (d.as_extent(), expected.as_extent())
                    && found != 1
                    && found != expected
                {
                    return Err(OpError(format!("operand `C`: cannot broadcast {found} to {expected}")));
                }
            }
        }
        cx.set_output_dims(0, [m, n])
    });
    define("gemm", "`alpha · A' · B' + beta · C`, with A' and B' transposed if asked.", compute, infer)
        .groups(&["A", "B"], NUMBERS)
        .optional("C", TypeRule::Group(0, NUMBERS))
        .param("alpha", 1.0, "")
        .param("beta", 1.0, "")
        .param("transA", false, "")
        .param("transB", false, "")
        .onnx("Gemm", 1)
        .ulp(1.0)
}

/// The sizes a transposable matrix operand contributes: its index, given the row and column index.
fn oriented(transposed: bool, row: Index, column: Index) -> [Index; 2] {
    if transposed { [column, row] } else { [row, column] }
}

fn dot() -> OpDef {
    let compute = prim(|cx| {
        let (a, b) = (cx.input(0)?, cx.input(1)?);
        let out = &cx.outputs[0].dims;
        let k = Index::var(out.len() as u32);
        let (ta, tb) = dot_flags(cx.params.bool("transpose_a"), cx.params.bool("transpose_b"));
        let split = a.rank() - 1;
        let mut lhs: Vec<Index> = (0..split as u32).map(Index::var).collect();
        let mut rhs: Vec<Index> = (split as u32..out.len() as u32).map(Index::var).collect();
        if ta {
            lhs.insert(0, k.clone())
        } else {
            lhs.push(k.clone())
        }
        if tb {
            rhs.push(k.clone())
        } else {
            rhs.insert(0, k.clone())
        }
        let inner = a.dims.at(if ta { 0 } else { split });
        debug_assert_eq!(rhs.len(), b.rank());
        if (a.rank(), b.rank()) == (1, 1) {
            // The result has one axis that nothing is read along.
            (lhs, rhs) = (vec![k.clone()], vec![k]);
        }
        let extents = out.all().chain([inner]).collect::<Extents>();
        Ok(Prim::Contract(Contraction::new(extents, out.len(), lhs, rhs).into()))
    });
    let infer = shape_rule(|cx| {
        let (ta, tb) = dot_flags(cx.params.bool("transpose_a"), cx.params.bool("transpose_b"));
        let (Some(a), Some(b)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        reject_if(a.is_empty() || b.is_empty(), || "operands: expected rank at least 1, found rank 0")?;
        let ka = if ta { 0 } else { a.len() - 1 };
        let kb = if tb { b.len() - 1 } else { 0 };
        cx.unify_dims(a[ka], b[kb], &format!("operand `rhs`, axis {kb}"))?;
        let rest = |d: &[Dim], skip: usize| d.iter().enumerate().filter(|(i, _)| *i != skip).map(|(_, d)| *d).collect();
        let (left, right): (Vec<Dim>, Vec<Dim>) = (rest(&a, ka), rest(&b, kb));
        let dims = [left, right].concat();
        cx.set_output_dims(0, if dims.is_empty() { vec![Dim::Const(1)] } else { dims })
    });
    let doc = "Sums over the last axis of `lhs` and the first of `rhs` (swapped when transposed). That of two vectors \
               has shape [1].";
    define("dot", doc, compute, infer)
        .groups(&["lhs", "rhs"], NUMBERS)
        .param("transpose_a", false, "Sum over the first axis of `lhs`.")
        .param("transpose_b", false, "Sum over the last axis of `rhs`.")
        .maybe("forward_stype", ParamKind::Str, "No effect: results are dense.")
        .mxnet("dot")
        .ulp(1.0)
}

fn dot_flags(a: Option<bool>, b: Option<bool>) -> (bool, bool) {
    (a.unwrap_or(false), b.unwrap_or(false))
}

fn batch_dot() -> OpDef {
    let compute = prim(|cx| {
        let a = cx.input(0)?;
        let out = &cx.outputs[0].dims;
        let (ta, tb) = dot_flags(cx.params.bool("transpose_a"), cx.params.bool("transpose_b"));
        let [g, m, n, k] = [0, 1, 2, 3].map(Index::var);
        let lhs = [&[g.clone()][..], &oriented(ta, m, k.clone())].concat();
        let rhs = [&[g][..], &oriented(tb, k, n)].concat();
        let inner = a.dims.at(if ta { 1 } else { 2 });
        let extents = Extents::of([out.at(0), out.at(1), out.at(2), inner]);
        Ok(Prim::Contract(Contraction::new(extents, 3, lhs, rhs).into()))
    });
    let infer = shape_rule(|cx| {
        let (ta, tb) = dot_flags(cx.params.bool("transpose_a"), cx.params.bool("transpose_b"));
        let (a, b) = (open_ranked(cx, 0, 3)?, open_ranked(cx, 1, 3)?);
        let (m, ka) = if ta { (a[2], a[1]) } else { (a[1], a[2]) };
        let (kb, n) = if tb { (b[2], b[1]) } else { (b[1], b[2]) };
        cx.unify_dims(a[0], b[0], "operand `rhs`, axis 0")?;
        cx.unify_dims(ka, kb, "operand `rhs`, summed axis")?;
        cx.set_output_dims(0, [a[0], m, n])
    });
    define("batch_dot", "A matrix product for every index of the first axis.", compute, infer)
        .groups(&["lhs", "rhs"], NUMBERS)
        .param("transpose_a", false, "")
        .param("transpose_b", false, "")
        .maybe("forward_stype", ParamKind::Str, "No effect: results are dense.")
        .mxnet("batch_dot")
        .ulp(1.0)
}

/// Extents of the rows a fully connected layer sees, and of one row.
fn rows(dims: &Extents, flatten: bool) -> (Extents, Extent) {
    let lead = if flatten { 1 } else { dims.len() - 1 };
    (dims.range(..lead), dims.range(lead..).count())
}

fn fully_connected_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, w] = g.operands();
    let (lead, inner) = rows(&x.dims()?, cx.params.bool("flatten").unwrap_or(true));
    let x = x.reshape(Extents::from_iter(lead.all().chain([inner])));
    let out = &cx.outputs[0].dims;
    let (k, n) = (Index::var(out.len() as u32), Index::var(out.len() as u32 - 1));
    let mut lhs: Vec<Index> = (0..lead.len() as u32).map(Index::var).collect();
    lhs.push(k.clone());
    let extents = Extents::from_iter(out.all().chain([inner]));
    let y = x.contract(w, Contraction::new(extents, out.len(), lhs, vec![n, k]));
    Ok(scale_add(y, g.maybe(2).filter(|_| !cx.params.flag("no_bias")), 1.0, 1.0))
}

fn fully_connected() -> OpDef {
    let infer = shape_rule(|cx| {
        let hidden = cx.params.int("num_hidden").unwrap_or(0).max(0) as u64;
        let flatten = cx.params.bool("flatten").unwrap_or(true);
        let w = ranked(cx, 1, 2)?;
        cx.unify_dims(Dim::Const(hidden), w[0], "operand `weight`, axis 0")?;
        cx.set_input_dims(2, [Dim::Const(hidden)])?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        reject_if(x.is_empty(), || "operand `data`: expected rank at least 1, found rank 0")?;
        let lead = if flatten { 1 } else { x.len() - 1 };
        let inner = x[lead..].to_vec();
        cx.relate(tensorc_ir::dim::Equation::Product { left: vec![w[1]], right: inner })?;
        cx.set_output_dims(0, x[..lead].iter().copied().chain([Dim::Const(hidden)]))
    });
    define("fully_connected", "`x · weightᵀ + bias` on rows of the data.", formula(fully_connected_body), infer)
        .groups(&["data", "weight"], NUMBERS)
        .optional("bias", TypeRule::Group(0, NUMBERS))
        .count("num_hidden", "Number of columns of the result.")
        .param("flatten", true, "Join all axes but the first; otherwise apply to the last axis.")
        .param("no_bias", false, "")
        .present(|params, _| !params.flag("no_bias"))
        .mxnet("FullyConnected")
        .ulp(1.0)
}
