//! Which node is computed in which cluster, and the dependencies between clusters.

use std::collections::BTreeSet;

use smallvec::SmallVec;
use tensorc_ir::DenseType;
use tensorc_ir::Extents;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

use crate::results::result_types;

/// A group of primitives computed by one kernel.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub class: FusionClass,
    /// The contraction, the first reduction, or the last map.
    pub anchor: NodeId,
    /// By rank. Members the cluster does not own are recomputed here and elsewhere.
    pub members: BTreeSet<(u32, NodeId)>,
    /// The iteration shape: of the outputs for maps and contractions, of the operands of the
    /// reductions.
    pub dims: Extents,
    /// Reduced axes.
    pub axes: Vec<usize>,
}

impl Cluster {
    /// Values a cluster reads, in order of first use.
    pub fn externals(&self, plan: &FusionPlan<'_>) -> Vec<Value> {
        let mut seen = BTreeSet::new();
        let all = self.members.iter().flat_map(|(_, n)| plan.args(*n));
        all.filter(|v| !self.contains(plan, v.node) && seen.insert(**v)).copied().collect()
    }

    pub fn contains(&self, plan: &FusionPlan<'_>, node: NodeId) -> bool {
        self.members.contains(&(plan.rank(node), node))
    }
}

/// What is scheduled as one: a cluster, or a node outside all clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    Cluster(usize),
    Node(NodeId),
}

/// Clusters hold no more members than this.
pub const MAX_MEMBERS: usize = 48;

/// Clusters read no more operands than this.
pub const MAX_OPERANDS: usize = 24;

/// An assignment of nodes to clusters. The dependencies between units never form a cycle.
pub struct FusionPlan<'g> {
    pub graph: &'g Graph,
    /// Whether the library of a processor computes contractions: they may compute what they read, and those of bytes may have a
    /// result of another type than their sums.
    pub on_processor: bool,
    /// Topological.
    pub order: Vec<NodeId>,
    pub clusters: Vec<Cluster>,
    rank: Vec<u32>,
    args: Vec<SmallVec<[Value; 4]>>,
    users: Vec<Vec<NodeId>>,
    types: Vec<Vec<DenseType>>,
    owner: Vec<Option<usize>>,
    is_output: Vec<bool>,
    /// Nodes that the outputs before the boundary do not need.
    second: Vec<bool>,
    copied: Vec<bool>,
    /// Clusters that others may read at other members than the last.
    spread: Vec<usize>,
}

impl<'g> FusionPlan<'g> {
    pub fn new(graph: &'g Graph, on_processor: bool) -> Result<FusionPlan<'g>> {
        let order = graph.order();
        let size = order.iter().map(|n| n.0 as usize + 1).max().unwrap_or(0);
        let mut plan = FusionPlan {
            graph,
            on_processor,
            clusters: vec![],
            rank: vec![0; size],
            args: vec![SmallVec::new(); size],
            users: vec![vec![]; size],
            types: vec![vec![]; size],
            owner: vec![None; size],
            is_output: vec![false; size],
            second: vec![false; size],
            copied: vec![false; size],
            spread: vec![],
            order,
        };
        for (i, &node) in plan.order.iter().enumerate() {
            let at = node.0 as usize;
            plan.rank[at] = i as u32;
            plan.args[at] = graph.args(node);
            for v in &plan.args[at] {
                let users = &mut plan.users[v.node.0 as usize];
                if users.last() != Some(&node) {
                    users.push(node);
                }
            }
            plan.types[at] = result_types(graph, node)?;
        }
        graph.roots().for_each(|v| plan.is_output[v.node.0 as usize] = true);
        if let Some(first) = graph.first_phase() {
            plan.order.iter().for_each(|n| plan.second[n.0 as usize] = !first.contains(n));
        }
        Ok(plan)
    }

    pub fn prim(&self, node: NodeId) -> Option<&'g Prim> {
        match &self.graph.node(node).kind {
            NodeKind::Prim(prim) => Some(prim),
            _ => None,
        }
    }

    pub fn rank(&self, node: NodeId) -> u32 {
        self.rank[node.0 as usize]
    }

    pub fn args(&self, node: NodeId) -> &[Value] {
        &self.args[node.0 as usize]
    }

