//! Type and shape inference of a whole graph, and binding of concrete input shapes.
//!
//! A worklist visits each node after its operands once; a node is visited again only when a type
//! it touches became better known, so a graph of concrete shapes takes one visit per node.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::dim::Origin;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::infer::infer_node;
use tensorc_ir::interp::eval_node;
use tensorc_ir::op::{Compute, Registry};
use tensorc_ir::{DenseType, Dim, MAX_RANK, Shape, TensorData, TensorType};

use crate::manager::{Pass, PassCx};
use crate::results::results;
use crate::values::StaticValues;

/// Infers every type that follows from what is known. Types may stay open where they depend on
/// run-time data or on unbound dimensions; see [`crate::parts`].
#[derive(Clone, Copy, Debug, Default)]
pub struct InferTypes;

impl Pass for InferTypes {
    fn name(&self) -> &'static str {
        "infer"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        infer_graph(graph, cx.registry, cx.options.static_bytes)
    }
}

/// Runs inference to its fixpoint; host operators whose operands are all known at compile time are
/// replaced by their results on the way, and what is computed for operands that must be known by constants. Returns
/// whether anything was learnt.
pub fn infer_graph(graph: &mut Graph, registry: &Registry, static_bytes: u64) -> Result<bool> {
    infer_assuming(graph, registry, static_bytes, &Assumptions::default())
}

/// What inference assumes beside what the graph tells.
#[derive(Default)]
pub(crate) struct Assumptions {
    /// Elements of values.
    pub elements: BTreeMap<Value, TensorData>,
    /// Values that are taken as unknown, unless `elements` has them.
    pub withheld: BTreeSet<Value>,
    /// Whether nodes stay in the graph when nothing uses them any more.
    pub keeps_unused: bool,
}

impl Assumptions {
    /// What is known at compile time on these assumptions.
    pub fn values<'r>(&self, registry: &'r Registry, static_bytes: u64) -> StaticValues<'r> {
        StaticValues::new(registry, static_bytes).assuming(&self.elements).withholding(&self.withheld)
    }
}

/// As [`infer_graph`], on assumptions.
pub(crate) fn infer_assuming(
    graph: &mut Graph,
    registry: &Registry,
    static_bytes: u64,
    assumed: &Assumptions,
) -> Result<bool> {
    let mut any = graph.change_bodies(&mut |body| infer_graph(body, registry, static_bytes))?;
    loop {
        let values = assumed.values(registry, static_bytes);
        any |= fixpoint(graph, &values)?;
        representable(graph)?;
        values.learned();
        let evaluated = evaluate_host(graph, registry, &values)?;
        let stated = state_operands(graph, &values);
        any |= !stated.is_empty();
        for node in evaluated.iter().chain(&stated).filter(|_| !assumed.keeps_unused) {
            graph.remove_if_dead(*node);
        }
        if evaluated.is_empty() {
            return Ok(any);
        }
        any = true;
    }
}

/// Whether every tensor has as few axes as are supported and, if its type is known, as few bytes as a machine can address.
fn representable(graph: &Graph) -> Result<()> {
    for node in graph.node_ids() {
        let name = &graph.node(node).name;
        for v in results(graph, node) {
            let refuse = |why| Err(Diagnostic::new(DiagnosticCode::Limit, why).at(name));
            if let Some(rank) = graph.ty(v).shape.rank().filter(|rank| *rank > MAX_RANK) {
                return refuse(format!("a tensor of {rank} axes, {MAX_RANK} at most are supported"));
            }
            let Some(ty) = graph.resolved(v).dense() else { continue };
            if !ty.is_addressable() {
                let port = v.port;
                return refuse(format!("output {port} would be {ty}, which has more bytes than a machine can address"));
            }
        }
    }
    Ok(())
}

/// The values around a node, operands first.
fn around(graph: &Graph, node: NodeId) -> Vec<Value> {
    graph.args(node).into_iter().chain(results(graph, node)).collect()
}

/// Their types.
fn touched(graph: &Graph, node: NodeId) -> Vec<TensorType> {
    around(graph, node).into_iter().map(|v| graph.resolved(v)).collect()
}

