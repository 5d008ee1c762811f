//! The gradient of a part of a graph: it computes the gradients of the part's operands from the gradients of its results.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::TensorType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::Diagnostic;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::op::Registry;
use tensorc_passes::differentiate::differentiate;
use tensorc_passes::parts::PartShape;

use super::training_graph::is_loss;

/// Values of a divided graph that need a gradient. The parts and their operands may depend on numbers; these values do not.
pub(super) struct PartGradient {
    passed: BTreeSet<Value>,
    /// Outputs that bring their own gradient.
    losses: BTreeSet<Value>,
    operands: BTreeMap<NodeId, Vec<Value>>,
}

/// The results of a part that are differentiated, and the operands that get gradients, as values of the whole graph.
pub(super) struct PartRoles {
    /// With the position among the outputs of the part, and whether a gradient is given.
    heads: Vec<(usize, Value, bool)>,
    /// With the position among its inputs.
    wrt: Vec<(usize, Value)>,
}

impl PartGradient {
    pub fn new(graph: &Graph, passed: BTreeSet<Value>, outputs: impl Iterator<Item = Value>) -> PartGradient {
        let losses = outputs.filter(|v| is_loss(graph, *v)).collect();
        let operands = graph.node_ids().into_iter().map(|node| (node, graph.args(node).to_vec())).collect();
        PartGradient { passed, losses, operands }
    }

    /// Whether the gradient of a value must be given.
    pub fn takes_gradient(&self, v: Value) -> bool {
        self.passed.contains(&v) && !self.losses.contains(&v)
    }

    /// The results of a part that have a gradient, and the operands that these depend on and that need one.
    pub fn roles(&self, shape: &PartShape) -> PartRoles {
        let passed = |list: &[Value]| -> Vec<(usize, Value)> {
            list.iter().copied().enumerate().filter(|(_, v)| self.passed.contains(v)).collect()
        };
        let heads = passed(&shape.outputs).into_iter().map(|(at, v)| (at, v, self.takes_gradient(v)));
        let heads: Vec<_> = heads.collect();
        let reached = self.reached(heads.iter().map(|(_, v, _)| *v), &shape.inputs);
        let wrt = passed(&shape.inputs).into_iter().filter(|(_, v)| reached.contains(v)).collect();
        PartRoles { heads, wrt }
    }

    /// The values that some depend on, as far back as the inputs of a part.
    fn reached(&self, from: impl Iterator<Item = Value>, inputs: &[Value]) -> BTreeSet<Value> {
        let inputs: BTreeSet<Value> = inputs.iter().copied().collect();
        let (mut reached, mut open): (BTreeSet<Value>, Vec<Value>) = (BTreeSet::new(), from.collect());
        while let Some(v) = open.pop() {
            if reached.insert(v) && !inputs.contains(&v) {
                open.extend(self.operands.get(&v.node).into_iter().flatten());
            }
        }
        reached
    }

    /// Adds its gradient to a part, as a second phase: an input for the gradient of each result, an output for that of each operand.
    pub fn derive(&self, graph: &mut Graph, shape: &PartShape, registry: &Registry) -> Result<(), Diagnostic> {
        let roles = self.roles(shape);
        if !roles.has_gradient() {
            return Ok(());
        }
        let outputs = graph.outputs().to_vec();
        let mut heads = vec![];
        for (at, _, is_given) in &roles.heads {
            let (name, v) = &outputs[*at];
            let seed = match is_given {
                true => Some(graph.add_input(format!("{name}_grad"), TensorType::from(graph.dense(*v)?))),
                false => None,
            };
            heads.push((*v, seed));
        }
        let wrt: Vec<Value> = roles.wrt.iter().map(|(at, _)| Value { node: graph.inputs()[*at], port: 0 }).collect();
        let gradients = differentiate(graph, registry, &heads, &wrt)?;
        graph.set_boundary(Some(outputs.len()));
        for (variable, gradient) in wrt.iter().zip(gradients) {
            let name = format!("{}_grad", graph.node(variable.node).name);
            let value = match gradient {
                Some(value) => value,
                None => {
                    let ty = graph.dense(*variable)?;
                    let unknown = |_: &Graph, _: Value| None;
                    Builder::new(graph, registry, name.as_str().into(), &unknown).filled(&ty, 0.0)?
                }
            };
            graph.add_output(name, value);
        }
        graph.remove_dead();
        Ok(())
    }
}

impl PartRoles {
    /// Whether there is a second phase.
    pub fn has_gradient(&self) -> bool {
        !self.heads.is_empty() && !self.wrt.is_empty()
    }

    /// Whether a gradient begins here.
    pub fn has_loss(&self) -> bool {
        self.heads.iter().any(|(_, _, is_given)| !is_given)
    }

    /// The values whose gradients are given.
    pub fn seeds(&self) -> impl Iterator<Item = Value> {
        self.heads.iter().filter(|(_, _, is_given)| *is_given).map(|(_, v, _)| *v)
    }

    /// The values whose gradients are computed.
    pub fn wrt(&self) -> impl Iterator<Item = Value> {
        self.wrt.iter().map(|(_, v)| *v)
    }
}