    /// Nodes that use any result of `node`, each once.
    pub fn users(&self, node: NodeId) -> &[NodeId] {
        &self.users[node.0 as usize]
    }

    pub fn types(&self, node: NodeId) -> &[DenseType] {
        &self.types[node.0 as usize]
    }

    pub fn ty(&self, v: Value) -> &DenseType {
        &self.types[v.node.0 as usize][v.port as usize]
    }

    /// The cluster that computes the node for everyone.
    pub fn owner(&self, node: NodeId) -> Option<usize> {
        self.owner[node.0 as usize]
    }

    /// Whether an output or an update has a value of this node.
    pub fn is_output(&self, node: NodeId) -> bool {
        self.is_output[node.0 as usize]
    }

    /// Whether a node runs in the phase of a cluster. Only such nodes may be owned by the cluster.
    pub fn same_phase(&self, cluster: usize, node: NodeId) -> bool {
        self.in_phase(&self.clusters[cluster], node)
    }

    /// As [`FusionPlan::same_phase`], for a cluster that need not be part of the plan.
    pub fn in_phase(&self, cluster: &Cluster, node: NodeId) -> bool {
        self.second[cluster.anchor.0 as usize] == self.second[node.0 as usize]
    }

    pub fn unit(&self, node: NodeId) -> Unit {
        self.owner(node).map_or(Unit::Node(node), Unit::Cluster)
    }

    pub fn is_member(&self, cluster: usize, node: NodeId) -> bool {
        self.clusters[cluster].contains(self, node)
    }

    /// A constant of one element: it is embedded in bodies.
    pub fn is_scalar_const(&self, v: Value) -> bool {
        matches!(self.graph.node(v.node).kind, NodeKind::Const(_)) && self.ty(v).len() == 1
    }

    /// Starts a cluster that owns `anchor`.
    pub fn start(&mut self, class: FusionClass, anchor: NodeId, dims: Extents, axes: Vec<usize>) -> usize {
        let id = self.clusters.len();
        let members = BTreeSet::from([(self.rank(anchor), anchor)]);
        self.clusters.push(Cluster { class, anchor, members, dims, axes });
        if class == FusionClass::Reduce {
            self.spread.push(id);
        }
        self.owner[anchor.0 as usize] = Some(id);
        id
    }

    /// Adds a node that only this cluster computes.
    pub fn add_owned(&mut self, cluster: usize, node: NodeId) {
        self.owner[node.0 as usize] = Some(cluster);
        let rank = self.rank(node);
        self.clusters[cluster].members.insert((rank, node));
    }

    /// Adds a node that only this cluster computes, and others read.
    pub fn add_shared(&mut self, cluster: usize, node: NodeId) {
        self.add_owned(cluster, node);
        if !self.spread.contains(&cluster) {
            self.spread.push(cluster);
        }
    }

    /// Adds a node that other clusters may compute, too.
    pub fn add_copy(&mut self, cluster: usize, node: NodeId) {
        self.copied[node.0 as usize] = true;
        let rank = self.rank(node);
        self.clusters[cluster].members.insert((rank, node));
    }

    /// Whether this cluster alone computes the node.
    pub fn is_exclusive(&self, cluster: usize, node: NodeId) -> bool {
        self.owner(node) == Some(cluster) && !self.copied[node.0 as usize]
    }

    /// Takes all nodes out of the cluster started last.
    pub fn dissolve(&mut self, cluster: usize) {
        for (_, node) in self.clusters.remove(cluster).members {
            self.owner[node.0 as usize] = None;
        }
    }

    /// Takes a node out again.
    pub fn remove(&mut self, cluster: usize, node: NodeId) {
        let rank = self.rank(node);
        self.clusters[cluster].members.remove(&(rank, node));
        self.owner[node.0 as usize] = None;
    }

    /// Values a unit reads, in order of first use.
    pub fn externals(&self, unit: Unit) -> Vec<Value> {
        match unit {
            Unit::Node(node) => self.args(node).to_vec(),
            Unit::Cluster(c) => self.clusters[c].externals(self),
        }
    }

