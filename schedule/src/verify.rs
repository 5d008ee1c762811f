//! Rules of clusters: the body of each is what kernels of its class and of its recipe compute.

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{FusionClass, Graph, NodeKind};

use crate::layout::Layouts;
use crate::recipe::{Site, decide};
use crate::recognise::attention::attention_of;
use crate::target::Target;

/// Checks that every cluster of a verified graph is what its class says, and is computed on a target by the recipe that it states.
///
/// # Errors
/// [`DiagnosticCode::Verify`] or [`DiagnosticCode::Unsupported`], with the name of the cluster.
pub fn verify_clusters(graph: &Graph, target: &Target) -> Result<()> {
    for id in graph.node_ids() {
        let node = graph.node(id);
        let NodeKind::Fused(fused) = &node.kind else { continue };
        if fused.class == FusionClass::Attention && attention_of(&fused.body).is_none() {
            let why = "an attention cluster holds two products around a softmax of rows, and nothing else";
            return Err(Diagnostic::new(DiagnosticCode::Verify, why).at(&node.name));
        }
        if fused.recipe.is_some() {
            let layouts = Layouts::default();
            decide(&Site::of(graph, id, fused, &layouts), target).map_err(|d| d.at(&node.name))?;
        }
    }
    Ok(())
}
