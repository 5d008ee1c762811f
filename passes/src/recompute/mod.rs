//! Recomputing values of the forward pass in the backward pass, to save memory.
//!
//! What the forward pass computes and the backward pass reads has to be kept in between. This pass
//! copies the nodes behind some of these values for the backward pass, which then computes them
//! again from what is still kept. Several choices of what to keep are made, from cheap to expensive:
//! everything but element-wise work, then whole segments between checkpoints ([`choices`]). The
//! cheapest that stays within the budget is taken, by the memory that the
//! schedule of the fused graph needs. All nodes are pure, random ones too: they get the same key again.
//!
//! It runs after simplification, which would merge the copies again, and before fusion.

mod choices;
pub(crate) use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_schedule::plan::{self, Forms};

use crate::fuse::Fuse;
use crate::manager::{Pass, PassCx, run_with_bodies};
use crate::options::{Budget, FusionStrategy};
use crate::results::result_types;
use choices::Forward;

/// Recomputes values until the budget is met, or as much as saves memory. Does nothing without a
/// budget, and to graphs without a backward pass: those without a boundary and without updates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recompute {
    /// Overrides [`crate::Options::recompute`].
    pub budget: Option<Budget>,
}

/// Choices looked at more closely, by fusing and ordering the graph they lead to.
const TRIALS: usize = 32;

impl Pass for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn visits_bodies(&self) -> bool {
        false
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let Some(budget) = self.budget.or(cx.options.recompute) else { return Ok(false) };
        graph.remove_dead();
        let Some(forward) = Forward::of(graph, &cx.options.target.machine())? else { return Ok(false) };
        let needed = peak(graph.clone(), cx, FusionStrategy::Greedy)?;
        let limit = budget.bytes(needed);
        if needed <= limit {
            return Ok(false);
        }
        let mut trials: Vec<(u64, BTreeSet<NodeId>)> = vec![];
        for kept in forward.choices() {
            let copied = copied(graph, &forward, &kept);
            if !copied.is_empty() && trials.iter().all(|(_, other)| *other != copied) {
                let cost = copied.iter().fold(0u64, |sum, n| sum.saturating_add(forward.cost(*n)));
                trials.push((cost, copied));
            }
        }
        trials.sort_by_key(|(cost, _)| *cost);
        let mut best: Option<(u64, Graph)> = None;
        for (_, copied) in trials.into_iter().take(TRIALS) {
            let trial = with_copies(graph, &forward, &copied)?;
            let peak = peak(trial.clone(), cx, FusionStrategy::Greedy)?;
            if peak < best.as_ref().map_or(needed, |(least, _)| *least) {
                best = Some((peak, trial));
            }
            if peak <= limit {
                break;
            }
        }
        let Some((_, recomputing)) = best else { return Ok(false) };
        // Trials are fused greedily for speed; what will be fused has the last word.
        let by = cx.options.fuse;
        if by == FusionStrategy::Alternatives && peak(recomputing.clone(), cx, by)? >= peak(graph.clone(), cx, by)? {
            return Ok(false);
        }
        *graph = recomputing;
        Ok(true)
    }
}

/// Bytes of intermediate tensors and working memory live at once in the schedule of a graph, once it is fused in some way.
fn peak(mut graph: Graph, cx: &mut PassCx<'_>, by: FusionStrategy) -> Result<u64> {
    let by = if cx.options.fuse == FusionStrategy::Off { FusionStrategy::Off } else { by };
    run_with_bodies(&Fuse { by: Some(by) }, &mut graph, cx)?;
    let choices = cx.options.choices();
    Ok(plan::peak(&graph, choices, &Forms::new(choices.target))?.0)
}

/// The nodes that the backward pass computes again if the forward pass keeps just the given ones.
fn copied(graph: &Graph, forward: &Forward, kept: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let again = |v: &Value| forward.contains(v.node) && !kept.contains(&v.node);
    let backward = graph.node_ids().into_iter().filter(|n| forward.is_backward(*n));
    let mut stack: Vec<NodeId> = backward.flat_map(|n| graph.args(n)).filter(|v| again(v)).map(|v| v.node).collect();
    let mut found = BTreeSet::new();
    while let Some(node) = stack.pop() {
        if found.insert(node) {
            stack.extend(graph.args(node).iter().filter(|v| again(v)).map(|v| v.node));
        }
    }
    found
}

/// The graph in which the backward pass reads copies of the given nodes.
fn with_copies(graph: &Graph, forward: &Forward, copied: &BTreeSet<NodeId>) -> Result<Graph> {
    let mut new = graph.clone();
    let mut copies: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    let of = |copies: &BTreeMap<NodeId, NodeId>, v: Value| Value {
        node: copies.get(&v.node).copied().unwrap_or(v.node),
        ..v
    };
    for node in forward.order().iter().filter(|n| copied.contains(n)) {
        let old = graph.node(*node);
        let NodeKind::Prim(prim) = &old.kind else { continue };
        // A function of the user's may do more than compute; it runs once. What a loop takes is not known.
        if let Prim::Extern(_) | Prim::Flow(_) = prim {
            continue;
        }
        let args: Vec<Value> = graph.args(*node).into_iter().map(|v| of(&copies, v)).collect();
        let copy = new.add_prim(old.name.clone(), prim.clone(), &args, &result_types(graph, *node)?);
        new.node_mut(copy).history = old.history.clone();
        new.node_mut(copy).history.push("recompute");
        copies.insert(*node, copy);
    }
    for node in graph.node_ids().into_iter().filter(|n| forward.is_backward(*n)) {
        for (port, v) in graph.arg_ports(node) {
            if copies.contains_key(&v.node) {
                new.set_arg(node, port, of(&copies, v));
            }
        }
    }
    Ok(new)
}
