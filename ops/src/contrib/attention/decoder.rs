//! `DecoderMaskedMultiHeadAttention`: attention of one query for each sequence, as decoders use it.
//!
//! Caches hold what came before, or are buffers of which only a part is in use: then what is new takes the place behind it.

use super::super::only;
use super::multi_head::{apart, key_value, total_keys, with_biases};
use super::{Call, added, by_head, check_bias, check_key_mask, heads_of, key_mask, scale_of};
use crate::prelude::*;
use crate::rules::{ints, need_ints, open_rank_in};

/// Operand positions.
const MASK: usize = 3;
const BIAS: usize = 4;
const PAST: [usize; 2] = [5, 6];
const USED: usize = 7;
const PROJECTION: usize = 10;

/// The part of a buffer in use, and the buffer with one more element behind it.
fn kept<'g>(buffer: Tensor<'g>, new: Tensor<'g>, used: u64) -> Result<[Tensor<'g>; 2]> {
    let extent = buffer.dims()?[2];
    let before = buffer.slice(2, 0u64, used);
    let mut parts = vec![before, new];
    if extent > used + 1 {
        parts.push(buffer.slice(2, used + 1, extent - used - 1));
    }
    Ok([before, new.graph().concat(&parts, 2)])
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let heads = heads_of(cx.params, "num_heads").or_fail(&g)?;
    let q = g.operand(0);
    let parts = match (g.maybe(1), g.maybe(2)) {
        (Some(k), Some(v)) => [by_head(q, heads)?, apart(k, heads)?, apart(v, heads)?],
        _ => {
            let hidden = q.dims()?[2] / 3;
            let part = |at: u64| by_head(q.slice(2, at * hidden, hidden), heads);
            [part(0)?, part(1)?, part(2)?]
        }
    };
    let [q, k, v] = with_biases(parts, g.maybe(PROJECTION), heads)?;
    let mut past = PAST.map(|i| g.maybe(i));
    let mut buffers = None;
    if let (true, [Some(keys), Some(values)]) = (cx.params.flag("past_present_share_buffer"), past) {
        let used = need_ints(cx, USED, "past_sequence_length").or_fail(&g)?.first().copied().unwrap_or(0) as u64;
        let ([before_keys, keys], [before_values, values]) = (kept(keys, k, used)?, kept(values, v, used)?);
        past = [before_keys, before_values].map(Some);
        buffers = Some([keys, values]);
    }
    let keys = k.dims()?[2] + past[0].map_or(Ok(0), |past| past.dims().map(|d| d[2]))?;
    let (batch, dtype) = (q.dims()?[0], cx.outputs[0].dtype);
    let hidden = cx.params.float("mask_filter_value").unwrap_or(-10000.0);
    let mask = g.maybe(MASK).map(|mask| key_mask(mask, dtype, [batch, keys], hidden)).transpose()?;
    let mask = added(mask, g.maybe(BIAS));
    let made = Call { q, k, v, past, mask, causal: false, scale: scale_of(cx), softcap: 0.0 }.results()?;
    Ok(match buffers {
        Some([keys, values]) => vec![made[0], keys, values],
        None => made,
    })
}

/// Elements in use of buffers of keys and values, if they are known.
fn used(cx: &mut InferCtx<'_>, [batch, heads, size, value]: [Dim; 4]) -> Result<Option<[u64; 2]>, OpError> {
    let Some(stored) = open_rank_in(cx, PAST[0], 4..=4)? else { return Ok(None) };
    for (i, size) in [(PAST[0], size), (PAST[1], value)] {
        shaped(cx, i, &[batch, heads, stored[2], size])?;
    }
    let (Some(used), Some(extent)) = (ints(cx, USED).and_then(|n| n.first().copied()), stored[2].as_const()) else {
        return Ok(None);
    };
    match u64::try_from(used) {
        Ok(used) if used < extent => Ok(Some([used, extent])),
        _ => Err(OpError(format!("operand `past_sequence_length` is {used}, of buffers of {extent}"))),
    }
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    only(cx, "output_qk", 0)?;
    reject_if((8..10).any(|i| cx.has_input(i)), || "operands of beams are not supported")?;
    let shared = cx.params.flag("past_present_share_buffer") && cx.has_input(PAST[0]);
    reject_if(
        shared != cx.has_input(USED),
        || "operand `past_sequence_length` belongs to caches with `past_present_share_buffer`",
    )?;
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
    let heads = heads_of(cx.params, "num_heads")?;
    let Some(q) = open_rank_in(cx, 0, 3..=3)? else { return Ok(()) };
    cx.unify_dims(Dim::Const(1), q[1], "operand `query`, axis 1")?;
    let packed = !cx.has_input(1);
    let parts = if packed { 3 * heads } else { heads };
    let Some(n) = q[2].as_const() else { return Ok(()) };
    reject_if(n % parts != 0, || format!("{n} features do not divide into {parts} heads"))?;
    let size = n / parts;
    let [new, value] = match packed {
        true => [q[1], Dim::Const(size)],
        false => match key_value(cx, &q, heads, [PROJECTION, PAST[0]])? {
            Some(found) => found,
            None => return Ok(()),
        },
    };
    if let (true, Some(value)) = (cx.has_input(PROJECTION), value.as_const()) {
        shaped(cx, PROJECTION, &[Dim::Const(heads * (2 * size + value))])?;
    }
    let (keys, kept) = match shared {
        true => match used(cx, [q[0], Dim::Const(heads), Dim::Const(size), value])? {
            Some([used, extent]) => (Dim::Const(used + 1), Dim::Const(extent)),
            None => return partial(cx, 0, &[Some(q[0]), Some(q[1]), value.as_const().map(|n| Dim::Const(n * heads))]),
        },
        false => {
            let keys = total_keys(cx, PAST, [q[0], new], [heads, size], value)?;
            (keys, keys)
        }
    };
    check_key_mask(cx, MASK, [q[0], q[1], keys])?;
    check_bias(cx, BIAS, heads, [q[0], q[1], keys])?;
    partial(cx, 0, &[Some(q[0]), Some(q[1]), value.as_const().map(|n| Dim::Const(n * heads))])?;
    for (i, size) in [(1, Dim::Const(size)), (2, value)] {
        if cx.output_count() > i {
            cx.set_output_dims(i, [q[0], Dim::Const(heads), kept, size])?;
        }
    }
    Ok(())
}

pub fn decoder() -> OpDef {
    let doc = "`multi_head_attention` of one query for each sequence.";
    let float = || TypeRule::Group(0, FLOATS);
    let whole = || TypeRule::OneOf(&[DType::I32]);
    define("decoder_attention", doc, formulas(body), rule(shapes))
        .group("query", FLOATS)
        .optional("key", float())
        .optional("value", float())
        .optional("mask_index", whole())
        .optional("attention_bias", float())
        .optional("past_key", float())
        .optional("past_value", float())
        .static_optionals(&["past_sequence_length"], &[DType::I32])
        .optional("beam_width", whole())
        .optional("cache_indirection", whole())
        .optional("bias", float())
        .outputs(1, 3)
        .required("num_heads", ParamKind::Int, "number of heads")
        .maybe("scale", ParamKind::Float, "Default: 1 / √size.")
        .param("mask_filter_value", -10000.0, "added to scores of hidden keys")
        .param(
            "past_present_share_buffer",
            false,
            "Caches are buffers of which `past_sequence_length` elements are in use.",
        )
        .param("output_qk", 0, "Only 0 is supported.")
        .contrib("DecoderMaskedMultiHeadAttention")
        .ulp(16.0)
}
