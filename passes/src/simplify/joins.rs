//! Concatenations that begin with all operands of another one take that one as their operand.
//!
//! A network that hands all earlier results to each layer joins them anew every time. As a chain, each join
//! adds to what the one before holds, and all of them can lie in the same memory.

use std::collections::BTreeMap;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

use super::replace;

/// Returns whether there was one.
pub fn run(graph: &mut Graph) -> Result<bool> {
    // Joins by their axis and first two operands: what they depend on, so that no cycle arises.
    let mut alike: BTreeMap<(usize, Value, Value), Vec<NodeId>> = BTreeMap::new();
    for node in graph.order() {
        if let (NodeKind::Prim(Prim::Concat { axis }), [first, second, ..]) =
            (&graph.node(node).kind, &graph.args(node)[..])
        {
            alike.entry((*axis, *first, *second)).or_default().push(node);
        }
    }
    let mut changed = false;
    for ((axis, ..), mut nodes) in alike {
        nodes.sort_by_key(|node| (graph.args(*node).len(), *node));
        // From the longest on, so that operands are those that were there.
        for at in (1..nodes.len()).rev() {
            let args = graph.args(nodes[at]);
            let begins =
                |other: &&NodeId| args.len() > graph.args(**other).len() && args.starts_with(&graph.args(**other));
            if let Some(&prefix) = nodes[..at].iter().rev().find(begins) {
                let mut rest: Vec<Value> = args[graph.args(prefix).len()..].to_vec();
                rest.insert(0, Value { node: prefix, port: 0 });
                let ty = graph.dense(Value { node: nodes[at], port: 0 })?;
                replace(graph, "a join of a join", nodes[at], Prim::Concat { axis }, &rest, ty);
                changed = true;
            }
        }
    }
    Ok(changed)
}