struct Worklist {
    /// Position of each node in the order of visits.
    rank: BTreeMap<NodeId, usize>,
    queue: BTreeSet<(usize, NodeId)>,
    /// Nodes whose types or static operands were not fully known at their last visit, with what was.
    open: BTreeMap<NodeId, Vec<TensorType>>,
}

impl Worklist {
    fn push(&mut self, node: NodeId) {
        if let Some(rank) = self.rank.get(&node) {
            self.queue.insert((*rank, node));
        }
    }

    /// Queues the nodes that touch a changed value.
    fn push_around(&mut self, graph: &Graph, v: Value, except: NodeId) {
        let users = graph.uses(v.node).into_iter().filter(|(_, _, used)| *used == v).map(|(user, ..)| user);
        for node in users.chain([v.node]).filter(|n| *n != except) {
            self.push(node);
        }
    }
}

fn fixpoint(graph: &mut Graph, values: &StaticValues<'_>) -> Result<bool> {
    let ops: Vec<NodeId> =
        graph.order().into_iter().filter(|n| matches!(graph.node(*n).kind, NodeKind::Op(_))).collect();
    let rank: BTreeMap<NodeId, usize> = ops.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let queue = ops.iter().enumerate().map(|(i, n)| (i, *n)).collect();
    let mut list = Worklist { rank, queue, open: BTreeMap::new() };
    let mut any = false;
    loop {
        while let Some((_, node)) = list.queue.pop_first() {
            any |= visit(graph, node, values, &mut list)?;
        }
        graph.dims.solve().map_err(|c| {
            let origin = c.found_from.clone().or(c.expected_from.clone());
            let d =
                Diagnostic::new(DiagnosticCode::TypeConflict, format!("expected {}, found {}", c.expected, c.found));
            origin.map_or(d.clone(), |Origin(name)| d.at(&name))
        })?;
        let stale: Vec<NodeId> =
            list.open.iter().filter(|(n, seen)| touched(graph, **n) != **seen).map(|(n, _)| *n).collect();
        if stale.is_empty() {
            return Ok(any);
        }
        values.learned();
        any = true;
        stale.into_iter().for_each(|n| list.push(n));
    }
}

/// Infers one node and queues what its news concern. Returns whether there was news.
fn visit(graph: &mut Graph, node: NodeId, values: &StaticValues<'_>, list: &mut Worklist) -> Result<bool> {
    let before = touched(graph, node);
    infer_node(graph, node, &|g, v| values.get(g, v))?;
    let after = touched(graph, node);
    let changed = before != after;
    if changed {
        values.learned();
        let types = before.iter().zip(&after);
        for (v, _) in around(graph, node).into_iter().zip(types).filter(|(_, (old, new))| old != new) {
            list.push_around(graph, v, node);
        }
    }
    let NodeKind::Op(op) = &graph.node(node).kind else { return Ok(changed) };
    let static_inputs = op.def.static_inputs.clone();
    let operands = graph.operands(node);
    let missing = static_inputs
        .into_iter()
        .filter_map(|i| operands.get(i).copied().flatten())
        .any(|v| values.get(graph, v).is_none());
    match missing || after.iter().any(|t| t.dense().is_none()) {
        true => list.open.insert(node, after),
        false => list.open.remove(&node),
    };
    Ok(changed)
}

/// Replaces host operators over compile-time values by their results, and gives these operators.
fn evaluate_host(graph: &mut Graph, registry: &Registry, values: &StaticValues<'_>) -> Result<Vec<NodeId>> {
    let mut ready = vec![];
    for node in graph.order() {
        let host = matches!(&graph.node(node).kind, NodeKind::Op(op) if matches!(op.def.compute, Compute::Host(_)));
        let used = !graph.uses(node).is_empty() || graph.is_root(node);
        if !host || !used || results(graph, node).any(|v| values.withholds(v)) {
            continue;
        }
        let operands = graph.operands(node);
        let known: Vec<Option<TensorData>> = operands.iter().map(|v| v.and_then(|v| values.get(graph, v))).collect();
        if operands.iter().zip(&known).all(|(v, k)| v.is_some() == k.is_some()) {
            ready.push((node, eval_node(graph, node, registry, &known)?));
        }
    }
    for (node, results) in &ready {
        replace_by_constants(graph, *node, results);
    }
    Ok(ready.into_iter().map(|(node, _)| node).collect())
}

