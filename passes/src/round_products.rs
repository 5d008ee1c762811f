//! Products and convolutions with constants of operands that are rounded to bf16 ([`Precision::Bf16`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_abi::{ConvPass, DType};
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{Graph, NodeId, NodeKind};
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Prim};
use tensorc_schedule::recognise::attention::attention_at;
use tensorc_schedule::recognise::contract::{LibraryCall, library_call};
use tensorc_schedule::target::{Cpu, Processor};

use crate::manager::{Pass, PassCx};
use crate::options::Precision;

/// Fewest terms of a product that is worth it: operands are rounded once for each.
const FEWEST_TERMS: i64 = 16;

/// Marks products and convolutions with constants, and products of attention, that may round their operands. Requires layouts
/// chosen; nothing happens unless the options ask for bf16 on a processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundProducts;

impl Pass for RoundProducts {
    fn name(&self) -> &'static str {
        "round-products"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let Precision::Bf16 { keep } = &cx.options.precision else { return Ok(false) };
        if cx.options.target.is_gpu() || !cx.options.reassociate {
            return Ok(false);
        }
        let tiles = matches!(cx.options.target.processor, Processor::Cpu(Cpu { tiles: true, .. }));
        let mut changed = false;
        for node in graph.order() {
            for found in advice(|| rounded(graph, node, keep, tiles))? {
                let NodeKind::Prim(Prim::Contract(c)) = &mut graph.node_mut(found).kind else { continue };
                *c = Arc::new(Contraction { algorithm: ConvAlgorithm::Bf16, ..(**c).clone() });
                changed = true;
            }
        }
        Ok(changed)
    }
}

/// The contractions that round their operands with the one of a node: itself if it has a constant matrix or filters, both
/// products of an attention that it ends, or none. With `tiles`, Winograd convolutions are
/// rounded, too.
fn rounded(graph: &Graph, node: NodeId, keep: &BTreeSet<String>, tiles: bool) -> Result<Vec<NodeId>> {
    let exact = |node: NodeId| match &graph.node(node).kind {
        NodeKind::Prim(Prim::Contract(c)) if !keep.contains(&*graph.node(node).name) => {
            Some(c).filter(|c| c.algorithm == ConvAlgorithm::Direct || tiles && c.algorithm != ConvAlgorithm::Bf16)
        }
        _ => None,
    };
    let Some(c) = exact(node) else { return Ok(vec![]) };
    let args = graph.args(node);
    let (lhs, rhs) = (graph.dense(args[0])?, graph.dense(args[1])?);
    if [lhs.dtype, rhs.dtype] != [DType::F32; 2] {
        return Ok(vec![]);
    }
    // Weights of a few bits stay packed.
    let is_constant = |i: usize| graph.constant(args[i]).is_some_and(|data| !data.is_packed());
    let alone = match library_call(c, &lhs, &rhs, None) {
        Some(LibraryCall::Gemm(gemm)) => {
            let is_shared = gemm.call.b.batch_strides == [Extent::ZERO; 3];
            is_constant(usize::from(!gemm.swapped)) && is_shared && gemm.call.k.example() >= FEWEST_TERMS
        }
        Some(LibraryCall::Conv(conv)) => {
            let forward = [ConvPass::Forward, ConvPass::by(c.algorithm)].contains(&conv.pass);
            forward && conv.allows(ConvAlgorithm::Bf16) && is_constant(1)
        }
        None => false,
    };
    if alone {
        return Ok(vec![node]);
    }
    let contraction = |node: &NodeId| matches!(graph.node(*node).kind, NodeKind::Prim(Prim::Contract(_)));
    let attention = attention_at(graph, node).map(|found| found.members.into_iter().filter(contraction).collect());
    let both: Vec<NodeId> = attention.unwrap_or_default();
    Ok(if both.iter().all(|node| exact(*node).is_some()) { both } else { vec![] })
}
