//! Rules of clusters: the body of each is what kernels of its class compute.

use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind};

use crate::recognise::attention::{Attended, attention_at};

/// Checks that every cluster of a verified graph is what its class says.
///
/// # Errors
/// [`Code::Verify`], with the name of the cluster.
pub fn verify_clusters(graph: &Graph) -> Result<()> {
    for id in graph.node_ids() {
        let node = graph.node(id);
        if let NodeKind::Fused(fused) = &node.kind
            && fused.class == FusionClass::Attention
            && !is_attention(&fused.body)
        {
            let why = "an attention cluster holds two products around a softmax of rows, and nothing else";
            return Err(Diagnostic::new(Code::Verify, why).at(&node.name));
        }
    }
    Ok(())
}

fn is_attention(body: &Graph) -> bool {
    let prims: Vec<NodeId> =
        body.node_ids().into_iter().filter(|n| matches!(body.node(*n).kind, NodeKind::Prim(_))).collect();
    let covers =
        |found: &Attended| found.members.len() == prims.len() && body.outputs().iter().all(|(_, v)| *v == found.result);
    prims.iter().any(|n| attention_at(body, *n).is_some_and(|found| covers(&found)))
}
