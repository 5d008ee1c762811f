//! Clusters anchored at a contraction: element-wise work on its result, a last permutation, and element-wise work on
//! an operand that the library computes where it reads it.

use std::collections::BTreeSet;

use tensorc_ir::graph::{FusionClass, NodeId};
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::views::{keeps_linear_order, strides_in_result};
use tensorc_ir::{DType, TensorData};
use tensorc_schedule::recognise::contract::{computed_operand, is_library, library_call};

use super::plan::{Cluster, FusionPlan, MAX_MEMBERS, MAX_OPERANDS, Unit};

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
    let converts = converts(plan, contract);
    let mut added: Vec<NodeId> = vec![];
    let mut best = 0;
    let mut candidates: BTreeSet<(u32, NodeId)> = plan.users(contract).iter().map(|u| (plan.rank(*u), *u)).collect();
    while let Some((_, user)) = candidates.pop_first() {
        let types = plan.types(user);
        let fits = matches!(plan.prim(user), Some(Prim::Map(_)))
            && plan.owner(user).is_none()
            && plan.same_phase(cluster, user)
            && types.len() == 1
            && types[0].dims == ty.dims
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
        // Values in between may be of any type: 16-bit networks compute in f32.
        if live_out(plan, cluster) == [user] && (converts || plan.types(user)[0] == ty) {
            best = added.len();
        }
    }
    for node in added.drain(best..) {
        plan.remove(cluster, node);
    }
    added.last().copied().unwrap_or(contract)
}

/// Whether the result of a cluster may be of another type than its contraction.
fn converts(plan: &FusionPlan<'_>, contract: NodeId) -> bool {
    let (Some(Prim::Contract(contraction)), [lhs, rhs]) = (plan.prim(contract), plan.args(contract)) else {
        return false;
    };
    let call = || library_call(contraction, plan.ty(*lhs), plan.ty(*rhs), None);
    plan.on_processor && call().is_some_and(|call| call.sums_bytes())
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
    let [user] = plan.users(result) else { return };
    let user = *user;
    let free = !plan.is_output(result) && plan.owner(user).is_none() && plan.same_phase(cluster, user);
    if free && moves_rows(plan, contract, result, user) {
        plan.add_owned(cluster, user);
    }
}

/// Whether `user` is a view that the matrix product `contract` can apply while it stores `result`.
fn moves_rows(plan: &FusionPlan<'_>, contract: NodeId, result: NodeId, user: NodeId) -> bool {
    let (Some(Prim::Contract(contraction)), Some(Prim::View(view))) = (plan.prim(contract), plan.prim(user)) else {
        return false;
    };
    let (input, output) = (&plan.types(result)[0], &plan.types(user)[0].dims);
    if keeps_linear_order(view, input, output) || !matches!(input.dtype, DType::F32 | DType::F64) {
        return false;
    }
    let innermost = (0..input.rank()).rfind(|a| input.dims[*a] != 1);
    match (strides_in_result(view, &input.dims, output), innermost, plan.args(contract)) {
        (Some(strides), Some(axis), [lhs, rhs]) => {
            strides[axis] == 1 && library_call(contraction, plan.ty(*lhs), plan.ty(*rhs), Some(&strides)).is_some()
        }
        _ => false,
    }
}

/// Whether a set of members is a contraction with element-wise work on its result, and perhaps a last
/// view. Work that does not depend on the contraction may take part where a library computes that:
/// its epilogue evaluates any element-wise expression, and what it takes computed is an operand.
pub fn legal(plan: &FusionPlan<'_>, c: &Cluster, root: NodeId) -> bool {
    let contract = c.anchor;
    let Some(before) = prologue(plan, c, root) else { return false };
    let ty = &plan.types(contract)[0];
    let library = || match (plan.prim(contract), plan.args(contract)) {
        (Some(Prim::Contract(contraction)), [lhs, rhs]) => is_library(contraction, plan.ty(*lhs), plan.ty(*rhs)),
        _ => false,
    };
    // What a last view moves is the result, too.
    let is_moved =
        |node: NodeId| matches!(plan.prim(root), Some(Prim::View(_))) && plan.args(root).iter().any(|v| v.node == node);
    let mut after = BTreeSet::from([contract]);
    c.members.iter().all(|(_, node)| {
        if *node == contract || before.contains(node) {
            return true;
        }
        let depends = plan.args(*node).iter().any(|v| after.contains(&v.node));
        if depends {
            after.insert(*node);
        }
        match (plan.prim(*node), plan.args(*node)) {
            (Some(Prim::Map(_)), _) => {
                let result = *node == root || is_moved(*node);
                let found = &plan.types(*node)[0];
                found.dims == ty.dims
                    && (!result || found.dtype == ty.dtype || converts(plan, contract))
                    && (depends || library())
            }
            (Some(Prim::View(_)), [v]) => {
                *node == root && after.contains(&v.node) && moves_rows(plan, contract, v.node, *node)
            }
            _ => false,
        }
    })
}

/// The members of a cluster that compute an operand of its contraction; `None` if the library does not take them.
fn prologue(plan: &FusionPlan<'_>, c: &Cluster, root: NodeId) -> Option<BTreeSet<NodeId>> {
    let (contract, args) = (c.anchor, plan.args(c.anchor));
    let inside: Vec<usize> = (0..args.len()).filter(|i| c.contains(plan, args[*i].node)).collect();
    let mut members = BTreeSet::new();
    if inside.is_empty() {
        return Some(members);
    }
    // Products with packed weights read their left operand in memory.
    if args.iter().any(|v| plan.graph.constant(*v).is_some_and(TensorData::is_packed)) {
        return None;
    }
    let (Some(Prim::Contract(contraction)), [lhs, rhs]) = (plan.prim(contract), args) else { return None };
    // Views move results, and with them the roles of the operands.
    let moved = match (plan.prim(root), plan.args(root)) {
        (Some(Prim::View(view)), [v]) => Some(strides_in_result(view, &plan.ty(*v).dims, &plan.types(root)[0].dims)?),
        _ => None,
    };
    let constant = plan.graph.constant(*rhs).is_some();
    let side = computed_operand(contraction, [plan.ty(*lhs), plan.ty(*rhs)], constant, moved.as_deref())?;
    if !plan.on_processor || inside != [side] {
        return None;
    }
    let mut stack = vec![args[side].node];
    while let Some(node) = stack.pop() {
        if !members.insert(node) {
            continue;
        }
        stack.extend(plan.args(node).iter().map(|v| v.node).filter(|n| c.contains(plan, *n)));
    }
    let takes = |node: &NodeId| {
        let reader = |user: &NodeId| !c.contains(plan, *user) || *user == contract || members.contains(user);
        let form = match plan.prim(*node) {
            Some(Prim::Map(_)) => true,
            Some(Prim::View(view)) => {
                keeps_columns(view, plan.types(*node)[0].rank())
                    && plan.args(*node).iter().all(|v| c.contains(plan, v.node))
            }
            _ => false,
        };
        form && plan.types(*node).len() == 1 && plan.users(*node).iter().all(reader)
    };
    members.iter().all(takes).then_some(members)
}

/// Whether neighbours along the last axis of a view are neighbours in its operand, or the same element.
fn keeps_columns(view: &View, rank: usize) -> bool {
    let Some((last, outer)) = view.map.split_last() else { return true };
    let axis = rank.saturating_sub(1) as u32;
    view.fill.is_none()
        && view.map.iter().all(|m| m.is_affine())
        && matches!(last.step(axis), Some(0 | 1))
        && !outer.iter().any(|m| m.mentions(axis))
}
