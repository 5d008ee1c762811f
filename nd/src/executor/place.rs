//! Device placement: one graph as pieces, each for one device.
//!
//! A node runs where its group says; without a group, where its first placed operand lives; without that,
//! on the executor's device. Gradient nodes carry the names of the nodes they belong to, and run there. The
//! level of a node counts how often the path to it changes device, so that pieces of one phase, level and
//! device depend on pieces of lower levels only.

use std::collections::BTreeMap;

use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Check, Graph, NodeId, NodeKind, Value};
use tensorc_runtime::Device;

use super::training_graph::TrainingGraph;

/// What a tensor of a piece is to the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InputRole {
    /// Position among the graph's inputs.
    Input(usize),
    /// Position among the graph's outputs.
    Output(usize),
    /// A value that one piece makes and others use.
    Crossing(usize),
}

/// Which part of a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramPhase {
    /// All of it.
    Whole,
    Forward,
    Backward,
}

/// A part of a graph that runs at once, on one device.
pub(super) struct DevicePiece {
    pub graph: Graph,
    pub device: Device,
    /// The only phase it takes part in; `None`: all.
    pub phase: Option<ProgramPhase>,
    /// By input of the part; updated inputs among them.
    pub inputs: Vec<InputRole>,
    /// By output of the part.
    pub outputs: Vec<InputRole>,
}

/// Pieces in an order that respects what they need of each other.
pub(super) struct Placement {
    pub pieces: Vec<DevicePiece>,
    /// Types of the values that cross pieces, and the devices that make them.
    pub crossings: Vec<(DenseType, Device)>,
}

type PieceKey = (usize, usize, Device);

/// Divides a graph. `group_device` gives the device of a node by its name, if it has a group.
pub(super) fn place(
    training_graph: &TrainingGraph,
    group_device: &BTreeMap<String, Device>,
    default: Device,
) -> Result<Placement> {
    let graph = &training_graph.graph;
    let keys = keys(graph, group_device, default);
    let mut members: BTreeMap<PieceKey, Vec<NodeId>> = BTreeMap::new();
    for node in graph.order() {
        if let Some(key) = keys.get(&node) {
            members.entry(*key).or_default().push(node);
        }
    }
    let mut crossings: BTreeMap<Value, usize> = BTreeMap::new();
    let mut types = vec![];
    for (node, key) in &keys {
        for v in graph.args(*node) {
            if keys.get(&v.node).is_some_and(|from| from != key) && !crossings.contains_key(&v) {
                crossings.insert(v, types.len());
                types.push((graph.dense(v)?, keys[&v.node].2));
            }
        }
    }
    let whole = Whole { training_graph, keys: &keys, crossings: &crossings, default };
    for (i, (_, v)) in graph.outputs().iter().enumerate() {
        members.entry(whole.owner(*v, Some(i))).or_default();
    }
    for (_, v) in graph.updates() {
        members.entry(whole.owner(*v, None)).or_default();
    }
    for check in graph.checks() {
        members.entry(whole.owner(check.value, None)).or_default();
    }
    let pieces = members.into_iter().map(|(key, nodes)| whole.piece(key, &nodes)).collect::<Result<_>>()?;
    Ok(Placement { pieces, crossings: types })
}

/// Phase, level and device of every node that computes.
fn keys(graph: &Graph, groups: &BTreeMap<String, Device>, default: Device) -> BTreeMap<NodeId, PieceKey> {
    let first = graph.first_phase();
    let mut keys: BTreeMap<NodeId, PieceKey> = BTreeMap::new();
    for node in graph.order() {
        if matches!(graph.node(node).kind, NodeKind::Input | NodeKind::Const(_)) {
            continue;
        }
        let operands: Vec<PieceKey> = graph.args(node).iter().filter_map(|v| keys.get(&v.node).copied()).collect();
        let own = groups.get(&*graph.node(node).name).copied();
        let device = own.or(operands.first().map(|(.., device)| *device)).unwrap_or(default);
        let phase = usize::from(first.as_ref().is_some_and(|first| !first.contains(&node)));
        let above = operands.iter().map(|(_, level, from)| level + usize::from(*from != device));
        keys.insert(node, (phase, above.max().unwrap_or(0), device));
    }
    keys
}

struct Whole<'a> {
    training_graph: &'a TrainingGraph,
    keys: &'a BTreeMap<NodeId, PieceKey>,
    crossings: &'a BTreeMap<Value, usize>,
    default: Device,
}

