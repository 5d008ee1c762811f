//! How far a graph is typed, and what must become known for more.

use std::collections::BTreeSet;

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::dim::Origin;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::op::Compute;
use tensorc_ir::{DenseType, Dim, Extent, Shape, TensorData};

use super::{HALF, Required, ShapeSource, SourceKind, Typing, are_bits};
use crate::infer::Assumptions;
use crate::results::{result_types, results};
use crate::values::StaticValues;

/// Elements of a tensor that decides shapes, at most.
const MAX_DECIDING_ELEMENTS: u64 = 1 << 16;
/// Elements of a tensor that integer arithmetic is followed through, at most.
const MAX_FOLLOWED_ELEMENTS: u64 = 64;

/// What sources tell.
#[derive(Default)]
pub struct Known {
    /// Operators of the host whose results have extents.
    pub hosts: BTreeSet<NodeId>,
    /// What is assumed of values: elements that may depend on symbols.
    pub assumed: Assumptions,
}

impl Known {
    /// Learns from a source that typing has come to; whether there is something new.
    pub fn add(
        &mut self,
        graph: &mut Graph,
        source: &ShapeSource,
        numbers: &DenseType,
        frontier: &Frontier,
    ) -> Result<bool> {
        let v = source.value;
        match source.kind {
            SourceKind::Input => Ok(false),
            SourceKind::Result if frontier.hosts.contains(&v.node) => {
                self.declare(graph, source, numbers)?;
                Ok(self.hosts.insert(v.node))
            }
            SourceKind::Elements if frontier.deciding.contains(&v) && !self.assumed.elements.contains_key(&v) => {
                let data = elements(graph.dense(v)?, numbers);
                let data = data.ok_or_else(|| {
                    let why = "the elements that decide shapes are not as many as the tensor has";
                    Diagnostic::new(DiagnosticCode::TypeConflict, why).at(&graph.node(v.node).name)
                })?;
                Ok(self.assumed.elements.insert(v, data).is_none())
            }
            SourceKind::Result | SourceKind::Elements => Ok(false),
        }
    }

    /// Tells the extents of a result of the host.
    fn declare(&self, graph: &mut Graph, source: &ShapeSource, numbers: &DenseType) -> Result<()> {
        let name = graph.node(source.value.node).name.clone();
        let Shape::Ranked(dims) = graph.resolved(source.value).shape else { return Ok(()) };
        for (axis, dim) in dims.iter().enumerate().filter(|(axis, _)| source.is_open(*axis)) {
            let (given, origin) = (Dim::of(numbers.dims.at(axis)), Origin(name.clone()));
            graph.dims.unify(*dim, given, &origin).map_err(|c| {
                let why = format!("axis {axis}: expected {}, found {}", c.expected, c.found);
                Diagnostic::new(DiagnosticCode::TypeConflict, why).at(&name)
            })?;
        }
        Ok(())
    }
}

/// The tensor of a type whose elements are the given numbers ([`ShapeSource::Elements`]).
fn elements(ty: DenseType, numbers: &DenseType) -> Option<TensorData> {
    let halves: Vec<Extent> = numbers.dims.all().collect();
    let (halves, dtype) = (halves.as_chunks::<2>().0, ty.dtype);
    if !are_bits(dtype) {
        return TensorData::of_extents(ty, halves.iter().map(|[above, below]| *above - *below).collect());
    }
    let bits = |[high, low]: &[Extent; 2]| (high.fixed() << HALF | low.fixed()).to_le_bytes().into_iter();
    let bytes: Vec<u8> = halves.iter().flat_map(|halves| bits(halves).take(dtype.size())).collect();
    TensorData::new(ty, bytes.into())
}

/// Where typing comes to an end.
#[derive(Default)]
pub struct Frontier {
    /// Nodes that are not typed, or whose operands are not.
    pub unresolved: BTreeSet<NodeId>,
    /// Operators of the host that wait for their turn, in order.
    pub hosts: Vec<NodeId>,
    /// Values whose elements would tell more.
    pub deciding: BTreeSet<Value>,
}

/// Why a node whose operands are resolved is not.
enum Obstacle {
    Host,
    /// It takes these values to know its shapes.
    Values(Vec<Value>),
    Type,
}

