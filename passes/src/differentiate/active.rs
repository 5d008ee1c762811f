//! What lies between the values differentiated by and the heads, expanded as far as differentiation needs.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::expand::{Expanded, expand_for_gradient};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::op::{Compute, Grad, Grain, Registry};

use super::reduce;
use crate::options::Options;
use crate::results::results;
use crate::values::StaticValues;

/// Composites may nest this deep; more is a definition that expands to itself.
const MAX_DEPTH: usize = 32;

/// The part of a graph that adjoints flow through.
pub(super) struct Active {
    pub heads: Vec<Value>,
    pub wrt: Vec<Value>,
    /// Float values that depend on one of `wrt`.
    pub varies: BTreeSet<Value>,
    /// Nodes that pass on a dependence to a head, operands first.
    pub order: Vec<NodeId>,
    /// The operator each primitive came from.
    pub origin: BTreeMap<NodeId, &'static str>,
}

impl Active {
    /// Expands operators without a rule of their own, in place, until only primitives are left of them.
    pub fn expand(graph: &mut Graph, registry: &Registry, heads: &[Value], wrt: &[Value]) -> Result<Active> {
        let mut active = Active::of(graph, heads, wrt);
        for _ in 0..MAX_DEPTH {
            let open: Vec<NodeId> = active.order.iter().copied().filter(|n| expands(graph, *n)).collect();
            let split: Vec<NodeId> = active.order.iter().copied().filter(|n| reduce::must_split(graph, *n)).collect();
            if open.is_empty() && split.is_empty() {
                return Ok(active);
            }
            let values = StaticValues::new(registry, Options::default().static_bytes);
            for node in open {
                let expanded = expand_for_gradient(graph, node, registry, &|g, v| values.get(g, v), Grain::Coarse)?;
                if let Expanded::Replaced(results) = expanded {
                    active.name_origin(graph, node, &results);
                    active.replace(graph, node, &results);
                }
            }
            for node in split {
                let results = reduce::split(graph, node)?;
                active.name_origin(graph, node, &results);
                active.replace(graph, node, &results);
            }
            active.find(graph);
        }
        Err(Diagnostic::new(DiagnosticCode::Internal, "a composite operator expands to itself"))
    }

    fn replace(&mut self, graph: &mut Graph, node: NodeId, results: &[Value]) {
        for (port, new) in results.iter().enumerate() {
            let old = Value { node, port: port as u16 };
            graph.replace_uses(old, *new);
            self.heads.iter_mut().chain(&mut self.wrt).filter(|v| **v == old).for_each(|v| *v = *new);
        }
    }

    /// Remembers which operator the nodes behind `results`, up to the operands of `node`, came from.
    fn name_origin(&mut self, graph: &Graph, node: NodeId, results: &[Value]) {
        let operator = match &graph.node(node).kind {
            NodeKind::Op(op) => Some(op.def.name),
            _ => None,
        };
        let Some(name) = self.origin.get(&node).copied().or(operator) else { return };
        let mut seen: BTreeSet<NodeId> = graph.args(node).iter().map(|v| v.node).collect();
        let mut stack: Vec<NodeId> = results.iter().map(|v| v.node).collect();
        while let Some(made) = stack.pop() {
            if seen.insert(made) {
                self.origin.insert(made, name);
                stack.extend(graph.args(made).iter().map(|v| v.node));
            }
        }
    }

    /// What adjoints flow through as the graph is.
    pub fn of(graph: &Graph, heads: &[Value], wrt: &[Value]) -> Active {
        let (heads, wrt) = (heads.to_vec(), wrt.to_vec());
        let (varies, order, origin) = Default::default();
        let mut active = Active { heads, wrt, varies, order, origin };
        active.find(graph);
        active
    }

    /// Finds what varies and what passes it on to a head.
    fn find(&mut self, graph: &Graph) {
        let float = |v: &Value| graph.ty(*v).dtype.is_some_and(|d| d.is_float());
        let order = graph.order();
        self.varies = self.wrt.iter().copied().filter(float).collect();
        for &node in &order {
            if passes(graph, node, &self.varies) {
                self.varies.extend(results(graph, node).filter(float));
            }
        }
        let mut reached = BTreeSet::new();
        let mut stack: Vec<Value> = self.heads.clone();
        while let Some(v) = stack.pop() {
            let through = self.varies.contains(&v) && passes(graph, v.node, &self.varies);
            if through && reached.insert(v.node) {
                stack.extend(operands(graph, v.node));
            }
        }
        self.order = order.into_iter().filter(|n| reached.contains(n)).collect();
    }
}

/// The operands a node's results can be differentiated by.
pub(super) fn operands(graph: &Graph, node: NodeId) -> Vec<Value> {
    let fixed = |i: usize| match &graph.node(node).kind {
        NodeKind::Op(op) => op.def.static_inputs.contains(&i),
        _ => false,
    };
    let given = graph.operands(node).into_iter().enumerate();
    given.filter(|(i, _)| !fixed(*i)).filter_map(|(_, v)| v).collect()
}

/// Whether a node's results vary with an operand.
fn passes(graph: &Graph, node: NodeId, varies: &BTreeSet<Value>) -> bool {
    let zero = matches!(&graph.node(node).kind, NodeKind::Op(op) if matches!(op.def.grad, Grad::Zero));
    !zero && operands(graph, node).iter().any(|v| varies.contains(v))
}

/// Whether a node must become something else to be differentiated.
fn expands(graph: &Graph, node: NodeId) -> bool {
    match &graph.node(node).kind {
        NodeKind::Op(op) => match op.def.grad {
            Grad::Derived => !matches!(op.def.compute, Compute::Host(_)),
            Grad::Through(_) => true,
            Grad::Rule(_) | Grad::Found(_) | Grad::Zero | Grad::None(_) => false,
        },
        _ => false,
    }
}
