//! Branches and loops written out, for targets whose plans have none: both branches of a condition are computed and it
//! selects, and a loop becomes as many copies of its body as it has iterations.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::flow::{Flow, FlowKind, Loop};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::{DType, TensorData};

use crate::manager::{Pass, PassCx};
use crate::results::{result_types, results};

/// Most nodes that the copies of one body may have.
const MAX_COPIED_NODES: u64 = 1 << 20;

/// Writes out all branches and loops if the target is a GPU. Requires all types known. Values in branches are not checked:
/// one of them is not taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOut;

impl Pass for WriteOut {
    fn name(&self) -> &'static str {
        "write-out"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        if !cx.options.target.is_gpu() {
            return Ok(false);
        }
        let mut changed = false;
        for node in graph.order() {
            let Some(flow) = graph.flow(node).cloned() else { continue };
            let name = graph.node(node).name.clone();
            let made = written(graph, node, &flow, cx).map_err(|d| d.at(&name))?;
            for (old, new) in results(graph, node).zip(made) {
                graph.replace_uses(old, new);
            }
            graph.remove_if_dead(node);
            changed = true;
        }
        Ok(changed)
    }
}

/// The results of a flow, computed without it.
fn written(graph: &mut Graph, node: NodeId, flow: &Flow, cx: &PassCx<'_>) -> Result<Vec<Value>> {
    let args = graph.args(node).to_vec();
    match (&flow.kind, &flow.bodies[..]) {
        (FlowKind::If, [then, otherwise]) => {
            let then = copied(graph, then, &args[1..], false)?;
            let otherwise = copied(graph, otherwise, &args[1..], false)?;
            let types = result_types(graph, node)?;
            let results = then.outputs.into_iter().zip(otherwise.outputs).zip(types);
            let name = graph.node(node).name.clone();
            results.map(|((then, otherwise), ty)| select(graph, &name, [args[0], then, otherwise], ty)).collect()
        }
        (FlowKind::Loop(repeat), [body]) => match repeat.trips.filter(|_| !repeat.conditional) {
            Some(trips) => iterations(graph, (repeat, trips.fixed().unsigned_abs()), body, &args, cx),
            None => {
                let why = "a loop that a computed condition ends runs on processors only";
                Err(Diagnostic::new(DiagnosticCode::Unsupported, why))
            }
        },
        _ => Err(Diagnostic::new(DiagnosticCode::Internal, "a branch or loop without bodies")),
    }
}

fn select(graph: &mut Graph, name: &Arc<str>, operands: [Value; 3], ty: DenseType) -> Result<Value> {
    let f = ScalarFn::build(&[DType::Bool, ty.dtype, ty.dtype], |_, x| vec![x[0].select(&x[1], &x[2])]);
    let f = f.map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why))?;
    Ok(Value { node: graph.add_prim(name.clone(), Prim::Map(f.into()), &operands, &[ty]), port: 0 })
}

fn iterations(
    graph: &mut Graph,
    (repeat, trips): (&Loop, u64),
    body: &Graph,
    args: &[Value],
    cx: &PassCx<'_>,
) -> Result<Vec<Value>> {
    if trips.saturating_mul(body.total_nodes() as u64) > MAX_COPIED_NODES {
        let why = format!("a loop of {trips} iterations is too long to be written out, as the target needs it");
        return Err(Diagnostic::new(DiagnosticCode::Limit, why));
    }
    let (carried, rest) = args.split_at(repeat.carried);
    let (scanned, fixed) = rest.split_at(repeat.scanned.len());
    let at = |i: u64, back: bool| if back { trips - 1 - i } else { i };
    let mut carried = carried.to_vec();
    let mut stacked: Vec<Vec<Value>> = vec![vec![]; repeat.stacked.len()];
    for i in 0..trips {
        cx.limits.admit(graph.node_count(), format_args!("a loop of {trips} iterations"))?;
        let number = graph.add_const("iteration", TensorData::scalar(Scalar::i64(i as i64)));
        let mut operands = vec![number];
        operands.append(&mut carried);
        for (v, back) in scanned.iter().zip(&repeat.scanned) {
            operands.push(row(graph, *v, at(i, *back))?);
        }
        operands.extend(fixed);
        let made = copied(graph, body, &operands, true)?;
        carried = made.updates;
        graph.remove_if_dead(number.node);
        for (all, v) in stacked.iter_mut().zip(made.outputs) {
            all.push(lifted(graph, v)?);
        }
    }
    for ((mut all, back), (_, v)) in stacked.into_iter().zip(&repeat.stacked).zip(body.outputs()) {
        if *back {
            all.reverse();
        }
        carried.push(joined(graph, &all, &body.dense(*v)?)?);
    }
    Ok(carried)
}

