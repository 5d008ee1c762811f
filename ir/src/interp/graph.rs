//! Evaluation of whole graphs at any stage of compilation.

use std::collections::BTreeMap;

use tensorc_abi::image::found;
use tensorc_abi::{BrokenRequirement, Requirement};

use super::flow::eval_flow;
use super::prim::eval_prim;
use crate::data_files::DataFiles;
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::expand::{Expanded, expand_node};
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::infer::infer_node;
use crate::interrupt::PassLimits;
use crate::op::{Compute, Grain, NodeCtx, Registry};
use crate::prim::Prim;
use crate::tensor::TensorData;
use crate::types::DenseType;

/// Evaluates a graph on inputs in signature order; returns its outputs. A check that fails is an error.
pub fn eval_graph(graph: &Graph, registry: &Registry, inputs: &[TensorData]) -> Result<Vec<TensorData>> {
    eval_values(graph, registry, inputs, graph.outputs().iter().map(|(_, v)| *v).collect())
}

/// Evaluates a graph on inputs in signature order; returns its outputs, and the next values of the
/// inputs it updates, in the order of [`Graph::states`].
pub fn eval_step(
    graph: &Graph,
    registry: &Registry,
    inputs: &[TensorData],
) -> Result<(Vec<TensorData>, Vec<TensorData>)> {
    let outputs = graph.outputs().iter().map(|(_, v)| *v);
    let mut values =
        eval_values(graph, registry, inputs, outputs.chain(graph.states().into_iter().map(|(_, v)| v)).collect())?;
    let states = values.split_off(graph.outputs().len());
    Ok((values, states))
}

fn eval_values(
    graph: &Graph,
    registry: &Registry,
    inputs: &[TensorData],
    wanted: Vec<Value>,
) -> Result<Vec<TensorData>> {
    if inputs.len() != graph.inputs().len() {
        let why = format!("graph takes {} inputs, {} given", graph.inputs().len(), inputs.len());
        return Err(Diagnostic::new(DiagnosticCode::Operands, why));
    }
    DataFiles::of(graph).confirm(eval_nodes(graph, registry, inputs, wanted))
}

fn eval_nodes(
    graph: &Graph,
    registry: &Registry,
    inputs: &[TensorData],
    wanted: Vec<Value>,
) -> Result<Vec<TensorData>> {
    let mut values: BTreeMap<Value, TensorData> = BTreeMap::new();
    for (node, data) in graph.inputs().iter().zip(inputs) {
        values.insert(Value { node: *node, port: 0 }, data.clone());
    }
    for node in graph.order() {
        if matches!(graph.node(node).kind, NodeKind::Input) {
            continue;
        }
        let args: Vec<Option<&TensorData>> =
            graph.operands(node).iter().map(|v| v.and_then(|v| values.get(&v))).collect();
        let args: Vec<Option<TensorData>> = args.into_iter().map(Option::<&_>::cloned).collect();
        for (port, data) in eval_node(graph, node, registry, &args)?.into_iter().enumerate() {
            values.insert(Value { node, port: port as u16 }, data);
        }
    }
    let value = |v: Value| {
        values.get(&v).ok_or_else(|| {
            let why = format!("result {} is wanted, but has no value", v.port);
            Diagnostic::new(DiagnosticCode::Verify, why).at(&graph.node(v.node).name)
        })
    };
    for check in graph.checks() {
        confirm(&check.requirement, value(check.value)?)?;
    }
    wanted.into_iter().map(|v| value(v).cloned()).collect()
}

/// Whether the word of a check says that a requirement holds.
///
/// # Errors
/// It does not, or there is no word.
pub fn confirm(requirement: &Requirement, word: &TensorData) -> Result<()> {
    let word = word.item().ok_or_else(|| Diagnostic::new(DiagnosticCode::Verify, "what is checked is no scalar"))?;
    match found(word.as_i64()) {
        None => Ok(()),
        Some(value) => Err(Diagnostic::broken(&BrokenRequirement { requirement: requirement.clone(), value })),
    }
}

/// Evaluates one node on operand values by formal position.
pub fn eval_node(
    graph: &Graph,
    node: NodeId,
    registry: &Registry,
    args: &[Option<TensorData>],
) -> Result<Vec<TensorData>> {
    let n = graph.node(node);
    let present: Vec<&TensorData> = args.iter().flatten().collect();
    match &n.kind {
        NodeKind::Input => {
            Err(Diagnostic::new(DiagnosticCode::Internal, "an input has no definition to evaluate").at(&n.name))
        }
        NodeKind::Const(data) => Ok(vec![data.clone()]),
        NodeKind::Prim(Prim::Flow(flow)) => {
            let operands: Vec<TensorData> = present.into_iter().cloned().collect();
            eval_flow(flow, &operands, registry).map_err(|d| d.at(&n.name))
        }
        NodeKind::Prim(prim) => {
            let outputs = (0..n.types.len() as u16).map(|port| graph.dense(Value { node, port }));
            eval_prim(prim, &present, &outputs.collect::<Result<Vec<_>>>()?, registry.math()).map_err(|d| d.at(&n.name))
        }
        NodeKind::Fused(f) => {
            let inputs: Vec<TensorData> = present.into_iter().cloned().collect();
            eval_graph(&f.body, registry, &inputs).map_err(|d| d.at(&n.name))
        }
        NodeKind::Op(_) => eval_op(graph, node, registry, args),
    }
}

/// Evaluates an operator by itself: types follow from the operand values.
fn eval_op(graph: &Graph, node: NodeId, registry: &Registry, args: &[Option<TensorData>]) -> Result<Vec<TensorData>> {
    let n = graph.node(node);
    let NodeKind::Op(op) = &n.kind else {
        return Err(Diagnostic::new(DiagnosticCode::Internal, "not an operator").at(&n.name));
    };
    if let Compute::Host(body) = &op.def.compute {
        let types: Vec<Option<DenseType>> = args.iter().map(|a| a.as_ref().map(|t| t.ty.clone())).collect();
        let cx = NodeCtx { params: &op.params, grain: Grain::Coarse, inputs: &types, outputs: &[], values: args };
        return body(&cx, args)
            .map_err(|e| Diagnostic::new(DiagnosticCode::Operands, format!("{}: {}", op.def.name, e.0)).at(&n.name));
    }
    let mut alone = Graph::new("");
    let operands: Vec<Option<Value>> =
        args.iter().map(|a| a.as_ref().map(|t| alone.add_const(n.name.clone(), t.clone()))).collect();
    let id = alone.add_op(n.name.clone(), &op.def, &operands, op.params.clone(), n.types.len())?;
    let value_of = |g: &Graph, v: Value| g.constant(v).cloned();
    infer_node(&mut alone, id, &value_of)?;
    let results = match expand_node(&mut alone, id, registry, &value_of, Grain::Coarse, PassLimits::default())? {
        Expanded::Replaced(values) => values,
        Expanded::Host => {
            return Err(Diagnostic::new(DiagnosticCode::Internal, "host operator was not evaluated").at(&n.name));
        }
    };
    for (i, v) in results.into_iter().enumerate() {
        alone.add_output(format!("{i}"), v);
    }
    alone.remove_dead();
    eval_graph(&alone, registry, &[])
}
