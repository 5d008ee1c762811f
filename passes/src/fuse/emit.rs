//! The fused graph of a fusion plan.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{FusedCluster, FusionClass, Graph, NodeId, NodeKind, Value};

use super::plan::{FusionPlan, Unit};

use crate::results::results;

/// Builds the graph in which every cluster is one node.
pub fn emit(plan: &FusionPlan<'_>) -> Result<Graph> {
    let old = plan.graph;
    let order = plan.unit_order();
    let read = plan.read_values();
    let mut new = Graph::new(old.name.clone());
    new.dims = old.dims.clone();
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    for &node in old.inputs() {
        let n = old.node(node);
        map.insert(Value { node, port: 0 }, new.add_input(n.name.clone(), n.types[0].clone()));
    }
    for unit in order {
        match unit {
            Unit::Node(node) => emit_node(plan, &mut new, &mut map, node)?,
            Unit::Cluster(c) => emit_cluster(plan, &mut new, &mut map, c, &read)?,
        }
    }
    for (name, v) in old.outputs() {
        new.add_output(name.clone(), mapped(plan, &map, *v)?);
    }
    new.keep_effects(old, |v| mapped(plan, &map, v))?;
    Ok(new)
}

fn mapped(plan: &FusionPlan<'_>, map: &BTreeMap<Value, Value>, v: Value) -> Result<Value> {
    let missing = || Diagnostic::new(DiagnosticCode::Internal, "fusion lost a value").at(&plan.graph.node(v.node).name);
    map.get(&v).copied().ok_or_else(missing)
}

fn emit_node(plan: &FusionPlan<'_>, new: &mut Graph, map: &mut BTreeMap<Value, Value>, node: NodeId) -> Result<()> {
    let n = plan.graph.node(node);
    let args = plan.args(node).iter().map(|v| mapped(plan, map, *v)).collect::<Result<Vec<_>>>()?;
    let id = match &n.kind {
        NodeKind::Input => return Ok(()),
        NodeKind::Const(data) => new.add_const(n.name.clone(), data.clone()).node,
        NodeKind::Prim(prim) => new.add_prim(n.name.clone(), prim.clone(), &args, plan.types(node)),
        NodeKind::Fused(fused) => new.add_fused(n.name.clone(), fused.clone(), &args, plan.types(node)),
        NodeKind::Op(op) => {
            let why = format!("operator `{}` must be decomposed before fusion", op.def.name);
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&n.name));
        }
    };
    new.node_mut(id).history = n.history.clone();
    map.extend(results(plan.graph, node).map(|v| (v, Value { node: id, ..v })));
    Ok(())
}

fn emit_cluster(
    plan: &FusionPlan<'_>,
    new: &mut Graph,
    map: &mut BTreeMap<Value, Value>,
    cluster: usize,
    read: &BTreeSet<Value>,
) -> Result<()> {
    let old = plan.graph;
    let c = &plan.clusters[cluster];
    let mut body = Graph::new("");
    let mut inner: BTreeMap<Value, Value> = BTreeMap::new();
    let mut args = vec![];
    for v in plan.externals(Unit::Cluster(cluster)) {
        let name = old.node(v.node).name.clone();
        let here = match old.constant(v) {
            Some(data) if plan.is_scalar_const(v) => body.add_const(name, data.clone()),
            _ => {
                args.push(mapped(plan, map, v)?);
                body.add_input(name, plan.ty(v).clone().into())
            }
        };
        inner.insert(v, here);
    }
    let outputs = plan.outputs(cluster, read);
    for (_, node) in &c.members {
        let n = old.node(*node);
        let NodeKind::Prim(prim) = &n.kind else { continue };
        let operands = plan.args(*node).iter().map(|v| mapped(plan, &inner, *v)).collect::<Result<Vec<_>>>()?;
        let id = body.add_prim(n.name.clone(), prim.clone(), &operands, plan.types(*node));
        inner.extend(results(old, *node).map(|v| (v, Value { node: id, ..v })));
    }
    for v in &outputs {
        body.add_output(old.node(v.node).name.clone(), mapped(plan, &inner, *v)?);
    }
    let types: Vec<_> = outputs.iter().map(|v| plan.ty(*v).clone()).collect();
    let named = match c.class {
        FusionClass::Contract => c.anchor,
        _ => outputs.last().map_or(c.anchor, |v| v.node),
    };
    let fused = FusedCluster::new(c.class, body);
    let id = new.add_fused(old.node(named).name.clone(), fused, &args, &types);
    for (port, v) in outputs.into_iter().enumerate() {
        map.insert(v, Value { node: id, port: port as u16 });
    }
    Ok(())
}
