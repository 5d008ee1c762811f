//! Clusters anchored at reductions: several reductions over the same axes of one shape, with the
//! element-wise work between and after them.

use std::collections::BTreeSet;

use tensorc_ir::graph::{FusionClass, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};

use super::absorb::reads_in_place;
use super::plan::{Cluster, FusionPlan, MAX_MEMBERS, MAX_OPERANDS, Unit};
use tensorc_ir::Extents;
use tensorc_ir::views::{keeps_linear_order, without_unit_vars};

/// Fewer rows than this over more elements than [`MIN_LARGE_ELEMENTS`] leave too little to run in parallel when
/// everything about a row happens in one kernel.
const MIN_PARALLEL_ROWS: u64 = 4;
const MIN_LARGE_ELEMENTS: u64 = 1 << 18;

/// Forms clusters around all reductions.
pub fn form(plan: &mut FusionPlan<'_>, grow: bool) {
    for node in plan.order.clone() {
        let Some(Prim::Reduce(r)) = plan.prim(node) else { continue };
        if plan.owner(node).is_some() {
            continue;
        }
        let dims = plan.args(node).first().map_or_else(Extents::default, |v| plan.ty(*v).dims.clone());
        let cluster = plan.start(FusionClass::Reduce, node, dims, r.axes.clone());
        if grow {
            grow_forward(plan, cluster);
        }
    }
}

/// Adds users of members, in order, while they are row programs over the same rows.
fn grow_forward(plan: &mut FusionPlan<'_>, cluster: usize) {
    let users = |plan: &FusionPlan<'_>, n: NodeId| -> Vec<(u32, NodeId)> {
        plan.users(n).iter().map(|u| (plan.rank(*u), *u)).collect()
    };
    let mut candidates: BTreeSet<(u32, NodeId)> = users(plan, plan.clusters[cluster].anchor).into_iter().collect();
    while let Some((_, user)) = candidates.pop_first() {
        let free = plan.owner(user).is_none()
            && plan.same_phase(cluster, user)
            && plan.clusters[cluster].members.len() < MAX_MEMBERS;
        if !free || !fits(plan, &plan.clusters[cluster], user, true) {
            continue;
        }
        let pulled = pull_siblings(plan, cluster, user);
        let outside: Vec<Value> =
            plan.args(user).iter().filter(|v| !plan.is_member(cluster, v.node)).copied().collect();
        let mut legal = !plan.depends(&outside, Unit::Cluster(cluster));
        if legal {
            plan.add_owned(cluster, user);
            if plan.externals(Unit::Cluster(cluster)).len() > MAX_OPERANDS {
                plan.remove(cluster, user);
                legal = false;
            }
        }
        match legal {
            true => [&[user], &pulled[..]].concat().into_iter().for_each(|n| candidates.extend(users(plan, n))),
            false => pulled.into_iter().for_each(|n| plan.remove(cluster, n)),
        }
    }
}

/// Adds reductions over the same rows that `user` reads but that no member reads.
fn pull_siblings(plan: &mut FusionPlan<'_>, cluster: usize, user: NodeId) -> Vec<NodeId> {
    let mut pulled = vec![];
    let args: Vec<Value> = plan.args(user).to_vec();
    for v in args {
        let sibling = matches!(plan.prim(v.node), Some(Prim::Reduce(_)))
            && plan.owner(v.node).is_none()
            && plan.same_phase(cluster, v.node)
            && fits(plan, &plan.clusters[cluster], v.node, true);
        if !sibling || plan.depends(plan.args(v.node), Unit::Cluster(cluster)) {
            continue;
        }
        let externals = plan.externals(Unit::Cluster(cluster));
        if !plan.depends(&externals, Unit::Node(v.node)) {
            plan.add_owned(cluster, v.node);
            pulled.push(v.node);
        }
    }
    pulled
}

/// How the values of a cluster relate to its iteration shape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IterationExtent {
    Full,
    Row,
    Other,
}

fn extent(c: &Cluster, dims: &Extents) -> IterationExtent {
    match () {
        _ if *dims == c.dims => IterationExtent::Full,
        _ if *dims == kept(&c.dims, &c.axes) || *dims == dropped(&c.dims, &c.axes) => IterationExtent::Row,
        _ => IterationExtent::Other,
    }
}

fn kept(dims: &[u64], axes: &[usize]) -> Vec<u64> {
    dims.iter().enumerate().map(|(i, d)| if axes.contains(&i) { 1 } else { *d }).collect()
}

