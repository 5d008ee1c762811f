//! What passes move between a graph and the bodies of its branches and loops.

use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::flow::{Flow, FlowKind};
use tensorc_ir::graph::{Check, Graph, NodeId, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::{DenseType, TensorData, TensorType};

use crate::results::result_types;

/// Confirms what the bodies of loops demand of values after the loop: the word of a check is carried on, as the largest of
/// all iterations. Returns whether there were checks.
pub(crate) fn lift_checks(graph: &mut Graph) -> Result<bool> {
    let mut any = false;
    for node in graph.node_ids() {
        let Some(flow) = graph.flow(node) else { continue };
        if flow.bodies.iter().all(|body| body.checks().is_empty()) {
            continue;
        }
        any = true;
        let mut flow = flow.clone();
        let (FlowKind::Loop(repeat), [body]) = (&mut flow.kind, &mut flow.bodies[..]) else {
            let why = "a check in a branch, which need not be taken";
            return Err(Diagnostic::new(DiagnosticCode::Internal, why).at(&graph.node(node).name));
        };
        let checks = body.checks().to_vec();
        body.clear_checks();
        let (first, new) = (repeat.carried, checks.len());
        let operands = usize::from(repeat.conditional) + first;
        for check in &checks {
            carry_largest(body, 1 + repeat.carried, check.value)?;
            repeat.carried += 1;
        }
        let word = DenseType::new(DType::I64, &[]);
        let mut types = result_types(graph, node)?.to_vec();
        let mut args = graph.args(node).to_vec();
        let name = &graph.node(node).name;
        let zero = graph.add_const(format!("{name}_check"), TensorData::scalar(Scalar::i64(0)));
        args.splice(operands..operands, vec![zero; new]);
        types.splice(first..first, vec![word; new]);
        let port = |old: usize| if old < first { old } else { old + new };
        let made = replace(graph, node, flow, &args, &types, port);
        for (i, check) in checks.into_iter().enumerate() {
            let value = Value { node: made, port: (first + i) as u16 };
            graph.add_check(Check { value, requirement: check.requirement });
        }
    }
    Ok(any)
}

/// Carries the largest value of an i64 scalar from one iteration to the next, as input `at`.
fn carry_largest(body: &mut Graph, at: usize, value: Value) -> Result<()> {
    let internal = |why| Diagnostic::new(DiagnosticCode::Internal, why);
    let larger = ScalarFn::build(&[DType::I64; 2], |_, x| vec![x[0].max(&x[1])]).map_err(internal)?;
    let word = DenseType::new(DType::I64, &[]);
    let name: Arc<str> = body.node(value.node).name.clone();
    let so_far = body.insert_input(at, name.clone(), TensorType::from(word.clone()));
    let node = body.add_prim(name, Prim::Map(larger.into()), &[so_far, value], &[word]);
    body.add_update(so_far.node, Value { node, port: 0 });
    Ok(())
}

/// Moves constants that every iteration or a branch reads into the bodies, where they can be folded and packed. Returns the
/// nodes whose bodies changed.
pub(crate) fn sink_constants(graph: &mut Graph) -> Result<Vec<NodeId>> {
    let mut found = vec![];
    for node in graph.node_ids() {
        let Some(flow) = graph.flow(node) else { continue };
        // Inputs of bodies and operands in the same order.
        let (operands, inputs) = match &flow.kind {
            FlowKind::If => (1, 0),
            FlowKind::Loop(repeat) => (repeat.own_operands(), repeat.own_inputs()),
        };
        let args = graph.args(node);
        let constant = |i: &usize| graph.constant(args[*i]).is_some();
        let sunk: Vec<usize> = (operands..args.len()).filter(constant).collect();
        if sunk.is_empty() {
            continue;
        }
        let mut flow = flow.clone();
        for body in &mut flow.bodies {
            let read: Vec<NodeId> = sunk.iter().map(|i| body.inputs()[inputs + i - operands]).collect();
            for (input, i) in read.into_iter().zip(&sunk) {
                let Some(data) = graph.constant(args[*i]) else { continue };
                let here = body.add_const(graph.node(args[*i].node).name.clone(), data.clone());
                body.replace_uses(Value { node: input, port: 0 }, here);
                body.remove_input(input);
            }
            body.remove_dead();
        }
        let kept: Vec<Value> = (0..args.len()).filter(|i| !sunk.contains(i)).map(|i| args[i]).collect();
        let types = result_types(graph, node)?;
        found.push(replace(graph, node, flow, &kept, &types, |port| port));
    }
    Ok(found)
}

/// Puts a flow in the place of another whose result `i` is its result `port(i)`.
fn replace(
    graph: &mut Graph,
    node: NodeId,
    flow: Flow,
    args: &[Value],
    types: &[DenseType],
    port: impl Fn(usize) -> usize,
) -> NodeId {
    let old = graph.node(node);
    let (name, history, results) = (old.name.clone(), old.history.clone(), old.types.len());
    let made = graph.add_prim(name, Prim::Flow(flow.into()), args, types);
    graph.node_mut(made).history = history;
    for i in 0..results {
        graph.replace_uses(Value { node, port: i as u16 }, Value { node: made, port: port(i) as u16 });
    }
    graph.remove_if_dead(node);
    made
}
