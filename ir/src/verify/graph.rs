//! Rules of tensor graphs, stage by stage.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;

use super::prim::check_prim;
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::extent::Extents;
use crate::flow::{Flow, FlowTypes};
use crate::graph::{FusedCluster, FusionClass, Graph, GraphNode, NodeId, NodeKind, OpNode, Value};
use crate::prim::Prim;
use crate::types::{DenseType, Shape, TensorType};

/// How far a graph has come; each stage adds rules to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Structure only: types may be unknown.
    Imported,
    /// Every element type and rank is known; extents may be symbolic.
    Typed,
    /// Only inputs, constants, primitives and host operators; every type is dense, that of a
    /// primitive follows from its operands.
    Primitive,
    /// Only inputs, constants, clusters, concatenations, kernels, views and host operators; the
    /// body of every cluster fits its class.
    Fused,
}

/// Checks a graph against the rules of a stage.
///
/// At every stage: acyclic; operand ports dense and assigned once; every value used exists;
/// operators have operands, parameters and results as registered; the signature lists exactly the
/// input nodes; updates are of inputs, each once, and keep their type; constants have the type of their data. Primitives and clusters whose types are
/// dense are checked at any stage.
pub fn verify_graph(graph: &Graph, stage: Stage) -> Result<()> {
    signature(graph)?;
    for id in graph.node_ids() {
        let n = graph.node(id);
        structure(graph, id).and_then(|()| node(graph, id, stage)).map_err(|why| fail(why).at(&n.name))?;
    }
    acyclic(graph)
}

fn fail(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Verify, why)
}

fn exists(graph: &Graph, v: Value) -> bool {
    graph.contains(v.node) && usize::from(v.port) < graph.node(v.node).types.len()
}

fn signature(graph: &Graph) -> Result<()> {
    let mut seen = BTreeSet::new();
    for &id in graph.inputs() {
        if !graph.contains(id) || !matches!(graph.node(id).kind, NodeKind::Input) || !seen.insert(id) {
            return Err(fail("the signature lists something other than an input, or an input twice"));
        }
    }
    for (name, v) in graph.outputs() {
        if !exists(graph, *v) {
            return Err(fail(format!("output `{name}` is a value that does not exist")));
        }
    }
    if graph.boundary().is_some_and(|n| n > graph.outputs().len()) {
        return Err(fail("the first phase has more outputs than the graph"));
    }
    updates(graph)?;
    checks(graph)
}

/// What is checked are i64 scalars.
fn checks(graph: &Graph) -> Result<()> {
    let word = DenseType::new(DType::I64, []).into();
    for check in graph.checks() {
        let name = check.requirement.node.as_str().into();
        if !exists(graph, check.value) {
            return Err(fail("the value that is checked does not exist").at(&name));
        }
        if !may_agree(&graph.resolved(check.value), &word) {
            return Err(fail("what is checked is no i64 scalar").at(&name));
        }
    }
    Ok(())
}

/// Only inputs are updated, each once, with a value of their type.
fn updates(graph: &Graph) -> Result<()> {
    let mut seen = BTreeSet::new();
    for (of, v) in graph.updates() {
        if !graph.inputs().contains(of) {
            return Err(fail("an update of something other than an input"));
        }
        let name = &graph.node(*of).name;
        if !seen.insert(*of) {
            return Err(fail("the input is updated twice").at(name));
        }
        if !exists(graph, *v) {
            return Err(fail("the next value of the input does not exist").at(name));
        }
        let (old, new) = (graph.resolved(Value { node: *of, port: 0 }), graph.resolved(*v));
        if !may_agree(&old, &new) {
            return Err(fail("the types of the input and its next value differ").at(name));
        }
    }
    Ok(())
}

/// Whether two types are equal as far as they are known.
fn may_agree(a: &TensorType, b: &TensorType) -> bool {
    let dtypes = a.dtype.is_none() || b.dtype.is_none() || a.dtype == b.dtype;
    let dims = match (a.shape.dims(), b.shape.dims()) {
        (Some(a), Some(b)) => {
            let pairs = a.iter().zip(b).map(|(a, b)| (a.as_extent(), b.as_extent()));
            a.len() == b.len() && pairs.into_iter().all(|(a, b)| a.is_none() || b.is_none() || a == b)
        }
        _ => true,
    };
    dtypes && dims
}

fn acyclic(graph: &Graph) -> Result<()> {
    let mut position: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (i, id) in graph.order().into_iter().enumerate() {
        if let Some(v) = graph.args(id).iter().find(|v| !position.contains_key(&v.node)) {
            let operand = &graph.node(v.node).name;
            return Err(fail(format!("the node depends on itself through `{operand}`")).at(&graph.node(id).name));
        }
        position.insert(id, i);
    }
    Ok(())
}

