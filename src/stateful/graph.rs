//! The graph of a stateful model: outputs become the next values of inputs.
//!
//! An input that grows is the first part, along one axis, of memory that has room for more. How much of it is filled is the extent of
//! another input, one without elements, so that it is a symbol like other extents:
//!
//! ```text
//! before   graph(%x: f32[b, 1, 8], %past: f32[b, ?n, 8])             %all = …        return %y, %all
//!
//! after    graph(%x: f32[b, 1, 8], %past: f32[b, room, 8], %length: f32[0, ?n])
//!          %old = %past[:, 0..n]            in place of the input     %all = …        return %y, lengths = extent(%all)
//!          update %past = concat(%old, %all[:, n..], %past[:, extent(%all)..])
//! ```
//!
//! Where `%all` is `%old` joined with something, the plan writes that into the memory, and copies nothing.

use std::sync::Arc;

use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::{DType, DenseType, Dim, DimId, Shape, TensorData, TensorType};
use tensorc_passes::infer::infer_graph;

use super::State;
use crate::error::Error;

/// A model with states.
pub(super) struct StatefulGraph {
    pub graph: Graph,
    /// In the order of the request.
    pub states: Vec<StateInput>,
    /// Inputs whose last extent is how much of states is filled: their positions in the signature.
    pub lengths: Vec<usize>,
}

/// An input that is a state.
pub(super) struct StateInput {
    pub name: String,
    /// Its position in the signature.
    pub position: usize,
    pub growth: Option<Growth>,
}

/// How a state grows.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    pub axis: usize,
    pub capacity: u64,
    /// The position in [`StatefulGraph::lengths`].
    pub length: usize,
}

/// The output that holds the new lengths of the states that grow, in their order.
pub(super) const LENGTHS: &str = "lengths";

impl StatefulGraph {
    /// Makes outputs of a graph the next values of inputs.
    ///
    /// # Errors
    /// A name is none of the model, or the types do not fit.
    pub fn new(
        graph: &Graph,
        states: &[State],
        registry: &Registry,
        static_bytes: u64,
    ) -> Result<StatefulGraph, Error> {
        let mut work = Transformation { graph: graph.clone(), registry, dims: vec![], totals: vec![] };
        let mut typed = graph.clone();
        infer_graph(&mut typed, registry, static_bytes)?;
        let mut made: Vec<(&State, NodeId, Option<Growth>)> = vec![];
        for state in states {
            let (input, value) = (work.input(&state.input)?, work.output(&state.output)?);
            let before = typed.resolved(Value { node: input, port: 0 });
            let after = typed.resolved(typed.outputs()[work.output_position(&state.output)?].1);
            if made.iter().any(|(other, ..)| other.input == state.input || other.output == state.output) {
                return Err(misfit(state, "is named twice"));
            }
            match state.capacity {
                None => {
                    work.graph.add_update(input, value);
                    made.push((state, input, None));
                }
                Some(capacity) => {
                    let axis = growing_axis(state, &before, &after)?;
                    let (input, length) = work.grow(state, input, axis, capacity)?;
                    made.push((state, input, Some(Growth { axis, capacity, length })));
                }
            }
        }
        work.finish(made)
    }
}

/// The axis along which an output is longer than an input.
fn growing_axis(state: &State, before: &TensorType, after: &TensorType) -> Result<usize, Error> {
    let (Shape::Ranked(from), Shape::Ranked(to)) = (&before.shape, &after.shape) else {
        return Err(misfit(state, "has no known number of axes"));
    };
    if before.dtype.is_none() || from.len() != to.len() {
        return Err(misfit(state, "has another type than its next value"));
    }
    let open = |axis: &usize| matches!(from[*axis], Dim::Sym(_)) && from[*axis] != to[*axis];
    let differing: Vec<usize> = (0..from.len()).filter(open).collect();
    match (state.axis, &differing[..]) {
        (Some(axis), _) if axis < from.len() && matches!(from[axis], Dim::Sym(_)) => Ok(axis),
        (Some(axis), _) => Err(misfit(state, &format!("has no open axis {axis}"))),
        (None, [axis]) => Ok(*axis),
        (None, []) => Err(misfit(state, "has no axis that grows")),
        (None, _) => Err(misfit(state, &format!("may grow along any of the axes {differing:?}: state which"))),
    }
}

fn misfit(state: &State, why: &str) -> Error {
    Error::State { input: state.input.clone(), output: state.output.clone(), why: why.to_owned() }
}

/// A graph that is being changed.
struct Transformation<'r> {
    graph: Graph,
    registry: &'r Registry,
    /// Dimensions that say how much is filled, and the inputs that have them.
    dims: Vec<(DimId, NodeId)>,
    /// The new lengths of states.
    totals: Vec<Value>,
}

