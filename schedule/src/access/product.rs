//! Contractions as matrix products of whatever computes their operands: rows are the axes that only the left operand has, columns
//! those that only the right one has. Convolutions are products of a matrix of image patches that is never in memory.

use std::sync::Arc;

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::views::strides_in_result;

use super::space::{IterationSpace, folds};
use super::{ClusterAccesses, Located, MergedAxes, group_axes, stays_inside};

/// The axes of a product by the operands that have them; neighbours that all accesses walk as one are one group.
#[derive(Clone, Debug)]
pub struct ProductAxes {
    /// Axes of both operands.
    pub batch: Vec<MergedAxes>,
    /// The axes of the rows.
    pub rows: Vec<MergedAxes>,
    /// The axes of the columns.
    pub columns: Vec<MergedAxes>,
    /// The axes that are summed over.
    pub terms: Vec<MergedAxes>,
}

/// Elements of some groups of axes together.
pub fn total(groups: &[MergedAxes]) -> Extent {
    groups.iter().map(|g| g.extent).product()
}

/// A value that is stored at every element of the product.
#[derive(Clone, Debug)]
pub struct StoredValue {
    /// Position among the cluster's outputs.
    pub output: usize,
    /// The value.
    pub value: Value,
    /// Its coordinates, and its position in memory, in the axes of the space.
    pub coords: Vec<Index>,
    /// Where its element is stored.
    pub address: Index,
}

/// The contraction of a cluster as a matrix product.
#[derive(Clone, Debug)]
pub struct MatrixProduct {
    /// The iteration space of the cluster.
    pub space: IterationSpace,
    /// The contraction.
    pub contraction: Arc<Contraction>,
    /// The result of the contraction, and its operands.
    pub value: Value,
    /// Its left and right operand.
    pub operands: [Value; 2],
    /// Its axes as those of a matrix product.
    pub axes: ProductAxes,
    /// The values stored at each element.
    pub stored: Vec<StoredValue>,
    /// Every access of one iteration.
    pub uses: ClusterAccesses,
}

impl MatrixProduct {
    /// The product of a cluster; `None` if it folds anything but one contraction.
    ///
    /// # Errors
    /// A value of the cluster has a shape that is not of its space.
    pub fn of(cluster: &Located<'_>) -> Result<Option<MatrixProduct>> {
        let [node] = folds(cluster.body)[..] else { return Ok(None) };
        let Some(Prim::Contract(contraction)) = cluster.prim(node) else { return Ok(None) };
        let space = IterationSpace::of(cluster.body)?;
        let mut uses = ClusterAccesses::default();
        uses.collect_fold(cluster, node, &space, &|_| false)?;
        let stored = stored(cluster, &space, contraction)?;
        for s in &stored {
            uses.collect(cluster, s.value, &s.coords, &space.dims, &|v| v.node == node)?;
            uses.store(s.value, s.address.clone());
        }
        let axes = classify(contraction, &space, &uses);
        let args = cluster.body.args(node);
        let (value, contraction) = (Value { node, port: 0 }, contraction.clone());
        Ok(Some(MatrixProduct { space, contraction, value, operands: [args[0], args[1]], axes, stored, uses }))
    }

    /// Rows of the product.
    pub fn rows(&self) -> Extent {
        total(&self.axes.rows)
    }

    /// Columns of the product.
    pub fn columns(&self) -> Extent {
        total(&self.axes.columns)
    }

    /// Terms of each sum.
    pub fn terms(&self) -> Extent {
        total(&self.axes.terms)
    }

    /// Number of products.
    pub fn batch(&self) -> Extent {
        total(&self.axes.batch)
    }

    /// Tiles of the result of so many rows and columns, of all batches.
    pub fn tiles(&self, rows: u64, columns: u64) -> Extent {
        self.rows().div_ceil(rows) * self.columns().div_ceil(columns) * self.batch()
    }

    /// The groups of rows, or of columns, that an operand has.
    pub fn own_axes(&self, operand: usize) -> &[MergedAxes] {
        if operand == 0 { &self.axes.rows } else { &self.axes.columns }
    }

