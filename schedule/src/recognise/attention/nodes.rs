//! Primitives of a graph as recognition asks for them.

use tensorc_abi::DType;
use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{ScalarNode, ScalarOp};

pub(super) fn prim(graph: &Graph, node: NodeId) -> Option<&Prim> {
    match &graph.node(node).kind {
        NodeKind::Prim(prim) => Some(prim),
        _ => None,
    }
}

pub(super) fn float_of(graph: &Graph, v: Value) -> Option<DenseType> {
    let taken = |d: DType| matches!(d, DType::F32 | DType::F16 | DType::BF16);
    graph.dense(v).ok().filter(|ty| taken(ty.dtype) && !ty.is_empty())
}

/// The factor of a map that multiplies or divides its one operand by a constant.
pub(super) fn factor(graph: &Graph, node: NodeId) -> Option<f64> {
    let Prim::Map(f) = prim(graph, node)? else { return None };
    let constant = |id: tensorc_ir::scalar::ScalarId| match f.nodes[id.0 as usize] {
        ScalarNode::Const(c) => Some(c.as_f64()),
        _ => None,
    };
    let ([output], [DType::F32]) = (&f.outputs[..], &f.inputs[..]) else { return None };
    let ScalarNode::Op(op, args) = &f.nodes[output.0 as usize] else { return None };
    match (op, &args[..]) {
        (ScalarOp::Mul, [a, b]) if f.input_of(*a) == Some(0) => constant(*b),
        (ScalarOp::Mul, [a, b]) if f.input_of(*b) == Some(0) => constant(*a),
        (ScalarOp::Div, [a, b]) if f.input_of(*a) == Some(0) => constant(*b).map(|c| 1.0 / c),
        _ => None,
    }
}
