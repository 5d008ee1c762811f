//! Decides how every cluster is computed, so that the graph says so.

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_schedule::plan::recipes;

use crate::manager::{Pass, PassCx};

/// Stores in every cluster without a recipe the one that the scheduler chooses for the target.
pub(crate) struct ChooseRecipes;

impl Pass for ChooseRecipes {
    fn name(&self) -> &'static str {
        "choose-recipes"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let choices = cx.options.choices();
        let mut changed = false;
        for (node, recipe) in recipes(graph, choices)? {
            if let NodeKind::Fused(fused) = &mut graph.node_mut(node).kind {
                changed |= fused.recipe.replace(recipe) != Some(recipe);
            }
        }
        Ok(changed)
    }
}
