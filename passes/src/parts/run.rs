//! What is known in the course of a run of parts.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::TensorData;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_node;
use tensorc_ir::op::Registry;

use super::{Facts, HostOperand, PartShape, ShapeSource, inputs};
use crate::results::results;

/// A run of a graph, part by part.
pub struct PartsRun<'g> {
    graph: &'g Graph,
    sources: Vec<ShapeSource>,
    known: BTreeMap<Value, TensorData>,
}

impl<'g> PartsRun<'g> {
    /// Of the graph as it was before it was divided, with its inputs in signature order.
    pub fn new(graph: &'g Graph, given: impl Iterator<Item = TensorData>) -> PartsRun<'g> {
        let sources = Facts::of_inputs(graph, &[]).sources;
        PartsRun { graph, sources, known: inputs(graph).zip(given).collect() }
    }

    /// Adds the results of a part, and what the host computes then.
    ///
    /// # Errors
    /// An operator of the host does not take its operands.
    pub fn add(&mut self, part: &PartShape, results_of: Vec<TensorData>, registry: &Registry) -> Result<()> {
        self.known.extend(part.outputs.iter().copied().zip(results_of));
        for call in &part.hosts {
            let operand = |operand: &HostOperand| match operand {
                HostOperand::Constant(data) => Ok(data.clone()),
                HostOperand::Value(v) => self.value(*v),
            };
            let operands = call.operands.iter().map(|v| v.as_ref().map(operand).transpose());
            let computed = eval_node(self.graph, call.node, registry, &operands.collect::<Result<Vec<_>>>()?)?;
            self.known.extend(results(self.graph, call.node).zip(computed));
        }
        self.sources.extend(part.sources.iter().cloned());
        Ok(())
    }

    /// What is known for the next part.
    ///
    /// # Errors
    /// None in practice: parts deliver what decides shapes.
    pub fn facts(&self) -> Result<Facts> {
        let numbers = |source: &ShapeSource| Ok(source.numbers_in(&self.value(source.value)?));
        let types = self.sources.iter().map(numbers).collect::<Result<_>>()?;
        let available = self.known.keys().copied().collect();
        Ok(Facts { sources: self.sources.clone(), types, available, inputs: BTreeSet::new() })
    }

    /// The inputs of a part.
    ///
    /// # Errors
    /// None in practice: parts deliver what others need.
    pub fn inputs(&self, part: &PartShape) -> Result<Vec<TensorData>> {
        part.inputs.iter().map(|v| self.value(*v)).collect()
    }

    /// The outputs of the graph, after the last part.
    ///
    /// # Errors
    /// As [`PartsRun::inputs`].
    pub fn outputs(&self) -> Result<Vec<TensorData>> {
        self.graph.outputs().iter().map(|(_, v)| self.value(*v)).collect()
    }

    fn value(&self, v: Value) -> Result<TensorData> {
        self.graph.constant(v).or_else(|| self.known.get(&v)).cloned().ok_or_else(|| {
            let why = "a part did not deliver what another needs";
            Diagnostic::new(DiagnosticCode::Internal, why).at(&self.graph.node(v.node).name)
        })
    }
}
