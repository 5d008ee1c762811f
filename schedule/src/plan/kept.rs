//! States that grow: the next value of a state is a concatenation of slices of the old value, at the same positions, and of new
//! tensors. Only the new tensors are written.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Prim, View};

use super::lone_view;

/// Slices of states that are in the next value at the same position.
#[derive(Default)]
pub(super) struct KeptParts(BTreeSet<Value>);

impl KeptParts {
    /// The kept parts of a graph. A state has some if nothing else reads its old value.
    pub fn of(graph: &Graph) -> Result<KeptParts> {
        let mut kept = BTreeSet::new();
        // What both phases use lies in the arena.
        if graph.boundary().is_some() || graph.updates().is_empty() {
            return Ok(KeptParts(kept));
        }
        let mut readers: BTreeMap<Value, Vec<NodeId>> = BTreeMap::new();
        for node in graph.order() {
            graph.args(node).into_iter().for_each(|v| readers.entry(v).or_default().push(node));
        }
        let roots: Vec<Value> = graph.roots().collect();
        for (state, next) in graph.updates() {
            let old = Value { node: *state, port: 0 };
            let delivered = |v: &Value| roots.iter().filter(|root| *root == v).count();
            let NodeKind::Prim(Prim::Concat { axis }) = graph.node(next.node).kind else { continue };
            if delivered(&old) > 0 || delivered(next) > 1 {
                continue;
            }
            let stays = staying(graph, (old, next.node), axis)?;
            let of_old = readers.get(&old).map_or(&[][..], Vec::as_slice);
            let alone = |v: &Value| delivered(v) == 0 && readers.get(v).is_some_and(|all| *all == [next.node]);
            let all_read = of_old.iter().all(|reader| stays.contains(&Value { node: *reader, port: 0 }));
            let written = |v: &Value| Ok(!stays.contains(v) && !graph.dense(*v)?.is_empty());
            let is_written = graph.args(next.node).iter().map(written).collect::<Result<Vec<bool>>>()?.contains(&true);
            if all_read && is_written && stays.iter().all(alone) {
                kept.extend(stays);
            }
        }
        Ok(KeptParts(kept))
    }

    /// Whether a value needs no step, because the state holds it already.
    pub fn contains(&self, v: Value) -> bool {
        self.0.contains(&v)
    }

    /// All of them.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        self.0.iter().copied()
    }
}

/// The operands of a concatenation that are slices of a state at the same position.
fn staying(graph: &Graph, (old, next): (Value, NodeId), axis: usize) -> Result<BTreeSet<Value>> {
    let (from, to) = (graph.dense(old)?, graph.dense(Value { node: next, port: 0 })?);
    let mut position = Extent::ZERO;
    let mut found = BTreeSet::new();
    for v in graph.args(next) {
        let ty = graph.dense(v)?;
        let same = |a: usize| a == axis || ty.dims.at(a).is_surely(from.dims.at(a));
        if from.dims.all().zip(to.dims.all()).all(|(a, b)| a.is_surely(b))
            && (0..ty.rank()).all(same)
            && view_of(graph, v, old).is_some_and(|view| moves_along(view, axis, position))
        {
            found.insert(v);
        }
        position = position + ty.dims.at(axis);
    }
    Ok(found)
}

/// The view of a state that a value is, if it is one.
fn view_of(graph: &Graph, v: Value, state: Value) -> Option<&View> {
    if graph.args(v.node)[..] != [state] {
        return None;
    }
    match &graph.node(v.node).kind {
        NodeKind::Prim(Prim::View(view)) => Some(view),
        NodeKind::Fused(cluster) => lone_view(&cluster.body),
        _ => None,
    }
}

/// Whether a view is a slice along one axis that begins at a position.
fn moves_along(view: &View, axis: usize, position: Extent) -> bool {
    view.map.iter().enumerate().all(|(i, index)| {
        let by = if i == axis { -position } else { Extent::ZERO };
        index.offset(by).as_var() == Some(i as u32)
    })
}
