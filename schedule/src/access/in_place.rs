//! Which results of a cluster may be written over operands.

use tensorc_ir::DenseType;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{FusionClass, Value};
use tensorc_ir::index::{Index, linearize};

use super::axes::IterationAxes;
use super::space::{Analysis, IterationSpace};
use super::{ClusterAccesses, Located};

/// Pairs of an input and an output of a cluster that may share memory: every element of the input is read only by the
/// iteration that writes the same position of the output.
///
/// # Errors
/// A value of the cluster has a shape that is not of its space.
pub fn in_place(class: FusionClass, cluster: &Located<'_>) -> Result<Vec<(usize, usize)>> {
    match class {
        FusionClass::Map => {
            let outputs = cluster.outputs();
            let dims = cluster.ty(outputs[0])?.dims;
            let IterationAxes { coords, uses, .. } = IterationAxes::of(cluster, &outputs, &dims)?;
            pairs(cluster, &uses, |v| Ok(Some(linearize(&coords, &cluster.ty(v)?.dims))))
        }
        FusionClass::Reduce | FusionClass::Contract => {
            let space = IterationSpace::of(cluster.body)?;
            let uses = Analysis::of(cluster, &space)?.uses;
            let position = linearize(&space.coords(), &space.dims);
            pairs(cluster, &uses, |v| Ok(space.is_full(&cluster.ty(v)?.dims).then(|| position.clone())))
        }
        FusionClass::Attention => Ok(vec![]),
    }
}

/// The pairs of inputs and outputs, given the position at which an iteration writes an output.
fn pairs(
    cluster: &Located<'_>,
    uses: &ClusterAccesses,
    position: impl Fn(Value) -> Result<Option<Index>>,
) -> Result<Vec<(usize, usize)>> {
    let mut pairs = vec![];
    for (o, out) in cluster.outputs().into_iter().enumerate() {
        let Some(flat) = position(out)?.filter(|_| cluster.output_runs(o).is_none()) else { continue };
        for (i, &node) in cluster.body.inputs().iter().enumerate() {
            let input = Value { node, port: 0 };
            let same = uses.flats.iter().filter(|(v, _)| *v == input).all(|(_, f)| *f == flat);
            if same && out != input && same_size(&cluster.ty(input)?, &cluster.ty(out)?) {
                pairs.push((i, o));
            }
        }
    }
    Ok(pairs)
}

/// Whether values take the same memory.
fn same_size(a: &DenseType, b: &DenseType) -> bool {
    a.dims.count() * a.dtype.size() == b.dims.count() * b.dtype.size()
}
