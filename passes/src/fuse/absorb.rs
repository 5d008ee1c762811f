//! Producers computed on the fly: maps, views and gathers move into the clusters that read them.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::graph::{FusionClass, NodeId, Value};
use tensorc_ir::prim::{Prim, View};
use tensorc_schedule::cost::work::Ops;

use super::plan::{Cluster, FusionPlan, MAX_MEMBERS, MAX_OPERANDS, Unit};
use tensorc_ir::views::keeps_linear_order;

/// At most so many simple operations of an element may be computed more than once.
const MAX_DUPLICATED_OPS: u64 = 2;

/// Visits units from the outputs up; starts a cluster at every map, view and gather somebody still
/// needs, and lets every cluster take its producers.
pub fn form(plan: &mut FusionPlan<'_>, grow: bool) {
    let mut needed: BTreeSet<NodeId> = plan.graph.roots().map(|v| v.node).collect();
    for unit in plan.unit_order().into_iter().rev() {
        let unit = match unit {
            Unit::Node(node) if plan.owner(node).is_some() || !needed.contains(&node) => continue,
            Unit::Node(node) if starts_cluster(plan, node) => {
                let dims = plan.types(node)[0].dims.clone();
                Unit::Cluster(plan.start(FusionClass::Map, node, dims, vec![]))
            }
            other => other,
        };
        if let Unit::Cluster(c) = unit
            && grow
            && !matches!(plan.clusters[c].class, FusionClass::Contract | FusionClass::Attention)
        {
            absorb_producers(plan, c);
        }
        needed.extend(plan.externals(unit).iter().map(|v| v.node));
    }
}

/// Views that keep linear order need no kernel.
fn starts_cluster(plan: &FusionPlan<'_>, node: NodeId) -> bool {
    match plan.prim(node) {
        Some(Prim::Map(_) | Prim::Gather(_)) => true,
        Some(Prim::View(_)) => !is_alias(plan, node),
        _ => false,
    }
}

pub fn is_alias(plan: &FusionPlan<'_>, node: NodeId) -> bool {
    match (plan.prim(node), plan.args(node)) {
        (Some(Prim::View(view)), [v]) => keeps_linear_order(view, plan.ty(*v), &plan.types(node)[0].dims),
        _ => false,
    }
}

fn absorb_producers(plan: &mut FusionPlan<'_>, cluster: usize) {
    let mut refused: BTreeSet<NodeId> = BTreeSet::new();
    loop {
        let producers: BTreeSet<(u32, NodeId)> = plan
            .externals(Unit::Cluster(cluster))
            .iter()
            .map(|v| (plan.rank(v.node), v.node))
            .filter(|(_, n)| !refused.contains(n))
            .collect();
        let Some((_, producer)) = producers.last().copied() else { return };
        // A refusal stands: later members never make a producer easier to take.
        refused.insert(producer);
        if plan.clusters[cluster].members.len() >= MAX_MEMBERS || !takes(plan, cluster, producer) {
            continue;
        }
        match role(plan, cluster, producer) {
            Some(AbsorbTerms::Exclusive) => plan.add_owned(cluster, producer),
            Some(AbsorbTerms::Shared) => plan.add_shared(cluster, producer),
            Some(AbsorbTerms::Copy) => plan.add_copy(cluster, producer),
            None => continue,
        }
        if plan.externals(Unit::Cluster(cluster)).len() > MAX_OPERANDS {
            plan.remove(cluster, producer);
        }
    }
}

/// On what terms a producer joins a cluster.
enum AbsorbTerms {
    /// Nobody else reads it.
    Exclusive,
    /// Others read it, and it becomes one more output.
    Shared,
    /// Others read it, and it is cheap enough for each to compute it again.
    Copy,
}

