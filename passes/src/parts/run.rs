//! What is known in the course of a run of parts.

use std::collections::BTreeMap;

use tensorc_ir::TensorData;
use tensorc_ir::diag::{self, Diagnostic, DiagnosticCode};
use tensorc_ir::flow::Flow;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::interp::eval_node;
use tensorc_ir::op::Registry;

use super::{Facts, HostCall, HostOperand, PartShape, Required, ShapeSource, inputs};
use crate::results::results;

/// Runs a branch or loop, that of the node, on its operands.
pub type RunFlow<'a, E> = dyn FnMut(NodeId, &Flow, &[TensorData]) -> Result<Vec<TensorData>, E> + 'a;

/// A run of a graph, part by part.
pub struct PartsRun<'g> {
    graph: &'g Graph,
    sources: Vec<ShapeSource>,
    known: BTreeMap<Value, TensorData>,
}

impl HostCall {
    /// What the host computes of the values that are known. `flow` runs branches and loops.
    ///
    /// # Errors
    /// The operator does not take its operands, or `value` does not give one, or `flow` fails.
    pub fn run<E: From<Diagnostic>>(
        &self,
        graph: &Graph,
        registry: &Registry,
        value: impl Fn(Value) -> Result<TensorData, E>,
        flow: &mut RunFlow<'_, E>,
    ) -> Result<Vec<(Value, TensorData)>, E> {
        let operand = |operand: &HostOperand| match operand {
            HostOperand::Constant(data) => Ok(data.clone()),
            HostOperand::Value(v) => value(*v),
        };
        let operands = self.operands.iter().map(|v| v.as_ref().map(operand).transpose());
        let operands = operands.collect::<Result<Vec<Option<TensorData>>, E>>()?;
        let computed = match graph.flow(self.node) {
            Some(of) => flow(self.node, of, &operands.into_iter().flatten().collect::<Vec<_>>())?,
            None => eval_node(graph, self.node, registry, &operands)?,
        };
        Ok(results(graph, self.node).zip(computed).collect())
    }
}

impl<'g> PartsRun<'g> {
    /// Of the graph as it was before it was divided, with its inputs in signature order.
    pub fn new(graph: &'g Graph, given: impl Iterator<Item = TensorData>) -> PartsRun<'g> {
        let sources = Facts::of_inputs(graph, &[]).sources;
        PartsRun { graph, sources, known: inputs(graph).zip(given).collect() }
    }

    /// Adds the results of a part, and what the host computes then. `flow` runs branches and loops.
    ///
    /// # Errors
    /// An operator of the host does not take its operands, or `flow` fails.
    pub fn add<E: From<Diagnostic>>(
        &mut self,
        part: &PartShape,
        results_of: Vec<TensorData>,
        registry: &Registry,
        flow: &mut RunFlow<'_, E>,
    ) -> Result<(), E> {
        self.known.extend(part.outputs.iter().copied().zip(results_of));
        for call in &part.hosts {
            let computed = call.run(self.graph, registry, |v| Ok(self.value(v)?), flow)?;
            self.known.extend(computed);
        }
        self.sources.extend(part.sources.iter().cloned());
        Ok(())
    }

    /// What is known for the next part.
    ///
    /// # Errors
    /// None in practice: parts deliver what decides shapes.
    pub fn facts(&self) -> diag::Result<Facts> {
        let numbers = |source: &ShapeSource| Ok(source.numbers_in(&self.value(source.value)?));
        let types = self.sources.iter().map(numbers).collect::<diag::Result<_>>()?;
        let available = self.known.keys().copied().collect();
        Ok(Facts { sources: self.sources.clone(), types, available, required: Required::default() })
    }

    /// The inputs of a part.
    ///
    /// # Errors
    /// None in practice: parts deliver what others need.
    pub fn inputs(&self, part: &PartShape) -> diag::Result<Vec<TensorData>> {
        part.inputs.iter().map(|v| self.value(*v)).collect()
    }

    /// The outputs of the graph, after the last part.
    ///
    /// # Errors
    /// As [`PartsRun::inputs`].
    pub fn outputs(&self) -> diag::Result<Vec<TensorData>> {
        self.graph.outputs().iter().map(|(_, v)| self.value(*v)).collect()
    }

    /// Everything that is known.
    pub fn into_known(self) -> BTreeMap<Value, TensorData> {
        self.known
    }

    fn value(&self, v: Value) -> diag::Result<TensorData> {
        self.graph.constant(v).or_else(|| self.known.get(&v)).cloned().ok_or_else(|| {
            let why = "a part did not deliver what another needs";
            Diagnostic::new(DiagnosticCode::Internal, why).at(&self.graph.node(v.node).name)
        })
    }
}
