//! Views: identities go, neighbours compose, broadcasts move into maps, constant gathers become
//! slices.

use std::sync::Arc;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Gather, Prim, View};

use super::{forward, prim_of, replace, visit_all};
use tensorc_ir::views::{compose, in_bounds};

pub fn run(graph: &mut Graph) -> Result<bool> {
    visit_all(graph, |graph, node| match prim_of(graph, node).cloned() {
        Some(Prim::View(view)) => simplify_view(graph, node, &view),
        Some(Prim::Map(_)) => broadcast_into_map(graph, node),
        Some(Prim::Gather(gather)) => gather_to_slice(graph, node, gather),
        Some(Prim::Concat { .. }) if graph.args(node).len() == 1 => {
            let arg = graph.args(node)[0];
            forward(graph, "concat-of-one", node, arg);
            Ok(true)
        }
        _ => Ok(false),
    })
}

fn simplify_view(graph: &mut Graph, node: NodeId, view: &Arc<View>) -> Result<bool> {
    let arg = graph.args(node)[0];
    let (input, output) = (graph.dense(arg)?, graph.dense(Value { node, port: 0 })?);
    if view.is_identity(&input.dims, &output.dims) {
        forward(graph, "identity-view", node, arg);
        return Ok(true);
    }
    if view.fill.is_some() && in_bounds(&view.map, &input.dims, &output.dims) {
        let view = View { map: view.map.clone(), fill: None };
        replace(graph, "unused-fill", node, Prim::View(Arc::new(view)), &[arg], output);
        return Ok(true);
    }
    let Some(Prim::View(first)) = prim_of(graph, arg.node) else { return Ok(false) };
    let source = graph.args(arg.node)[0];
    let from = graph.dense(source)?;
    match compose(first, &from.dims, view, &input.dims, &output.dims) {
        Some(both) => {
            replace(graph, "compose-views", node, Prim::View(Arc::new(both)), &[source], output);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// A map broadcasts by itself: views that only repeat an operand are not needed before it.
fn broadcast_into_map(graph: &mut Graph, node: NodeId) -> Result<bool> {
    let mut changed = false;
    for (port, arg) in graph.args(node).into_iter().enumerate() {
        let Some(Prim::View(view)) = prim_of(graph, arg.node) else { continue };
        let source = graph.args(arg.node)[0];
        let (from, to) = (graph.dense(source)?, graph.dense(arg)?);
        let Some(lead) = to.rank().checked_sub(from.rank()) else { continue };
        let repeats = (0..from.rank()).all(|i| {
            let n = from.dims.at(i);
            let kept = n.is_surely(to.dims.at(lead + i)) && view.map[i] == Index::var((lead + i) as u32);
            n.is_surely(1) || kept
        });
        if repeats && in_bounds(&view.map, &from.dims, &to.dims) {
            graph.set_arg(node, port as u16, source);
            graph.remove_if_dead(arg.node);
            changed = true;
        }
    }
    Ok(changed)
}

/// A gather by one constant index reads a slice.
fn gather_to_slice(graph: &mut Graph, node: NodeId, gather: Gather) -> Result<bool> {
    let args = graph.args(node);
    let Some(index) = graph.constant(args[1]).filter(|d| d.len() == 1).map(|d| d.extents()[0]) else {
        return Ok(false);
    };
    let (data, indices) = (graph.dense(args[0])?, graph.dense(args[1])?);
    let output = graph.dense(Value { node, port: 0 })?;
    let n = data.dims.at(gather.axis);
    if n == 0 {
        return Ok(false);
    }
    let at = if index < 0 { index + n } else { index };
    let map = (0..data.rank()).map(|axis| match axis {
        a if a == gather.axis => Index::constant(at.greatest(0).least(n - 1)),
        a if a < gather.axis => Index::var(a as u32),
        a => Index::var((a - 1 + indices.rank()) as u32),
    });
    let view = View { map: map.collect(), fill: None };
    replace(graph, "gather-to-slice", node, Prim::View(Arc::new(view)), &[args[0]], output);
    Ok(true)
}
