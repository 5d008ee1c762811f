//! Convolutions with few channels in a group and filters that are not packed, one filter at a time over staged rows. So artifacts before version
//! 1.11 compute all with few channels in a group, and record what tasks and memory that takes.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::planes::PlaneTasks;
use super::staged::{Stage, StagedConvolution};
use super::{Tensors, WindowShape};
use crate::blocking::EvenSplit;
use crate::epilogue::EpilogueCall;
use crate::isa_levels::IsaLevel;

/// Output channels of a group up to which a plane at a time beats a matrix product, and most input channels.
const FILTERS: u64 = 8;
const CHANNELS: u64 = 64;

/// Whether a convolution is computed so: a question of its filters alone, which are packed for it.
pub(crate) fn has_small_groups(call: &Conv2d) -> bool {
    let forward = matches!(call.pass, ConvPass::Packed(ConvAlgorithm::Direct) | ConvPass::Forward);
    forward && call.groups > 1 && call.kernel != [1, 1] && call.out_channels <= FILTERS && call.in_channels <= CHANNELS
}

fn plane_tasks(shape: &WindowShape) -> PlaneTasks<'_> {
    PlaneTasks::new(shape, shape.out_channels, 1)
}

pub(super) fn tasks(shape: &WindowShape) -> usize {
    plane_tasks(shape).tasks()
}

/// Elements of scratch one thread needs.
pub(super) fn scratch(shape: &WindowShape) -> usize {
    if shape.is_empty() { 0 } else { Stage::of_all(shape).scratch() }
}

/// Filters are not packed.
///
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
    let (stage, panels) = (Stage::of_all(shape), EvenSplit::by(shape.out_channels, 1));
    let convolution = StagedConvolution { shape, stage, panels, tasks: plane_tasks(shape) };
    // SAFETY: passed on from the caller; the scratch is as long as `scratch` says.
    unsafe { convolution.run(level, tensors, epilogue, tasks, scratch) };
}
