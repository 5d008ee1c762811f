//! The memory a graph will need: fused by the greedy, its clusters ordered as lowering orders steps.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_schedule::estimate::{Estimate, Wholes, place};

use crate::fuse::{By, Fuse};
use crate::manager::{Pass, PassCx};

/// Bytes of intermediate tensors live at once once the graph is fused, in the best order found.
pub fn peak(mut graph: Graph, cx: &mut PassCx<'_>) -> Result<u64> {
    let by = if cx.options.fuse == By::Off { By::Off } else { By::Greedy };
    Fuse { by: Some(by) }.run(&mut graph, cx)?;
    Ok(fused_peak(&graph)?.0)
}

/// Of a fused graph, bytes of intermediate tensors live at once in the best order found, and the node at
/// which they are.
pub fn fused_peak(graph: &Graph) -> Result<(u64, Option<NodeId>)> {
    let (_, estimate): (_, Estimate) = place(graph, &|without| Ok(wholes(graph, without)))?;
    Ok((estimate.peak(), estimate.peak_node()))
}

/// What lowering will likely compute in concatenations: results of clusters and of other concatenations that
/// are not delivered, in the first one that reads them.
fn wholes(graph: &Graph, without: &BTreeSet<Value>) -> Wholes {
    let mut inside: BTreeMap<Value, Value> = BTreeMap::new();
    let mut order = graph.order();
    for &node in &order {
        let NodeKind::Prim(Prim::Concat { .. }) = graph.node(node).kind else { continue };
        let args = graph.args(node);
        for v in args.iter().filter(|v| !without.contains(v) && !graph.is_root(v.node)) {
            let computed = matches!(graph.node(v.node).kind, NodeKind::Fused(_) | NodeKind::Prim(Prim::Concat { .. }));
            if computed && args.iter().filter(|other| *other == v).count() == 1 {
                inside.entry(*v).or_insert(Value { node, port: 0 });
            }
        }
    }
    // A concatenation comes after what lies in it.
    order.reverse();
    let mut wholes = Wholes::new();
    for node in order {
        for port in 0..graph.node(node).types.len() as u16 {
            let v = Value { node, port };
            if let Some(direct) = inside.get(&v) {
                let outermost = wholes.get(direct).copied().unwrap_or(*direct);
                wholes.insert(v, outermost);
            }
        }
    }
    wholes
}
