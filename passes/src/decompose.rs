//! Decomposition: every operator becomes primitives; composites expand until none is left.

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::expand::{Expanded, expand_node};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::op::Compute;

use crate::manager::{Pass, PassCx};
use crate::values::StaticValues;

/// Replaces operators by primitives; host operators stay. Requires all types known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decompose;

/// Composites may nest this deep; more is a definition that expands to itself.
const MAX_DEPTH: usize = 32;

impl Pass for Decompose {
    fn name(&self) -> &'static str {
        "decompose"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let mut changed = graph.remove_dead() > 0;
        for _ in 0..MAX_DEPTH {
            let ops: Vec<NodeId> = graph.order().into_iter().filter(|n| expandable(graph, *n)).collect();
            if ops.is_empty() {
                // Composites may have become branches and loops, whose bodies hold operators.
                return Ok(graph.change_bodies(&mut |body| self.run(body, cx))? | changed);
            }
            changed = true;
            let values = StaticValues::new(cx.registry, cx.options.static_bytes);
            let grain = cx.options.target.grain();
            for node in ops {
                let expanded = expand_node(graph, node, cx.registry, &|g, v| values.get(g, v), grain, cx.limits)?;
                if let Expanded::Replaced(results) = expanded {
                    for (port, new) in results.into_iter().enumerate() {
                        graph.replace_uses(Value { node, port: port as u16 }, new);
                    }
                }
            }
            graph.remove_dead();
        }
        Err(Diagnostic::new(DiagnosticCode::Internal, "a composite operator expands to itself"))
    }
}

fn expandable(graph: &Graph, node: NodeId) -> bool {
    matches!(&graph.node(node).kind, NodeKind::Op(op) if !matches!(op.def.compute, Compute::Host(_)))
}
