//! `MultiHeadAttention`: attention of operands that are projected already, apart or packed.

use super::{Call, added, by_head, check_bias, check_key_mask, heads_of, key_mask, scale_of};
use crate::prelude::*;
use crate::rules::open_rank_in;

/// The `i`-th of tensors packed along axis 3 of [batch, sequence, heads, count, size].
fn packed<'g>(x: Tensor<'g>, i: u64) -> Result<Tensor<'g>> {
    let d = x.dims()?;
    Ok(x.slice(3, i, 1u64).reshape([d[0], d[1], d[2], d[4]]).permute(&[0, 2, 1, 3]))
}

/// Queries, keys and values by head, with their biases.
fn operands<'g>(g: GraphScope<'g>, heads: u64) -> Result<[Tensor<'g>; 3]> {
    let q = g.operand(0);
    let parts = match (g.maybe(1), g.maybe(2)) {
        (None, _) => [packed(q, 0)?, packed(q, 1)?, packed(q, 2)?],
        (Some(kv), None) => [by_head(q, heads)?, packed(kv, 0)?, packed(kv, 1)?],
        (Some(k), Some(v)) => [by_head(q, heads)?, apart(k, heads)?, apart(v, heads)?],
    };
    with_biases(parts, g.maybe(3), heads)
}

/// Keys or values by head, as which they may be given.
pub fn apart(x: Tensor<'_>, heads: u64) -> Result<Tensor<'_>> {
    if x.dims()?.len() == 4 { Ok(x) } else { by_head(x, heads) }
}

/// Queries, keys and values with a bias for all features of them, one after the other.
pub fn with_biases<'g>(parts: [Tensor<'g>; 3], bias: Option<Tensor<'g>>, heads: u64) -> Result<[Tensor<'g>; 3]> {
    let Some(bias) = bias else { return Ok(parts) };
    let mut start = 0;
    let mut out = parts;
    for part in &mut out {
        let size = part.dims()?[3];
        *part = *part + bias.slice(0, start, heads * size).reshape([1, heads, 1, size]);
        start += heads * size;
    }
    Ok(out)
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let heads = heads_of(cx.params, "num_heads").or_fail(&g)?;
    let [q, k, v] = operands(g, heads)?;
    let past = [g.maybe(6), g.maybe(7)];
    let keys = k.dims()?[2] + past[0].map_or(Ok(0), |past| past.dims().map(|d| d[2]))?;
    let hidden = cx.params.float("mask_filter_value").unwrap_or(-10000.0);
    let batch = q.dims()?[0];
    let mask = g.maybe(4).map(|mask| key_mask(mask, cx.outputs[0].dtype, [batch, keys], hidden)).transpose()?;
    let causal = cx.params.flag("unidirectional");
    Call { q, k, v, past, mask: added(mask, g.maybe(5)), causal, scale: scale_of(cx), softcap: 0.0 }.results()
}

/// Keys, and features of a value head. Biases and caches are operands that keys by head exclude.
pub fn key_value(
    cx: &mut InferCtx<'_>,
    q: &[Dim],
    heads: u64,
    excluded: [usize; 2],
) -> Result<Option<[Dim; 2]>, OpError> {
    if !cx.has_input(1) {
        reject_if(cx.has_input(2), || "operand `value`: expected none without `key`")?;
        reject_if(q.len() != 5, || "operand `query`: expected rank 5 without `key`")?;
        shaped(cx, 0, &[q[0], q[1], Dim::Const(heads), Dim::Const(3), q[4]])?;
        return Ok(Some([q[1], q[4]]));
    }
    reject_if(q.len() != 3, || "operand `query`: expected rank 3 with `key`")?;
    let size = match q[2].as_const() {
        Some(n) if n % heads != 0 => return Err(OpError(format!("{n} features do not divide into {heads} heads"))),
        Some(n) => Dim::Const(n / heads),
        None => cx.fresh(),
    };
    let Some(k) = open_rank_in(cx, 1, 3..=5)? else { return Ok(None) };
    match k.len() {
        5 => {
            reject_if(cx.has_input(2), || "operand `value`: expected none with packed keys and values")?;
            shaped(cx, 1, &[q[0], k[1], Dim::Const(heads), Dim::Const(2), size])?;
            return Ok(Some([k[1], size]));
        }
        4 => shaped(cx, 1, &[q[0], Dim::Const(heads), k[2], size])?,
        _ => shaped(cx, 1, &[q[0], k[1], q[2]])?,
    }
    reject_if(!cx.has_input(2), || "operand `value` is missing")?;
    let Some(v) = open_rank_in(cx, 2, k.len()..=k.len())? else { return Ok(None) };
    if v.len() == 4 {
        reject_if(
            excluded.iter().any(|i| cx.has_input(*i)),
            || "operands `bias` and `past_key`: expected none with keys of rank 4",
        )?;
        shaped(cx, 2, &[q[0], Dim::Const(heads), k[2], v[3]])?;
        return Ok(Some([k[2], v[3]]));
    }
    shaped(cx, 2, &[q[0], k[1], v[2]])?;
    let Some(n) = v[2].as_const() else { return Ok(None) };
    reject_if(n % heads != 0, || format!("{n} features do not divide into {heads} heads"))?;
    Ok(Some([k[1], Dim::Const(n / heads)]))
}

