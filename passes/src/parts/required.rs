//! What parts have whatever numbers tell, so that a graph has the same parts for all numbers.
//!
//! Less depends on values where numbers tell more: operators of the host over constants are evaluated, and an empty tensor has known
//! elements. Where one plan of parts is to serve many numbers, what is known for some of them only is taken as unknown for all.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::graph::{Graph, NodeId, Value};

use super::{HostCall, HostOperand, PartShape, SourceKind};
use crate::infer::Assumptions;
use crate::results::results;

/// What parts have whatever numbers tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Required {
    /// Values that are available and inputs of the next part, whether it needs them or not.
    pub inputs: BTreeSet<Value>,
    /// Values that the next part delivers, whether something that follows needs them or not.
    pub outputs: BTreeSet<Value>,
    /// Operands of the host, by node and position, that are results of parts even where numbers make constants of them.
    pub given: BTreeMap<(NodeId, usize), Value>,
    /// Operators that the host computes even where numbers tell their results. Holds for all parts.
    pub hosts: BTreeSet<NodeId>,
    /// Values that decide shapes by elements which become known in a run, even where numbers tell them. Holds for all parts.
    pub deciding: BTreeSet<Value>,
}

impl Required {
    /// Whether numbers alone tell what parts have.
    pub fn is_empty(&self) -> bool {
        *self == Required::default()
    }

    /// What is required of the parts that follow the next.
    #[must_use]
    pub fn after(&self) -> Required {
        Required { hosts: self.hosts.clone(), deciding: self.deciding.clone(), ..Required::default() }
    }

    /// What inference takes as unknown.
    pub(super) fn assumptions(&self, graph: &Graph) -> Assumptions {
        let of_hosts = self.hosts.iter().filter(|node| graph.contains(**node)).flat_map(|node| results(graph, *node));
        let withheld = of_hosts.chain(self.deciding.iter().copied()).collect();
        Assumptions { withheld, keeps_unused: !self.is_empty(), ..Assumptions::default() }
    }

    /// Requires of the next part of a graph what only some have of those that were made for different numbers. Whether that is
    /// anything new.
    pub fn reconcile<'s>(&mut self, graph: &Graph, parts: impl Iterator<Item = &'s PartShape> + Clone) -> bool {
        let before = self.clone();
        let nodes = |part: &PartShape| part.hosts.iter().map(|call| call.node).collect::<Vec<_>>();
        let elements = |part: &PartShape| {
            let sources = part.sources.iter().filter(|source| source.kind == SourceKind::Elements);
            sources.map(|source| source.value).collect::<Vec<_>>()
        };
        self.hosts.extend(not_common(parts.clone().map(nodes)));
        self.deciding.extend(not_common(parts.clone().map(elements)));
        self.outputs.extend(not_common(parts.clone().map(|part| part.outputs.clone())));
        self.inputs.extend(not_common(parts.clone().map(|part| part.inputs.clone())));
        let calls = parts.flat_map(|part| &part.hosts);
        let mut first: BTreeMap<NodeId, &HostCall> = BTreeMap::new();
        for call in calls {
            let first = first.entry(call.node).or_insert(call);
            let own = graph.operands(call.node);
            for (position, (a, b)) in first.operands.iter().zip(&call.operands).enumerate() {
                let value = [a, b].into_iter().find_map(|operand| match operand {
                    Some(HostOperand::Value(v)) => Some(*v),
                    _ => own.get(position).copied().flatten(),
                });
                if let Some(v) = value.filter(|_| a != b) {
                    self.given.insert((call.node, position), v);
                }
            }
        }
        *self != before
    }
}

/// All that some lists have, if they are not equal.
fn not_common<T: PartialEq>(lists: impl Iterator<Item = Vec<T>>) -> Vec<T> {
    let all: Vec<Vec<T>> = lists.collect();
    match all.windows(2).all(|pair| pair[0] == pair[1]) {
        true => vec![],
        false => all.into_iter().flatten().collect(),
    }
}
