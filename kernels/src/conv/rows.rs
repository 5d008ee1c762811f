//! Convolutions with packed filters over staged rows: vectors of pixels are columns of a row, which need no patches. Filters are packed as
//! [`super::windows`] packs them.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::planes::PlaneTasks;
use super::staged::{Stage, StagedConvolution};
use super::{Tensors, WindowShape, has_small_groups};
use crate::blocking::row_panels;
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, LANES};

/// Filters whose products with a vector of patches take as long as to fetch the vector, and terms that are fetched while a vector is found.
const FETCH: usize = 4;
const FOUND: usize = 6;
/// Tasks wanted, and fewest output rows of one.
const TASKS: usize = 16;
const MIN_ROWS: usize = 4;

/// Whether a convolution is computed so: it has few channels in a group, or vectors do not reach far beyond the ends of rows, or there are few
/// filters for which patches would be fetched.
pub(super) fn pays(call: &Conv2d) -> bool {
    let shape = WindowShape::forward(call);
    let width = shape.output[1];
    let beyond = width.next_multiple_of(LANES) - width;
    call.pass == ConvPass::Packed(ConvAlgorithm::Direct)
        && call.in_planes()
        && !shape.pointwise
        && (has_small_groups(call)
            || shape.out_channels * beyond * shape.depth() <= FETCH * (shape.depth() + FOUND) * width)
}

/// The division of a call into tasks.
pub(super) fn plane_tasks(shape: &WindowShape) -> PlaneTasks<'_> {
    let bands = TASKS.div_ceil((shape.batch * shape.groups).max(1));
    PlaneTasks::new(shape, shape.out_channels, (shape.output[0] / bands).max(MIN_ROWS))
}

/// Elements of scratch one thread needs.
pub(super) fn scratch(shape: &WindowShape) -> usize {
    if shape.is_empty() { 0 } else { Stage::of_parts(shape).scratch() }
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    shape: &WindowShape,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    if tasks.is_empty() {
        return;
    }
    let (stage, panels) = (Stage::of_parts(shape), row_panels(shape.out_channels));
    let convolution = StagedConvolution { shape, stage, panels, tasks: plane_tasks(shape) };
    // SAFETY: passed on from the caller; the scratch is as long as `scratch` says.
    unsafe { convolution.run(level, tensors, epilogue, tasks, scratch) };
}
