//! Layer normalisation after a sum, and of embeddings.

use super::rows_of_first;
use crate::norm::{affine, axis_of, epsilon, inverse_rms, scaled_moments};
use crate::prelude::*;
use crate::rules::{no_longer, open_rank_in};

pub fn ops() -> Vec<OpDef> {
    vec![simplified_layer_norm(), skip_norm(false), skip_norm(true), embed_layer_norm()]
}

fn simplified_layer_norm() -> OpDef {
    let compute = formulas(|g, cx| {
        let (x, axis) = (g.operand(0).widened(), axis_of(g, cx)?);
        let axes: Vec<usize> = (axis..cx.outputs[0].rank()).collect();
        let scale = inverse_rms(x, &axes, epsilon(cx));
        let y = affine(x * scale, g.maybe(1), None)?.cast(cx.outputs[0].dtype);
        Ok(vec![y, cx.outputs.get(1).map_or(scale, |ty| scale.cast(ty.dtype))])
    });
    let infer = rule(|cx| {
        cx.copy_shape(0, 0)?;
        cx.same_dtype(0, 1)?;
        if cx.output_count() > 1 {
            let double = cx.params.int("stash_type") == Some(11);
            cx.set_output_dtype(1, if double { DType::F64 } else { DType::F32 })?;
        }
        let Some(dims) = cx.open_dims(0) else { return Ok(()) };
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), dims.len())?;
        broadcasts_to(cx, 1, &dims[axis..])?;
        if cx.output_count() > 1 {
            let kept = |(i, d): (usize, &Dim)| if i < axis { *d } else { Dim::Const(1) };
            let statistics: Vec<Dim> = dims.iter().enumerate().map(kept).collect();
            cx.set_output_dims(1, statistics)?;
        }
        Ok(())
    });
    let doc = "x / √(mean x² + ε) · scale, over the axes from `axis` on, and 1 / √(mean x² + ε).";
    define("simplified_layer_norm", doc, compute, infer)
        .operands(&["X", "scale"], FLOATS)
        .outputs(1, 2)
        .param("axis", -1, "first axis normalised")
        .param("epsilon", 1e-5, "added to the mean square")
        .param("stash_type", 1, "ONNX type of the second result: float, or 11 for double")
        .onnx("SimplifiedLayerNormalization", 1)
        .ulp(8.0)
}

/// Mean, reciprocal of the deviation, and `(x - mean) / deviation`, over the last axis.
fn normal<'g>(x: Tensor<'g>, simplified: bool, epsilon: f64) -> Result<[Tensor<'g>; 3]> {
    let last = x.dims()?.len() - 1;
    if simplified {
        let scale = inverse_rms(x, &[last], epsilon);
        return Ok([x.mean(&[last]), scale, x * scale]);
    }
    let [mean, centred, scale] = scaled_moments(x, &[last], epsilon);
    Ok([mean, scale, centred * scale])
}

fn skip_norm(simplified: bool) -> OpDef {
    let bias = if simplified { 3 } else { 4 };
    let compute = formulas(move |g, cx| {
        let to = cx.outputs[0].dtype;
        let sum = g.operand(0).widened() + g.operand(1).widened();
        let sum = g.maybe(bias).map_or(sum, |bias| sum + bias.widened());
        let [mean, scale, y] = normal(sum, simplified, cx.params.float("epsilon").unwrap_or(1e-12))?;
        let shift = g.maybe(3).filter(|_| !simplified);
        Ok(vec![affine(y, g.maybe(2), shift)?.cast(to), mean, scale, sum.cast(to)])
    });
    let infer = rule(move |cx| {
        same(cx, 0, 0)?;
        rows_of_first(cx, if simplified { &[2, 3] } else { &[2, 3, 4] })?;
        let (Some(dims), Some(dtype)) = (open_rank_in(cx, 0, 2..=3)?, cx.input_dtype(0)) else { return Ok(()) };
        broadcasts_to(cx, 1, &dims)?;
        let rows: Vec<Dim> = dims[..dims.len() - 1].iter().copied().chain([Dim::Const(1)]).collect();
        for i in 1..cx.output_count().min(3) {
            cx.set_output_dtype(i, compute_type(dtype))?;
            cx.set_output_dims(i, rows.iter().copied())?;
        }
        if cx.output_count() > 3 {
            cx.set_output_dtype(3, dtype)?;
            cx.set_output_dims(3, dims)?;
        }
        Ok(())
    });
    let (name, doc, onnx) = match simplified {
        false => ("skip_layer_norm", "`layer_norm` of input + skip + bias; and that sum.", "SkipLayerNormalization"),
        true => (
            "skip_simplified_layer_norm",
            "`rms_norm` of input + skip + bias; and that sum.",
            "SkipSimplifiedLayerNormalization",
        ),
    };
    let def = define(name, doc, compute, infer).groups(&["input", "skip", "gamma"], FLOATS);
    let def = if simplified { def } else { def.optional("beta", TypeRule::Group(0, FLOATS)) };
    def.optional("bias", TypeRule::Group(0, FLOATS))
        .outputs(1, 4)
        .param("epsilon", 1e-12, "added to the variance")
        .contrib(onnx)
        .ulp(8.0)
}

