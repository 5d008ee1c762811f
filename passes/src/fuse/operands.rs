//! Merging clusters of maps with the contractions that alone read what they compute: the library computes its operand
//! where it reads it.

use std::collections::BTreeSet;

use tensorc_ir::graph::{FusionClass, NodeId, Value};

use super::absorb::is_alias;
use super::legal::cluster;
use super::plan::{Cluster, FusionPlan};
use super::price::Prices;

/// Merges clusters of the plan from `ids` while that makes the plan cheaper. Merged clusters stay in the
/// plan, empty and owning nothing.
pub fn merge(plan: &mut FusionPlan<'_>, prices: &Prices<'_>, ids: &mut Vec<usize>, outputs: &mut Vec<Vec<NodeId>>) {
    let mut i = 0;
    while i < ids.len() {
        match merged(plan, prices, ids, outputs, i) {
            None => i += 1,
            Some((j, cluster)) => {
                let roots = outputs[i].clone();
                plan.vacate(ids[j]);
                plan.replace(ids[i], cluster, &roots);
                ids.remove(j);
                outputs.remove(j);
                // Operands come before what reads them.
                i = i.saturating_sub(usize::from(j < i));
            }
        }
    }
}

/// A contraction with the cluster that computes one of its operands for it alone, and the position of that, if a
/// library takes it so and it is cheaper.
fn merged(
    plan: &FusionPlan<'_>,
    prices: &Prices<'_>,
    ids: &[usize],
    outputs: &[Vec<NodeId>],
    i: usize,
) -> Option<(usize, Cluster)> {
    let c = &plan.clusters[ids[i]];
    if c.class != FusionClass::Contract || !plan.on_processor {
        return None;
    }
    plan.args(c.anchor).iter().find_map(|operand| {
        let (root, mut members) = behind(plan, c, operand.node)?;
        let j = outputs.iter().position(|roots| *roots == [root])?;
        let before = &plan.clusters[ids[j]];
        if before.class != FusionClass::Map {
            return None;
        }
        members.extend(c.members.iter().chain(&before.members).copied());
        let merged = cluster(plan, members, &outputs[i])?;
        let price = |c: &Cluster, roots: &[NodeId]| {
            let stored: Vec<Value> = roots.iter().map(|n| Value { node: *n, port: 0 }).collect();
            prices.of(plan, c, &c.externals(plan), &stored)
        };
        let apart = price(c, &outputs[i]) + price(before, &outputs[j]);
        price(&merged, &outputs[i]).beats(&apart).then_some((j, merged))
    })
}

/// The node whose memory an operand has, and the aliases between them, if only the cluster reads any of them.
fn behind(plan: &FusionPlan<'_>, c: &Cluster, operand: NodeId) -> Option<(NodeId, BTreeSet<(u32, NodeId)>)> {
    let mut aliases = BTreeSet::new();
    let mut node = operand;
    loop {
        let inside = |u: &NodeId| c.contains(plan, *u) || aliases.contains(&(plan.rank(*u), *u));
        if plan.is_output(node) || c.contains(plan, node) || !plan.users(node).iter().all(inside) {
            return None;
        }
        if !is_alias(plan, node) {
            return Some((node, aliases));
        }
        aliases.insert((plan.rank(node), node));
        node = plan.args(node)[0].node;
    }
}