/// The length of the key sequence: cached keys (the operands `past`) plus new ones. Caches have the shape of new keys and values
/// but for their length.
pub fn total_keys(
    cx: &mut InferCtx<'_>,
    past: [usize; 2],
    [batch, new]: [Dim; 2],
    [heads, size]: [u64; 2],
    value: Dim,
) -> Result<Dim, OpError> {
    reject_if(
        cx.has_input(past[0]) != cx.has_input(past[1]),
        || "operands `past_key` and `past_value`: expected both or none",
    )?;
    let Some(stored) = open_rank_in(cx, past[0], 4..=4)? else { return Ok(new) };
    for (i, size) in [(past[0], Dim::Const(size)), (past[1], value)] {
        shaped(cx, i, &[batch, Dim::Const(heads), stored[2], size])?;
    }
    let keys = cx.fresh();
    cx.relate(Equation::Sum { out: keys, terms: vec![stored[2], new] })?;
    Ok(keys)
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
    let heads = heads_of(cx.params, "num_heads")?;
    let Some(q) = open_rank_in(cx, 0, 3..=5)? else { return Ok(()) };
    let Some([new, value]) = key_value(cx, &q, heads, [3, 6])? else { return Ok(()) };
    let size = if q.len() == 5 { q[4].as_const() } else { q[2].as_const().map(|n| n / heads) };
    if let (true, Some(size), Some(value)) = (cx.has_input(3), size, value.as_const()) {
        shaped(cx, 3, &[Dim::Const(heads * (2 * size + value))])?;
    }
    let Some(size) = size else { return partial(cx, 0, &[Some(q[0]), Some(q[1]), None]) };
    let keys = total_keys(cx, [6, 7], [q[0], new], [heads, size], value)?;
    check_key_mask(cx, 4, [q[0], q[1], keys])?;
    check_bias(cx, 5, heads, [q[0], q[1], keys])?;
    partial(cx, 0, &[Some(q[0]), Some(q[1]), value.as_const().map(|n| Dim::Const(n * heads))])?;
    for (i, size) in [(1, Dim::Const(size)), (2, value)] {
        if cx.output_count() > i {
            cx.set_output_dims(i, [q[0], Dim::Const(heads), keys, size])?;
        }
    }
    Ok(())
}

pub fn multi_head() -> OpDef {
    let doc = "Attention of queries, keys and values, apart or packed, with biases, a mask of keys and caches.";
    define("multi_head_attention", doc, formulas(body), rule(shapes))
        .group("query", FLOATS)
        .optional("key", TypeRule::Group(0, FLOATS))
        .optional("value", TypeRule::Group(0, FLOATS))
        .optional("bias", TypeRule::Group(0, FLOATS))
        .optional("key_padding_mask", TypeRule::OneOf(&[DType::I32]))
        .optional("attention_bias", TypeRule::Group(0, FLOATS))
        .optional("past_key", TypeRule::Group(0, FLOATS))
        .optional("past_value", TypeRule::Group(0, FLOATS))
        .outputs(1, 3)
        .required("num_heads", ParamKind::Int, "number of heads")
        .param("unidirectional", false, "Queries see no later keys.")
        .maybe("scale", ParamKind::Float, "Default: 1 / √size.")
        .param("mask_filter_value", -10000.0, "added to scores of hidden keys")
        .contrib("MultiHeadAttention")
        .ulp(16.0)
}