/// Embeddings of ids, [batch, sequence, hidden].
pub(super) fn embedded<'g>(
    ids: Tensor<'g>,
    [words, places]: [Tensor<'g>; 2],
    segments: Option<Tensor<'g>>,
    positions: Option<Tensor<'g>>,
) -> Result<Tensor<'g>> {
    let dims = ids.dims()?;
    let word = words.gather(ids, 0);
    let place = match positions {
        Some(positions) => places.gather(positions, 0),
        None => {
            let hidden = places.dims()?[1];
            places.slice(0, 0u64, dims.at(1)).reshape([1, dims[1], hidden])
        }
    };
    Ok(segments.map_or(word + place, |segment| word + place + segment))
}

/// `layer_norm` over the last axis, with a scale and a shift.
pub(super) fn normalised_rows<'g>(
    x: Tensor<'g>,
    [scale, shift]: [Tensor<'g>; 2],
    cx: &NodeCtx<'_>,
) -> Result<Tensor<'g>> {
    let [.., y] = normal(x, false, cx.params.float("epsilon").unwrap_or(1e-12))?;
    affine(y, Some(scale), Some(shift))
}

/// How many elements of each row of a mask are 1.
pub(super) fn mask_index<'g>(g: GraphScope<'g>, mask: Option<Tensor<'g>>, batch: u64) -> Result<Tensor<'g>> {
    match mask {
        Some(mask) => Ok(mask.map(|m| m.eq(&m.lit(1.0)).cast(DType::I32)).sum(&[1]).reshape([batch])),
        None => Ok(g.filled(&DenseType::new(DType::I32, [batch]), 0.0)),
    }
}

fn embed_layer_norm() -> OpDef {
    let compute = formulas(|g, cx| {
        let to = cx.outputs[0].dtype;
        let segments = g.maybe(1).zip(g.maybe(4)).map(|(ids, table)| table.gather(ids, 0));
        let sum = embedded(g.operand(0), [g.operand(2), g.operand(3)], segments, g.maybe(8))?;
        let y = normalised_rows(sum.widened(), [g.operand(5), g.operand(6)], cx)?.cast(to);
        Ok(vec![y, mask_index(g, g.maybe(7), cx.outputs[0].dims[0])?, sum])
    });
    let infer = rule(|cx| {
        (0..cx.output_count()).try_for_each(|i| match i {
            1 => cx.set_output_dtype(1, DType::I32),
            _ => cx.same_dtype(i, 2),
        })?;
        reject_if(
            cx.has_input(1) != cx.has_input(4),
            || "operands `segment_ids` and `segment_embedding`: expected both or none",
        )?;
        let Some(ids) = open_rank_in(cx, 0, 2..=2)? else { return Ok(()) };
        for i in [1, 7] {
            if cx.has_input(i) {
                shaped(cx, i, &ids)?;
            }
        }
        broadcasts_to(cx, 8, &ids)?;
        let Some(words) = open_rank_in(cx, 2, 2..=2)? else { return Ok(()) };
        for i in [3, 4] {
            if let Some(table) = open_rank_in(cx, i, 2..=2)? {
                cx.unify_dims(words[1], table[1], &format!("{}, axis 1", cx.input_name(i)))?;
                if i == 3 && !cx.has_input(8) {
                    no_longer(cx, 0, 1, ids[1], table[0])?;
                }
            }
        }
        [5, 6].into_iter().try_for_each(|i| shaped(cx, i, &[words[1]]))?;
        cx.set_output_dims(0, [ids[0], ids[1], words[1]])?;
        if cx.output_count() > 1 {
            cx.set_output_dims(1, [ids[0]])?;
        }
        if cx.output_count() > 2 {
            cx.set_output_dims(2, [ids[0], ids[1], words[1]])?;
        }
        Ok(())
    });
    let rows = |at: usize| move |cx: &NodeCtx<'_>| Ok(Some(Allowed::below(cx.input(at)?.dims.at(0))));
    let ids = || TypeRule::OneOf(&[DType::I32]);
    define("embed_layer_norm", "`layer_norm` of the embeddings of words, positions and segments.", compute, infer)
        .operand("input_ids", &[DType::I32])
        .optional("segment_ids", ids())
        .groups(&["word_embedding", "position_embedding"], FLOATS)
        .optional("segment_embedding", TypeRule::Group(0, FLOATS))
        .groups(&["gamma", "beta"], FLOATS)
        .optional("mask", ids())
        .optional("position_ids", ids())
        .outputs(1, 3)
        .param("epsilon", 1e-12, "added to the variance")
        .param("mask_index_type", 0, "No effect.")
        .demand(0, rows(2))
        .demand(1, rows(4))
        .demand(8, rows(3))
        .contrib("EmbedLayerNormalization")
        .ulp(8.0)
}
