//! Products of attention on heads that lie interleaved in one projection.

use super::{matmul, scaled, transposed};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![query_key(true), query_key(false), value(true), value(false), div_sqrt_dim()]
}

fn heads(params: &Params) -> u64 {
    params.int("heads").unwrap_or(1).max(1) as u64
}

/// Part `which` of `parts` of [time, batch, heads · parts · size], as [batch · heads, time, size].
fn part(x: Tensor<'_>, heads: u64, (which, parts): (u64, u64)) -> Result<Tensor<'_>> {
    let d = x.dims()?;
    let (time, batch, size) = (d.at(0), d.at(1), Extent::from(d.at(2).fixed() as u64 / (heads * parts)));
    let apart = x.reshape(Extents::of([time, batch, heads.into(), parts.into(), size])).slice(3, which, 1);
    let one = apart.reshape(Extents::of([time, batch, heads.into(), size])).permute(&[1, 2, 0, 3]);
    Ok(one.reshape(Extents::of([batch * heads, time, size])))
}

/// The last axis of a projection must hold `parts` for every head.
fn size(cx: &InferCtx<'_>, i: usize, parts: u64) -> Result<Option<[Dim; 3]>, OpError> {
    let Some(x) = open_rank_in(cx, i, 3..=3)? else { return Ok(None) };
    let by = heads(cx.params) * parts;
    multiple_of(x[2], by, &format!("{}, axis 2", cx.input_name(i)))?;
    Ok(Some([x[0], x[1], x[2]]))
}

fn product_of(x: Dim, by: u64) -> Option<Dim> {
    x.as_extent().map(|n| Dim::of(n * by))
}

fn with_heads(def: OpDef) -> OpDef {
    def.required("heads", ParamKind::Int, "number of heads").within(1.0, 65536.0).ulp(2.0)
}

fn query_key(own: bool) -> OpDef {
    let compute = formula(move |g, cx| {
        let heads = heads(cx.params);
        let (q, k) = match own {
            true => (part(g.operand(0), heads, (0, 3))?, part(g.operand(0), heads, (1, 3))?),
            false => (part(g.operand(0), heads, (0, 1))?, part(g.operand(1), heads, (0, 2))?),
        };
        let q = scaled(q, 1.0 / (q.dims()?.at(2).fixed() as f64).sqrt());
        Ok(matmul(q, transposed(k)))
    });
    let infer = shape_rule(move |cx| {
        let queries = size(cx, 0, if own { 3 } else { 1 })?;
        let keys = if own { queries } else { size(cx, 1, 2)? };
        let (Some(q), Some(k)) = (queries, keys) else { return Ok(()) };
        if !own {
            cx.unify_dims(q[1], k[1], "operand `keys_values`, axis 1")?;
        }
        match product_of(q[1], heads(cx.params)) {
            Some(batch) => cx.set_output_dims(0, [batch, q[0], k[0]]),
            None => Ok(()),
        }
    });
    let doc = "Products of queries and keys for every head, over the root of its size: [batch · heads, query, key].";
    match own {
        true => with_heads(define("mx_interleaved_matmul_selfatt_qk", doc, compute, infer))
            .group("queries_keys_values", FLOATS)
            .mxnet("_contrib_interleaved_matmul_selfatt_qk"),
        false => with_heads(define("mx_interleaved_matmul_encdec_qk", doc, compute, infer))
            .groups(&["queries", "keys_values"], FLOATS)
            .mxnet("_contrib_interleaved_matmul_encdec_qk"),
    }
}

fn value(own: bool) -> OpDef {
    let parts = if own { 3 } else { 2 };
    let compute = formula(move |g, cx| {
        let (heads, x) = (heads(cx.params), g.operand(0));
        let v = part(x, heads, (parts - 1, parts))?;
        let out = matmul(g.operand(1), v);
        let (batch, d) = (x.dims()?.at(1), out.dims()?);
        let (time, size) = (d.at(1), d.at(2));
        let out = out.reshape(Extents::of([batch, heads.into(), time, size])).permute(&[2, 0, 1, 3]);
        Ok(out.reshape(Extents::of([time, batch, size * heads])))
    });
    let infer = shape_rule(move |cx| {
        let (Some(x), Some(a)) = (size(cx, 0, parts)?, open_rank_in(cx, 1, 3..=3)?) else { return Ok(()) };
        cx.unify_dims(x[0], a[2], "operand `attention`, axis 2")?;
        if let Some(batch) = product_of(x[1], heads(cx.params)) {
            cx.unify_dims(batch, a[0], "operand `attention`, axis 0")?;
        }
        match x[2] {
            Dim::Const(n) => cx.set_output_dims(0, [a[1], x[1], Dim::Const(n / parts)]),
            Dim::Open(n) => cx.set_output_dims(0, [a[1], x[1], Dim::of(n.div_floor(parts))]),
            Dim::Sym(_) => Ok(()),
        }
    });
    let doc = "Values weighted by attention for every head: [query, batch, heads · size].";
    let (own_name, mxnet, first) = match own {
        true => (
            "mx_interleaved_matmul_selfatt_valatt",
            "_contrib_interleaved_matmul_selfatt_valatt",
            "queries_keys_values",
        ),
        false => ("mx_interleaved_matmul_encdec_valatt", "_contrib_interleaved_matmul_encdec_valatt", "keys_values"),
    };
    with_heads(define(own_name, doc, compute, infer)).group(first, FLOATS).group("attention", FLOATS).mxnet(mxnet)
}

fn div_sqrt_dim() -> OpDef {
    let compute = formula(|g, _| {
        let x = g.operand(0);
        Ok(x / x.dims()?.all().next_back().map_or(1.0, |n| n.fixed() as f64).sqrt())
    });
    define("mx_div_sqrt_dim", "x over the root of the last extent.", compute, rule(|cx| same(cx, 0, 0)))
        .operand("data", FLOATS)
        .ulp(1.0)
        .mxnet("_contrib_div_sqrt_dim")
}