    /// Values that some unit reads from another, and those that leave the graph.
    pub fn read_values(&self) -> BTreeSet<Value> {
        let units = self.unit_order().into_iter().flat_map(|unit| self.externals(unit));
        self.graph.roots().chain(units).collect()
    }

    /// Results of a cluster that others read.
    pub fn outputs(&self, cluster: usize, read: &BTreeSet<Value>) -> Vec<Value> {
        let members = self.clusters[cluster].members.iter().map(|(_, n)| *n);
        let owned = members.filter(|n| self.owner(*n) == Some(cluster));
        let ports = owned.flat_map(|n| (0..self.types(n).len() as u16).map(move |port| Value { node: n, port }));
        ports.filter(|v| read.contains(v)).collect()
    }

    /// Takes away all clusters.
    pub fn clear(&mut self) {
        self.clusters.clear();
        self.spread.clear();
        self.owner.fill(None);
        self.copied.fill(false);
    }

    /// Puts a cluster in the place of another one.
    pub fn replace(&mut self, id: usize, cluster: Cluster, outputs: &[NodeId]) {
        self.vacate(id);
        if !self.spread.contains(&id) {
            self.spread.push(id);
        }
        outputs.iter().for_each(|n| self.owner[n.0 as usize] = Some(id));
        self.clusters[id] = cluster;
    }

    /// Empties a cluster.
    pub fn vacate(&mut self, id: usize) {
        for (_, node) in std::mem::take(&mut self.clusters[id].members) {
            let owner = &mut self.owner[node.0 as usize];
            *owner = owner.filter(|c| *c != id);
        }
    }

    /// Adds a cluster that computes these nodes for everyone.
    pub fn adopt(&mut self, cluster: Cluster, outputs: &[NodeId]) -> usize {
        let id = self.clusters.len();
        if outputs.len() > 1 || cluster.class == FusionClass::Reduce {
            self.spread.push(id);
        }
        outputs.iter().for_each(|n| self.owner[n.0 as usize] = Some(id));
        self.clusters.push(cluster);
        id
    }

    fn rank_range(&self, unit: Unit) -> (u32, u32) {
        match unit {
            Unit::Node(n) => (self.rank(n), self.rank(n)),
            Unit::Cluster(c) => {
                let members = &self.clusters[c].members;
                (members.first().map_or(0, |m| m.0), members.last().map_or(0, |m| m.0))
            }
        }
    }

    /// Whether any of `from` is computed by `target` or, through other units, depends on it.
    pub fn depends(&self, from: &[Value], target: Unit) -> bool {
        let lowest = self.floor(self.rank_range(target).0);
        let mut stack: Vec<Unit> = from.iter().map(|v| self.unit(v.node)).collect();
        let mut seen = BTreeSet::new();
        while let Some(unit) = stack.pop() {
            if unit == target {
                return true;
            }
            if self.rank_range(unit).1 >= lowest && seen.insert(unit) {
                stack.extend(self.externals(unit).iter().map(|v| self.unit(v.node)));
            }
        }
        false
    }

    /// A unit all of whose members rank below this depends on none that ranks at `lowest` or above.
    /// Operands rank below their users; only a cluster that is read at an earlier member than its last
    /// leads up again.
    fn floor(&self, lowest: u32) -> u32 {
        let mut floor = lowest;
        loop {
            let ranges = self.spread.iter().map(|c| self.rank_range(Unit::Cluster(*c)));
            match ranges.filter(|(first, last)| *first < floor && *last >= floor).map(|(first, _)| first).min() {
                Some(first) => floor = first,
                None => return floor,
            }
        }
    }

    /// Units the outputs and updates need, operands first; those of the first phase come first.
    pub fn unit_order(&self) -> Vec<Unit> {
        let mut seen = BTreeSet::new();
        let mut order = vec![];
        for v in self.graph.roots() {
            let mut stack = vec![(self.unit(v.node), false)];
            while let Some((unit, done)) = stack.pop() {
                if done {
                    order.push(unit);
                } else if seen.insert(unit) {
                    stack.push((unit, true));
                    stack.extend(self.externals(unit).iter().rev().map(|v| (self.unit(v.node), false)));
                }
            }
        }
        order
    }
}

pub type Members = BTreeSet<(u32, NodeId)>;