    /// The index map of an operand.
    pub fn index_map(&self, operand: usize) -> &[Index] {
        if operand == 0 { &self.contraction.lhs } else { &self.contraction.rhs }
    }

    /// Whether a last view of the cluster decides where values are stored.
    pub fn is_moved(&self, cluster: &Located<'_>) -> bool {
        self.stored.iter().zip(cluster.outputs()).any(|(s, v)| s.value != v)
    }

    /// Whether neighbouring terms of an operand lie side by side, rather than neighbouring rows or columns.
    pub fn is_contiguous(&self, operand: usize) -> bool {
        let unit = |g: Option<&MergedAxes>| {
            let axis = g.map(|g| g.axis as u32);
            let reads = |v: Value| self.operands[operand] == v;
            axis.is_some_and(|a| self.uses.flats.iter().any(|(v, f)| reads(*v) && is_contiguous(f, a)))
        };
        unit(self.axes.terms.last()) && !unit(self.own_axes(operand).last())
    }

    /// The position in memory that is read of an operand, if that is an input, not laid out in runs, read by nothing else and
    /// nowhere outside.
    ///
    /// # Errors
    /// The operand's type is not known.
    pub fn plain_read(&self, cluster: &Located<'_>, operand: usize) -> Result<Option<&Index>> {
        let v = self.operands[operand];
        let is_input =
            matches!(cluster.body.node(v.node).kind, NodeKind::Input) && cluster.input_runs(v.node).is_none();
        let mut flats = self.uses.flats.iter().filter(|(u, _)| *u == v);
        let (true, Some((_, flat)), None) = (is_input, flats.next(), flats.next()) else { return Ok(None) };
        let dims = cluster.ty(v)?.dims;
        let inside = self.index_map(operand).iter().zip(dims.all()).all(|(i, n)| stays_inside(i, n, &self.space.dims));
        Ok((inside && flat.is_affine()).then_some(flat))
    }
}

/// Whether neighbours along an axis lie side by side in every shape.
pub fn is_contiguous(flat: &Index, axis: u32) -> bool {
    flat.coefficient(axis).is_some_and(|step| step.is_surely(1))
}

/// What is stored. A last view that permutes says where, rather than what.
fn stored(cluster: &Located<'_>, space: &IterationSpace, c: &Contraction) -> Result<Vec<StoredValue>> {
    let dims = &c.extents.range(..c.out_rank);
    let one = |(output, v): (usize, Value)| {
        let ty = cluster.ty(v)?;
        if let Some(Prim::View(view)) = cluster.prim(v.node)
            && let Some(strides) = strides_in_result(view, dims, &ty.dims)
        {
            let step = |(axis, stride): (usize, &Extent)| Index::var(axis as u32).scale(*stride);
            let position = strides.iter().enumerate().map(step).fold(Index::default(), |sum, term| sum.add(&term));
            let address = match cluster.output_runs(output) {
                Some(runs) => {
                    let outer = position.floor_div(runs.run, &space.dims).scale(runs.stride);
                    outer.add(&position.modulo(runs.run, &space.dims))
                }
                None => position,
            };
            let value = cluster.body.args(v.node)[0];
            return Ok(StoredValue { output, value, coords: space.coords_of(dims)?, address });
        }
        let coords = space.coords_of(&ty.dims)?;
        Ok(StoredValue { output, value: v, address: cluster.output_address(output, &ty.dims, &coords), coords })
    };
    cluster.outputs().into_iter().enumerate().map(one).collect()
}

fn classify(c: &Contraction, space: &IterationSpace, uses: &ClusterAccesses) -> ProductAxes {
    let mentions = |operand: &[Index], a: usize| operand.iter().any(|i| i.mentions(a as u32));
    let class = |a: usize| match (space.is_reduced(a), mentions(&c.lhs, a), mentions(&c.rhs, a)) {
        (true, ..) => 3,
        (_, true, false) => 1,
        (_, false, true) => 2,
        _ => 0,
    };
    let groups = group_axes(&space.dims, uses, &|_| true, &|a, b| class(a) == class(b));
    let of = |wanted: usize| groups.iter().filter(|g| class(g.axis) == wanted).cloned().collect();
    ProductAxes { batch: of(0), rows: of(1), columns: of(2), terms: of(3) }
}
