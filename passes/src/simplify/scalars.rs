//! Simplification of maps: constants move into the body, operands are read once, the body is rewritten.

use std::sync::Arc;

use tensorc_ir::TensorData;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder, ScalarFn};

use super::scalar::Rewriter;
use super::{forward, prim_of, replace};
use crate::manager::{PassCx, Rewrite};

/// Label of a map that changed without a rule: constants moved in, or operands were equal.
const MERGED: &str = "simplify-map";

pub fn run(graph: &mut Graph, cx: &mut PassCx<'_>, rewriter: &mut Rewriter) -> Result<bool> {
    let mut changed = false;
    for node in graph.order() {
        if let Some(Prim::Map(f)) = prim_of(graph, node) {
            let f = f.clone();
            changed |= simplify_map(graph, node, &f, cx, rewriter)?;
        }
    }
    Ok(changed)
}

fn simplify_map(
    graph: &mut Graph,
    node: NodeId,
    f: &Arc<ScalarFn>,
    cx: &mut PassCx<'_>,
    rewriter: &mut Rewriter,
) -> Result<bool> {
    let args = graph.args(node);
    let name = graph.node(node).name.clone();
    let internal = |why: String| Diagnostic::new(Code::Internal, why).at(&name);
    let operands: Vec<Operand> = args.iter().map(|v| graph.constant(*v).and_then(splat)).map(Operand::from).collect();
    let b = ScalarBuilder::new();
    let mut kept: Vec<(Value, Ex)> = vec![];
    let mut inputs: Vec<Ex> = vec![];
    for ((v, operand), dtype) in args.iter().zip(&operands).zip(&f.inputs) {
        let ex = match (operand, kept.iter().find(|(k, _)| k == v)) {
            (Operand::Constant(c), _) => b.constant(*c),
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
    if let Some(better) = rewriter.rewrite(&body).map_err(internal)? {
        body = better.body;
        label = better.fired.first().map_or(MERGED, |f| f.rule);
        for fired in better.fired {
            let (rule, label) = (fired.rule, fired.label);
            cx.rewrites.push(Rewrite { node: name.clone(), rule, label, before: better.before, after: better.after });
        }
    }
    let (body, used) = body.without_unused();
    let args: Vec<Value> = used.iter().map(|i| kept[*i].0).collect();
    if body == **f {
        return to_view(graph, node, &body);
    }
    let types: Vec<_> =
        (0..f.outputs.len() as u16).map(|port| graph.dense(Value { node, port })).collect::<Result<_>>()?;
    let mut patch = graph.patch(label);
    let new = patch.graph.add_prim(name, Prim::Map(Arc::new(body.clone())), &args, &types);
    for port in 0..types.len() as u16 {
        patch.replace(Value { node, port }, Value { node: new, port });
    }
    patch.commit();
    if graph.contains(new) {
        to_view(graph, new, &body)?;
    }
    Ok(true)
}

enum Operand {
    Constant(Scalar),
    Tensor,
}

impl From<Option<Scalar>> for Operand {
    fn from(constant: Option<Scalar>) -> Operand {
        constant.map_or(Operand::Tensor, Operand::Constant)
    }
}

/// The value of every element, if all are equal.
pub(super) fn splat(data: &TensorData) -> Option<Scalar> {
    if data.is_empty() {
        return None;
    }
    let size = data.dtype().size();
    let first = &data.bytes()[..size];
    data.bytes().chunks_exact(size).all(|e| e == first).then(|| data.get(0))
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
        let axis = |i: usize| match input.dims[i] {
            1 => Index::constant(0),
            _ => Index::var((lead + i) as u32),
        };
        let view = View { map: (0..input.rank()).map(axis).collect(), fill: None };
        replace(graph, "broadcast-view", node, Prim::View(Arc::new(view)), &[arg], output);
    }
    Ok(true)
}
