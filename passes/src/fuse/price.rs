//! What clusters of a fusion plan cost, before they are nodes of a graph.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::Add;

use tensorc_ir::graph::{NodeId, Value};
use tensorc_ir::prim::Prim;
use tensorc_schedule::cost::CostModel;
use tensorc_schedule::cost::work::{KernelWork, Member, OperandSource, Ops};

use super::plan::{Cluster, FusionPlan};

/// The cost of some clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    pub kernels: u64,
    /// Bytes read and written.
    pub moved: u64,
    /// Estimated picoseconds.
    pub time: u64,
}

impl Price {
    /// Whether this is cheaper than another, and in no respect costlier.
    pub fn beats(&self, other: &Price) -> bool {
        self.time < other.time && self.moved <= other.moved && self.kernels <= other.kernels
    }
}

impl Add for Price {
    type Output = Price;

    fn add(self, other: Price) -> Price {
        Price {
            kernels: self.kernels + other.kernels,
            moved: self.moved + other.moved,
            time: self.time.saturating_add(other.time),
        }
    }
}

impl Sum for Price {
    fn sum<I: Iterator<Item = Price>>(all: I) -> Price {
        all.fold(Price::default(), Add::add)
    }
}

/// Prices clusters of one graph.
pub struct Prices<'a> {
    machine: &'a CostModel,
    contractions: BTreeMap<NodeId, Ops>,
}

impl<'a> Prices<'a> {
    pub fn new(plan: &FusionPlan<'_>, machine: &'a CostModel) -> Prices<'a> {
        let ops = |node: &NodeId| match (plan.prim(*node), plan.args(*node)) {
            (Some(Prim::Contract(c)), [l, r]) => Some((*node, Ops::of_contraction(c, plan.ty(*l), plan.ty(*r)))),
            _ => None,
        };
        Prices { machine, contractions: plan.order.iter().filter_map(ops).collect() }
    }

    /// The price of a cluster that reads `externals` and stores `outputs`.
    pub fn of(&self, plan: &FusionPlan<'_>, cluster: &Cluster, externals: &[Value], outputs: &[Value]) -> Price {
        let nodes: Vec<(u32, NodeId)> = cluster.members.iter().copied().collect();
        let operands: Vec<Value> = externals.iter().filter(|v| !plan.is_scalar_const(**v)).copied().collect();
        let source = |v: &Value| match nodes.binary_search(&(plan.rank(v.node), v.node)) {
            Ok(i) => OperandSource::Member(i),
            Err(_) => operands.iter().position(|e| e == v).map_or(OperandSource::Number, OperandSource::External),
        };
        let member = |(_, node): &(u32, NodeId)| {
            let ports = 0..plan.types(*node).len() as u16;
            Some(Member {
                prim: plan.prim(*node)?,
                args: plan.args(*node).iter().map(source).collect(),
                types: plan.types(*node),
                stored: ports.map(|port| outputs.contains(&Value { node: *node, port })).collect(),
                ops: self.contractions.get(node).copied(),
            })
        };
        let members: Vec<Member<'_>> = nodes.iter().filter_map(member).collect();
        let types: Vec<_> = operands.iter().map(|v| plan.ty(*v)).collect();
        let work = KernelWork::of(&members, &types);
        Price { kernels: 1, moved: work.moved(), time: self.machine.time(&work) }
    }
}
