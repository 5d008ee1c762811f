//! States that grow: a tensor that is joined to what a state holds so far, and both to the rest of the state, is a part of the next
//! value of the state. So it is computed there, and what the state holds is not copied.
//!
//! ```text
//! %old = %cache[0..n]      %rest = %cache[n + k..]
//! %all = concat(%old, %new)                           %all = %next[0..n + k]
//! %next = concat(%all, %rest)                  ─►     %next = concat(%old, %new, %rest)
//! update %cache = %next                               update %cache = %next
//! ```

use std::collections::BTreeSet;

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};

/// Returns whether there was one.
pub fn run(graph: &mut Graph) -> Result<bool> {
    let mut changed = false;
    for (state, next) in graph.updates().to_vec() {
        let Some(axis) = concat_axis(graph, next.node) else { continue };
        let shows = |v: &Value| is_view_of(graph, *v, Value { node: state, port: 0 });
        let args = graph.args(next.node).to_vec();
        let inner: Vec<NodeId> =
            args.iter().map(|v| v.node).filter(|node| concat_axis(graph, *node) == Some(axis)).collect();
        let shown = |node: &NodeId| graph.args(*node).iter().any(shows);
        let inner: BTreeSet<NodeId> = inner.into_iter().filter(shown).collect();
        // Nothing else may be computed from what becomes a part of the result.
        let rest_stays = args.iter().all(|v| inner.contains(&v.node) || shows(v));
        if !inner.is_empty() && rest_stays {
            join(graph, next.node, axis, &inner)?;
            changed = true;
        }
    }
    Ok(changed)
}

/// The axis of a concatenation.
fn concat_axis(graph: &Graph, node: NodeId) -> Option<usize> {
    match graph.node(node).kind {
        NodeKind::Prim(Prim::Concat { axis }) => Some(axis),
        _ => None,
    }
}

fn is_view_of(graph: &Graph, v: Value, of: Value) -> bool {
    matches!(graph.node(v.node).kind, NodeKind::Prim(Prim::View(_))) && graph.args(v.node)[..] == [of]
}

/// Takes the operands of the concatenations `inner` in place of these, which become parts of the result.
fn join(graph: &mut Graph, outer: NodeId, axis: usize, inner: &BTreeSet<NodeId>) -> Result<()> {
    let result = Value { node: outer, port: 0 };
    let (mut args, mut parts) = (vec![], vec![]);
    let mut position = Extent::ZERO;
    for v in graph.args(outer) {
        let ty = graph.dense(v)?;
        match inner.contains(&v.node) {
            true => {
                args.extend(graph.args(v.node));
                parts.push((v, position, ty.clone()));
            }
            false => args.push(v),
        }
        position = position + ty.dims.at(axis);
    }
    let ty = graph.dense(result)?;
    let mut patch = graph.patch("a state that grows");
    let name = patch.graph.node(outer).name.clone();
    let joined = patch.graph.add_prim(name, Prim::Concat { axis }, &args, &[ty]);
    let joined = Value { node: joined, port: 0 };
    for (v, position, ty) in parts {
        let mut map: Vec<Index> = (0..ty.rank() as u32).map(Index::var).collect();
        map[axis] = map[axis].offset(position);
        let name = patch.graph.node(v.node).name.clone();
        let view = Prim::View(View { map, fill: None }.into());
        let part = patch.graph.add_prim(name, view, &[joined], &[ty]);
        patch.replace(v, Value { node: part, port: 0 });
    }
    patch.replace(result, joined);
    patch.commit();
    Ok(())
}
