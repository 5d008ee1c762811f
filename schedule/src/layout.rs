//! Where elements of a cluster's operands and results lie: densely, or in runs that lie apart because
//! the tensor is a part of a larger one.

use tensorc_abi::MatrixLayout;
use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_ir::extent::Axes;
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::{Extent, Extents};

/// Elements in runs of `run`, one every `stride` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Elements of a run.
    pub run: Extent,
    /// Elements between the beginnings of runs.
    pub stride: Extent,
}

/// The layouts of a cluster's inputs and outputs, by position. What is not listed is dense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layouts {
    /// The layouts of the inputs; `None` for a contiguous one.
    pub inputs: Vec<Option<Runs>>,
    /// The layouts of the outputs; `None` for a contiguous one.
    pub outputs: Vec<Option<Runs>>,
}

impl Layouts {
    /// The layout of an input.
    pub fn input(&self, i: usize) -> Option<Runs> {
        self.inputs.get(i).copied().flatten()
    }

    /// The layout of an output.
    pub fn output(&self, i: usize) -> Option<Runs> {
        self.outputs.get(i).copied().flatten()
    }
}

impl Runs {
    /// The first axis of a run, if runs are made of the last axes of a tensor.
    fn axis(&self, dims: &Extents) -> Option<usize> {
        (0..dims.len()).find(|a| dims.range(*a..).count() == self.run)
    }

    /// Whether a tensor of these extents can be addressed, axis by axis.
    pub fn fits(&self, dims: &Extents) -> bool {
        self.axis(dims).is_some()
    }

    /// The layout of a matrix that is dense elsewhere; `None` if its axes do not end where runs end.
    pub fn matrix(
        &self,
        layout: &MatrixLayout<Extent>,
        batch: &[Extent; GEMM_BATCH_RANK],
        shape: [Extent; 2],
    ) -> Option<MatrixLayout<Extent>> {
        let Runs { run, stride } = *self;
        // Steps of the axes inside a run, and those over whole runs, which change.
        let mut reach = layout.offset % run;
        let mut step = |extent: Extent, step: Extent| match step {
            _ if extent <= 1 => Some(step),
            step if step > 0 && step % run == 0 => Some(step / run * stride),
            step if step >= 0 => {
                reach = reach + (extent - 1) * step;
                Some(step)
            }
            _ => None,
        };
        let mut out = MatrixLayout {
            row_stride: step(shape[0], layout.row_stride)?,
            col_stride: step(shape[1], layout.col_stride)?,
            offset: layout.offset / run * stride + layout.offset % run,
            ..*layout
        };
        for (i, extent) in batch.iter().enumerate() {
            out.batch_strides[i] = step(*extent, layout.batch_strides[i])?;
        }
        (layout.offset >= 0 && reach < run).then_some(out)
    }
}

/// The position of an element in the memory of a tensor of extents `dims`.
pub fn address(coords: &[Index], dims: &Extents, runs: Option<Runs>) -> Index {
    match runs.and_then(|r| Some((r, r.axis(dims)?))) {
        None => linearize(coords, dims),
        Some((runs, axis)) => {
            let outer = linearize(&coords[..axis], &dims.range(..axis));
            outer.scale(runs.stride).add(&linearize(&coords[axis..], &dims.range(axis..)))
        }
    }
}

/// Elements from the first to one past the last of a tensor of `len` elements.
pub fn span(len: Extent, runs: Option<Runs>) -> Extent {
    match runs {
        // One run is all there is, or nothing.
        Some(Runs { run, .. }) if run.is_surely(len) => len,
        Some(Runs { run, stride }) if len > 0 => (len / run - 1) * stride + run,
        _ => len,
    }
}