impl Frontier {
    pub fn of(graph: &Graph, typing: Typing<'_>, known: &Known, required: &Required) -> Result<Frontier> {
        let values = known.assumed.values(typing.registry, typing.static_bytes);
        let (mut found, mut cause) = (Frontier::default(), None);
        let live = graph.live();
        for node in graph.order().into_iter().filter(|n| live.contains(n) || required.hosts.contains(n)) {
            if graph.args(node).iter().any(|v| found.unresolved.contains(&v.node)) {
                found.unresolved.insert(node);
                continue;
            }
            let Some(obstacle) = obstacle(graph, node, &values, known) else { continue };
            found.unresolved.insert(node);
            match obstacle {
                Obstacle::Host => found.hosts.push(node),
                Obstacle::Values(all) => {
                    for v in all {
                        found.decide(graph, typing, &values, v, known)?;
                    }
                }
                Obstacle::Type => cause = cause.or(Some(node)),
            }
        }
        let is_due = |v: &&Value| !found.unresolved.contains(&v.node) && !known.assumed.elements.contains_key(v);
        for v in required.deciding.iter().filter(|v| graph.contains(v.node)).filter(is_due) {
            found.deciding.extend(graph.dense(*v).is_ok().then_some(*v));
        }
        if !required.is_empty() {
            // Graphs that are to have the same parts may have operators in an order of their own.
            found.hosts.sort_unstable();
        }
        let moves = !found.hosts.is_empty() || !found.deciding.is_empty();
        let unbound = |n: &NodeId| matches!(graph.node(*n).kind, NodeKind::Input);
        if let Some(node) = cause.filter(|n| !moves || unbound(n)) {
            let open = results(graph, node).find(|v| graph.dense(*v).is_err()).map_or(0, |v| v.port);
            let why = format!("the type of output {open} does not follow from the types of the inputs");
            return Err(Diagnostic::new(DiagnosticCode::Unresolved, why).at(&graph.node(node).name));
        }
        Ok(found)
    }

    /// Adds the tensors from which integer arithmetic computes a value that decides shapes.
    fn decide(
        &mut self,
        graph: &Graph,
        typing: Typing<'_>,
        values: &StaticValues<'_>,
        v: Value,
        known: &Known,
    ) -> Result<()> {
        let mut roots = BTreeSet::new();
        let mut stack = vec![v];
        while let Some(v) = stack.pop() {
            if values.get(graph, v).is_some() {
                continue;
            }
            let arithmetic = !values.withholds(v)
                && matches!(&graph.node(v.node).kind, NodeKind::Op(op)
                if !matches!(op.def.compute, Compute::Host(_))
                    && results(graph, v.node).chain(graph.args(v.node)).all(|v| is_small_integer(graph, v, typing)));
            match arithmetic {
                true => stack.extend(graph.args(v.node)),
                false => drop(roots.insert(v)),
            }
        }
        // What does not follow from its integers is taken as it is.
        let elements = &known.assumed.elements;
        let own = if roots.iter().all(|v| elements.contains_key(v)) { BTreeSet::from([v]) } else { roots };
        for v in own.into_iter().filter(|v| !elements.contains_key(v)) {
            let ty = graph.dense(v)?;
            if ty.dims.is_open() || ty.len() > MAX_DECIDING_ELEMENTS {
                let why =
                    format!("shapes depend on the elements of {ty}, {MAX_DECIDING_ELEMENTS} at most are supported");
                return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&graph.node(v.node).name));
            }
            self.deciding.insert(v);
        }
        Ok(())
    }

    /// Whether a graph that is divided has neither updates nor two phases.
    pub fn refuse_effects(&self, graph: &Graph) -> Result<()> {
        let effects = !graph.updates().is_empty() || graph.boundary().is_some();
        match self.unresolved.first().filter(|_| effects) {
            Some(node) => {
                let why = "the shape of a value depends on run-time data; a graph with updates or two phases cannot run in parts";
                Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&graph.node(*node).name))
            }
            None => Ok(()),
        }
    }

    /// What is known once the host has computed what waits for it.
    pub fn sources(&self, graph: &Graph) -> Vec<ShapeSource> {
        let mut dims = BTreeSet::new();
        let result = |v: Value| ShapeSource::result(v, &graph.resolved(v), &mut dims);
        let results: Vec<ShapeSource> = self.hosts.iter().flat_map(|node| results(graph, *node)).map(result).collect();
        let element = |v: &Value| Some(ShapeSource::elements(*v, &graph.dense(*v).ok()?));
        results.into_iter().chain(self.deciding.iter().filter_map(element)).collect()
    }
}

fn is_small_integer(graph: &Graph, v: Value, typing: Typing<'_>) -> bool {
    let Some(ty) = graph.resolved(v).dense() else { return false };
    !are_bits(ty.dtype) && !ty.dims.is_open() && ty.len() <= MAX_FOLLOWED_ELEMENTS && ty.bytes() <= typing.static_bytes
}

fn obstacle(graph: &Graph, node: NodeId, values: &StaticValues<'_>, known: &Known) -> Option<Obstacle> {
    if graph.is_by_host(node) {
        return (!known.hosts.contains(&node)).then_some(Obstacle::Host);
    }
    if let NodeKind::Op(op) = &graph.node(node).kind {
        let operands = graph.operands(node);
        let given = op.def.static_inputs.iter().filter_map(|i| operands.get(*i).copied().flatten());
        let missing: Vec<Value> = given.filter(|v| values.get(graph, *v).is_none()).collect();
        if !missing.is_empty() {
            return Some(Obstacle::Values(missing));
        }
    }
    result_types(graph, node).is_err().then_some(Obstacle::Type)
}