/// A row of the first axis, without it.
fn row(graph: &mut Graph, v: Value, at: u64) -> Result<Value> {
    let ty = graph.dense(v)?;
    let ty = DenseType { dtype: ty.dtype, dims: ty.dims.range(1..) };
    Ok(view(graph, v, View::row(at, ty.rank()), ty))
}

/// With a first axis of extent 1.
fn lifted(graph: &mut Graph, v: Value) -> Result<Value> {
    let ty = graph.dense(v)?;
    Ok(view(graph, v, View::unsqueezed(ty.rank()), ty.stacked(1)))
}

fn view(graph: &mut Graph, v: Value, view: View, ty: DenseType) -> Value {
    let name = graph.node(v.node).name.clone();
    Value { node: graph.add_prim(name, Prim::View(view.into()), &[v], &[ty]), port: 0 }
}

/// Rows along a new first axis.
fn joined(graph: &mut Graph, rows: &[Value], row: &DenseType) -> Result<Value> {
    let ty = row.stacked(rows.len() as u64);
    let Some(first) = rows.first() else {
        return Ok(graph.add_const("rows", TensorData::splat(&ty.dims, Scalar::zero(ty.dtype))));
    };
    let name = graph.node(first.node).name.clone();
    Ok(Value { node: graph.add_prim(name, Prim::Concat { axis: 0 }, rows, &[ty]), port: 0 })
}

/// What a copy of a body gives.
struct Copied {
    outputs: Vec<Value>,
    updates: Vec<Value>,
}

/// Copies the nodes of a body, whose types are known, with values for its inputs.
fn copied(graph: &mut Graph, body: &Graph, operands: &[Value], checked: bool) -> Result<Copied> {
    let inputs = body.inputs().iter().map(|node| Value { node: *node, port: 0 });
    let mut made: BTreeMap<Value, Value> = inputs.zip(operands.iter().copied()).collect();
    for node in body.order() {
        let old = body.node(node);
        let name: Arc<str> = old.name.clone();
        let given: Vec<Option<Value>> =
            body.operands(node).iter().map(|v| v.and_then(|v| made.get(&v).copied())).collect();
        let new = match &old.kind {
            NodeKind::Input => continue,
            NodeKind::Const(data) => graph.add_const(name, data.clone()).node,
            NodeKind::Op(op) => {
                let new = graph.add_op_like(name, op, &given, old.types.len())?;
                graph.node_mut(new).types = result_types(body, node)?.into_iter().map(Into::into).collect();
                if !checked {
                    graph.set_unchecked(new);
                }
                new
            }
            NodeKind::Prim(prim) => {
                let args: Vec<Value> = given.into_iter().flatten().collect();
                graph.add_prim(name, prim.clone(), &args, &result_types(body, node)?)
            }
            NodeKind::Fused(_) => return Err(Diagnostic::new(DiagnosticCode::Internal, "clusters are formed later")),
        };
        made.extend(results(body, node).zip(results(graph, new)).collect::<Vec<_>>());
    }
    let value = |v: Value| {
        made.get(&v).copied().ok_or_else(|| Diagnostic::new(DiagnosticCode::Internal, "a body lacks a result"))
    };
    Ok(Copied {
        outputs: body.outputs().iter().map(|(_, v)| value(*v)).collect::<Result<_>>()?,
        updates: body.states().into_iter().map(|(_, v)| value(v)).collect::<Result<_>>()?,
    })
}
