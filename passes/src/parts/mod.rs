//! Parts: a graph whose shapes depend on values is divided where these become known.
//!
//! A part holds every node whose type follows from what is known of a run: from types of inputs, and from *sources* of shapes, which
//! are extents of results that operators of the host find, and elements of tensors that decide shapes. What a part delivers, and what
//! the host computes then, are the sources of the next. Numbers of sources may be symbols, so that a part is compiled once for all.

mod cut;
mod frontier;
mod required;
mod run;

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::flow::FlowKind;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, Dim, DimId, TensorData, TensorType};

use self::cut::Cut;
use self::frontier::{Frontier, Known};
use crate::infer::infer_assuming;
use crate::results::results;

pub use self::required::Required;
pub use self::run::{PartsRun, RunFlow};

/// Bits of half of a float.
const HALF: u32 = 32;

/// Whether elements are told by their bits, not as whole numbers.
fn are_bits(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_narrow()
}

/// Numbers that decide shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeSource {
    /// The tensor.
    pub value: Value,
    /// What of it.
    pub kind: SourceKind,
    /// The type whose extents are the numbers, with 2 for those that are open.
    pub numbers: DenseType,
    /// The positions of numbers that follow from nothing else.
    open: Vec<usize>,
}

/// What of a tensor decides shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The extents of an input of the graph.
    Input,
    /// The extents of a result that the host computes.
    Result,
    /// The elements. In place of the type stands one with two extents for each: how far a whole number is above 0 and how far
    /// below, or both halves of the bits of a float.
    Elements,
}

/// Extents of axes that many runs have.
const COMMON_BATCH: u64 = 8;
const COMMON_LENGTH: u64 = 512;
/// Stands for a number that is not known.
const OPEN: u64 = 2;
/// The greatest number that a symbol stands for.
pub const MAX_EXTENT: u64 = 1 << 31;

impl ShapeSource {
    fn input(graph: &Graph, value: Value) -> ShapeSource {
        let numbers = with_any_extents(&graph.resolved(value));
        ShapeSource { value, kind: SourceKind::Input, numbers, open: vec![] }
    }

    /// Of a type that the host computes. Dimensions that are `known` tell nothing new.
    fn result(value: Value, ty: &TensorType, known: &mut BTreeSet<DimId>) -> ShapeSource {
        let (numbers, dims) = (with_any_extents(ty), ty.shape.dims().unwrap_or_default());
        let open = dims.iter().enumerate().filter(|(_, dim)| matches!(dim, Dim::Sym(id) if known.insert(*id)));
        ShapeSource { value, kind: SourceKind::Result, numbers, open: open.map(|(axis, _)| axis).collect() }
    }

    fn elements(value: Value, ty: &DenseType) -> ShapeSource {
        let (count, float) = (ty.dims.example().iter().product::<u64>() as usize, are_bits(ty.dtype));
        let numbers = DenseType::new(ty.dtype, [OPEN, 0].repeat(count));
        // Negative numbers and floats tell how to compute shapes, rather than extents.
        let open = if float { vec![] } else { (0..2 * count).step_by(2).collect() };
        ShapeSource { value, kind: SourceKind::Elements, numbers, open }
    }

    /// The numbers in a run.
    pub fn numbers_in(&self, data: &TensorData) -> DenseType {
        if self.kind != SourceKind::Elements {
            return data.ty.clone();
        }
        let halves = |s: Scalar| match are_bits(s.dtype) {
            true => [s.bits >> HALF, s.bits & ((1 << HALF) - 1)],
            false => [s.as_i64().max(0) as u64, s.as_i64().min(0).unsigned_abs()],
        };
        DenseType::new(data.dtype(), data.iter().flat_map(halves).collect::<Vec<_>>())
    }

    /// What a number is called; `name` is that of the node.
    pub fn number_name(&self, name: &str, position: usize) -> String {
        let position = if self.kind == SourceKind::Elements { position / 2 } else { position };
        number_name(name, self.value.port, position)
    }

    /// Positions of numbers that follow from nothing else, if it is no input.
    pub fn open_positions(&self) -> &[usize] {
        &self.open
    }

    /// Whether a number may be the value of a symbol.
    pub fn admits(&self, n: u64) -> bool {
        (self.least()..=MAX_EXTENT).contains(&n)
    }

    /// Lower bound of a symbol: 2 for dimensions of inputs and for elements, since extents of 0 and 1 have graphs of their own; 0 for
    /// results of the host, so that an empty result needs no compilation.
    pub fn least(&self) -> u64 {
        if self.kind == SourceKind::Result { 0 } else { OPEN }
    }

    /// Whether a number follows from nothing else. Those of inputs are open as far as the graph leaves them open.
    pub fn is_open(&self, position: usize) -> bool {
        self.kind == SourceKind::Input || self.open.contains(&position)
    }
}

/// What an extent or element of a result of a node is called: `topk.0` of the first, `topk.1.0` of the second.
pub fn number_name(node: &str, port: u16, position: usize) -> String {
    match port {
        0 => format!("{node}.{position}"),
        _ => format!("{node}.{port}.{position}"),
    }
}

/// A type with 2 for extents that are not known.
fn with_any_extents(ty: &TensorType) -> DenseType {
    let number = |dim: &Dim| dim.as_extent().map_or(OPEN, |n| n.example() as u64);
    let dims: Vec<u64> = ty.shape.dims().unwrap_or_default().iter().map(number).collect();
    DenseType::new(ty.dtype.unwrap_or(DType::F32), dims)
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
    /// What parts have whatever these tell.
    pub required: Required,
}

