//! The results of a node, all of them.

use tensorc_ir::DenseType;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, Value};

/// The results of a node, in the order of their ports.
pub fn results(graph: &Graph, node: NodeId) -> impl Iterator<Item = Value> + use<> {
    (0..graph.node(node).types.len() as u16).map(move |port| Value { node, port })
}

/// Their types, which must be fully known.
pub(crate) fn result_types(graph: &Graph, node: NodeId) -> Result<Vec<DenseType>> {
    results(graph, node).map(|v| graph.dense(v)).collect()
}
