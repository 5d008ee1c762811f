//! Parts of quantised transformers: attention and embeddings.

use super::super::attention::projected::{Projected, attended, projected_shapes};
use super::super::norm::{embedded, mask_index, normalised_rows};
use super::{BYTES, ROUNDS, SCALE, dequantised, scalars};
use crate::byte_products::{ByteOperand, byte_matmul};
use crate::prelude::*;
use crate::quantize::shaped_by;
use crate::rules::open_rank_in;

pub fn ops() -> Vec<OpDef> {
    vec![attention(), embed_layer_norm()]
}

/// Where the operands of quantised attention lie.
const AT: Projected = Projected { mask: 5, past: 8, bias: None };

fn attention() -> OpDef {
    let compute = formulas(|g, cx| {
        let row = |x| shaped_by(x, |columns| vec![columns]);
        let x = ByteOperand::of(g, [0, 6], |n| vec![n])?;
        let weights = ByteOperand::of(g, [1, 7], |columns| vec![columns])?;
        let mut dims = x.x.dims()?;
        dims.set(dims.len() - 1, weights.x.dims()?.at(1));
        let product = byte_matmul(x, weights, &dims)?;
        let scale = g.operand(3).reshape([]) * row(g.operand(4))?;
        attended(g, cx, product.cast(DType::F32) * scale + g.operand(2), &AT)
    });
    let infer = rule(|cx| {
        (0..cx.output_count()).try_for_each(|i| cx.set_output_dtype(i, DType::F32))?;
        scalars(cx, &[3, 6])?;
        if let Some(weights) = open_rank_in(cx, 1, 2..=2)? {
            for i in [4, 7] {
                broadcasts_to(cx, i, &weights[1..])?;
            }
        }
        projected_shapes(cx, &AT)
    });
    define("qattention", "`projected_attention` of quantised tensors.", compute, infer)
        .operands(&["input", "weight"], BYTES)
        .operands(&["bias", "input_scale", "weight_scale"], SCALE)
        .optional("mask_index", TypeRule::OneOf(&[DType::I32]))
        .optional("input_zero_point", TypeRule::OneOf(BYTES))
        .optional("weight_zero_point", TypeRule::OneOf(BYTES))
        .optional("past", TypeRule::OneOf(SCALE))
        .outputs(1, 2)
        .required("num_heads", ParamKind::Int, "number of heads")
        .param("unidirectional", false, "Queries see no later keys.")
        .maybe("scale", ParamKind::Float, "Default: 1 / √size.")
        .param("mask_filter_value", -10000.0, "added to scores of hidden keys")
        .param("do_rotary", 0, "Only 0 is supported.")
        .param("past_present_share_buffer", 0, "Only 0 is supported.")
        .contrib("QAttention")
        .not_differentiable(ROUNDS)
}

fn embed_layer_norm() -> OpDef {
    let compute = formulas(|g, cx| {
        // Tables are five operands before their scales, and ten before their zero points, without the mask.
        let real = |i: usize, scale: usize| dequantised(g.operand(i), g.operand(scale), g.maybe(scale + 5));
        let segments = g.maybe(1).map(|ids| real(4, 10).gather(ids, 0));
        let sum = embedded(g.operand(0), [real(2, 8), real(3, 9)], segments, None)?;
        let y = normalised_rows(sum, [real(5, 11), real(6, 12)], cx)?;
        Ok(vec![y, mask_index(g, g.maybe(7), cx.outputs[0].dims[0])?])
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        cx.set_output_dtype(1, DType::I32)?;
        scalars(cx, &[8, 9, 10, 11, 12, 13, 14, 15, 16, 17])?;
        reject_if(
            [4, 10, 15].iter().any(|i| cx.has_input(*i) != cx.has_input(1)),
            || "operands of segments: expected all or none",
        )?;
        let Some(ids) = open_rank_in(cx, 0, 2..=2)? else { return Ok(()) };
        for i in [1, 7] {
            if cx.has_input(i) {
                shaped(cx, i, &ids)?;
            }
        }
        cx.set_output_dims(1, [ids[0]])?;
        let Some(words) = open_rank_in(cx, 2, 2..=2)? else { return Ok(()) };
        for i in [3, 4] {
            if let Some(table) = open_rank_in(cx, i, 2..=2)? {
                cx.unify_dims(words[1], table[1], &format!("{}, axis 1", cx.input_name(i)))?;
                if i == 3 {
                    crate::rules::no_longer(cx, 0, 1, ids[1], table[0])?;
                }
            }
        }
        [5, 6].into_iter().try_for_each(|i| shaped(cx, i, &[words[1]]))?;
        cx.set_output_dims(0, [ids[0], ids[1], words[1]])
    });
    let rows = |at: usize| move |cx: &NodeCtx<'_>| Ok(Some(Allowed::below(cx.input(at)?.dims.at(0))));
    let ids = || TypeRule::OneOf(&[DType::I32]);
    define("qembed_layer_norm", "`embed_layer_norm` of quantised tables.", compute, infer)
        .operand("input_ids", &[DType::I32])
        .optional("segment_ids", ids())
        .groups(&["word_embedding_quant", "position_embedding_quant"], BYTES)
        .optional("segment_embedding", TypeRule::Group(0, BYTES))
        .groups(&["gamma_quant", "beta_quant"], BYTES)
        .optional("mask", ids())
        .operands(&["word_embedding_scale", "position_embedding_scale"], SCALE)
        .optional("segment_embedding_scale", TypeRule::OneOf(SCALE))
        .operands(&["gamma_scale", "beta_scale"], SCALE)
        .groups(&["word_embedding_zero_point", "position_embedding_zero_point"], BYTES)
        .optional("segment_embedding_zero_point", TypeRule::Group(0, BYTES))
        .groups(&["gamma_zero_point", "beta_zero_point"], BYTES)
        .outputs(2, 2)
        .param("epsilon", 1e-12, "added to the variance")
        .demand(0, rows(2))
        .demand(1, rows(4))
        .contrib("QEmbedLayerNormalization")
        .not_differentiable(ROUNDS)
}
