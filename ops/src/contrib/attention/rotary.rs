//! `RotaryEmbedding` with positions as an operand that is always given.

use super::super::only;
use crate::prelude::*;
use crate::rules::open_rank_in;

/// Positions [batch, sequence] of ids, which may be that of the first element of every sequence.
fn positions<'g>(ids: Tensor<'g>, [batch, sequence]: [u64; 2]) -> Result<Tensor<'g>> {
    match ids.ty()?.rank() {
        2 => Ok(ids),
        _ => Ok(ids.graph().map(&[ids.reshape([1, 1])], DType::I64, [batch, sequence], |s, a| &a[0] + s.coord(1))),
    }
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, ids, cos, sin] = g.operands();
    let d = x.dims()?;
    let rotated = cx.params.int("rotary_embedding_dim").unwrap_or(0).max(0);
    let heads = match cx.params.int("num_heads").unwrap_or(0).max(0) {
        0 if d.len() == 3 => (d[2] / (2 * cos.dims()?[1]).max(1)) as i64,
        n => n,
    };
    let sequence = if d.len() == 4 { d[2] } else { d[1] };
    let ids = positions(ids, [d[0], sequence])?;
    let params = Params::new()
        .with("interleaved", cx.params.flag("interleaved"))
        .with("num_heads", heads)
        .with("rotary_embedding_dim", rotated);
    Ok(g.op("rotary_embedding", &[x, cos, sin, ids], params))
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    only(cx, "is_packed_batching", 0)?;
    reject_if(cx.params.float("scale").is_some_and(|s| s != 1.0), || "parameter `scale` is not supported")?;
    same(cx, 0, 0)?;
    let x = open_rank_in(cx, 0, 3..=4)?;
    open_rank_in(cx, 1, 0..=2)?;
    let caches = [open_rank_in(cx, 2, 2..=2)?, open_rank_in(cx, 3, 2..=2)?];
    let rotated = cx.params.int("rotary_embedding_dim").unwrap_or(0);
    let heads = cx.params.int("num_heads").unwrap_or(0);
    reject_if(rotated > 0 && heads <= 0, || "parameter `num_heads` must be given with `rotary_embedding_dim`")?;
    let [Some(cos), Some(sin)] = caches else { return Ok(()) };
    cx.unify_dims(cos[0], sin[0], "operand `sin_cache`, axis 0")?;
    cx.unify_dims(cos[1], sin[1], "operand `sin_cache`, axis 1")?;
    let (Some(x), Some(half)) = (x, cos[1].as_const()) else { return Ok(()) };
    let last = x[x.len() - 1].as_const();
    if rotated > 0 {
        reject_if(half != rotated as u64 / 2 || rotated % 2 != 0, || {
            format!("operand `cos_cache`, axis 1: expected half of {rotated}, found {half}")
        })?;
    }
    let Some(last) = last else { return Ok(()) };
    let size = match (x.len(), heads) {
        (4, _) => last,
        (_, n) if n > 0 && last % n as u64 == 0 => last / n as u64,
        (_, n) if n > 0 => return Err(OpError(format!("{last} features do not divide into {n} heads"))),
        _ => 2 * half,
    };
    reject_if(2 * half > size || (rotated == 0 && 2 * half != size) || size == 0 || last % size != 0, || {
        format!("operand `cos_cache`, axis 1: {half} does not fit {last} features")
    })
}

pub fn rotary() -> OpDef {
    let doc = "Rotates pairs of features by position: that of each element, or of the first.";
    define("rotary_embedding_at", doc, formula(body), rule(shapes))
        .group("input", FLOATS)
        .operand("position_ids", &[DType::I64])
        .groups(&["cos_cache", "sin_cache"], FLOATS)
        .maybe("scale", ParamKind::Float, "Only 1 is supported.")
        .param("interleaved", false, "Pairs are neighbours rather than halves apart.")
        .param("num_heads", 0, "Needed with `rotary_embedding_dim`.")
        .param("rotary_embedding_dim", 0, "How many features rotate; 0: all.")
        .param("is_packed_batching", 0, "Only 0 is supported.")
        .demand(1, |cx| {
            let (rows, x) = (cx.input(2)?.dims.at(0), cx.input(0)?);
            let rest = if cx.input(1)?.rank() == 2 { Extent::ONE } else { x.dims.at(x.rank() - 2) };
            Ok(Some(Allowed::up_to(rows - rest)))
        })
        .contrib("RotaryEmbedding")
        .ulp(2.0)
}
