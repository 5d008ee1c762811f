//! Products and convolutions with constants of operands that are rounded to bf16 ([`Precision::Bf16`]).

use std::sync::Arc;

use tensorc_abi::{ConvPass, DType};
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{Graph, NodeId, NodeKind};
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Prim};
use tensorc_schedule::recognise::contract::{LibraryCall, library_call};

use crate::manager::{Pass, PassCx};
use crate::options::Precision;

/// Fewest terms of a product that is worth it: operands are rounded once for each.
const FEWEST_TERMS: i64 = 16;

/// Marks products and convolutions with constants that may round their operands. Requires layouts chosen; nothing happens unless the options
/// ask for bf16 on a processor.
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
        let mut changed = false;
        for node in graph.order() {
            if keep.contains(&*graph.node(node).name) {
                continue;
            }
            if let Some(rounded) = advice(|| rounded(graph, node))? {
                graph.node_mut(node).kind = NodeKind::Prim(Prim::Contract(rounded));
                changed = true;
            }
        }
        Ok(changed)
    }
}

/// A product with a constant matrix, or a convolution with constant filters, of rounded operands.
fn rounded(graph: &Graph, node: NodeId) -> Result<Option<Arc<Contraction>>> {
    let NodeKind::Prim(Prim::Contract(c)) = &graph.node(node).kind else { return Ok(None) };
    let args = graph.args(node);
    let (lhs, rhs) = (graph.dense(args[0])?, graph.dense(args[1])?);
    if c.algorithm != ConvAlgorithm::Direct || [lhs.dtype, rhs.dtype] != [DType::F32; 2] {
        return Ok(None);
    }
    let is_constant = |i: usize| graph.constant(args[i]).is_some();
    let takes = match library_call(c, &lhs, &rhs, None) {
        Some(LibraryCall::Gemm(gemm)) => {
            let is_shared = gemm.call.b.batch_strides == [Extent::ZERO; 3];
            is_constant(usize::from(!gemm.swapped)) && is_shared && gemm.call.k.example() >= FEWEST_TERMS
        }
        Some(LibraryCall::Conv(conv)) => {
            conv.pass == ConvPass::Forward && conv.allows(ConvAlgorithm::Bf16) && is_constant(1)
        }
        None => false,
    };
    Ok(takes.then(|| Arc::new(Contraction { algorithm: ConvAlgorithm::Bf16, ..(**c).clone() })))
}
