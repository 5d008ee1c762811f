//! Clusters anchored at a contraction: element-wise work on its result, and a last permutation.

use std::collections::BTreeSet;

use tensorc_ir::DType;
use tensorc_ir::contract::as_gemm;
use tensorc_ir::graph::{FusionClass, NodeId};
use tensorc_ir::prim::Prim;

use super::plan::{FusionPlan, MAX_MEMBERS, MAX_OPERANDS, Unit};
use tensorc_ir::views::{keeps_linear_order, strides_in_result};

/// Forms a cluster around every contraction.
pub fn form(plan: &mut FusionPlan<'_>, grow: bool) {
    for node in plan.order.clone() {
        if let Some(Prim::Contract(_)) = plan.prim(node)
            && plan.owner(node).is_none()
        {
            let dims = plan.types(node)[0].dims.clone();
            let cluster = plan.start(FusionClass::Contract, node, dims, vec![]);
            if grow {
                let result = grow_epilogue(plan, cluster, node);
                take_final_view(plan, cluster, node, result);
            }
        }
    }
}

/// Adds maps over the result as long as one value remains that the rest of the graph reads;
/// returns the node of that value.
fn grow_epilogue(plan: &mut FusionPlan<'_>, cluster: usize, contract: NodeId) -> NodeId {
    let ty = plan.types(contract)[0].clone();
    let mut added: Vec<NodeId> = vec![];
    let mut best = 0;
    let mut candidates: BTreeSet<(u32, NodeId)> = plan.users(contract).iter().map(|u| (plan.rank(*u), *u)).collect();
    while let Some((_, user)) = candidates.pop_first() {
        let types = plan.types(user);
        let fits = matches!(plan.prim(user), Some(Prim::Map(_)))
            && plan.owner(user).is_none()
            && plan.same_phase(cluster, user)
            && types.len() == 1
            && types[0] == ty
            && plan.clusters[cluster].members.len() < MAX_MEMBERS;
        if !fits {
            continue;
        }
        let outside: Vec<_> = plan.args(user).iter().filter(|v| !plan.is_member(cluster, v.node)).copied().collect();
        if plan.depends(&outside, Unit::Cluster(cluster)) {
            continue;
        }
        plan.add_owned(cluster, user);
        if plan.externals(Unit::Cluster(cluster)).len() > MAX_OPERANDS {
            plan.remove(cluster, user);
            continue;
        }
        added.push(user);
        candidates.extend(plan.users(user).iter().map(|u| (plan.rank(*u), *u)));
        if live_out(plan, cluster) == [user] {
            best = added.len();
        }
    }
    for node in added.drain(best..) {
        plan.remove(cluster, node);
    }
    added.last().copied().unwrap_or(contract)
}

/// Members whose results are read outside.
fn live_out(plan: &FusionPlan<'_>, cluster: usize) -> Vec<NodeId> {
    let outside = |n: NodeId| plan.is_output(n) || plan.users(n).iter().any(|u| !plan.is_member(cluster, *u));
    plan.clusters[cluster].members.iter().map(|(_, n)| *n).filter(|n| outside(*n)).collect()
}

/// Adds a view that only moves rows of the result of a matrix product: its innermost axis stays
/// innermost, and every axis has a fixed stride in the view's result. Other contractions cannot
/// store their result in another order.
fn take_final_view(plan: &mut FusionPlan<'_>, cluster: usize, contract: NodeId, result: NodeId) {
    let Some(Prim::Contract(contraction)) = plan.prim(contract) else { return };
    let [user] = plan.users(result) else { return };
    let user = *user;
    let Some(Prim::View(view)) = plan.prim(user) else { return };
    let (input, output) = (&plan.types(result)[0], &plan.types(user)[0].dims);
    if plan.is_output(result)
        || plan.owner(user).is_some()
        || !plan.same_phase(cluster, user)
        || keeps_linear_order(view, input, output)
    {
        return;
    }
    let strides = strides_in_result(view, &input.dims, output);
    let innermost = (0..input.rank()).rfind(|a| input.dims[*a] != 1);
    let [lhs, rhs] = plan.args(contract) else { return };
    if let (Some(strides), Some(axis)) = (strides, innermost)
        && strides[axis] == 1
        && input.dtype == DType::F32
        && as_gemm(contraction, plan.ty(*lhs), plan.ty(*rhs), Some(&strides)).is_some()
    {
        plan.add_owned(cluster, user);
    }
}