fn dropped(dims: &[u64], axes: &[usize]) -> Vec<u64> {
    dims.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| *d).collect()
}

/// The shape with leading ones, to rank `rank`.
fn padded(dims: &[u64], rank: usize) -> Vec<u64> {
    [vec![1; rank.saturating_sub(dims.len())], dims.to_vec()].concat()
}

/// Whether the node can be computed row by row with the cluster, as far as its form goes. `folded`: it depends on a reduction of the cluster.
fn fits(plan: &FusionPlan<'_>, c: &Cluster, node: NodeId, folded: bool) -> bool {
    let types = plan.types(node);
    let out = &types[0].dims;
    let member = |v: &&Value| c.contains(plan, v.node);
    let large = c.dims.iter().product::<u64>() > MIN_LARGE_ELEMENTS;
    let one_kernel_is_slow = large && dropped(&c.dims, &c.axes).iter().product::<u64>() < MIN_PARALLEL_ROWS;
    match plan.prim(node) {
        Some(Prim::Reduce(r)) => {
            r.axes == c.axes
                && plan.args(node).iter().all(|v| plan.ty(*v).dims == c.dims)
                && !(one_kernel_is_slow && folded && plan.args(node).iter().any(|v| c.contains(plan, v.node)))
        }
        Some(Prim::Map(_)) if types.iter().all(|t| t.dims == *out) => match extent(c, out) {
            IterationExtent::Full => {
                let keep = kept(&c.dims, &c.axes);
                let aligned = |v: &Value| {
                    let dims = &plan.ty(*v).dims;
                    *dims == c.dims || padded(dims, keep.len()) == keep
                };
                !(one_kernel_is_slow && folded) && plan.args(node).iter().filter(member).all(aligned)
            }
            IterationExtent::Row => plan.args(node).iter().filter(member).all(|v| {
                let dims = &plan.ty(*v).dims;
                let rank = dims.len().max(out.len());
                padded(dims, rank) == padded(out, rank)
            }),
            IterationExtent::Other => false,
        },
        Some(Prim::View(view)) => match plan.args(node) {
            [v] => row_view(plan, c, view, *v, out),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a view of a per-row value adds or drops reduced axes, or repeats it along them.
fn row_view(plan: &FusionPlan<'_>, c: &Cluster, view: &View, v: Value, out: &Extents) -> bool {
    let input = plan.ty(v);
    if extent(c, &input.dims) != IterationExtent::Row {
        return false;
    }
    match extent(c, out) {
        IterationExtent::Row => keeps_linear_order(view, input, out),
        IterationExtent::Full => {
            let axes: Vec<usize> = match input.dims == kept(&c.dims, &c.axes) {
                true => (0..c.dims.len()).collect(),
                false => (0..c.dims.len()).filter(|i| !c.axes.contains(i)).collect(),
            };
            view.fill.is_none()
                && view.map.iter().zip(axes).enumerate().all(|(i, (m, axis))| match input.dims[i] {
                    1 => true,
                    _ => without_unit_vars(m, out) == Index::var(axis as u32),
                })
        }
        IterationExtent::Other => false,
    }
}

/// Whether a set of members is a row program: reductions over the same axes of one shape, what can be
/// computed row by row with them, and producers that are read in place.
pub fn legal(plan: &FusionPlan<'_>, c: &Cluster) -> bool {
    let mut folded: BTreeSet<NodeId> = BTreeSet::new();
    c.members.iter().all(|(_, node)| {
        let after = plan.args(*node).iter().any(|v| folded.contains(&v.node));
        if after || matches!(plan.prim(*node), Some(Prim::Reduce(_))) {
            folded.insert(*node);
        }
        fits(plan, c, *node, after) || is_prologue(plan, c, *node)
    })
}

/// A view or gather of operands alone, of the cluster's shape, every element read where it lies.
fn is_prologue(plan: &FusionPlan<'_>, c: &Cluster, node: NodeId) -> bool {
    matches!(plan.prim(node), Some(Prim::View(_) | Prim::Gather(_)))
        && plan.types(node)[0].dims == c.dims
        && plan.args(node).iter().all(|v| !c.contains(plan, v.node))
        && plan.users(node).iter().filter(|u| c.contains(plan, **u)).all(|u| reads_in_place(plan, *u, node))
}