impl Facts {
    /// What types of the inputs tell, in signature order.
    pub fn of_inputs(graph: &Graph, types: &[DenseType]) -> Facts {
        let sources = inputs(graph).map(|v| ShapeSource::input(graph, v)).collect();
        Facts { sources, types: types.to_vec(), available: inputs(graph).collect(), required: Required::default() }
    }

    /// What a graph tells of its inputs, if open numbers may be any from 2; `None` if the rank or the type of one is not known.
    pub fn of_any_inputs(graph: &Graph) -> Option<Facts> {
        let known = |ty: TensorType| ty.dtype.is_some() && ty.shape.rank().is_some();
        let mut facts = Facts::of_inputs(graph, &[]);
        facts.types = facts.sources.iter().map(|source| source.numbers.clone()).collect();
        inputs(graph).all(|v| known(graph.resolved(v))).then_some(facts)
    }

    /// The same facts with batches of one: the open dimensions of the first axes of inputs are 1. `None` if there are none.
    #[must_use]
    pub fn with_single_batch(&self, graph: &Graph) -> Option<Facts> {
        let dims = |v: Value| graph.resolved(v).shape.dims().map(<[Dim]>::to_vec).unwrap_or_default();
        let batches: BTreeSet<Dim> =
            inputs(graph).filter_map(|v| dims(v).first().copied()).filter(|dim| matches!(dim, Dim::Sym(_))).collect();
        let mut facts = self.clone();
        for (ty, v) in facts.types.iter_mut().zip(inputs(graph)) {
            for (axis, _) in dims(v).iter().enumerate().filter(|(_, dim)| batches.contains(dim)) {
                ty.dims.set(axis, 1);
            }
        }
        (!batches.is_empty()).then_some(facts)
    }

    /// The same facts with other numbers at some places, each a source and a position there.
    #[must_use]
    pub fn with_numbers(&self, numbers: impl IntoIterator<Item = ((usize, usize), u64)>) -> Facts {
        let mut facts = self.clone();
        for ((source, position), n) in numbers {
            if let Some(ty) = facts.types.get_mut(source).filter(|ty| position < ty.rank()) {
                ty.dims.set(position, n);
            }
        }
        facts
    }

    /// The same facts with common numbers in place of open dimensions of inputs: of first axes a batch, of others the samples of a piece of
    /// sound, or the tokens of a text.
    #[must_use]
    pub fn with_common_extents(&self, graph: &Graph) -> Facts {
        let (mut facts, mut first) = (self.clone(), BTreeMap::new());
        for (ty, v) in facts.types.iter_mut().zip(inputs(graph)) {
            let dims = graph.resolved(v).shape.dims().map(<[Dim]>::to_vec).unwrap_or_default();
            for (axis, dim) in dims.iter().enumerate().filter(|(_, dim)| matches!(dim, Dim::Sym(_))) {
                match *first.entry(*dim).or_insert(axis) {
                    0 if ty.dims.at(axis).is_surely(1) => {}
                    0 => ty.dims.set(axis, COMMON_BATCH),
                    _ => ty.dims.set(axis, COMMON_LENGTH),
                }
            }
        }
        facts
    }

    /// What is known after a part, if open numbers may be any from 2.
    #[must_use]
    pub fn after(&self, graph: &Graph, part: &PartShape) -> Facts {
        let mut facts = self.clone();
        facts.available.extend(&part.outputs);
        facts.available.extend(part.hosts.iter().flat_map(|call| results(graph, call.node)));
        facts.types.extend(part.sources.iter().map(|source| source.numbers.clone()));
        facts.sources.extend(part.sources.iter().cloned());
        facts
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
    /// What it computes, for people: `%found = nonzero`.
    pub fn text(&self, graph: &Graph) -> String {
        let node = graph.node(self.node);
        let operator = match &node.kind {
            NodeKind::Op(op) => op.def.name,
            NodeKind::Prim(Prim::Flow(flow)) if flow.kind == FlowKind::If => "if",
            _ => "loop",
        };
        format!("%{} = {operator}", node.name)
    }

    fn of(graph: &Graph, node: NodeId, facts: &Facts) -> HostCall {
        let operand =
            |(position, v): (usize, Value)| match (graph.constant(v), facts.required.given.get(&(node, position))) {
                (Some(data), None) => {
                    // The host takes numbers, on which the part depends then.
                    data.content();
                    HostOperand::Constant(data.clone())
                }
                (Some(_), Some(given)) => HostOperand::Value(*given),
                (None, _) => HostOperand::Value(v),
            };
        let operands = graph.operands(node).into_iter().enumerate();
        HostCall { node, operands: operands.map(|(position, v)| v.map(|v| operand((position, v)))).collect() }
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
    let mut known = Known { assumed: facts.required.assumptions(graph), ..Known::default() };
    let frontier = loop {
        infer_assuming(graph, typing.registry, typing.static_bytes, &known.assumed)?;
        let frontier = Frontier::of(graph, typing, &known, &facts.required)?;
        let mut further = false;
        for (source, numbers) in facts.sources.iter().zip(&facts.types) {
            further |= known.add(graph, source, numbers, &frontier)?;
        }
        if !further {
            break frontier;
        }
    };
    if frontier.unresolved.is_empty() && facts.is_first(graph) {
        // What nobody uses need not have a type.
        graph.remove_dead();
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
