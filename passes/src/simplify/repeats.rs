//! Constants shrink along axes where they repeat, if a map reads them: it repeats axes of extent 1 itself.
//!
//! What folding makes of positions and token types holds a copy for every sample of the batch; plans for other batches
//! share such a constant only without them.

use std::collections::BTreeMap;

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::{DenseType, TensorData};

use super::{prim_of, visit_all};

/// What became of constants without some of their axes' repetitions.
type Shrunk = BTreeMap<(Value, Vec<usize>), Value>;

pub fn run(graph: &mut Graph) -> Result<bool> {
    let mut shrunk = Shrunk::new();
    visit_all(graph, |graph, node| match prim_of(graph, node) {
        Some(Prim::Map(_)) => shrink(graph, node, &mut shrunk),
        _ => Ok(false),
    })
}

/// Shrinks the constant operands of a map, but along no axis that the result owes to them alone.
fn shrink(graph: &mut Graph, map: NodeId, shrunk: &mut Shrunk) -> Result<bool> {
    let mut changed = false;
    for port in 0..graph.args(map).len() {
        let args = graph.args(map);
        let Some(data) = graph.constant(args[port]) else { continue };
        let others = args.iter().enumerate().filter(|(i, _)| *i != port);
        let others = others.map(|(_, arg)| graph.dense(*arg)).collect::<Result<Vec<_>>>()?;
        let dims = &data.ty.dims;
        let is_given =
            |axis: usize| others.iter().any(|other| extent_from_end(other, dims.len() - axis).is_surely(dims[axis]));
        let axes: Vec<usize> =
            (0..dims.len()).filter(|&axis| dims[axis] > 1 && is_given(axis) && repeats(data, axis)).collect();
        if axes.is_empty() {
            continue;
        }
        let key = (args[port], axes);
        let value = match shrunk.get(&key) {
            Some(value) => *value,
            None => {
                let small = key.1.iter().try_fold(data.clone(), |data, axis| first_along(&data, *axis));
                let Some(small) = small else { continue };
                let name = graph.node(args[port].node).name.clone();
                *shrunk.entry(key).or_insert(graph.add_const(name, small))
            }
        };
        graph.set_arg(map, port as u16, value);
        changed = true;
    }
    Ok(changed)
}

/// The extent of an axis that is counted from the end, 1 for the last; 1 where there is none.
fn extent_from_end(ty: &DenseType, axis: usize) -> Extent {
    ty.dims.len().checked_sub(axis).map_or(Extent::ONE, |i| ty.dims.at(i))
}

/// The bytes of all elements that have the same coordinates before `axis`, and of those that also have the same there.
fn runs(ty: &DenseType, axis: usize) -> (usize, usize) {
    let inner = ty.dims[axis + 1..].iter().product::<u64>() as usize * ty.dtype.size();
    (inner * ty.dims[axis] as usize, inner)
}

/// Whether the elements are the same at every coordinate of `axis`, bit for bit.
fn repeats(data: &TensorData, axis: usize) -> bool {
    let (outer, inner) = runs(&data.ty, axis);
    !data.is_empty()
        && begins_with_repeats(data, outer, inner)
        && data.bytes().chunks_exact(outer).all(|run| run[inner..] == run[..outer - inner])
}

/// Whether the beginning of the second elements is that of the first: of most weights it is not, and they stay in their file.
fn begins_with_repeats(data: &TensorData, outer: usize, inner: usize) -> bool {
    let len = (outer - inner).min(64);
    let beginning = |at: usize| data.content().part(at..at + len).ok();
    match (beginning(0), beginning(inner)) {
        (Some(first), Some(second)) => *first == *second,
        _ => false,
    }
}

/// The elements at coordinate 0 of `axis`, whose extent becomes 1.
fn first_along(data: &TensorData, axis: usize) -> Option<TensorData> {
    let (outer, inner) = runs(&data.ty, axis);
    let mut ty = data.ty.clone();
    ty.dims.set(axis, 1);
    let bytes: Vec<u8> = data.bytes().chunks_exact(outer).flat_map(|run| &run[..inner]).copied().collect();
    TensorData::new(ty, bytes.into())
}
