//! Takes a part out of a graph.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::graph::{Check, Graph, NodeId, NodeKind, Value};

use super::frontier::Frontier;
use super::{Facts, HostCall, PartShape, inputs};

/// What becomes a part of a graph that is typed as far as possible.
pub struct Cut<'a> {
    pub graph: &'a Graph,
    pub frontier: &'a Frontier,
    pub facts: &'a Facts,
    /// The outputs before the graph was typed, which may have put constants in their places.
    pub wanted: &'a [Value],
}

impl Cut<'_> {
    /// Whether a value is there before the part runs.
    fn at_hand(&self, v: &Value) -> bool {
        self.graph.constant(*v).is_none() && self.facts.available.contains(v)
    }

    /// Whether the part can compute a value that is not there.
    fn is_due(&self, v: &Value) -> bool {
        !self.frontier.unresolved.contains(&v.node) && !self.at_hand(v)
    }

    /// Requirements that the part confirms.
    fn checks(&self) -> impl Iterator<Item = &Check> {
        let first = self.facts.is_first(self.graph);
        let due = move |check: &&Check| {
            let given = self.facts.available.contains(&check.value);
            if given { first } else { self.is_due(&check.value) }
        };
        self.graph.checks().iter().filter(due)
    }

    /// Inputs and outputs of the part, calls of the host behind it, and the shape sources that these give.
    pub fn shape(&self) -> PartShape {
        let Cut { graph, frontier, facts, wanted } = self;
        let mut outputs: Vec<Value> = vec![];
        for (v, (_, now)) in wanted.iter().zip(graph.outputs()) {
            if self.is_due(now) && !facts.available.contains(v) && !outputs.contains(v) {
                outputs.push(*v);
            }
        }
        let used =
            frontier.unresolved.iter().flat_map(|node| graph.args(*node)).chain(frontier.deciding.iter().copied());
        for v in used.filter(|v| graph.constant(*v).is_none() && self.is_due(v)) {
            if !outputs.contains(&v) {
                outputs.push(v);
            }
        }
        let required = &facts.required;
        let given = required.given.iter().filter(|((node, _), _)| frontier.hosts.contains(node)).map(|(_, v)| v);
        let typed = |v: &&Value| self.is_due(v) && graph.contains(v.node) && graph.dense(**v).is_ok();
        for v in given.chain(required.outputs.iter().filter(typed)).filter(|v| !facts.available.contains(v)) {
            if !outputs.contains(v) {
                outputs.push(*v);
            }
        }
        if !required.is_empty() {
            // Each of the graphs that are to have the same parts may compute them in an order of its own.
            outputs.sort_unstable();
        }
        let inputs = match facts.is_first(graph) {
            true => inputs(graph).collect(),
            false => self.read(&outputs).into_iter().collect(),
        };
        let hosts = frontier.hosts.iter().map(|node| HostCall::of(graph, *node, facts)).collect();
        PartShape { inputs, outputs, hosts, sources: frontier.sources(graph) }
    }

    /// The values at hand that outputs and checks are computed from, and those that a part has in any case.
    fn read(&self, outputs: &[Value]) -> BTreeSet<Value> {
        let mut read: BTreeSet<Value> = self.reached(outputs).into_iter().filter(|v| self.at_hand(v)).collect();
        let nodes: BTreeSet<NodeId> = self.graph.node_ids().into_iter().collect();
        // Typing removes nodes of which it knows the elements.
        read.extend(
            self.facts.required.inputs.iter().filter(|v| nodes.contains(&v.node) && self.graph.dense(**v).is_ok()),
        );
        read
    }

    /// What a value of the whole graph is in the typed one, where constants may stand for outputs and operands of the host.
    fn now(&self, v: Value) -> Value {
        if let Some(i) = self.wanted.iter().position(|w| *w == v) {
            return self.graph.outputs()[i].1;
        }
        let given = self
            .facts
            .required
            .given
            .iter()
            .find(|((node, _), given)| **given == v && self.frontier.hosts.contains(node));
        let operand =
            given.and_then(|((node, position), _)| self.graph.operands(*node).get(*position).copied().flatten());
        operand.unwrap_or(v)
    }

    /// The values that outputs and checks are computed from, as far as those that are at hand, which are among them.
    fn reached(&self, outputs: &[Value]) -> BTreeSet<Value> {
        let outputs = outputs.iter().map(|v| self.now(*v));
        let mut reached: BTreeSet<Value> = outputs.chain(self.checks().map(|check| check.value)).collect();
        let mut stack: Vec<Value> = reached.iter().copied().collect();
        while let Some(v) = stack.pop() {
            if !self.at_hand(&v) {
                stack.extend(self.graph.args(v.node).into_iter().filter(|arg| reached.insert(*arg)));
            }
        }
        reached
    }

    /// The graph of the part.
    pub fn part(&self, shape: &PartShape) -> Graph {
        let mut copy = Copy::new(self.graph);
        for v in &shape.inputs {
            let here = copy.new.add_input(self.graph.node(v.node).name.clone(), self.graph.resolved(*v));
            copy.map.insert(*v, here);
        }
        let name = |v: &Value| match self.wanted.iter().position(|w| w == v) {
            Some(i) => self.graph.outputs()[i].0.to_string(),
            None => format!("{}.{}", self.graph.node(self.now(*v).node).name, v.port),
        };
        shape.outputs.iter().for_each(|v| copy.output(&name(v), self.now(*v)));
        self.checks().for_each(|check| copy.check(check));
        copy.new
    }
}