/// Replaces operands that must be known at compile time, as far as they are, by constants, so that they are computed
/// once. Gives the nodes that computed them.
fn state_operands(graph: &mut Graph, values: &StaticValues<'_>) -> Vec<NodeId> {
    let mut stated: BTreeMap<Value, Value> = BTreeMap::new();
    for node in graph.order() {
        let NodeKind::Op(op) = &graph.node(node).kind else { continue };
        let ports = op.slots.iter().enumerate().filter(|(_, slot)| op.def.static_inputs.contains(&(**slot as usize)));
        let ports: Vec<u16> = ports.map(|(port, _)| port as u16).collect();
        let args = graph.args(node);
        for port in ports {
            let v = args[port as usize];
            if graph.constant(v).is_some() {
                continue;
            }
            let known = stated.get(&v).copied().or_else(|| {
                let data = values.get(graph, v)?;
                let name = graph.node(v.node).name.clone();
                Some(*stated.entry(v).or_insert(graph.add_const(name, data)))
            });
            known.into_iter().for_each(|constant| graph.set_arg(node, port, constant));
        }
    }
    stated.into_keys().map(|v| v.node).collect()
}

/// Makes every user of `node` use constants instead.
pub(crate) fn replace_by_constants(graph: &mut Graph, node: NodeId, results: &[TensorData]) {
    let name = graph.node(node).name.clone();
    for (port, data) in results.iter().enumerate().take(graph.node(node).types.len()) {
        let constant = graph.add_const(name.clone(), data.clone());
        graph.replace_uses(Value { node, port: port as u16 }, constant);
    }
}

/// Gives inputs concrete types, in signature order; conflicts name the input.
pub fn bind(graph: &mut Graph, types: &[DenseType]) -> Result<()> {
    let inputs = graph.inputs().to_vec();
    if inputs.len() != types.len() {
        let why = format!("the graph takes {} inputs, {} given", inputs.len(), types.len());
        return Err(Diagnostic::new(DiagnosticCode::Operands, why));
    }
    for (node, ty) in inputs.into_iter().zip(types) {
        bind_input(graph, node, ty)?;
    }
    Ok(())
}

/// Gives the inputs of these names concrete types; the others stay as they are.
pub fn bind_named(graph: &mut Graph, types: &[(&str, DenseType)]) -> Result<()> {
    for (name, ty) in types {
        let found = graph.inputs().iter().copied().find(|n| &*graph.node(*n).name == *name);
        let Some(node) = found else {
            let known: Vec<String> = graph.inputs().iter().map(|n| graph.node(*n).name.to_string()).collect();
            let why = format!("the graph has no input `{name}`; inputs: {}", known.join(", "));
            return Err(Diagnostic::new(DiagnosticCode::Operands, why));
        };
        bind_input(graph, node, ty)?;
    }
    Ok(())
}

fn bind_input(graph: &mut Graph, node: NodeId, ty: &DenseType) -> Result<()> {
    let name = graph.node(node).name.clone();
    let fail = |why: String| Diagnostic::new(DiagnosticCode::TypeConflict, why).at(&name);
    if !ty.is_addressable() {
        return Err(fail(format!("{ty} has more bytes than a machine can address")));
    }
    let declared = graph.node(node).types[0].clone();
    if let Some(dtype) = declared.dtype.filter(|d| *d != ty.dtype) {
        return Err(fail(format!("the input is declared {dtype}, {} given", ty.dtype)));
    }
    if let Shape::Ranked(dims) = &declared.shape {
        if dims.len() != ty.rank() {
            return Err(fail(format!("the input is declared with rank {}, rank {} given", dims.len(), ty.rank())));
        }
        for (axis, (dim, given)) in dims.iter().zip(ty.dims.all()).enumerate() {
            let unified = graph.dims.unify(*dim, Dim::of(given), &Origin(name.clone()));
            unified.map_err(|c| {
                let from = c.expected_from.map_or(String::new(), |Origin(o)| format!(" (from `{o}`)"));
                fail(format!("axis {axis}: expected {}{from}, {given} given", c.expected))
            })?;
        }
    }
    graph.node_mut(node).types[0] = ty.clone().into();
    Ok(())
}
