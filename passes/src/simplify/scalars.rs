//! Simplification of maps and reductions: constants move into the body, operands are read once, bodies are rewritten.
//! What combines the contributions of a reduction stays as it is: kernels know sums and maxima by it.

use std::sync::Arc;

use tensorc_ir::TensorData;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, Reduction, View};
use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder, ScalarFn, ScalarNode};

use super::scalar::{Fired, Rewriter};
use super::{forward, prim_of, replace, visit_all};
use crate::manager::{PassCx, Rewrite, Unit};
use crate::results::{result_types, results};

/// Label of a node that changed without a rule: constants moved in, or operands were equal.
const MERGED: &str = "simplify-map";

pub fn run(graph: &mut Graph, cx: &mut PassCx<'_>, rewriter: &mut Rewriter) -> Result<bool> {
    visit_all(graph, |graph, node| match prim_of(graph, node).cloned() {
        Some(Prim::Map(f)) => simplify_map(graph, node, &f, cx, rewriter),
        Some(Prim::Reduce(r)) => simplify_reduction(graph, node, &r, cx, rewriter),
        _ => Ok(false),
    })
}

/// A body and what it reads, simplified; with the label of the first rule that fired.
struct Simplified {
    body: ScalarFn,
    args: Vec<Value>,
    label: &'static str,
}

/// Simplifies a body of the node. `keep`: it reads at least one operand afterwards, because its shape counts.
fn simplify_body(
    graph: &Graph,
    node: NodeId,
    f: &ScalarFn,
    keep: bool,
    cx: &mut PassCx<'_>,
    rewriter: &mut Rewriter,
) -> Result<Simplified> {
    let args = graph.args(node);
    let internal = |why: String| Diagnostic::new(DiagnosticCode::Internal, why).at(&graph.node(node).name);
    let b = ScalarBuilder::new();
    let mut kept: Vec<(Value, Ex)> = vec![];
    let mut inputs: Vec<Ex> = vec![];
    let constants: Vec<Option<Scalar>> = args.iter().map(|v| uniform(graph, *v)).collect();
    let all = keep && constants.iter().all(Option::is_some);
    for (i, (v, dtype)) in args.iter().zip(&f.inputs).enumerate() {
        let ex = match (constants[i], kept.iter().find(|(k, _)| k == v)) {
            (Some(c), _) if !(all && i == 0) => b.constant(c),
            (_, Some((_, ex))) => ex.clone(),
            _ => {
                let ex = b.input(*dtype);
                kept.push((*v, ex.clone()));
                ex
            }
        };
        inputs.push(ex);
    }
    let outputs = b.call(f, &inputs, &[]);
    let mut body = b.finish(&outputs.iter().collect::<Vec<_>>()).map_err(internal)?;
    let mut label = MERGED;
    if let Some(fired) = rewrite(graph, node, &mut body, cx, rewriter)? {
        label = fired;
    }
    let (fewer, used) = body.without_unused();
    Ok(match keep && used.is_empty() {
        true => Simplified { body, args: kept.iter().map(|(v, _)| *v).collect(), label },
        false => Simplified { body: fewer, args: used.iter().map(|i| kept[*i].0).collect(), label },
    })
}

/// Rewrites a body by rules; returns the first that fired.
fn rewrite(
    graph: &Graph,
    node: NodeId,
    body: &mut ScalarFn,
    cx: &mut PassCx<'_>,
    rewriter: &mut Rewriter,
) -> Result<Option<&'static str>> {
    let name = &graph.node(node).name;
    let internal = |why: String| Diagnostic::new(DiagnosticCode::Internal, why).at(name);
    let Some(better) = rewriter.rewrite(body).map_err(internal)? else { return Ok(None) };
    *body = better.body;
    for Fired { rule, label } in &better.fired {
        let (before, after, unit) = (better.before, better.after, Unit::HalfCycles);
        cx.rewrites.push(Rewrite { node: name.clone(), rule, label: *label, before, after, unit });
    }
    Ok(better.fired.first().map(|f| f.rule))
}

