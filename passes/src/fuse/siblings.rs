//! Merging clusters with several results: those that read the same operands, and those that read in
//! place what another one stores.

use std::collections::BTreeSet;

use tensorc_ir::graph::{FusionClass, NodeId, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::views::run_offset;

use super::legal::cluster;
use super::plan::{Cluster, FusionPlan, Unit};
use super::price::{Price, Prices};

/// Clusters behind a cluster with which it is compared.
const MAX_DISTANCE: usize = 24;

/// A cluster of a plan and what others read of it.
pub type Output = (Cluster, Vec<NodeId>);

/// Merges clusters of the plan from `ids` while that makes the plan cheaper. Merged clusters stay in the
/// plan, empty and owning nothing.
pub fn merge(plan: &mut FusionPlan<'_>, prices: &Prices<'_>, ids: &mut Vec<usize>, outputs: &mut Vec<Vec<NodeId>>) {
    let mut i = 0;
    while i < ids.len() {
        let near = i + 1..(i + 1 + MAX_DISTANCE).min(ids.len());
        let found = near.into_iter().find_map(|j| {
            let merged = merged(plan, prices, (ids[i], &outputs[i]), (ids[j], &outputs[j]))?;
            Some((j, merged))
        });
        match found {
            None => i += 1,
            Some((j, (cluster, roots))) => {
                plan.replace(ids[i], cluster, &roots);
                plan.vacate(ids[j]);
                outputs[i] = roots;
                ids.remove(j);
                outputs.remove(j);
            }
        }
    }
}

/// Whether a cluster is a slice that lies side by side in its operand: it is read there, which costs nothing.
fn is_in_place(plan: &FusionPlan<'_>, cluster: &Cluster) -> bool {
    let mut members = cluster.members.iter().map(|(_, node)| *node);
    let (Some(node), None) = (members.next(), members.next()) else { return false };
    match (plan.prim(node), plan.args(node), plan.types(node)) {
        (Some(Prim::View(view)), [v], [ty]) => run_offset(view, plan.ty(*v), &ty.dims).is_some(),
        _ => false,
    }
}

/// Two clusters as one, if a kernel can compute that, no cycle comes of it, and it is cheaper.
fn merged(
    plan: &FusionPlan<'_>,
    prices: &Prices<'_>,
    (a, a_roots): (usize, &[NodeId]),
    (b, b_roots): (usize, &[NodeId]),
) -> Option<Output> {
    let (x, y) = (&plan.clusters[a], &plan.clusters[b]);
    let both_contract = [x, y].iter().any(|c| c.class == FusionClass::Contract);
    let related = x.dims == y.dims && plan.in_phase(x, y.anchor);
    if both_contract || !related || is_in_place(plan, x) || is_in_place(plan, y) {
        return None;
    }
    let (reads_x, reads_y) = (x.externals(plan), y.externals(plan));
    let stored = |v: &Value| a_roots.contains(&v.node) || b_roots.contains(&v.node);
    let shares = |v: &Value| plan.ty(*v).len() > 1 && (reads_x.contains(v) || a_roots.contains(&v.node));
    if !reads_y.iter().any(shares) && !reads_x.iter().any(|v| b_roots.contains(&v.node)) {
        return None;
    }
    let roots: BTreeSet<(u32, NodeId)> = a_roots.iter().chain(b_roots).map(|n| (plan.rank(*n), *n)).collect();
    let roots: Vec<NodeId> = roots.into_iter().map(|(_, n)| n).collect();
    let merged = cluster(plan, x.members.union(&y.members).copied().collect(), &roots)?;
    let outside = |reads: &[Value]| reads.iter().filter(|v| !stored(v)).copied().collect::<Vec<_>>();
    if plan.depends(&outside(&reads_x), Unit::Cluster(b)) || plan.depends(&outside(&reads_y), Unit::Cluster(a)) {
        return None;
    }
    let values = |nodes: &[NodeId]| nodes.iter().map(|n| Value { node: *n, port: 0 }).collect::<Vec<_>>();
    let apart: Price = prices.of(plan, x, &reads_x, &values(a_roots)) + prices.of(plan, y, &reads_y, &values(b_roots));
    let reads = merged.externals(plan);
    // A result that only the other cluster read need not be stored any more: it counts all the same.
    prices.of(plan, &merged, &reads, &values(&roots)).beats(&apart).then_some((merged, roots))
}
