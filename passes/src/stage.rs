//! Stages: graphs whose shapes depend on computed values run in several compiled parts.
//!
//! Stage 1 holds every node whose types are known. Once its results exist, host operators are
//! evaluated, values that decide shapes become constants, and what remains is a graph of its own.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::TensorData;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Check, Graph, NodeId, NodeKind, Value};
use tensorc_ir::interp::eval_node;
use tensorc_ir::op::{Compute, Registry};

use crate::results::{result_types, results};
use crate::values::StaticValues;

/// A graph divided at the frontier of what is known.
#[derive(Clone, Debug)]
pub struct StageSplit {
    /// Everything resolved, over all inputs of the whole graph. Its outputs are the finished
    /// outputs of the whole graph and the values the rest needs; there may be none.
    pub first: Graph,
    /// For each finished output of the whole graph, its position there and in `first`.
    pub finished: Vec<(usize, usize)>,
    /// What is still to be compiled.
    pub rest: Remainder,
}

/// Where a value that crosses the frontier comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrontierSource {
    /// Input of the whole graph.
    Input(usize),
    /// Output of the first stage.
    Output(usize),
}

/// What is left after the first stage.
#[derive(Clone, Debug)]
pub struct Remainder {
    graph: Graph,
    boundary: Vec<(Value, FrontierSource)>,
    unresolved: BTreeSet<NodeId>,
}

/// The next graph, ready to be inferred (and perhaps split again).
#[derive(Clone, Debug)]
pub struct Next {
    /// The graph that can be compiled now.
    pub graph: Graph,
    /// StaticValues of its inputs.
    pub inputs: Vec<TensorData>,
    /// For each of its outputs, the position among the outputs of the graph that was split.
    pub outputs: Vec<usize>,
}

/// Divides an inferred graph; `None` if everything is resolved. Inputs must have concrete types.
///
/// Fails if a type stays unknown for another reason than values computed at run time, or if a graph
/// that would have to be divided has updates or two phases.
pub fn split(graph: &Graph, registry: &Registry, static_bytes: u64) -> Result<Option<StageSplit>> {
    let mut graph = graph.clone();
    graph.remove_dead();
    let values = StaticValues::new(registry, static_bytes);
    let (mut unresolved, mut cause) = (BTreeSet::new(), None);
    let mut frontier_moves = false;
    for node in graph.order() {
        let after_unresolved = graph.args(node).iter().any(|v| unresolved.contains(&v.node));
        let why = if after_unresolved { None } else { obstacle(&graph, node, &values) };
        frontier_moves |= matches!(why, Some(Obstacle::Host | Obstacle::StaticOperand));
        if let (Some(Obstacle::Type), None) = (&why, &cause) {
            cause = Some(node);
        }
        if after_unresolved || why.is_some() {
            unresolved.insert(node);
        }
    }
    if unresolved.is_empty() {
        return Ok(None);
    }
    let unbound = |n: &NodeId| matches!(graph.node(*n).kind, NodeKind::Input);
    if let Some(node) = cause.filter(|n| !frontier_moves || unbound(n)) {
        let open = results(&graph, node).find(|v| graph.dense(*v).is_err()).map_or(0, |v| v.port);
        let why = format!("the type of output {open} does not follow from the types of the inputs");
        return Err(Diagnostic::new(DiagnosticCode::Unresolved, why).at(&graph.node(node).name));
    }
    if let Some(node) = unresolved.first().filter(|_| !graph.updates().is_empty() || graph.boundary().is_some()) {
        let why =
            "the shape of a value depends on run-time data; a graph with updates or two phases cannot run in parts";
        return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&graph.node(*node).name));
    }
    Ok(Some(divide(graph, unresolved)))
}

/// Why a node whose operands are resolved cannot be part of the stage.
enum Obstacle {
    Host,
    StaticOperand,
    Type,
}

fn obstacle(graph: &Graph, node: NodeId, values: &StaticValues<'_>) -> Option<Obstacle> {
    if let NodeKind::Op(op) = &graph.node(node).kind {
        if let Compute::Host(_) = op.def.compute {
            return Some(Obstacle::Host);
        }
        let operands = graph.operands(node);
        let given = op.def.static_inputs.iter().filter_map(|i| operands.get(*i).copied().flatten());
        if given.into_iter().any(|v| values.get(graph, v).is_none()) {
            return Some(Obstacle::StaticOperand);
        }
    }
    result_types(graph, node).is_err().then_some(Obstacle::Type)
}