fn simplify_map(
    graph: &mut Graph,
    node: NodeId,
    f: &Arc<ScalarFn>,
    cx: &mut PassCx<'_>,
    rewriter: &mut Rewriter,
) -> Result<bool> {
    let Simplified { body, args, label } = simplify_body(graph, node, f, false, cx, rewriter)?;
    if body == **f {
        return to_view(graph, node, &body);
    }
    let new = replace_all(graph, label, node, Prim::Map(Arc::new(body.clone())), &args)?;
    if graph.contains(new) {
        to_view(graph, new, &body)?;
    }
    Ok(true)
}

fn simplify_reduction(
    graph: &mut Graph,
    node: NodeId,
    r: &Reduction,
    cx: &mut PassCx<'_>,
    rewriter: &mut Rewriter,
) -> Result<bool> {
    let Simplified { body, args, mut label } = simplify_body(graph, node, &r.map, true, cx, rewriter)?;
    let mut finish = r.finish.clone();
    if let Some(fired) = rewrite(graph, node, &mut finish, cx, rewriter)? {
        label = fired;
    }
    if body == r.map && finish == r.finish {
        return Ok(false);
    }
    let new = Reduction { map: body, finish, ..r.clone() };
    replace_all(graph, label, node, Prim::Reduce(Arc::new(new)), &args)?;
    Ok(true)
}

/// Replaces a primitive by another with the same results.
fn replace_all(graph: &mut Graph, label: &'static str, node: NodeId, prim: Prim, args: &[Value]) -> Result<NodeId> {
    let types = result_types(graph, node)?;
    let name = graph.node(node).name.clone();
    let mut patch = graph.patch(label);
    let new = patch.graph.add_prim(name, prim, args, &types);
    for old in results(patch.graph, node) {
        patch.replace(old, Value { node: new, ..old });
    }
    patch.commit();
    Ok(new)
}

/// The value of every element of a constant, or of a map of constants, if all are equal.
fn uniform(graph: &Graph, v: Value) -> Option<Scalar> {
    if let Some(data) = graph.constant(v) {
        return splat(data);
    }
    let Some(Prim::Map(f)) = prim_of(graph, v.node) else { return None };
    match f.nodes[f.outputs[v.port as usize].0 as usize] {
        ScalarNode::Const(c) => Some(c),
        _ => None,
    }
}

/// The value of every element, if all are equal.
pub(super) fn splat(data: &TensorData) -> Option<Scalar> {
    if data.is_open() || data.is_empty() {
        return None;
    }
    let size = data.dtype().size();
    let uniform = |bytes: &[u8]| bytes.chunks_exact(size).all(|e| e == &bytes[..size]);
    // Most weights are known by their beginning, and stay in their file.
    let beginning = data.content().part(0..data.content().len().min(64 * size)).ok()?;
    (uniform(&beginning) && uniform(data.bytes())).then(|| data.get(0))
}

/// A map that only passes its operand on: nothing, or a broadcasting view.
fn to_view(graph: &mut Graph, node: NodeId, body: &ScalarFn) -> Result<bool> {
    if !body.is_identity() {
        return Ok(false);
    }
    let arg = graph.args(node)[0];
    let (input, output) = (graph.dense(arg)?, graph.dense(Value { node, port: 0 })?);
    if input == output {
        forward(graph, "identity-map", node, arg);
    } else {
        let lead = output.rank() - input.rank();
        let axis = |i: usize| match input.dims.at(i).is_repeated_along(output.dims.at(lead + i)) {
            true => Index::constant(0),
            false => Index::var((lead + i) as u32),
        };
        let view = View { map: (0..input.rank()).map(axis).collect(), fill: None };
        replace(graph, "broadcast-view", node, Prim::View(Arc::new(view)), &[arg], output);
    }
    Ok(true)
}
