//! Regions: parts of a fusion plan that are looked at by themselves.
//!
//! A region is a run of units of the plan in topological order, with a bounded number of primitives.
//! What it reads from other units and what they read from it stays as it is, so regions can be
//! changed independently, and dependencies between them never form a cycle.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::graph::{FusionClass, NodeId, Value};
use tensorc_ir::prim::Prim;

use super::absorb::is_alias;
use super::plan::{Cluster, FusionPlan, Unit};
use crate::fuse::legal;

/// Regions hold about this many primitives.
const REGION_NODES: usize = 256;

/// Some clusters of a plan.
#[derive(Default)]
pub struct FusionRegion {
    /// Clusters that may be replaced.
    pub clusters: Vec<usize>,
    /// Their members, and aliases, in topological order.
    pub nodes: Vec<NodeId>,
    /// Values that others read, and results of the graph.
    pub exports: Vec<Value>,
    /// Values of nodes of the region that earlier regions deliver.
    given: BTreeSet<Value>,
    /// Clusters with one result, by it.
    pub seeds: BTreeMap<NodeId, Cluster>,
    /// Whether the order of additions must stay.
    pub exact: bool,
}

impl FusionRegion {
    /// Whether some unit outside delivers the value.
    pub fn is_given(&self, v: Value) -> bool {
        self.given.contains(&v)
    }
}

/// Divides a plan. `exact`: clusters that decide the order of additions stay as they are.
pub fn divide(plan: &FusionPlan<'_>, read: &BTreeSet<Value>, exact: bool) -> Vec<FusionRegion> {
    let mut regions: Vec<FusionRegion> = vec![];
    let mut size = REGION_NODES;
    let mut region_of: BTreeMap<Unit, usize> = BTreeMap::new();
    let order = plan.unit_order();
    for &unit in &order {
        let members = match unit {
            Unit::Cluster(c) if replaceable(plan, c, exact) => plan.clusters[c].members.len(),
            Unit::Node(node) if is_alias(plan, node) => 1,
            _ => continue,
        };
        if size + members > REGION_NODES {
            regions.push(FusionRegion::default());
            size = 0;
        }
        size += members;
        region_of.insert(unit, regions.len() - 1);
        if let (Some(region), Unit::Cluster(c)) = (regions.last_mut(), unit) {
            region.clusters.push(c);
        }
    }
    let mut nodes = vec![BTreeSet::new(); regions.len()];
    for (unit, i) in &region_of {
        match unit {
            Unit::Cluster(c) => nodes[*i].extend(plan.clusters[*c].members.iter().copied()),
            Unit::Node(node) => drop(nodes[*i].insert((plan.rank(*node), *node))),
        }
    }
    let mut exports = vec![BTreeSet::new(); regions.len()];
    let mut export = |v: Value, reader: Option<usize>| {
        if let Some(home) = region_of.get(&plan.unit(v.node)).filter(|home| Some(**home) != reader) {
            exports[*home].insert((plan.rank(v.node), v));
        }
    };
    plan.graph.roots().for_each(|v| export(v, None));
    for unit in &order {
        let reader = region_of.get(unit).copied();
        plan.externals(*unit).into_iter().for_each(|v| export(v, reader));
    }
    for (i, region) in regions.iter_mut().enumerate() {
        region.exact = exact;
        region.nodes = nodes[i].iter().map(|(_, n)| *n).collect();
        region.exports = exports[i].iter().map(|(_, v)| *v).collect();
        // Earlier regions do not depend on this one, and deliver what they export whatever becomes of them.
        let delivered = |v: &Value| {
            let home = region_of.get(&plan.unit(v.node)).filter(|home| **home < i);
            home.is_some_and(|home| exports[*home].contains(&(plan.rank(v.node), *v)))
        };
        region.given = region.nodes.iter().map(|n| Value { node: *n, port: 0 }).filter(delivered).collect();
        for c in &region.clusters {
            if let [v] = plan.outputs(*c, read)[..] {
                region.seeds.insert(v.node, plan.clusters[*c].clone());
            }
        }
    }
    regions
}

/// Whether a cluster may be replaced by others: every member has one result and is a kernel by itself. Attention
/// stays as it was found.
fn replaceable(plan: &FusionPlan<'_>, c: usize, exact: bool) -> bool {
    let cluster = &plan.clusters[c];
    cluster.class != FusionClass::Attention
        && !(exact && decides_order(plan, cluster))
        && cluster.members.iter().all(|(rank, n)| {
            let alone = || legal::cluster(plan, BTreeSet::from([(*rank, *n)]), &[*n]).is_some();
            plan.types(*n).len() == 1 && (is_alias(plan, *n) || alone())
        })
}

/// Whether what is in a cluster besides its folds decides the order in which they add. A library may
/// compute a product otherwise if its result is moved.
pub fn decides_order(plan: &FusionPlan<'_>, cluster: &Cluster) -> bool {
    let is_view = |(_, n): &(u32, NodeId)| matches!(plan.prim(*n), Some(Prim::View(_)));
    match cluster.class {
        FusionClass::Map => false,
        FusionClass::Reduce | FusionClass::Attention => true,
        FusionClass::Contract => cluster.members.iter().any(is_view),
    }
}
