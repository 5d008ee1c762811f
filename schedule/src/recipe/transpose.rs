//! Element-wise clusters that read across memory what they write along it.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::index::Index;

use crate::access::axes::IterationAxes;
use crate::access::{ClusterAccesses, Located, MergedAxes, group_axes};

/// Shorter axes are not worth a tile.
const MIN_EXTENT: u64 = 8;
/// Operands with tiles of their own, at most.
const MAX_OPERANDS: usize = 4;

/// What is read across memory.
#[derive(Clone, Debug)]
pub struct Transposed {
    /// The axis along which it lies in memory.
    pub along: MergedAxes,
    /// Inputs that are read at one place for each element, and where.
    pub operands: Vec<(Value, DType, Index)>,
}

impl Transposed {
    /// What a cluster reads across memory; `None` if nothing is worth a tile.
    ///
    /// # Errors
    /// A type of the cluster is not known.
    pub fn of(cluster: &Located<'_>) -> Result<Option<Transposed>> {
        let outputs = cluster.outputs();
        let IterationAxes { extents, uses, .. } = IterationAxes::of(cluster, &outputs, &cluster.ty(outputs[0])?.dims)?;
        let groups = group_axes(&extents, &uses, &|_| false, &|_, _| true);
        let Some((inner, outer)) = groups.split_last() else { return Ok(None) };
        if !uses.guards.is_empty() {
            return Ok(None);
        }
        // Whatever goes through tiles, results are the same.
        advice(|| across(cluster, &uses, outer, inner))
    }
}

/// What is read along one of the outer axes.
fn across(
    cluster: &Located<'_>,
    uses: &ClusterAccesses,
    outer: &[MergedAxes],
    inner: &MergedAxes,
) -> Result<Option<Transposed>> {
    if inner.extent < MIN_EXTENT {
        return Ok(None);
    }
    let coefficient = |f: &Index, g: &MergedAxes| f.coefficient(g.axis as u32).unwrap_or_default();
    for along in outer.iter().filter(|g| g.extent >= MIN_EXTENT) {
        let mut operands = vec![];
        for (v, flat) in &uses.flats {
            let is_input = matches!(cluster.body.node(v.node).kind, NodeKind::Input);
            let once = uses.flats.iter().filter(|(u, _)| u == v).count() == 1;
            if is_input && once && coefficient(flat, along) == 1 && coefficient(flat, inner).magnitude() > 1 {
                operands.push((*v, cluster.ty(*v)?.dtype, flat.clone()));
            }
        }
        operands.truncate(MAX_OPERANDS);
        if !operands.is_empty() {
            return Ok(Some(Transposed { along: along.clone(), operands }));
        }
    }
    Ok(None)
}