/// What holds of any node at any stage.
fn structure(graph: &Graph, id: NodeId) -> Result<(), String> {
    let n = graph.node(id);
    let ports = graph.arg_ports(id);
    if let Some((i, (port, _))) = ports.iter().enumerate().find(|(i, (port, _))| usize::from(*port) != *i) {
        return Err(format!("operand port {i} is missing or assigned twice (found port {port})"));
    }
    if let Some((port, v)) = ports.iter().find(|(_, v)| !exists(graph, *v)) {
        return Err(format!("operand {port} is result {} of a node that does not have it", v.port));
    }
    match &n.kind {
        NodeKind::Input | NodeKind::Const(_) if !ports.is_empty() || n.types.len() != 1 => {
            Err("an input or constant has one result and no operands".into())
        }
        NodeKind::Input if !graph.inputs().contains(&id) => Err("an input that is not in the signature".into()),
        NodeKind::Const(data) if n.types[0].dense().as_ref() != Some(&data.ty) => {
            Err(format!("the type of the constant's data is {}", data.ty))
        }
        NodeKind::Op(op) => operator(graph, id, op, ports.len()),
        NodeKind::Prim(Prim::Flow(flow)) => flow.check(ports.len(), n.types.len()),
        _ => Ok(()),
    }
}

fn operator(graph: &Graph, id: NodeId, op: &OpNode, args: usize) -> Result<(), String> {
    let name = op.def.name;
    if op.slots.len() != args || op.slots.windows(2).any(|w| w[0] >= w[1]) {
        return Err(format!("{name}: the formal positions of the operands are not ascending, one for each"));
    }
    op.def.check_operands(&graph.operands(id)).map_err(|why| format!("{name}: {why}"))?;
    let (least, most) = op.def.outputs;
    let results = graph.node(id).types.len();
    if !(least..=most).contains(&results) {
        return Err(format!("{name}: {results} results, expected {least} to {most}"));
    }
    op.params.clone().complete(&op.def.params).map_err(|why| format!("{name}: {why}"))
}

/// The rules of the stage, and of primitives and clusters with known types.
fn node(graph: &Graph, id: NodeId, stage: Stage) -> Result<(), String> {
    let n = graph.node(id);
    types_known(graph, id, stage)?;
    if let NodeKind::Prim(Prim::Flow(f)) = &n.kind
        && f.by_host
    {
        return bodies(f, Stage::Imported);
    }
    if !graph.is_by_host(id) {
        allowed(n, stage)?;
    }
    let values = |ports: usize| (0..ports as u16).map(|port| Value { node: id, port });
    let dense = |v: Value| graph.resolved(v).dense();
    let inputs: Option<Vec<DenseType>> = graph.args(id).iter().map(|v| dense(*v)).collect();
    let outputs: Option<Vec<DenseType>> = values(n.types.len()).map(dense).collect();
    let (Some(inputs), Some(outputs)) = (inputs, outputs) else { return Ok(()) };
    match &n.kind {
        NodeKind::Prim(Prim::Flow(f)) => flow(f, &inputs, &outputs, stage),
        NodeKind::Prim(prim) => check_prim(prim, &inputs, &outputs),
        NodeKind::Fused(f) => cluster(f, &inputs, &outputs),
        _ => Ok(()),
    }
}

fn types_known(graph: &Graph, id: NodeId, stage: Stage) -> Result<(), String> {
    for port in 0..graph.node(id).types.len() as u16 {
        let ty = graph.resolved(Value { node: id, port });
        if stage >= Stage::Typed && (ty.dtype.is_none() || ty.shape == Shape::Unranked) {
            return Err(format!("the element type or rank of result {port} is unknown"));
        }
        if stage >= Stage::Primitive && ty.dense().is_none() && !graph.is_by_host(id) {
            return Err(format!("an extent of result {port} is unknown"));
        }
    }
    Ok(())
}

fn allowed(n: &GraphNode, stage: Stage) -> Result<(), String> {
    let kept = |prim: &Prim| {
        matches!(prim, Prim::Concat { .. } | Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_) | Prim::View(_))
    };
    match &n.kind {
        NodeKind::Op(op) if stage >= Stage::Primitive => Err(format!("operator `{}` is not decomposed", op.def.name)),
        NodeKind::Prim(prim) if stage >= Stage::Fused && !kept(prim) => Err("the primitive is in no cluster".into()),
        NodeKind::Fused(_) if stage < Stage::Fused => Err("a cluster before fusion".into()),
        _ => Ok(()),
    }
}

fn bodies(f: &Flow, stage: Stage) -> Result<(), String> {
    f.bodies.iter().try_for_each(|body| verify_graph(body, stage).map_err(|d| format!("in a body: {d}")))
}

