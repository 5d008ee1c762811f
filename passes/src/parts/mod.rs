//! Parts: a graph whose shapes depend on values is divided where these become known.
//!
//! A part holds every node whose type follows from what is known of a run: from types of inputs, and from *sources* of shapes, which
//! are extents of results that operators of the host find, and elements of tensors that decide shapes. What a part delivers, and what
//! the host computes then, are the sources of the next. Numbers of sources may be symbols, so that a part is compiled once for all.

mod cut;
mod frontier;
mod run;

use std::collections::BTreeSet;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, TensorData};

use self::cut::Cut;
use self::frontier::{Frontier, Known};
use crate::infer::infer_assuming;

pub use self::run::PartsRun;

/// Bits of half of a float.
const HALF: u32 = 32;

/// Numbers that decide shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShapeSource {
    /// The extents of an input of the graph.
    Input(Value),
    /// The extents of a result that the host computes; those of these axes follow from nothing else.
    Result(Value, Vec<usize>),
    /// The elements of a tensor. In place of its type stands one with two extents for each: how far a whole number is above 0
    /// and how far below, or both halves of the bits of a float.
    Elements(Value),
}

impl ShapeSource {
    /// The tensor.
    pub fn value(&self) -> Value {
        match self {
            ShapeSource::Input(v) | ShapeSource::Result(v, _) | ShapeSource::Elements(v) => *v,
        }
    }

    /// The type whose extents are the numbers.
    pub fn numbers(&self, data: &TensorData) -> DenseType {
        let ShapeSource::Elements(_) = self else { return data.ty.clone() };
        let halves = |s: Scalar| match s.dtype.is_float() {
            true => [s.bits >> HALF, s.bits & ((1 << HALF) - 1)],
            false => [s.as_i64().max(0) as u64, s.as_i64().min(0).unsigned_abs()],
        };
        DenseType::new(data.dtype(), data.iter().flat_map(halves).collect::<Vec<_>>())
    }

    /// The positions of numbers, among so many of an element type, that are not known before.
    pub fn open(&self, numbers: &DenseType) -> Vec<usize> {
        match self {
            ShapeSource::Input(_) => (0..numbers.rank()).collect(),
            ShapeSource::Result(_, axes) => axes.clone(),
            // Negative numbers and floats tell how to compute shapes, rather than extents.
            ShapeSource::Elements(_) if numbers.dtype.is_float() => vec![],
            ShapeSource::Elements(_) => (0..numbers.rank()).step_by(2).collect(),
        }
    }
}

/// What is known before a part runs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What decides shapes, the inputs of the graph first.
    pub sources: Vec<ShapeSource>,
    /// The numbers of sources.
    pub types: Vec<DenseType>,
    /// Values that are computed already, and the inputs of the graph.
    pub available: BTreeSet<Value>,
}

impl Facts {
    /// What types of the inputs tell, in signature order.
    pub fn of_inputs(graph: &Graph, types: &[DenseType]) -> Facts {
        let sources = inputs(graph).map(ShapeSource::Input).collect();
        Facts { sources, types: types.to_vec(), available: inputs(graph).collect() }
    }

    /// Whether nothing has run yet.
    fn is_first(&self, graph: &Graph) -> bool {
        self.available.len() == graph.inputs().len()
    }
}

/// How graphs are typed.
#[derive(Clone, Copy)]
pub struct Typing<'a> {
    /// The operators.
    pub registry: &'a Registry,
    /// Bytes of a tensor that is evaluated at compile time, at most.
    pub static_bytes: u64,
}

/// What is computed at once, by values of the graph that was divided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartShape {
    /// The inputs of the part: all of the graph for the first, what is used for others.
    pub inputs: Vec<Value>,
    /// Its outputs.
    pub outputs: Vec<Value>,
    /// Operators that the host computes after it, in order.
    pub hosts: Vec<HostCall>,
    /// What is known after these.
    pub sources: Vec<ShapeSource>,
}

impl PartShape {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        self.hosts.is_empty() && self.sources.is_empty()
    }
}

/// An operator that the host computes.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCall {
    /// Its node.
    pub node: NodeId,
    /// Its operands.
    pub operands: Vec<Option<HostOperand>>,
}

/// An operand of an operator that the host computes.
#[derive(Clone, Debug, PartialEq)]
pub enum HostOperand {
    /// A value that is available.
    Value(Value),
    /// A constant.
    Constant(TensorData),
}

impl HostCall {
    fn of(graph: &Graph, node: NodeId) -> HostCall {
        let operand = |v: Value| match graph.constant(v) {
            Some(data) => HostOperand::Constant(data.clone()),
            None => HostOperand::Value(v),
        };
        HostCall { node, operands: graph.operands(node).into_iter().map(|v| v.map(operand)).collect() }
    }
}

/// Types a graph as far as what is known goes, and reduces it to the next part: what can be computed and is not available. The
/// inputs of the graph have their types already.
///
/// # Errors
/// A type stays unknown for another reason than values computed at run time, or a graph that would have to be divided has
/// updates or two phases.
pub fn next_part(graph: &mut Graph, typing: Typing<'_>, facts: &Facts) -> Result<PartShape> {
    let wanted: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let mut known = Known::default();
    let frontier = loop {
        infer_assuming(graph, typing.registry, typing.static_bytes, &known.elements)?;
        let frontier = Frontier::of(graph, typing, &known)?;
        let mut further = false;
        for (source, numbers) in facts.sources.iter().zip(&facts.types) {
            further |= known.add(graph, source, numbers, &frontier)?;
        }
        if !further {
            break frontier;
        }
    };
    if frontier.unresolved.is_empty() && facts.is_first(graph) {
        return Ok(PartShape { inputs: inputs(graph).collect(), outputs: wanted, ..PartShape::default() });
    }
    frontier.refuse_effects(graph)?;
    let cut = Cut { graph, frontier: &frontier, facts, wanted: &wanted };
    let shape = cut.shape();
    *graph = cut.part(&shape);
    Ok(shape)
}

/// Types a graph whose inputs have known types, and reduces it to the first part.
///
/// # Errors
/// As [`next_part`].
pub fn first_part(graph: &mut Graph, typing: Typing<'_>) -> Result<PartShape> {
    next_part(graph, typing, &Facts::of_inputs(graph, &[]))
}

fn inputs(graph: &Graph) -> impl Iterator<Item = Value> {
    graph.inputs().iter().map(|node| Value { node: *node, port: 0 })
}
