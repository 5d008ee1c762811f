//! Fusion by alternatives: an e-graph of ways to compute each value of a region, and the cheapest
//! choice of them.
//!
//! A class is a value, an e-node a kernel that computes it from other values: `Kernel(form, args)`,
//! where the form, a set of primitives, is kept outside the e-graph. The one rule adds, for a kernel and
//! a form of one of its operands, the kernel that computes the operand itself. So a value that several
//! read may be computed once and read from memory (all refer to its class) or again in each kernel (it
//! is inside their forms), or some of both. Which sets are kernels is decided by kind: see `legal` of
//! [`super::contract`], [`super::reduce`] and [`super::absorb`].
//!
//! The rule runs operand by operand in topological order and keeps the best few forms of a value, as
//! priority cuts do in technology mapping (Mishchenko et al., *Combinational and sequential mapping with
//! priority cuts*, 2007). Every kernel has one result here; [`super::siblings`] merges kernels.

use std::collections::{BTreeMap, BTreeSet};

use egg::{EGraph, Id, Language};
use tensorc_ir::graph::{NodeId, Value};

use super::absorb;
use super::legal::cluster;
use super::plan::{Cluster, FusionPlan, MAX_MEMBERS, Members};
use super::price::Prices;
use super::regions::{self, FusionRegion};
use crate::egraph::{extract, rebuild};

/// Forms kept of one value.
const MAX_FORMS: usize = 6;

/// Bytes that count as a picosecond beside the estimated time, which is that of computing or of moving, whichever is longer.
const MOVED_PER_PICOSECOND: u64 = 1024;

/// Forms of one value that are looked at.
const TRIALS: usize = 48;

/// A way to get a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ValueForm {
    /// It is there: an operand of the region.
    Given(u32),
    /// Another name for the memory of another value.
    Alias(u32, [Id; 1]),
    /// A kernel, by position in the table of forms, and what it reads.
    Kernel(u32, Vec<Id>),
}

impl Language for ValueForm {
    type Discriminant = (u8, u32);

    fn discriminant(&self) -> (u8, u32) {
        match self {
            ValueForm::Given(i) => (0, *i),
            ValueForm::Alias(i, _) => (1, *i),
            ValueForm::Kernel(i, _) => (2, *i),
        }
    }

    fn matches(&self, other: &ValueForm) -> bool {
        self.discriminant() == other.discriminant() && self.children().len() == other.children().len()
    }

    fn children(&self) -> &[Id] {
        match self {
            ValueForm::Given(_) => &[],
            ValueForm::Alias(_, args) => args,
            ValueForm::Kernel(_, args) => args,
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            ValueForm::Given(_) => &mut [],
            ValueForm::Alias(_, args) => args,
            ValueForm::Kernel(_, args) => args,
        }
    }
}

/// A cluster that computes one value.
struct ValueKernel {
    cluster: Cluster,
    root: NodeId,
    /// What it reads, without scalar constants.
    reads: Vec<Value>,
    time: u64,
    /// Its time and its share of the time of what it reads.
    flow: u64,
}

/// The cheapest clusters found that compute what others read of a region; `None` if there is no choice.
pub fn best(plan: &FusionPlan<'_>, prices: &Prices<'_>, region: &FusionRegion) -> Option<Vec<(Cluster, Vec<NodeId>)>> {
    let mut search = FormSearch {
        plan,
        prices,
        region,
        kernels: vec![],
        forms: BTreeMap::new(),
        flow: BTreeMap::new(),
        graph: EGraph::default(),
        classes: BTreeMap::new(),
        given: 0,
    };
    for node in &region.nodes {
        search.node(*node);
    }
    let FormSearch { kernels, mut graph, classes, .. } = search;
    rebuild(&mut graph);
    let roots: Vec<Id> = region.exports.iter().filter_map(|v| classes.get(v)).map(|id| graph.find(*id)).collect();
    let chosen = extract(&graph, &roots, |_, form| match form {
        ValueForm::Given(_) | ValueForm::Alias(..) => Some(0),
        ValueForm::Kernel(i, _) => Some(kernels[*i as usize].time),
    })?;
    let used = chosen.nodes().iter().filter_map(|(_, form)| match form {
        ValueForm::Kernel(i, _) => Some(&kernels[*i as usize]),
        _ => None,
    });
    Some(used.map(|k| (k.cluster.clone(), vec![k.root])).collect())
}

struct FormSearch<'a, 'g> {
    plan: &'a FusionPlan<'g>,
    prices: &'a Prices<'a>,
    region: &'a FusionRegion,
    kernels: Vec<ValueKernel>,
    /// Members with which a node can join its users: the best first.
    forms: BTreeMap<NodeId, Vec<Members>>,
    /// The least flow of a value's forms.
    flow: BTreeMap<NodeId, u64>,
    graph: EGraph<ValueForm, ()>,
    classes: BTreeMap<Value, Id>,
    given: u32,
}

