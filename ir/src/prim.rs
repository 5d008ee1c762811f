//! The primitive computations every operator comes down to.
//!
//! Passes and code generation work on these alone; they carry their full meaning, so nothing
//! below this level knows an operator's name. All shapes are concrete.

use std::sync::Arc;

pub use tensorc_abi::ConvAlgorithm;
use tensorc_abi::ExternFn;

use crate::extent::{Axes, Extent, Extents};
use crate::flow::Flow;
use crate::index::Index;
use crate::kir::Kernel;
use crate::scalar::{Scalar, ScalarFn};
use crate::types::DenseType;

/// One primitive computation on dense tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Prim {
    /// `out_j[c] = f_j(in_0[c], in_1[c], …)`: operands broadcast to the output shape by the numpy
    /// rule (right-aligned; an axis of extent 1 repeats). Coordinates are those of the output.
    Map(Arc<ScalarFn>),
    /// Folds axes of its operands.
    Reduce(Arc<Reduction>),
    /// Reads elements of its operand at other coordinates.
    View(Arc<View>),
    /// Sums products of two operands.
    Contract(Arc<Contraction>),
    /// Reads slices at positions given by the second operand.
    Gather(Gather),
    /// Joins the operands along `axis`.
    Concat {
        /// The axis along which operands are joined.
        axis: usize,
    },
    /// A loop nest of the operator's own. Parameters: inputs in order, then outputs.
    Kernel(Arc<Kernel>),
    /// Graphs that run more or less than once.
    Flow(Arc<Flow>),
    /// A function of the host: opaque, and never computed at compile time, because it may do more than compute.
    Extern(ExternFn),
}

/// Folds operands of one common shape over `axes`.
///
/// The accumulators start at `init`, which is neutral for `combine`: kernels start every lane from
/// it. Each element contributes `map(operands)`, folded by `combine`; `finish` turns the accumulators
/// into the outputs. `combine` must be associative and commutative
/// up to rounding: kernels fold in several lanes in an order fixed by shape and schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    /// Ascending.
    pub axes: Vec<usize>,
    /// Keep reduced axes with extent 1.
    pub keep_dims: bool,
    /// One per accumulator.
    pub init: Vec<Scalar>,
    /// Operands to contributions, one per accumulator; coordinates are those of the operands.
    pub map: ScalarFn,
    /// (accumulators, contributions) to accumulators.
    pub combine: ScalarFn,
    /// Accumulators to outputs; no coordinates.
    pub finish: ScalarFn,
}

impl Reduction {
    /// The output shape for operands of shape `dims`.
    pub fn output_dims(&self, dims: &(impl Axes + ?Sized)) -> Extents {
        let kept = dims.each().enumerate().filter(|(i, _)| self.keep_dims || !self.axes.contains(i));
        kept.map(|(i, d)| if self.axes.contains(&i) { Extent::ONE } else { d }).collect()
    }
}

/// `out[d] = in[map(d)]`, or `fill` where a coordinate falls outside the operand.
///
/// Reshape, transpose, slice, pad, broadcast, flip, tile, window extraction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// One index per operand axis, in variables that count output axes.
    pub map: Vec<Index>,
    /// `None` promises that every coordinate is in bounds.
    pub fill: Option<Scalar>,
}

impl View {
    /// Position `at` of the first axis, without that axis: a result of `rank` axes.
    pub fn row(at: u64, rank: usize) -> View {
        let rest = (0..rank as u32).map(Index::var);
        View { map: [Index::constant(at as i64)].into_iter().chain(rest).collect(), fill: None }
    }

    /// An operand of `rank` axes behind a first axis of extent 1.
    pub fn unsqueezed(rank: usize) -> View {
        View { map: (1..=rank as u32).map(Index::var).collect(), fill: None }
    }

    /// Whether every element stays where it is.
    pub fn is_identity(&self, input: &(impl Axes + ?Sized), output: &(impl Axes + ?Sized)) -> bool {
        let same = input.rank() == output.rank() && input.each().zip(output.each()).all(|(a, b)| a.is_surely(b));
        same && self.map.iter().enumerate().all(|(i, m)| m.as_var() == Some(i as u32))
    }
}

/// `out[p] = Σ_r lhs[lhs(p, r)] · rhs[rhs(p, r)]` over an iteration space whose first `out_rank`
/// axes are the output's; reads outside the left operand count as zero (implicit padding).
///
/// Dot, batched dot and convolution. Floats accumulate in f32 (f64 for f64 operands) by fused
/// multiply-add in ascending order of the reduction axes inside the blocks of the chosen kernel;
/// integers wrap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contraction {
    /// Extents of the iteration axes: those of the result, then the summed ones.
    pub extents: Extents,
    /// Number of iteration axes that the result has.
    pub out_rank: usize,
    /// One index per axis of the left operand, in variables that count `extents`.
    pub lhs: Vec<Index>,
    /// The coordinates read in the right operand.
    pub rhs: Vec<Index>,
    /// How it is computed where it is a convolution that the algorithm [computes](ConvAlgorithm::computes); else by the sum of
    /// products, which is what it means.
    pub algorithm: ConvAlgorithm,
}

impl Contraction {
    /// Computed as it is defined.
    pub fn new(extents: impl Into<Extents>, out_rank: usize, lhs: Vec<Index>, rhs: Vec<Index>) -> Contraction {
        Contraction { extents: extents.into(), out_rank, lhs, rhs, algorithm: ConvAlgorithm::Direct }
    }
}

/// `out[c] = data[…]` with one axis read through an integer tensor: for
/// `c = (outer…, index…, inner…)`, `out[c] = data[outer…, indices[index…], inner…]`.
/// Negative indices count from the end; an index outside the axis is clamped to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The axis of `data` that is indexed.
    pub axis: usize,
}

impl Gather {
    /// The shape of the result.
    pub fn output_dims(&self, data: &DenseType, indices: &DenseType) -> Extents {
        let (outer, inner) = (data.dims.all().take(self.axis), data.dims.all().skip(self.axis + 1));
        outer.chain(indices.dims.all()).chain(inner).collect()
    }
}