fn divide(graph: Graph, unresolved: BTreeSet<NodeId>) -> StageSplit {
    let mut finished = vec![];
    let mut outputs: Vec<(String, Value)> = vec![];
    for (i, (name, v)) in graph.outputs().iter().enumerate() {
        if !unresolved.contains(&v.node) {
            finished.push((i, outputs.len()));
            outputs.push((name.to_string(), *v));
        }
    }
    let mut boundary: Vec<(Value, FrontierSource)> = vec![];
    let mut seen = BTreeSet::new();
    for node in &unresolved {
        for v in graph.args(*node) {
            if unresolved.contains(&v.node) || graph.constant(v).is_some() || !seen.insert(v) {
                continue;
            }
            let source = match graph.inputs().iter().position(|n| *n == v.node) {
                Some(i) => FrontierSource::Input(i),
                None => FrontierSource::Output(match outputs.iter().position(|(_, o)| *o == v) {
                    Some(at) => at,
                    None => {
                        outputs.push((format!("{}.{}", graph.node(v.node).name, v.port), v));
                        outputs.len() - 1
                    }
                }),
            };
            boundary.push((v, source));
        }
    }
    let inputs: Vec<Value> = graph.inputs().iter().map(|n| Value { node: *n, port: 0 }).collect();
    let mut copy = Copy::new(&graph);
    for v in &inputs {
        let n = graph.node(v.node);
        let here = copy.new.add_input(n.name.clone(), graph.resolved(*v));
        copy.map.insert(*v, here);
    }
    for (name, v) in outputs {
        copy.output(&name, v);
    }
    copy.checks(|node| !unresolved.contains(&node));
    let first = copy.new;
    StageSplit { first, finished, rest: Remainder { graph, boundary, unresolved } }
}

impl Remainder {
    /// The graph of what remains, given the inputs of the whole graph and the results of the first
    /// stage. Host operators whose operands are known are evaluated.
    pub fn next(&self, registry: &Registry, inputs: &[TensorData], results: &[TensorData]) -> Result<Next> {
        let mut known: BTreeMap<Value, TensorData> = BTreeMap::new();
        for (v, source) in &self.boundary {
            let data = match source {
                FrontierSource::Input(i) => inputs.get(*i),
                FrontierSource::Output(i) => results.get(*i),
            };
            let name = &self.graph.node(v.node).name;
            let missing =
                || Diagnostic::new(DiagnosticCode::Operands, "a value of the stage before is missing").at(name);
            known.insert(*v, data.ok_or_else(missing)?.clone());
        }
        for node in self.graph.order().into_iter().filter(|n| self.unresolved.contains(n)) {
            self.evaluate_host(registry, node, &mut known)?;
        }
        let mut copy = Copy::new(&self.graph);
        let mut next_inputs = vec![];
        for (v, data) in &known {
            let name = self.graph.node(v.node).name.clone();
            let here = match self.decides_shapes(*v) {
                true => copy.new.add_const(name, data.clone()),
                false if self.is_used(*v, &known) => {
                    next_inputs.push(data.clone());
                    copy.new.add_input(name, data.ty.clone().into())
                }
                false => continue,
            };
            copy.map.insert(*v, here);
        }
        let mut outputs = vec![];
        for (i, (name, v)) in self.graph.outputs().iter().enumerate() {
            if self.unresolved.contains(&v.node) {
                outputs.push(i);
                copy.output(name, *v);
            }
        }
        copy.checks(|node| self.unresolved.contains(&node));
        Ok(Next { graph: copy.new, inputs: next_inputs, outputs })
    }

    fn evaluate_host(&self, registry: &Registry, node: NodeId, known: &mut BTreeMap<Value, TensorData>) -> Result<()> {
        let NodeKind::Op(op) = &self.graph.node(node).kind else { return Ok(()) };
        if !matches!(op.def.compute, Compute::Host(_)) {
            return Ok(());
        }
        let operands = self.graph.operands(node);
        let value = |v: Value| self.graph.constant(v).or_else(|| known.get(&v)).cloned();
        let values: Vec<Option<TensorData>> = operands.iter().map(|v| v.and_then(value)).collect();
        if operands.iter().zip(&values).any(|(v, value)| v.is_some() != value.is_some()) {
            return Ok(());
        }
        for (port, data) in eval_node(&self.graph, node, registry, &values)?.into_iter().enumerate() {
            known.insert(Value { node, port: port as u16 }, data);
        }
        Ok(())
    }

    /// Whether an unresolved operator needs this value to know its shapes.
    fn decides_shapes(&self, v: Value) -> bool {
        self.graph.uses(v.node).into_iter().filter(|(user, _, used)| *used == v && self.unresolved.contains(user)).any(
            |(user, port, _)| match &self.graph.node(user).kind {
                NodeKind::Op(op) => {
                    let formal = op.slots.get(port as usize).map_or(port as usize, |s| *s as usize);
                    op.def.static_inputs.contains(&formal)
                }
                _ => false,
            },
        )
    }

    /// Whether anything that is still to be computed, or an output, reads this value.
    fn is_used(&self, v: Value, known: &BTreeMap<Value, TensorData>) -> bool {
        let open =
            |user: NodeId| self.unresolved.contains(&user) && !known.contains_key(&Value { node: user, port: 0 });
        let output = self.graph.outputs().iter().any(|(_, o)| *o == v) && self.unresolved.contains(&v.node);
        output || self.graph.uses(v.node).into_iter().any(|(user, _, used)| used == v && open(user))
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

    /// Adds the checks of values that belong to this part.
    fn checks(&mut self, belongs: impl Fn(NodeId) -> bool) {
        for check in self.old.checks().iter().filter(|check| belongs(check.value.node)) {
            if let Some(value) = self.value(check.value) {
                self.new.add_check(Check { value, requirement: check.requirement.clone() });
            }
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
