//! The iteration space of clusters that fold elements into fewer: reductions and contractions.

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::ScalarNode;
use tensorc_ir::{Extent, Extents};

use super::{ClusterAccesses, Located, MergedAxes, group_axes, internal, stays_inside};

/// The iteration space of a cluster: every element value has these axes, every folded value the
/// kept ones.
#[derive(Clone, Debug)]
pub struct IterationSpace {
    /// The extents of the axes.
    pub dims: Extents,
    /// Axes that are folded, ascending.
    pub reduced: Vec<usize>,
}

/// The nodes of a body that fold, in order.
pub fn folds(body: &Graph) -> Vec<NodeId> {
    let fold = |n: &NodeId| matches!(&body.node(*n).kind, NodeKind::Prim(Prim::Reduce(_) | Prim::Contract(_)));
    body.order().into_iter().filter(fold).collect()
}

/// What one iteration over the space of a folding cluster touches, and the axes that are walked as one.
pub struct Analysis {
    /// Every access of one iteration.
    pub uses: ClusterAccesses,
    /// The axes that results have.
    pub kept: Vec<MergedAxes>,
    /// The axes that are folded.
    pub reduced: Vec<MergedAxes>,
}

impl Analysis {
    /// Analyses the accesses of a cluster over a space.
    pub fn of(cluster: &Located<'_>, space: &IterationSpace) -> Result<Analysis> {
        let mut uses = ClusterAccesses::default();
        let folds = folds(cluster.body);
        let stop = |v: Value| folds.contains(&v.node);
        for fold in &folds {
            uses.collect_fold(cluster, *fold, space, &stop)?;
        }
        for (i, v) in cluster.outputs().into_iter().enumerate() {
            let dims = cluster.ty(v)?.dims;
            let coords = space.coords_of(&dims)?;
            uses.collect(cluster, v, &coords, &space.dims, &stop)?;
            uses.store(v, cluster.output_address(i, &dims, &coords));
        }
        let groups = group_axes(&space.dims, &uses, &|a| space.is_reduced(a), &|a, b| {
            space.is_reduced(a) == space.is_reduced(b)
        });
        let (reduced, kept) = groups.into_iter().partition(|g| space.is_reduced(g.axis));
        Ok(Analysis { uses, kept, reduced })
    }
}

impl IterationSpace {
    /// The space of a cluster's folds: of its first reduction, or of its contraction.
    ///
    /// # Errors
    /// The cluster folds nothing.
    pub fn of(body: &Graph) -> Result<IterationSpace> {
        let none = || internal("a cluster of folds holds none");
        let node = folds(body).first().copied().ok_or_else(none)?;
        match &body.node(node).kind {
            NodeKind::Prim(Prim::Reduce(r)) => {
                Ok(IterationSpace { dims: body.dense(body.args(node)[0])?.dims, reduced: r.axes.clone() })
            }
            NodeKind::Prim(Prim::Contract(c)) => {
                Ok(IterationSpace { dims: c.extents.clone(), reduced: (c.out_rank..c.extents.len()).collect() })
            }
            _ => Err(none()),
        }
    }

    /// Elements that are folded into one.
    pub fn length(&self) -> Extent {
        self.reduced.iter().map(|a| self.dims.at(*a)).product()
    }

    /// Whether the axis is folded.
    pub fn is_reduced(&self, axis: usize) -> bool {
        self.reduced.contains(&axis)
    }

    /// The coordinates of an element.
    pub fn coords(&self) -> Vec<Index> {
        // As everywhere, an axis of extent 1 has no part in a position.
        let var = |a: usize| if self.dims.at(a).is_surely(1) { Index::default() } else { Index::var(a as u32) };
        (0..self.dims.len()).map(var).collect()
    }

    /// Whether a value has one element per element of the space.
    pub fn is_full(&self, dims: &Extents) -> bool {
        let equal = |(a, b): (Extent, Extent)| a.is_surely(b) || !a.is_surely(1) && a == b;
        let all = dims.len() == self.dims.len() && dims.all().zip(self.dims.all()).all(equal);
        all && !self.reduced.iter().all(|a| self.dims.at(*a).is_surely(1))
    }

    /// The coordinates of a value of this cluster with shape `dims` at the current position.
    pub fn coords_of(&self, dims: &Extents) -> Result<Vec<Index>> {
        let var = |a: usize| Index::var(a as u32);
        if dims.len() == self.dims.len() {
            let repeated = |a: usize| dims.at(a).is_repeated_along(self.dims.at(a));
            if (0..dims.len()).all(|a| repeated(a) || dims.at(a) == self.dims.at(a)) {
                return Ok((0..dims.len()).map(|a| if repeated(a) { Index::default() } else { var(a) }).collect());
            }
        }
        // Drop reduced axes, and add or drop axes of extent 1, as the shape demands.
        let mut kept = (0..self.dims.len()).filter(|a| !self.is_reduced(*a) && !self.dims.at(*a).is_surely(1));
        let mut coords = vec![];
        for n in dims.all() {
            coords.push(match n.is_surely(1) {
                true => Index::default(),
                false => kept
                    .next()
                    .filter(|a| self.dims.at(*a) == n)
                    .map(var)
                    .ok_or_else(|| internal("a value of a fold cluster has a foreign shape"))?,
            });
        }
        Ok(coords)
    }
}

impl ClusterAccesses {
    /// Adds what one element of a fold reads. Values in `stop` are available already.
    ///
    /// # Errors
    /// The node is no fold, or a value of the cluster has a shape that is not of its space.
    pub(crate) fn collect_fold(
        &mut self,
        cluster: &Located<'_>,
        fold: NodeId,
        space: &IterationSpace,
        stop: &dyn Fn(Value) -> bool,
    ) -> Result<()> {
        let args = cluster.body.args(fold);
        match cluster.prim(fold) {
            Some(Prim::Reduce(r)) => {
                for node in &r.map.nodes {
                    if let ScalarNode::Coord(a) = node {
                        self.exact.insert(*a);
                    }
                }
                args.iter().try_for_each(|a| self.collect(cluster, *a, &space.coords(), &space.dims, stop))
            }
            Some(Prim::Contract(c)) => {
                for (index, n) in c.lhs.iter().zip(cluster.ty(args[0])?.dims.all()) {
                    if !stays_inside(index, n, &space.dims) {
                        self.guards.push((index.clone(), n));
                    }
                }
                self.collect(cluster, args[0], &c.lhs, &space.dims, stop)?;
                self.collect(cluster, args[1], &c.rhs, &space.dims, stop)
            }
            _ => Err(internal("a node that folds nothing")),
        }
    }
}
