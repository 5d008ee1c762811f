//! Products with constants of operands that are rounded to bf16 ([`Precision::Bf16`]).

use std::sync::Arc;

use tensorc_abi::{DType, GemmElements};
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

/// Marks products with constants that may round their operands. Requires layouts chosen; nothing happens unless the options
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

/// A product with one constant matrix, of rounded operands.
fn rounded(graph: &Graph, node: NodeId) -> Result<Option<Arc<Contraction>>> {
    let NodeKind::Prim(Prim::Contract(c)) = &graph.node(node).kind else { return Ok(None) };
    let args = graph.args(node);
    let (lhs, rhs) = (graph.dense(args[0])?, graph.dense(args[1])?);
    if c.algorithm != ConvAlgorithm::Direct || [lhs.dtype, rhs.dtype] != [DType::F32; 2] {
        return Ok(None);
    }
    let Some(LibraryCall::Gemm(gemm)) = library_call(c, &lhs, &rhs, None) else { return Ok(None) };
    let right = args[usize::from(!gemm.swapped)];
    let is_shared = gemm.call.b.batch_strides == [Extent::ZERO; 3];
    let is_matrix = gemm.call.elements == GemmElements::F32 && gemm.call.k.example() >= FEWEST_TERMS;
    let takes = graph.constant(right).is_some() && is_shared && is_matrix;
    Ok(takes.then(|| Arc::new(Contraction { algorithm: ConvAlgorithm::Bf16, ..(**c).clone() })))
}