fn role(plan: &FusionPlan<'_>, cluster: usize, producer: NodeId) -> Option<AbsorbTerms> {
    let users = plan.users(producer);
    let exclusive = || users.iter().all(|u| plan.is_exclusive(cluster, *u));
    if !plan.is_output(producer) && plan.same_phase(cluster, producer) && exclusive() {
        return Some(AbsorbTerms::Exclusive);
    }
    let recomputable = |u: &NodeId| {
        let inlines = match plan.prim(*u) {
            Some(Prim::Map(_) | Prim::View(_) | Prim::Reduce(_)) => !is_alias(plan, *u),
            Some(Prim::Gather(_)) => plan.args(*u)[0].node != producer,
            _ => false,
        };
        let inlining = |c: usize| !matches!(plan.clusters[c].class, FusionClass::Contract | FusionClass::Attention);
        inlines && plan.owner(*u).is_none_or(inlining)
    };
    let len = plan.types(producer)[0].len();
    let big = plan.args(producer).iter().filter(|v| plan.ty(**v).len() * 2 > len && !plan.is_scalar_const(**v)).count();
    if is_cheap(plan, producer) && big <= 1 && !plan.is_output(producer) && users.iter().all(recomputable) {
        return Some(AbsorbTerms::Copy);
    }
    let members = users.iter().filter(|u| plan.is_member(cluster, **u));
    let in_place = plan.types(producer)[0].dims == plan.clusters[cluster].dims
        && matches!(plan.prim(producer), Some(Prim::Map(_)))
        && members.clone().all(|u| reads_in_place(plan, *u, producer))
        // Copies of a user outside would read the output of this cluster: allowed, but only owned
        // users make it worth while.
        && members.clone().any(|u| plan.owner(*u) == Some(cluster));
    let others: Vec<Value> =
        plan.externals(Unit::Cluster(cluster)).into_iter().filter(|v| v.node != producer).collect();
    (in_place && plan.same_phase(cluster, producer) && !plan.depends(&others, Unit::Node(producer)))
        .then_some(AbsorbTerms::Shared)
}

/// Whether the user reads the producer's element at its own coordinates only.
pub fn reads_in_place(plan: &FusionPlan<'_>, user: NodeId, producer: NodeId) -> bool {
    match plan.prim(user) {
        Some(Prim::Map(_)) => plan.types(user)[0].dims == plan.types(producer)[0].dims,
        Some(Prim::Reduce(_)) => true,
        _ => false,
    }
}

/// Whether the producer's form, and how often it would be computed, allow it to join.
fn takes(plan: &FusionPlan<'_>, cluster: usize, producer: NodeId) -> bool {
    let c = &plan.clusters[cluster];
    if plan.owner(producer).is_some() || !alias_worth_taking(plan, producer) {
        return false;
    }
    let behind = c.members.range((plan.rank(producer), producer)..).rev().map(|(_, n)| *n);
    let all: Vec<NodeId> = behind.chain([producer]).collect();
    let evaluations = evaluations(plan, &all, &|n| n == c.anchor);
    inlines(plan, c, producer, evaluations.get(&producer).copied().unwrap_or(u64::MAX))
}

/// Whether a cluster can compute a producer where it reads it. `evaluations`: how often it would
/// compute each element.
fn inlines(plan: &FusionPlan<'_>, c: &Cluster, producer: NodeId, evaluations: u64) -> bool {
    let prim = plan.prim(producer);
    if plan.types(producer).len() != 1 || !matches!(prim, Some(Prim::Map(_) | Prim::View(_) | Prim::Gather(_))) {
        return false;
    }
    let users: Vec<NodeId> = plan.users(producer).iter().filter(|u| c.contains(plan, **u)).copied().collect();
    let data_of_gather =
        |u: &NodeId| matches!(plan.prim(*u), Some(Prim::Gather(_))) && plan.args(*u)[0].node == producer;
    if users.iter().any(data_of_gather) {
        return false;
    }
    let full = plan.types(producer)[0].dims == c.dims;
    if c.class == FusionClass::Reduce && !(full && users.iter().all(|u| reads_in_place(plan, *u, producer))) {
        return false;
    }
    let through_division = users.iter().any(|u| match plan.prim(*u) {
        Some(Prim::View(view)) => !view.map.iter().all(|m| m.is_affine()),
        _ => false,
    });
    is_cheap(plan, producer) || (!through_division && evaluations <= 1)
}