impl FormSearch<'_, '_> {
    fn node(&mut self, node: NodeId) {
        let plan = self.plan;
        let v = Value { node, port: 0 };
        if absorb::is_alias(plan, node) {
            let arg = plan.args(node)[0];
            let behind = self.forms.get(&arg.node).cloned().unwrap_or_default();
            let with_alias = behind.into_iter().map(|mut m| {
                m.insert((plan.rank(node), node));
                m
            });
            self.forms.insert(node, with_alias.collect());
            self.flow.insert(node, self.flow_of(arg));
            let operand = self.class(arg);
            self.add(v, ValueForm::Alias(node.0, [operand]));
        } else {
            let mut found: Vec<ValueKernel> = self.expand(node).into_iter().map(|c| self.kernel(c, node)).collect();
            // The first is the node alone, which must stay: with it every value has a form.
            let rest = found.get_mut(1..).unwrap_or_default();
            rest.sort_by_key(|k| (k.flow, std::cmp::Reverse(k.cluster.members.len())));
            found.truncate(MAX_FORMS);
            let seed = self.region.seeds.get(&node).filter(|s| found.iter().all(|k| k.cluster.members != s.members));
            found.extend(seed.map(|s| self.kernel(s.clone(), node)));
            self.flow.insert(node, found.iter().map(|k| k.flow).min().unwrap_or(0));
            let mut members: Vec<(u64, Members)> = found.iter().map(|k| (k.flow, k.cluster.members.clone())).collect();
            members.sort_by_key(|(flow, m)| (*flow, std::cmp::Reverse(m.len())));
            self.forms.insert(node, members.into_iter().map(|(_, m)| m).collect());
            for kernel in found {
                let args = kernel.reads.iter().map(|v| self.class(*v)).collect();
                self.kernels.push(kernel);
                self.add(v, ValueForm::Kernel(self.kernels.len() as u32 - 1, args));
            }
        }
        if self.region.is_given(v) {
            let leaf = self.leaf();
            self.add(v, leaf);
        }
    }

    /// The rule: clusters that compute a node and, inside, some of its operands.
    fn expand(&self, node: NodeId) -> Vec<Cluster> {
        let plan = self.plan;
        let alone = BTreeSet::from([(plan.rank(node), node)]);
        let mut seen = BTreeSet::from([alone.clone()]);
        // A node that no kernel computes by itself was not let into the region.
        let mut found: Vec<Cluster> = cluster(plan, alone, &[node]).into_iter().collect();
        let mut operands: Vec<NodeId> = plan.args(node).iter().map(|v| v.node).collect();
        operands.dedup();
        for operand in operands {
            let Some(forms) = self.forms.get(&operand) else { continue };
            let mut added = vec![];
            for base in &found {
                for form in forms {
                    let union: Members = base.members.union(form).copied().collect();
                    if found.len() + added.len() < TRIALS && union.len() <= MAX_MEMBERS && seen.insert(union.clone()) {
                        let keeps_order = |c: &Cluster| !(self.region.exact && regions::decides_order(plan, c));
                        added.extend(cluster(plan, union, &[node]).filter(keeps_order));
                    }
                }
            }
            found.extend(added);
        }
        found
    }

    fn kernel(&self, cluster: Cluster, root: NodeId) -> ValueKernel {
        let plan = self.plan;
        let mut reads = cluster.externals(plan);
        reads.retain(|v| !plan.is_scalar_const(*v));
        let price = self.prices.of(plan, &cluster, &reads, &[Value { node: root, port: 0 }]);
        // Of kernels that compute for as long, those are better that move fewer bytes meanwhile.
        let time = price.time.saturating_add(price.moved / MOVED_PER_PICOSECOND);
        let flow = reads.iter().fold(time, |sum, v| sum.saturating_add(self.flow_of(*v)));
        ValueKernel { cluster, root, reads, time, flow }
    }

    /// The share of each reader in what it takes to compute a value.
    fn flow_of(&self, v: Value) -> u64 {
        let readers = self.plan.users(v.node).len().max(1) as u64;
        self.flow.get(&v.node).map_or(0, |flow| flow / readers)
    }

    /// The class of a value; values from outside get theirs at the first use.
    fn class(&mut self, v: Value) -> Id {
        if let Some(id) = self.classes.get(&v) {
            return self.graph.find(*id);
        }
        let leaf = self.leaf();
        self.add(v, leaf)
    }

    fn leaf(&mut self) -> ValueForm {
        self.given += 1;
        ValueForm::Given(self.given)
    }

    fn add(&mut self, v: Value, form: ValueForm) -> Id {
        let new = self.graph.add(form);
        match self.classes.get(&v).copied() {
            Some(id) => {
                self.graph.union(id, new);
            }
            None => {
                self.classes.insert(v, new);
            }
        }
        new
    }
}
