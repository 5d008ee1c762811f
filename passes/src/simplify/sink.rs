//! Reshapes between a contraction and the maps on its result move behind the maps, so that the maps
//! can be fused with the contraction.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::{Axes, Extent, Extents};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::ScalarFn;

use super::{prim_of, single_user, visit_all};
use tensorc_ir::views::keeps_linear_order;

pub fn run(graph: &mut Graph) -> Result<bool> {
    visit_all(graph, |graph, node| match prim_of(graph, node).cloned() {
        Some(Prim::View(view)) => sink(graph, node, &view),
        _ => Ok(false),
    })
}

fn sink(graph: &mut Graph, view_node: NodeId, view: &View) -> Result<bool> {
    let source = graph.args(view_node)[0];
    let (from, to) = (graph.dense(source)?, graph.dense(Value { node: view_node, port: 0 })?);
    let Some(user) = single_user(graph, view_node) else { return Ok(false) };
    let Some(Prim::Map(f)) = prim_of(graph, user).cloned() else { return Ok(false) };
    let fits = keeps_linear_order(view, &from, &to.dims)
        && single_user(graph, source.node) == Some(view_node)
        && behind_contraction(graph, source.node)
        && f.outputs.len() == 1
        && !f.uses_coord()
        && graph.dense(Value { node: user, port: 0 })?.dims == to.dims;
    let Some(groups) = fits.then(|| axis_groups(&from.dims, &to.dims)).flatten() else { return Ok(false) };
    let mut shapes = vec![];
    for arg in graph.args(user).into_iter().filter(|a| a.node != view_node) {
        match regroup(&groups, &from.dims, &to.dims, &graph.dense(arg)?.dims) {
            Some(dims) => shapes.push(dims),
            None => return Ok(false),
        }
    }
    rebuild(graph, view_node, user, &f, source, shapes)?;
    Ok(true)
}

/// A contraction, or maps over one that nothing else reads.
fn behind_contraction(graph: &Graph, mut node: NodeId) -> bool {
    loop {
        match prim_of(graph, node) {
            Some(Prim::Contract(_)) => return true,
            Some(Prim::Map(_)) => {
                let own = graph.node(node).types[0].clone();
                let inner = graph.args(node).into_iter().find(|a| {
                    *graph.ty(*a) == own
                        && matches!(prim_of(graph, a.node), Some(Prim::Map(_) | Prim::Contract(_)))
                        && single_user(graph, a.node) == Some(node)
                });
                match inner {
                    Some(v) => node = v.node,
                    None => return false,
                }
            }
            _ => return false,
        }
    }
}

/// `map(reshape(x), y)` becomes `reshape(map(x, reshape(y)))`.
fn rebuild(
    graph: &mut Graph,
    view_node: NodeId,
    user: NodeId,
    f: &Arc<ScalarFn>,
    source: Value,
    shapes: Vec<Extents>,
) -> Result<()> {
    let (from, out) = (graph.dense(source)?, graph.dense(Value { node: user, port: 0 })?);
    let args = graph.args(user);
    let mut shapes = shapes.into_iter();
    let mut patch = graph.patch("sink-reshape");
    let name = patch.graph.node(user).name.clone();
    let mut operands = vec![];
    for arg in args {
        let dims = match arg.node == view_node {
            true => None,
            false => shapes.next(),
        };
        operands.push(match dims {
            None => source,
            Some(dims) => reshape(patch.graph, arg, &dims)?,
        });
    }
    let ty = DenseType::new(out.dtype, &from.dims);
    let map = patch.graph.add_prim(name, Prim::Map(f.clone()), &operands, &[ty]);
    let back = reshape(patch.graph, Value { node: map, port: 0 }, &out.dims)?;
    patch.replace(Value { node: user, port: 0 }, back);
    patch.commit();
    Ok(())
}

fn reshape(graph: &mut Graph, v: Value, dims: &Extents) -> Result<Value> {
    let from = graph.dense(v)?;
    let vars: Vec<Index> = (0..dims.len() as u32).map(Index::var).collect();
    let view = View { map: delinearize(&linearize(&vars, dims), &from.dims, dims), fill: None };
    let name = graph.node(v.node).name.clone();
    let ty = DenseType::new(from.dtype, dims);
    Ok(Value { node: graph.add_prim(name, Prim::View(Arc::new(view)), &[v], &[ty]), port: 0 })
}

/// Ranges of axes of two shapes with equal products, as small as possible; axes of extent 1 go
/// with what follows them.
fn axis_groups(from: &Extents, to: &Extents) -> Option<Vec<(std::ops::Range<usize>, std::ops::Range<usize>)>> {
    if from.has_none() {
        return None;
    }
    let (mut i, mut j, mut groups) = (0, 0, vec![]);
    while i < from.len() || j < to.len() {
        let (a, b) = (i, j);
        let (mut p, mut q) = (Extent::ONE, Extent::ONE);
        while !p.is_surely(q) || (p.is_surely(1) && (i < from.len() || j < to.len())) {
            let left = i < from.len() && (p.example() <= q.example() || j == to.len());
            match left {
                true => (p, i) = (p * from.at(i), i + 1),
                false if j < to.len() => (q, j) = (q * to.at(j), j + 1),
                false => return None,
            }
        }
        groups.push((a..i, b..j));
    }
    Some(groups)
}

/// The shape of an operand that broadcasts to `to`, when `to` is regrouped as `from`.
fn regroup(
    groups: &[(std::ops::Range<usize>, std::ops::Range<usize>)],
    from: &Extents,
    to: &Extents,
    operand: &Extents,
) -> Option<Extents> {
    let lead = to.len().checked_sub(operand.len())?;
    let padded: Extents = std::iter::repeat_n(Extent::ONE, lead).chain(operand.all()).collect();
    let mut dims = vec![Extent::ONE; from.len()];
    for (a, b) in groups {
        if b.clone().all(|axis| padded.at(axis).is_surely(to.at(axis))) {
            a.clone().for_each(|axis| dims[axis] = from.at(axis));
        } else if b.clone().any(|axis| !padded.at(axis).is_surely(1)) {
            return None;
        }
    }
    Some(dims.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_pair_equal_products() {
        assert_eq!(
            axis_groups(&[2, 3, 4, 5].into(), &[2, 12, 5].into()).unwrap(),
            [(0..1, 0..1), (1..3, 1..2), (3..4, 2..3)]
        );
        assert_eq!(axis_groups(&[6, 4].into(), &[4, 6].into()).unwrap(), [(0..2, 0..2)]);
        let groups = axis_groups(&[2, 32, 1, 7, 7].into(), &[2, 32, 7, 7].into()).unwrap();
        let regroup = |from: &[u64], to: &[u64], operand: &[u64], groups: &Vec<_>| {
            regroup(groups, &from.into(), &to.into(), &operand.into()).map(|dims| dims.to_vec())
        };
        assert_eq!(regroup(&[2, 32, 1, 7, 7], &[2, 32, 7, 7], &[32, 1, 1], &groups).unwrap(), [1, 32, 1, 1, 1]);
        assert_eq!(regroup(&[2, 32, 1, 7, 7], &[2, 32, 7, 7], &[], &groups).unwrap(), [1, 1, 1, 1, 1]);
        let groups = axis_groups(&[6, 4].into(), &[4, 6].into()).unwrap();
        assert_eq!(regroup(&[6, 4], &[4, 6], &[6], &groups), None);
    }
}