impl Transformation<'_> {
    fn input(&self, name: &str) -> Result<NodeId, Error> {
        let names = || self.graph.inputs().iter().map(|n| self.graph.node(*n).name.to_string());
        let found = self.graph.inputs().iter().copied().find(|n| *self.graph.node(*n).name == *name);
        found.ok_or_else(|| Error::UnknownInput {
            name: name.to_owned(),
            expected: names().collect::<Vec<_>>().join(", "),
        })
    }

    fn output_position(&self, name: &str) -> Result<usize, Error> {
        let outputs = self.graph.outputs();
        let names = || outputs.iter().map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(", ");
        let found = outputs.iter().position(|(n, _)| **n == *name);
        found.ok_or_else(|| Error::UnknownOutput { name: name.to_owned(), expected: names() })
    }

    fn output(&self, name: &str) -> Result<Value, Error> {
        Ok(self.graph.outputs()[self.output_position(name)?].1)
    }

    fn op(&mut self, name: &str, op: &str, operands: &[Value], params: Params) -> Result<Value, Error> {
        let def = self.registry.get(op).cloned();
        let unknown = || Diagnostic::new(DiagnosticCode::UnknownOperator, format!("operator `{op}` is not registered"));
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        let node = self.graph.add_op(name, &def.ok_or_else(unknown)?, &operands, params, 1)?;
        Ok(Value { node, port: 0 })
    }

    fn number(&mut self, n: i64) -> Value {
        let data = TensorData::from_fn(DenseType::new(DType::I64, [1]), |_| tensorc_ir::scalar::Scalar::i64(n));
        self.graph.add_const("position", data)
    }

    /// An element of the shape of a value.
    fn extent(&mut self, name: &str, v: Value, axis: usize) -> Result<Value, Error> {
        let shape = self.op(name, "shape", &[v], Params::new())?;
        let (from, to, first) = (self.number(axis as i64), self.number(axis as i64 + 1), self.number(0));
        self.op(name, "slice", &[shape, from, to, first], Params::new())
    }

    /// What is filled of states with a dimension: its position among lengths, and the extent as a value.
    fn length(&mut self, dim: DimId) -> Result<(usize, Value), Error> {
        let name = format!("length of {}", self.graph.dims.name(dim));
        let found = self.dims.iter().position(|(known, _)| *known == dim);
        let at = match found {
            Some(at) => at,
            None => {
                let shape = Shape::Ranked([Dim::Const(0), Dim::Sym(dim)].into_iter().collect());
                let input = self.graph.add_input(name.as_str(), TensorType { dtype: Some(DType::F32), shape });
                self.dims.push((dim, input.node));
                self.dims.len() - 1
            }
        };
        let carrier = Value { node: self.dims[at].1, port: 0 };
        Ok((at, self.extent(&name, carrier, 1)?))
    }

    /// Puts memory with room for growth in the place of an input; the new input, and which length says how much of it is filled.
    fn grow(&mut self, state: &State, input: NodeId, axis: usize, capacity: u64) -> Result<(NodeId, usize), Error> {
        let old = Value { node: input, port: 0 };
        let mut ty = self.graph.resolved(old);
        let room = Some(capacity).filter(|n| i64::try_from(*n).is_ok());
        let room = room.ok_or_else(|| misfit(state, "has a capacity that no tensor has"))?;
        let Shape::Ranked(dims) = &mut ty.shape else { return Err(misfit(state, "has no known number of axes")) };
        let Dim::Sym(dim) = std::mem::replace(&mut dims[axis], Dim::Const(room)) else {
            return Err(misfit(state, &format!("has no open axis {axis}")));
        };
        let (length, filled) = self.length(dim)?;
        self.graph.dims.expect(dim, capacity - capacity / 4);
        let name: Arc<str> = self.graph.node(input).name.clone();
        let position = self.graph.inputs().iter().position(|n| *n == input).unwrap_or(0);
        let memory = self.graph.insert_input(position, name.clone(), ty);
        let (first, along) = (self.number(0), self.number(axis as i64));
        let part = self.op(&name, "slice", &[memory, first, filled, along], Params::new())?;
        self.graph.replace_uses(old, part);
        self.graph.remove_input(input);
        let all = self.output(&state.output)?;
        let total = self.extent(&state.output, all, axis)?;
        let end = self.number(room as i64);
        let added = self.op(&state.output, "slice", &[all, filled, total, along], Params::new())?;
        let rest = self.op(&name, "slice", &[memory, total, end, along], Params::new())?;
        let params = Params::new().with("axis", ParamValue::Int(axis as i64));
        let next = self.op(&state.output, "concat", &[part, added, rest], params)?;
        self.graph.add_update(memory.node, next);
        self.totals.push(total);
        Ok((memory.node, length))
    }

    /// What is added in a run is often less than what is filled.
    fn expect_few(&mut self, made: &[(&State, NodeId, Option<Growth>)]) {
        let Some(least) = made.iter().filter_map(|(state, ..)| state.capacity).min() else { return };
        for node in self.graph.inputs().to_vec() {
            let ty = self.graph.resolved(Value { node, port: 0 });
            for dim in ty.shape.dims().into_iter().flatten() {
                if let Dim::Sym(id) = *dim
                    && self.graph.dims.typical(id).is_none()
                {
                    self.graph.dims.expect(id, least / 4);
                }
            }
        }
    }

    /// The graph without the outputs that are states now.
    fn finish(mut self, made: Vec<(&State, NodeId, Option<Growth>)>) -> Result<StatefulGraph, Error> {
        let is_state = |name: &str| made.iter().any(|(state, ..)| state.output == name);
        let mut outputs: Vec<(Arc<str>, Value)> =
            self.graph.outputs().iter().filter(|(name, _)| !is_state(name)).cloned().collect();
        if !self.totals.is_empty() {
            let totals = std::mem::take(&mut self.totals);
            let params = Params::new().with("axis", ParamValue::Int(0));
            outputs.push((LENGTHS.into(), self.op(LENGTHS, "concat", &totals, params)?));
        }
        self.graph.set_outputs(outputs);
        self.graph.remove_dead();
        self.expect_few(&made);
        let position = |node: NodeId| self.graph.inputs().iter().position(|n| *n == node).unwrap_or(0);
        let states = made.into_iter().map(|(state, node, growth)| StateInput {
            name: state.input.clone(),
            position: position(node),
            growth,
        });
        Ok(StatefulGraph {
            states: states.collect(),
            lengths: self.dims.iter().map(|(_, node)| position(*node)).collect(),
            graph: self.graph,
        })
    }
}
