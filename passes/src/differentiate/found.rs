//! Graphs that are divided where shapes depend on values, before they are differentiated part by part.

use std::collections::BTreeSet;

use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, OpNode, Value};
use tensorc_ir::op::{Compute, Grad, Registry};

use super::active::{Active, operands};
use crate::infer::infer_graph;
use crate::results::results;
use crate::values::StaticValues;

/// How far back two values are compared.
const MAX_DEPTH: usize = 8;

/// Lets operators that find elements find positions only: what they deliver is taken at these positions ([`Grad::Found`]). Those that
/// find the same are one then, so that it is known that there are as many. Types follow again as far as they did.
///
/// # Errors
/// Types contradict each other.
pub fn expand_found(graph: &mut Graph, registry: &Registry, static_bytes: u64) -> Result<()> {
    let found: Vec<NodeId> = graph.order().into_iter().filter(|node| host(graph, *node).is_some()).collect();
    for node in found {
        let Some(op) = host(graph, node).cloned() else { continue };
        let Grad::Found(body) = &op.def.grad else { continue };
        let (name, count, given) = (graph.node(node).name.clone(), graph.node(node).types.len(), graph.operands(node));
        let values = StaticValues::new(registry, static_bytes);
        let value_of = |g: &Graph, v: Value| values.get(g, v);
        let mut builder = Builder::new(graph, registry, name.clone(), &value_of);
        let made = body(&mut builder, &op.params, &given, count).map_err(|d| d.at(&name))?;
        let old: Vec<Value> = results(graph, node).collect();
        old.into_iter().zip(made).for_each(|(old, new)| graph.replace_uses(old, new));
        graph.remove_if_dead(node);
    }
    infer_graph(graph, registry, static_bytes)?;
    if merge(graph) {
        infer_graph(graph, registry, static_bytes)?;
    }
    Ok(())
}

/// Merges operators that find the same. Returns whether there were some.
fn merge(graph: &mut Graph) -> bool {
    let mut kept: Vec<NodeId> = vec![];
    let mut merged = false;
    for node in graph.order().into_iter().filter(|node| host(graph, *node).is_some()).collect::<Vec<_>>() {
        let first = |of: &NodeId| Value { node: *of, port: 0 };
        let alike = |other: &&NodeId| {
            graph.node(**other).types.len() == graph.node(node).types.len()
                && same(graph, first(other), first(&node), MAX_DEPTH)
        };
        let Some(other) = kept.iter().find(alike).copied() else {
            kept.push(node);
            continue;
        };
        let old: Vec<Value> = results(graph, node).collect();
        old.into_iter().for_each(|v| graph.replace_uses(v, Value { node: other, port: v.port }));
        graph.remove_if_dead(node);
        merged = true;
    }
    merged
}

/// Whether two values are computed alike.
fn same(graph: &Graph, a: Value, b: Value, depth: usize) -> bool {
    if a == b {
        return true;
    }
    if let (Some(a), Some(b)) = (graph.constant(a), graph.constant(b)) {
        return a.ty == b.ty && !a.is_open() && !b.is_open() && a.bytes() == b.bytes();
    }
    let (NodeKind::Op(first), NodeKind::Op(second)) = (&graph.node(a.node).kind, &graph.node(b.node).kind) else {
        return false;
    };
    let alike = a.port == b.port
        && first.def.name == second.def.name
        && first.def.key_input.is_none()
        && first.params == second.params;
    let (given, others) = (graph.operands(a.node), graph.operands(b.node));
    let operand = |(a, b): (&Option<Value>, &Option<Value>)| match (a, b) {
        (Some(a), Some(b)) => same(graph, *a, *b, depth.saturating_sub(1)),
        (a, b) => a.is_none() && b.is_none(),
    };
    alike && depth > 0 && given.len() == others.len() && given.iter().zip(&others).all(operand)
}

fn host(graph: &Graph, node: NodeId) -> Option<&OpNode> {
    match &graph.node(node).kind {
        NodeKind::Op(op) if matches!(op.def.compute, Compute::Host(_)) => Some(op),
        _ => None,
    }
}

/// The floats through which gradients pass from `heads` to `wrt`, both included.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`], with the operator and the node, if an operator of the host is in the way.
pub fn passed(graph: &Graph, heads: &[Value], wrt: &[Value]) -> Result<BTreeSet<Value>> {
    let active = Active::of(graph, heads, wrt);
    for node in &active.order {
        if graph.flow(*node).is_some_and(|flow| flow.by_host) {
            let why = "a branch or loop that the host runs has no gradient: its types follow from values";
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&graph.node(*node).name));
        }
        let Some(op) = host(graph, *node) else { continue };
        let why = match &op.def.grad {
            Grad::None(why) => why,
            _ => "it is computed by the host",
        };
        let why = format!("{} has no gradient: {why}", op.def.name);
        return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&graph.node(*node).name));
    }
    let made = active.order.iter().flat_map(|node| results(graph, *node).chain(operands(graph, *node)));
    Ok(made.chain(heads.iter().copied()).filter(|v| active.varies.contains(v)).collect())
}
