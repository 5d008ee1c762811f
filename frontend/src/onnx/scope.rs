//! Bodies that are graphs of their own: what they use of the graph around them becomes their inputs.

use std::collections::BTreeMap;

use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DType, Dim, Shape, TensorType};

use super::error::OnnxError;
use super::import::Importer;
use super::meaning::Meaning;
use super::unsupported::{Stop, UNDECIDED, unsupported};
use super::upgrade::ValueFacts;

/// A graph that is being imported.
pub(super) struct Scope {
    graph: Graph,
    values: BTreeMap<String, Meaning>,
    pending: Vec<NodeId>,
    made_inputs: Vec<NodeId>,
    captured: Vec<String>,
    speculative: bool,
}

impl Scope {
    fn new(name: &str) -> Scope {
        let (values, pending, made_inputs, captured) = Default::default();
        Scope { graph: Graph::new(name), values, pending, made_inputs, captured, speculative: false }
    }

    /// Whether the graph has a value of a name.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

/// The body of a branch or loop, as a graph.
pub(super) struct OwnBody<T> {
    pub graph: Graph,
    /// Names of what it uses of the graph around it, for its last inputs.
    pub captured: Vec<String>,
    /// What the import of it found.
    pub found: T,
}

/// What is known of a type in every iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommonType {
    pub dtype: DType,
    /// Extents that are always the same.
    pub dims: Vec<Option<u64>>,
}

impl CommonType {
    /// What both types have in common; `None` if they differ by more than extents.
    pub fn with(&self, other: &CommonType) -> Option<CommonType> {
        let dims = self.dims.iter().zip(&other.dims).map(|(a, b)| a.filter(|_| a == b)).collect();
        let alike = self.dtype == other.dtype && self.dims.len() == other.dims.len();
        alike.then_some(CommonType { dtype: self.dtype, dims })
    }

    /// The type of an element along the first axis.
    pub fn row(&self) -> CommonType {
        CommonType { dtype: self.dtype, dims: self.dims.iter().skip(1).copied().collect() }
    }

    /// Of a tensor of elements of this type, of which it is not known how many there are.
    pub fn stacked(&self) -> CommonType {
        CommonType { dtype: self.dtype, dims: [None].into_iter().chain(self.dims.iter().copied()).collect() }
    }

    /// The type in a graph, with new dimensions where extents differ, which are called by the tensor and the axis.
    pub fn in_graph(&self, graph: &mut Graph, name: &str) -> TensorType {
        let mut fresh = |axis: usize| graph.dims.fresh(Some(&format!("{name}.{axis}")));
        let dims = self.dims.iter().enumerate().map(|(axis, n)| n.map_or_else(|| fresh(axis), Dim::Const)).collect();
        TensorType { dtype: Some(self.dtype), shape: Shape::Ranked(dims) }
    }
}

impl Importer<'_> {
    /// Imports something into a graph of its own.
    pub(super) fn within<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> Result<T, Stop>,
    ) -> Result<OwnBody<T>, Stop> {
        let around = self.swapped(Scope::new(name));
        self.outer.push(around);
        let found = work(self);
        self.infer();
        let Some(around) = self.outer.pop() else { return unsupported("a body without a graph around it") };
        let Scope { mut graph, made_inputs, captured, .. } = self.swapped(around);
        // Captured constants are nodes of the graph around it that nothing may use.
        self.outlines = true;
        graph.remove_dead();
        made_inputs.iter().for_each(|input| graph.remove_input(*input));
        Ok(OwnBody { graph, captured, found: found? })
    }

    fn swapped(&mut self, scope: Scope) -> Scope {
        Scope {
            graph: std::mem::replace(&mut self.graph, scope.graph),
            values: std::mem::replace(&mut self.values, scope.values),
            pending: std::mem::replace(&mut self.pending, scope.pending),
            made_inputs: std::mem::replace(&mut self.made_inputs, scope.made_inputs),
            captured: std::mem::replace(&mut self.captured, scope.captured),
            speculative: std::mem::replace(&mut self.speculative, scope.speculative),
        }
    }

    /// Takes what a name stands for from the graph around: a constant as a constant, any other tensor as an input.
    pub(super) fn capture(&mut self, name: &str) -> Result<(), OnnxError> {
        let Some(around) = self.outer.pop() else { return self.stored_constant(name).map(drop) };
        let inner = self.swapped(around);
        let found = self.load(name);
        self.infer();
        let meaning = self.values.get(name).cloned();
        let tensor = meaning.as_ref().and_then(Meaning::tensor);
        let constant = tensor.and_then(|value| self.handed_on(value));
        let ty = tensor.map(|value| self.graph.resolved(value)).unwrap_or_default();
        let around = self.swapped(inner);
        self.outer.push(around);
        found?;
        match (meaning, constant) {
            (None, _) => {}
            (Some(_), Some(data)) => self.define(name.to_owned(), data),
            (Some(Meaning::Tensor(_)), None) => {
                let shape = match ty.shape.dims() {
                    Some(dims) => Shape::Ranked(
                        dims.iter().enumerate().map(|(axis, dim)| self.own_dim(*dim, name, axis)).collect(),
                    ),
                    None => Shape::Unranked,
                };
                let value = self.graph.add_input(name, TensorType { shape, ..ty });
                self.captured.push(name.to_owned());
                self.values.insert(name.to_owned(), Meaning::Tensor(value));
            }
            (Some(other), None) => drop(self.values.insert(name.to_owned(), other)),
        }
        Ok(())
    }

    /// An extent of the graph around.
    fn own_dim(&mut self, dim: Dim, name: &str, axis: usize) -> Dim {
        dim.as_const().map_or_else(|| self.graph.dims.fresh(Some(&format!("{name}.{axis}"))), Dim::Const)
    }

    /// Adds an input that no name of the model stands for.
    pub(super) fn body_input(&mut self, of: &str, ty: &CommonType) -> String {
        let name = self.fresh_name(of);
        let ty = ty.in_graph(&mut self.graph, &name);
        let value = self.graph.add_input(name.as_str(), ty);
        self.values.insert(name.clone(), Meaning::Tensor(value));
        name
    }

    /// What is known of the type of a tensor, whose element type and rank must be.
    pub(super) fn common_type(&mut self, name: &str) -> Result<CommonType, Stop> {
        let Meaning::Tensor(_) = self.imported(name)? else { return unsupported(UNDECIDED) };
        let ty = self.analysed_type(name)?;
        match (ty.dtype, ty.shape.dims()) {
            (Some(dtype), Some(dims)) => {
                Ok(CommonType { dtype, dims: dims.iter().map(|dim| dim.as_const()).collect() })
            }
            _ => unsupported(UNDECIDED),
        }
    }

    /// The tensors of names.
    pub(super) fn tensors(&mut self, names: &[String]) -> Result<Vec<Value>, Stop> {
        let tensor = |name: &String| match self.imported(name)? {
            Meaning::Tensor(value) => Ok(value),
            _ => unsupported(UNDECIDED),
        };
        names.iter().map(tensor).collect()
    }
}
