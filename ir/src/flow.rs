//! Control flow: graphs that a node runs more or less than once.

use std::hash::{Hash, Hasher};

use crate::extent::Extent;
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::op::Compute;
use crate::prim::Prim;
use crate::types::DenseType;
use tensorc_abi::DType;

/// What decides which bodies run, and how often.
pub type FlowKind = tensorc_abi::FlowKind<Extent>;

/// How a body is repeated.
pub type Loop = tensorc_abi::Loop<Extent>;

/// Most nodes of all copies of a short loop's body.
const SHORT_LOOP_NODES: u64 = 512;

/// Whether front ends write out a loop of so many iterations, with so many nodes in its body: passes see across the
/// iterations then.
pub fn is_short(trips: u64, nodes: u64) -> bool {
    trips.saturating_mul(nodes.max(1)) <= SHORT_LOOP_NODES
}

/// Graphs, and which of them run how often. Graphs with the same node structure are not compared: only a flow itself is
/// equal to it.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What decides which body runs, and how often.
    pub kind: FlowKind,
    /// Two of a conditional, the one for a condition that holds first; one of a loop. What a loop carries is updated by its
    /// body ([`Graph::updates`]).
    pub bodies: Vec<Graph>,
    /// Whether the host runs the bodies, each compiled by itself, because types differ from one iteration to the next or follow from
    /// values. What such a loop carries is then among the outputs of its body, behind what is stacked. It has as many
    /// iterations as there are rows of what is scanned, or until the condition fails, and stacks as many rows.
    pub by_host: bool,
}

impl PartialEq for Flow {
    fn eq(&self, other: &Flow) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Flow {}

impl Hash for Flow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
    }
}

/// Operands and results of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowTypes {
    /// The operands.
    pub operands: Vec<DenseType>,
    /// The results.
    pub results: Vec<DenseType>,
}

impl Flow {
    /// Whether there are the bodies that the kind needs, and their signatures are of the length that it, and so many operands
    /// and results, need.
    ///
    /// # Errors
    /// What is wrong with the bodies.
    pub fn check(&self, operands: usize, results: usize) -> Result<(), String> {
        self.check_bodies()?;
        let body = &self.bodies[0];
        let expected = match &self.kind {
            FlowKind::If => (1 + body.inputs().len(), body.outputs().len()),
            FlowKind::Loop(repeat) => {
                (body.inputs().len() - repeat.own_inputs() + repeat.own_operands(), repeat.results())
            }
        };
        match (operands, results) == expected {
            true => Ok(()),
            false => Err(format!(
                "{operands} operands and {results} results, its bodies need {} and {}",
                expected.0, expected.1
            )),
        }
    }

    fn check_bodies(&self) -> Result<(), String> {
        if self.bodies.iter().any(|body| body.boundary().is_some() || !body.checks().is_empty()) {
            return Err("a body has two phases or checks of its own".into());
        }
        match (&self.kind, &self.bodies[..]) {
            (FlowKind::If, [then, otherwise]) => {
                if !(then.updates().is_empty() && otherwise.updates().is_empty()) {
                    return Err("a branch updates an input".into());
                }
                let sizes = |body: &Graph| (body.inputs().len(), body.outputs().len());
                match sizes(then) == sizes(otherwise) {
                    true => Ok(()),
                    false => Err("the branches have different numbers of inputs or results".into()),
                }
            }
            (FlowKind::Loop(repeat), [body]) => {
                if self.by_host {
                    return hosted(repeat, body);
                }
                if !repeat.is_bounded() {
                    return Err("nothing says how often the loop runs, or what is stacked has no known length".into());
                }
                if body.inputs().len() < repeat.own_inputs() || body.outputs().len() != repeat.outputs() {
                    return Err("the body has other inputs or results than the loop".into());
                }
                match body.states().into_iter().map(|(position, _)| position).eq(1..1 + repeat.carried) {
                    true => Ok(()),
                    false => Err("the body does not update what the loop carries, and only that".into()),
                }
            }
            _ => Err("the bodies are not two of a branch or one of a loop".into()),
        }
    }

    /// The types that bodies whose types are known imply.
    ///
    /// # Errors
    /// What is wrong with the bodies.
    pub fn types(&self) -> Result<FlowTypes, String> {
        self.check_bodies()?;
        let bodies: Vec<BodyTypes> = self.bodies.iter().map(BodyTypes::of).collect::<Result<_, _>>()?;
        match (&self.kind, &bodies[..]) {
            (FlowKind::If, [then, otherwise]) => {
                if then.inputs != otherwise.inputs || then.outputs != otherwise.outputs {
                    return Err("the branches differ in the types of inputs or results".into());
                }
                let operands = std::iter::once(condition()).chain(then.inputs.iter().cloned()).collect();
                Ok(FlowTypes { operands, results: then.outputs.clone() })
            }
            (FlowKind::Loop(repeat), [body]) => body.repeated(repeat),
            _ => Err("the bodies are not two of a branch or one of a loop".into()),
        }
    }
}