/// A branch or loop: its bodies are graphs of the stage, and as soon as their types are known these are what the node
/// takes and gives.
fn flow(f: &Flow, inputs: &[DenseType], outputs: &[DenseType], stage: Stage) -> Result<(), String> {
    bodies(f, stage)?;
    if stage < Stage::Typed {
        return Ok(());
    }
    let FlowTypes { operands, results } = f.types()?;
    if operands != inputs {
        return Err("the inputs of the bodies are not of the types of the operands".into());
    }
    if results != outputs {
        return Err("the outputs of the bodies are not of the types of the results".into());
    }
    Ok(())
}

/// A cluster: its signature fits the node, its body is primitive and fits its class.
fn cluster(f: &FusedCluster, inputs: &[DenseType], outputs: &[DenseType]) -> Result<(), String> {
    let body = &*f.body;
    verify_graph(body, Stage::Primitive).map_err(|d| format!("in the cluster: {d}"))?;
    if !body.updates().is_empty() || !body.checks().is_empty() || body.boundary().is_some() {
        return Err("a cluster updates no inputs, checks nothing and runs in one phase".into());
    }
    let dense = |v: Value| body.resolved(v).dense();
    let found: Vec<_> = body.inputs().iter().map(|&node| dense(Value { node, port: 0 })).collect();
    if found != inputs.iter().cloned().map(Some).collect::<Vec<_>>() {
        return Err("the inputs of the cluster are not of the types of its operands".into());
    }
    let found: Vec<_> = body.outputs().iter().map(|(_, v)| dense(*v)).collect();
    if found != outputs.iter().cloned().map(Some).collect::<Vec<_>>() {
        return Err("the outputs of the cluster are not of the types of its results".into());
    }
    let mut prims: Vec<(NodeId, &Prim)> = vec![];
    for id in body.node_ids() {
        match &body.node(id).kind {
            NodeKind::Prim(p) => prims.push((id, p)),
            NodeKind::Op(_) | NodeKind::Fused(_) => return Err("a cluster may hold primitives only".into()),
            NodeKind::Input | NodeKind::Const(_) => {}
        }
    }
    if let Some(recipe) = f.recipe.filter(|recipe| !recipe.fits(f.class)) {
        return Err(format!("the recipe `{recipe}` is none of a {} cluster", f.class.name()));
    }
    match f.class {
        FusionClass::Map => map_class(&prims, outputs),
        FusionClass::Reduce => reduce_class(body, &prims),
        FusionClass::Contract => contract_class(body, &prims),
        FusionClass::Attention => attention_class(&prims),
    }
}

fn map_class(prims: &[(NodeId, &Prim)], outputs: &[DenseType]) -> Result<(), String> {
    match prims.iter().all(|(_, p)| matches!(p, Prim::Map(_) | Prim::View(_) | Prim::Gather(_))) {
        false => Err("a map cluster holds maps, views and gathers only".into()),
        true if outputs.windows(2).any(|w| w[0].dims != w[1].dims) => {
            Err("the results of a map cluster differ in shape".into())
        }
        true => Ok(()),
    }
}

fn reduce_class(body: &Graph, prims: &[(NodeId, &Prim)]) -> Result<(), String> {
    let mut space: Option<(&[usize], Extents)> = None;
    for (id, prim) in prims {
        match prim {
            Prim::Reduce(r) => {
                let dims = body
                    .args(*id)
                    .first()
                    .and_then(|v| body.resolved(*v).dense())
                    .map_or(Extents::default(), |t| t.dims);
                let here = (&r.axes[..], dims);
                if space.get_or_insert_with(|| here.clone()) != &here {
                    return Err("the reductions of a cluster differ in axes or operand shape".into());
                }
            }
            Prim::Map(_) | Prim::View(_) | Prim::Gather(_) => {}
            _ => return Err("a reduce cluster holds reductions, maps, views and gathers only".into()),
        }
    }
    space.map(|_| ()).ok_or_else(|| "a reduce cluster without a reduction".into())
}

fn attention_class(prims: &[(NodeId, &Prim)]) -> Result<(), String> {
    match prims.iter().filter(|(_, p)| matches!(p, Prim::Contract(_))).count() {
        2 => Ok(()),
        _ => Err("an attention cluster holds two products".into()),
    }
}

fn contract_class(body: &Graph, prims: &[(NodeId, &Prim)]) -> Result<(), String> {
    let contractions: Vec<NodeId> =
        prims.iter().filter(|(_, p)| matches!(p, Prim::Contract(_))).map(|(n, _)| *n).collect();
    let [contraction] = contractions[..] else { return Err("a contract cluster holds one contraction".into()) };
    let before = body.ancestors([contraction]);
    let views = prims.iter().filter(|(n, p)| matches!(p, Prim::View(_)) && !before.contains(n)).count();
    let others = |(n, p): &(NodeId, &Prim)| *n == contraction || matches!(p, Prim::Map(_) | Prim::View(_));
    match views <= 1 && prims.iter().all(others) {
        true => Ok(()),
        false => {
            Err("a contract cluster holds a contraction, maps, views of its operands and one of its result".into())
        }
    }
}
