//! What passes move between a graph and the bodies of its branches and loops.

use std::sync::Arc;

use tensorc_abi::{DType, Requirement};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::flow::{Flow, FlowKind, Loop};
use tensorc_ir::graph::{Check, Graph, NodeId, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::{DenseType, TensorData, TensorType};

use crate::results::result_types;

/// Confirms what bodies demand of values behind the branch or loop: the word of a check is a result, of a loop the largest of
/// all iterations, of a branch 0 if another was taken. Returns whether there were checks.
///
/// # Errors
/// A loop has no body, or several.
pub(crate) fn lift_checks(graph: &mut Graph) -> Result<bool> {
    let mut any = false;
    for node in graph.node_ids() {
        let Some(flow) = graph.flow(node) else { continue };
        if flow.bodies.iter().all(|body| body.checks().is_empty()) {
            continue;
        }
        any = true;
        let mut flow = flow.clone();
        let checks = match (&mut flow.kind, &mut flow.bodies[..]) {
            (FlowKind::If, bodies) => of_branches(bodies),
            (FlowKind::Loop(repeat), [body]) => of_loop(graph, node, repeat, body)?,
            _ => {
                let why = "a loop without a body";
                return Err(Diagnostic::new(DiagnosticCode::Verify, why).at(&graph.node(node).name));
            }
        };
        let Lifted { first, operands, requirements } = checks;
        let (mut types, mut args) = (result_types(graph, node)?, graph.args(node).to_vec());
        let first = first.min(types.len());
        let new = requirements.len();
        types.splice(first..first, vec![DenseType::new(DType::I64, []); new]);
        if let Some((at, zero)) = operands {
            args.splice(at..at, vec![zero; new]);
        }
        let port = |i: usize| if i < first { i } else { i + new };
        let made = replace(graph, node, flow, &args, &types, port);
        for (i, requirement) in requirements.into_iter().enumerate() {
            let value = Value { node: made, port: (first + i) as u16 };
            graph.add_check(Check { value, requirement });
        }
    }
    Ok(any)
}

/// Words of checks that are results of a flow now.
struct Lifted {
    /// The first of their ports.
    first: usize,
    /// The position of new operands, and what each is.
    operands: Option<(usize, Value)>,
    requirements: Vec<Requirement>,
}

fn of_branches(bodies: &mut [Graph]) -> Lifted {
    let checks: Vec<Vec<Check>> = bodies.iter().map(|body| body.checks().to_vec()).collect();
    for (i, body) in bodies.iter_mut().enumerate() {
        body.clear_checks();
        for (of, check) in checks.iter().enumerate().flat_map(|(of, list)| list.iter().map(move |check| (of, check))) {
            let word = match of == i {
                true => check.value,
                false => body.add_const("no_check", TensorData::scalar(Scalar::i64(0))),
            };
            body.add_output("check", word);
        }
    }
    let requirements = checks.into_iter().flatten().map(|check| check.requirement).collect();
    Lifted { first: usize::MAX, operands: None, requirements }
}

fn of_loop(graph: &mut Graph, node: NodeId, repeat: &mut Loop, body: &mut Graph) -> Result<Lifted> {
    let checks = body.checks().to_vec();
    body.clear_checks();
    let first = repeat.carried;
    let at = usize::from(repeat.conditional) + first;
    for check in &checks {
        carry_largest(body, 1 + repeat.carried, check.value)?;
        repeat.carried += 1;
    }
    let name = format!("{}_check", graph.node(node).name);
    let zero = graph.add_const(name, TensorData::scalar(Scalar::i64(0)));
    let requirements = checks.into_iter().map(|check| check.requirement).collect();
    Ok(Lifted { first, operands: Some((at, zero)), requirements })
}

/// Carries the largest value of an i64 scalar from one iteration to the next, as input `at`.
fn carry_largest(body: &mut Graph, at: usize, value: Value) -> Result<()> {
    let internal = |why| Diagnostic::new(DiagnosticCode::Internal, why);
    let larger = ScalarFn::build(&[DType::I64; 2], |_, x| vec![x[0].max(&x[1])]).map_err(internal)?;
    let word = DenseType::new(DType::I64, []);
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
