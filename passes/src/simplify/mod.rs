//! Local simplification of primitives, repeated until nothing changes.
//!
//! One file per concern; each rewrite is exact bit for bit, except those behind
//! [`Simplify::reassociate`], which are exact in real arithmetic.

mod contract;
mod cse;
mod scalars;
mod scale;
mod sink;
mod views;

pub use cse::run as merge_equal;
use tensorc_ir::DenseType;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

use crate::fold_constants::FoldConstants;
use crate::manager::{Pass, PassCx};

/// Simplifies primitives. Requires a decomposed graph.
#[derive(Clone, Copy, Debug)]
pub struct Simplify {
    /// Overrides [`crate::Options::reassociate`].
    pub reassociate: Option<bool>,
    /// Most repetitions.
    pub rounds: u32,
}

impl Default for Simplify {
    fn default() -> Simplify {
        Simplify { reassociate: None, rounds: 8 }
    }
}

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let reassociate = self.reassociate.unwrap_or(cx.options.reassociate);
        let mut any = graph.remove_dead() > 0;
        for _ in 0..self.rounds {
            let mut changed = scalars::run(graph, reassociate)?;
            changed |= views::run(graph)?;
            changed |= FoldConstants.run(graph, cx)?;
            changed |= cse::run(graph);
            changed |= contract::run(graph)?;
            changed |= sink::run(graph)?;
            if reassociate {
                changed |= scale::run(graph)?;
            }
            changed |= graph.remove_dead() > 0;
            any |= changed;
            if !changed {
                break;
            }
        }
        Ok(any)
    }
}

/// The primitive of a node that is still in the graph.
fn prim_of(graph: &Graph, node: NodeId) -> Option<&Prim> {
    match graph.contains(node).then(|| &graph.node(node).kind) {
        Some(NodeKind::Prim(prim)) => Some(prim),
        _ => None,
    }
}

/// Replaces a primitive with one result by another.
fn replace(graph: &mut Graph, label: &'static str, old: NodeId, prim: Prim, args: &[Value], ty: DenseType) {
    let mut patch = graph.patch(label);
    let name = patch.graph.node(old).name.clone();
    let new = patch.graph.add_prim(name, prim, args, &[ty]);
    patch.replace(Value { node: old, port: 0 }, Value { node: new, port: 0 });
    patch.commit();
}

/// Makes the users of a node's only result use another value.
fn forward(graph: &mut Graph, label: &'static str, old: NodeId, new: Value) {
    let mut patch = graph.patch(label);
    patch.replace(Value { node: old, port: 0 }, new);
    patch.commit();
}

/// The only node that reads any result of `node`, if no output or update is one of them.
fn single_user(graph: &Graph, node: NodeId) -> Option<NodeId> {
    let uses = graph.uses(node);
    let user = uses.first()?.0;
    (!graph.is_root(node) && uses.iter().all(|(u, ..)| *u == user)).then_some(user)
}