impl Whole<'_> {
    /// The piece that delivers an output, or an update.
    fn owner(&self, v: Value, output: Option<usize>) -> PieceKey {
        let second = |boundary: usize| output.is_none_or(|at| at >= boundary);
        let phase = usize::from(self.training_graph.graph.boundary().is_some_and(second));
        // What nothing computes is handed on by a piece of the executor's device.
        self.keys.get(&v.node).copied().unwrap_or((phase, 0, self.default))
    }

    fn piece(&self, key: PieceKey, nodes: &[NodeId]) -> Result<DevicePiece> {
        let graph = &self.training_graph.graph;
        let (phase, level, device) = key;
        let mut part = SubGraph {
            whole: self,
            graph: Graph::new(format!("{}_{phase}_{level}", graph.name)),
            map: BTreeMap::new(),
            inputs: vec![],
        };
        for node in nodes {
            part.copy(*node)?;
        }
        let mut outputs = vec![];
        for (v, crossing) in self.crossings {
            if self.keys.get(&v.node) == Some(&key) {
                let value = part.value(*v)?;
                part.graph.add_output(format!("crossing{crossing}"), value);
                outputs.push(InputRole::Crossing(*crossing));
            }
        }
        for (i, (name, v)) in graph.outputs().iter().enumerate() {
            if self.owner(*v, Some(i)) == key {
                let value = part.value(*v)?;
                part.graph.add_output(name.clone(), value);
                outputs.push(InputRole::Output(i));
            }
        }
        for (of, v) in graph.updates() {
            if self.owner(*v, None) == key {
                let (old, new) = (part.value(Value { node: *of, port: 0 })?, part.value(*v)?);
                part.graph.add_update(old.node, new);
            }
        }
        for check in graph.checks() {
            if self.owner(check.value, None) == key {
                let value = part.value(check.value)?;
                part.graph.add_check(Check { value, requirement: check.requirement.clone() });
            }
        }
        let phase = match (graph.boundary(), phase) {
            (None, _) => None,
            (Some(_), 0) => Some(ProgramPhase::Forward),
            (Some(_), _) => Some(ProgramPhase::Backward),
        };
        Ok(DevicePiece { graph: part.graph, device, phase, inputs: part.inputs, outputs })
    }
}

/// A graph of some nodes of the whole.
struct SubGraph<'a> {
    whole: &'a Whole<'a>,
    graph: Graph,
    /// Values of the whole to values of the part.
    map: BTreeMap<Value, Value>,
    inputs: Vec<InputRole>,
}

impl SubGraph<'_> {
    fn copy(&mut self, node: NodeId) -> Result<()> {
        let from = &self.whole.training_graph.graph;
        let operands = from.operands(node);
        let mut values = vec![];
        for operand in &operands {
            values.push(operand.map(|v| self.value(v)).transpose()?);
        }
        let n = from.node(node);
        let ports = n.types.len();
        let types = (0..ports as u16).map(|port| from.dense(Value { node, port })).collect::<Result<Vec<_>>>()?;
        let args: Vec<Value> = values.iter().flatten().copied().collect();
        let made = match &n.kind {
            NodeKind::Op(op) => self.graph.add_op_like(n.name.clone(), op, &values, ports)?,
            NodeKind::Prim(prim) => self.graph.add_prim(n.name.clone(), prim.clone(), &args, &types),
            NodeKind::Fused(fused) => self.graph.add_fused(n.name.clone(), fused.clone(), &args, &types),
            NodeKind::Input | NodeKind::Const(_) => return Ok(()),
        };
        self.graph.node_mut(made).types = types.into_iter().map(Into::into).collect();
        for port in 0..ports as u16 {
            self.map.insert(Value { node, port }, Value { node: made, port });
        }
        Ok(())
    }

    /// The value in the part; values of other pieces become inputs.
    fn value(&mut self, v: Value) -> Result<Value> {
        if let Some(found) = self.map.get(&v) {
            return Ok(*found);
        }
        let from = &self.whole.training_graph.graph;
        let name = from.node(v.node).name.clone();
        let made = match &from.node(v.node).kind {
            NodeKind::Const(data) => self.graph.add_const(name, data.clone()),
            NodeKind::Input => {
                let at = from.inputs().iter().position(|n| *n == v.node);
                let at = at.ok_or_else(|| {
                    Diagnostic::new(DiagnosticCode::Internal, "an input without a position").at(&name)
                })?;
                self.inputs.push(InputRole::Input(at));
                self.graph.add_input(name, from.dense(v)?.into())
            }
            _ => {
                let at = self.whole.crossings.get(&v).copied();
                let at =
                    at.ok_or_else(|| Diagnostic::new(DiagnosticCode::Internal, "a value without a piece").at(&name))?;
                self.inputs.push(InputRole::Crossing(at));
                self.graph.add_input(format!("crossing{at}"), from.dense(v)?.into())
            }
        };
        self.map.insert(v, made);
        Ok(made)
    }
}
