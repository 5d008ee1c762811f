//! Local simplification of primitives, repeated until nothing changes.
//!
//! Bodies of maps are rewritten in e-graphs by rules that are data (`scalar`); the graph around them by one file per
//! concern. Each rewrite is exact bit for bit, except those behind [`Simplify::reassociate`], which are exact in real
//! arithmetic, and [`Simplify::approximate`].

mod casts;
mod contract;
mod cse;
mod growth;
mod joins;
mod repeats;
pub mod scalar;
mod scalars;
mod sink;
mod views;

pub use cse::run as merge_equal;
use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

use crate::fold_constants::FoldConstants;
use crate::manager::{Pass, PassCx};
use crate::options::Label;
use scalar::Rewriter;

/// Simplifies primitives. Requires a decomposed graph.
#[derive(Clone, Copy, Debug)]
pub struct Simplify {
    /// Overrides [`crate::Options::reassociate`].
    pub reassociate: Option<bool>,
    /// Overrides [`crate::Options::approximate`].
    pub approximate: Option<bool>,
    /// Most repetitions.
    pub rounds: u32,
}

impl Default for Simplify {
    fn default() -> Simplify {
        Simplify { reassociate: None, approximate: None, rounds: 8 }
    }
}

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let reassociate = self.reassociate.unwrap_or(cx.options.reassociate);
        let approximate = self.approximate.unwrap_or(cx.options.approximate);
        let mut rewriter = Rewriter::knowing(&cx.bodies, |label| match label {
            Label::Exact => true,
            Label::Reassoc => reassociate,
            Label::Approx => approximate,
        })
        .map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why))?;
        let mut any = graph.remove_dead() > 0;
        if !cx.options.rewrite {
            return Ok(any);
        }
        for _ in 0..self.rounds {
            let mut changed = scalars::run(graph, cx, &mut rewriter)?;
            changed |= views::run(graph)?;
            changed |= FoldConstants.run(graph, cx)?;
            changed |= cse::run(graph);
            changed |= repeats::run(graph)?;
            changed |= joins::run(graph)?;
            changed |= growth::run(graph)?;
            changed |= contract::run(graph, cx.options.chooses_layouts())?;
            changed |= sink::run(graph)?;
            changed |= graph.remove_dead() > 0;
            any |= changed;
            if !changed {
                break;
            }
        }
        Ok(any)
    }
}

/// Visits the nodes in order; whether a visit changed the graph.
fn visit_all(graph: &mut Graph, mut visit: impl FnMut(&mut Graph, NodeId) -> Result<bool>) -> Result<bool> {
    let mut changed = false;
    for node in graph.order() {
        changed |= visit(graph, node)?;
    }
    Ok(changed)
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