/// The rules of a loop that the host runs.
fn hosted(repeat: &Loop, body: &Graph) -> Result<(), String> {
    let ends = repeat.conditional || !repeat.scanned.is_empty();
    if repeat.trips.is_some() || !ends {
        return Err("the host takes a loop's length from its rows or its condition".into());
    }
    let fits = body.inputs().len() >= repeat.own_inputs() && body.outputs().len() == repeat.outputs() + repeat.carried;
    match fits && body.updates().is_empty() {
        true => Ok(()),
        false => Err("the body has other inputs or results than the loop".into()),
    }
}

fn condition() -> DenseType {
    DenseType::new(DType::Bool, [])
}

struct BodyTypes {
    inputs: Vec<DenseType>,
    outputs: Vec<DenseType>,
}

impl BodyTypes {
    fn of(body: &Graph) -> Result<BodyTypes, String> {
        let dense = |v: Value| body.resolved(v).dense().ok_or("a type in the signature of a body is not fully known");
        Ok(BodyTypes {
            inputs: body.inputs().iter().map(|node| dense(Value { node: *node, port: 0 })).collect::<Result<_, _>>()?,
            outputs: body.outputs().iter().map(|(_, v)| dense(*v)).collect::<Result<_, _>>()?,
        })
    }

    fn repeated(&self, repeat: &Loop) -> Result<FlowTypes, String> {
        let BodyTypes { inputs, outputs } = self;
        if inputs[0] != DenseType::new(DType::I64, []) {
            return Err("the first input of the body is not the number of the iteration, an i64 scalar".into());
        }
        let (rows, outputs) = (repeat.trips.unwrap_or(Extent::ZERO), &outputs[usize::from(repeat.conditional)..]);
        if repeat.conditional && self.outputs[0] != condition() {
            return Err("the first result of the body is no bool scalar".into());
        }
        let stacked = |row: &DenseType| row.stacked(rows);
        let (carried, rest) = inputs[1..].split_at(repeat.carried);
        let (scanned, rest) = rest.split_at(repeat.scanned.len());
        let first = repeat.conditional.then(condition);
        let operands = first.into_iter().chain(carried.iter().cloned());
        Ok(FlowTypes {
            operands: operands.chain(scanned.iter().map(stacked)).chain(rest.iter().cloned()).collect(),
            results: carried.iter().cloned().chain(outputs.iter().map(stacked)).collect(),
        })
    }
}

impl Graph {
    /// The flow that a node is, if it is one, and still in the graph.
    pub fn flow(&self, node: NodeId) -> Option<&Flow> {
        match self.contains(node).then(|| &self.node(node).kind) {
            Some(NodeKind::Prim(Prim::Flow(flow))) => Some(flow),
            _ => None,
        }
    }

    /// Whether the host computes a node between two parts of the graph.
    pub fn is_by_host(&self, node: NodeId) -> bool {
        match &self.node(node).kind {
            NodeKind::Op(op) => matches!(op.def.compute, Compute::Host(_)),
            NodeKind::Prim(Prim::Flow(flow)) => flow.by_host,
            _ => false,
        }
    }

    /// The bodies of its flows, without those that are nested in them.
    pub fn bodies(&self) -> impl Iterator<Item = &Graph> {
        self.node_ids().into_iter().filter_map(|node| self.flow(node)).flat_map(|flow| &flow.bodies)
    }

    /// Number of nodes, including the nodes of bodies.
    pub fn total_nodes(&self) -> usize {
        self.node_count() + self.bodies().map(Graph::total_nodes).sum::<usize>()
    }

    /// Changes the bodies of its flows; returns whether one changed.
    ///
    /// # Errors
    /// The first of `change`.
    pub fn change_bodies<E>(&mut self, change: &mut dyn FnMut(&mut Graph) -> Result<bool, E>) -> Result<bool, E> {
        let mut any = false;
        for node in self.node_ids() {
            any |= self.change_bodies_of(node, change)?;
        }
        Ok(any)
    }

    /// Changes the bodies of a node, if it is a flow; returns whether one changed.
    ///
    /// # Errors
    /// The first of `change`.
    pub fn change_bodies_of<E>(
        &mut self,
        node: NodeId,
        change: &mut dyn FnMut(&mut Graph) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let NodeKind::Prim(Prim::Flow(flow)) = &mut self.node_mut(node).kind else { return Ok(false) };
        let (mut bodies, mut any) = (flow.bodies.clone(), false);
        for body in &mut bodies {
            any |= change(body)?;
        }
        *flow = Flow { bodies, ..(**flow).clone() }.into();
        Ok(any)
    }
}
