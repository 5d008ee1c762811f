//! `Attention`: self-attention with the projections of queries, keys and values.

use super::super::only;
use super::{Call, added, by_head, check_bias, check_key_mask, heads_of, key_mask, scale_of};
use crate::prelude::*;
use crate::rules::open_rank_in;

/// Features of queries, keys and values, as far as the columns of the weights are known.
fn features(params: &Params, columns: Option<u64>) -> Result<Option<[u64; 3]>, OpError> {
    match params.ints("qkv_hidden_sizes").unwrap_or(&[]) {
        [] => match columns {
            Some(n) if n % 3 != 0 => Err(OpError(format!("operand `weights`: {n} columns are no three of one size"))),
            columns => Ok(columns.map(|n| [n / 3; 3])),
        },
        &[q, k, v] if q == k && q > 0 && v > 0 => Ok(Some([q, k, v].map(|n| n as u64))),
        other => Err(OpError(format!("parameter `qkv_hidden_sizes` is {other:?}"))),
    }
}

/// Where the operands of an attention behind projections lie.
pub struct Projected {
    pub mask: usize,
    pub past: usize,
    /// What is added to scores.
    pub bias: Option<usize>,
}

const AT: Projected = Projected { mask: 3, past: 4, bias: Some(5) };

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let [x, weights] = g.operands();
    let product = x.call("matmul", &[weights]);
    attended(g, cx, g.maybe(2).map_or(product, |bias| product + bias), &AT)
}

/// Attention of queries, keys and values side by side, [batch, sequence, features].
pub fn attended<'g>(
    g: GraphScope<'g>,
    cx: &NodeCtx<'_>,
    product: Tensor<'g>,
    at: &Projected,
) -> Result<Vec<Tensor<'g>>> {
    let d = product.dims()?;
    let columns = d[2];
    let (sizes, heads) = (features(cx.params, Some(columns)), heads_of(cx.params, "num_heads").or_fail(&g)?);
    let [q, k, v] = sizes.or_fail(&g)?.unwrap_or([columns / 3; 3]);
    let part = |start: u64, len: u64| by_head(product.slice(2, start, len), heads);
    let past = |i: u64| {
        g.maybe(at.past).map(|past| {
            let d = past.dims()?;
            Ok(past.slice(0, i, 1u64).reshape(&d[1..]))
        })
    };
    let past = [past(0).transpose()?, past(1).transpose()?];
    let keys = d[1] + past[0].map_or(Ok(0), |past| past.dims().map(|d| d[2]))?;
    let hidden = cx.params.float("mask_filter_value").unwrap_or(-10000.0);
    let dtype = cx.outputs[0].dtype;
    let mask = g.maybe(at.mask).map(|mask| key_mask(mask, dtype, [d[0], keys], hidden)).transpose()?;
    let call = Call {
        q: part(0, q)?,
        k: part(q, k)?,
        v: part(q + k, v)?,
        past,
        mask: added(mask, at.bias.and_then(|i| g.maybe(i))),
        causal: cx.params.flag("unidirectional"),
        scale: scale_of(cx),
        softcap: 0.0,
    };
    let made = call.results()?;
    if cx.outputs.len() < 2 {
        return Ok(vec![made[0]]);
    }
    let kept = |x: Tensor<'g>| Ok(x.reshape([&[1], &x.dims()?[..]].concat()));
    Ok(vec![made[0], g.concat(&[kept(made[1])?, kept(made[2])?], 0)])
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
    projected_shapes(cx, &AT)
}

/// The shapes of an attention behind projections: operands 0 and 1 are data and weights, operand 2 is the bias.
pub fn projected_shapes(cx: &mut InferCtx<'_>, at: &Projected) -> Result<(), OpError> {
    ["do_rotary", "past_present_share_buffer"].into_iter().try_for_each(|name| only(cx, name, 0))?;
    let heads = heads_of(cx.params, "num_heads")?;
    let (Some(x), Some(w)) = (open_rank_in(cx, 0, 3..=3)?, open_rank_in(cx, 1, 2..=2)?) else { return Ok(()) };
    cx.unify_dims(x[2], w[0], "operand `weights`, axis 0")?;
    if cx.has_input(2) {
        shaped(cx, 2, &[w[1]])?;
    }
    let Some([q, k, v]) = features(cx.params, w[1].as_const())? else {
        return partial(cx, 0, &[Some(x[0]), Some(x[1]), None]);
    };
    if let Some(columns) = w[1].as_const() {
        reject_if(columns != q + k + v, || {
            format!("operand `weights`, axis 1: expected {}, found {columns}", q + k + v)
        })?;
    }
    for n in [q, v] {
        reject_if(n % heads != 0, || format!("{n} features do not divide into {heads} heads"))?;
    }
    cx.set_output_dims(0, [x[0], x[1], Dim::Const(v)])?;
    let mut keys = x[1];
    if cx.has_input(at.past) {
        reject_if(q != v, || "operand `past`: expected values as large as keys")?;
        let Some(past) = open_rank_in(cx, at.past, 5..=5)? else { return Ok(()) };
        shaped(cx, at.past, &[Dim::Const(2), x[0], Dim::Const(heads), past[3], Dim::Const(q / heads)])?;
        keys = cx.fresh();
        cx.relate(Equation::Sum { out: keys, terms: vec![past[3], x[1]] })?;
    }
    check_key_mask(cx, at.mask, [x[0], x[1], keys])?;
    if let Some(bias) = at.bias {
        check_bias(cx, bias, heads, [x[0], x[1], keys])?;
    }
    if cx.output_count() > 1 {
        reject_if(q != v, || "result `present`: expected values as large as keys")?;
        cx.set_output_dims(1, [Dim::Const(2), x[0], Dim::Const(heads), keys, Dim::Const(q / heads)])?;
    }
    Ok(())
}

pub fn attention() -> OpDef {
    let doc = "Self-attention of x · weights + bias, with a mask of keys and a cache.";
    define("projected_attention", doc, formulas(body), rule(shapes))
        .groups(&["input", "weights"], FLOATS)
        .optional("bias", TypeRule::Group(0, FLOATS))
        .optional("mask_index", TypeRule::OneOf(&[DType::I32]))
        .optional("past", TypeRule::Group(0, FLOATS))
        .optional("attention_bias", TypeRule::Group(0, FLOATS))
        .outputs(1, 2)
        .required("num_heads", ParamKind::Int, "number of heads")
        .param("unidirectional", false, "Queries see no later keys.")
        .maybe("qkv_hidden_sizes", ParamKind::Ints, "features of queries, keys and values; default: thirds")
        .maybe("scale", ParamKind::Float, "Default: 1 / √size.")
        .param("mask_filter_value", -10000.0, "added to scores of hidden keys")
        .param("do_rotary", 0, "Only 0 is supported.")
        .param("rotary_embedding_dim", 0, "No effect without `do_rotary`.")
        .param("past_present_share_buffer", 0, "Only 0 is supported.")
        .contrib("Attention")
        .ulp(16.0)
}