/// Copies the part of a graph that given outputs need.
struct Copy<'g> {
    old: &'g Graph,
    new: Graph,
    map: BTreeMap<Value, Value>,
}

impl<'g> Copy<'g> {
    fn new(old: &'g Graph) -> Copy<'g> {
        let mut new = Graph::new(old.name.clone());
        new.dims = old.dims.clone();
        Copy { old, new, map: BTreeMap::new() }
    }

    /// Adds an output, and the nodes behind it that are not there yet.
    fn output(&mut self, name: &str, v: Value) {
        if let Some(here) = self.value(v) {
            self.new.add_output(name, here);
        }
    }

    /// Adds a check.
    fn check(&mut self, check: &Check) {
        if let Some(value) = self.value(check.value) {
            self.new.add_check(Check { value, requirement: check.requirement.clone() });
        }
    }

    /// The copy of a value, for which the nodes behind it that are not there yet are added.
    fn value(&mut self, v: Value) -> Option<Value> {
        let mut stack = vec![(v.node, v.port, false)];
        while let Some((node, port, operands_done)) = stack.pop() {
            if self.map.contains_key(&Value { node, port }) {
                continue;
            }
            if operands_done {
                self.node(node);
            } else {
                stack.push((node, port, true));
                stack.extend(self.old.args(node).iter().rev().map(|a| (a.node, a.port, false)));
            }
        }
        self.map.get(&v).copied()
    }

    fn node(&mut self, node: NodeId) {
        let old = self.old.node(node);
        let operands: Vec<Option<Value>> =
            self.old.operands(node).into_iter().map(|v| v.and_then(|v| self.map.get(&v).copied())).collect();
        let args: Vec<Value> = operands.iter().copied().flatten().collect();
        let id = match &old.kind {
            NodeKind::Input => self.new.add_input(old.name.clone(), old.types[0].clone()).node,
            NodeKind::Const(data) => self.new.add_const(old.name.clone(), data.clone()).node,
            NodeKind::Prim(prim) => self.new.add_prim(old.name.clone(), prim.clone(), &args, &[]),
            NodeKind::Fused(fused) => self.new.add_fused(old.name.clone(), fused.clone(), &args, &[]),
            NodeKind::Op(op) => {
                let made = self.new.add_op_like(old.name.clone(), op, &operands, old.types.len());
                // The operator stood in a graph before, so it is valid.
                let Ok(id) = made else { return };
                id
            }
        };
        self.new.node_mut(id).types = old.types.clone();
        self.new.node_mut(id).history = old.history.clone();
        for port in 0..old.types.len() as u16 {
            self.map.insert(Value { node, port }, Value { node: id, port });
        }
    }
}