/// Whether each user may compute the node again, whatever that saves.
pub fn is_cheap(plan: &FusionPlan<'_>, node: NodeId) -> bool {
    match plan.prim(node) {
        Some(Prim::Map(f)) => {
            let ops = Ops::of_function(f);
            ops.total() == ops.simple && ops.simple <= MAX_DUPLICATED_OPS
        }
        Some(Prim::View(_)) => true,
        _ => false,
    }
}

/// Whether a set of members is a loop nest over the elements of `roots`, its outputs: maps, views and
/// gathers that can be computed where they are read.
pub fn legal(plan: &FusionPlan<'_>, c: &Cluster, roots: &[NodeId]) -> bool {
    let all: Vec<NodeId> = c.members.iter().rev().map(|(_, n)| *n).collect();
    let evaluations = evaluations(plan, &all, &|n| roots.contains(&n));
    all.iter().all(|node| match roots.contains(node) {
        // A result that the cluster reads, too, is read where it is computed.
        true => {
            let inside = |u: &&NodeId| c.contains(plan, **u);
            matches!(plan.prim(*node), Some(Prim::Map(_) | Prim::View(_) | Prim::Gather(_)))
                && plan.types(*node).iter().all(|t| t.dims == c.dims)
                && !is_alias(plan, *node)
                && plan.users(*node).iter().filter(inside).all(|u| reads_in_place(plan, *u, *node))
        }
        false => {
            // An alias that joins without its operand saves nothing.
            let reached = |v: &Value| c.contains(plan, v.node);
            let affine = |view: &View| view.map.iter().all(|m| m.is_affine());
            let alias = match plan.prim(*node) {
                Some(Prim::View(view)) if is_alias(plan, *node) => affine(view) && plan.args(*node).iter().all(reached),
                _ => true,
            };
            alias && inlines(plan, c, *node, evaluations.get(node).copied().unwrap_or(u64::MAX))
        }
    })
}

/// A view that needs no kernel of its own is taken only to reach a producer behind it, and only if
/// that does not put divisions into the producer's accesses.
fn alias_worth_taking(plan: &FusionPlan<'_>, node: NodeId) -> bool {
    if !is_alias(plan, node) {
        return true;
    }
    let Some(Prim::View(view)) = plan.prim(node) else { return false };
    let behind = plan.args(node)[0].node;
    let single = plan.users(behind).len() == 1 && !plan.is_output(behind) && plan.owner(behind).is_none();
    single
        && view.map.iter().all(|m| m.is_affine())
        && matches!(plan.prim(behind), Some(Prim::Map(_) | Prim::Gather(_)))
}

/// How often a cluster would compute each element of its members, given users first: reads at equal
/// coordinates share one computation, every other access computes it anew.
fn evaluations(plan: &FusionPlan<'_>, members: &[NodeId], is_root: &dyn Fn(NodeId) -> bool) -> BTreeMap<NodeId, u64> {
    let mut counts: BTreeMap<NodeId, u64> = BTreeMap::new();
    for &node in members {
        let len = plan.types(node)[0].len().max(1);
        let stored = is_root(node) || matches!(plan.prim(node), Some(Prim::Reduce(_)));
        let (mut aligned, mut other) = (u64::from(stored), 0u64);
        for user in plan.users(node).iter().filter(|_| !stored) {
            let Some(&above) = counts.get(user) else { continue };
            if reads_in_place(plan, *user, node) {
                aligned = aligned.max(above);
            } else {
                let reads = plan.types(*user)[0].len();
                other = other.saturating_add(above.saturating_mul(reads.div_ceil(len).max(1)));
            }
        }
        counts.insert(node, aligned.saturating_add(other));
    }
    counts
}
