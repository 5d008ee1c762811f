//! Convolutions with few channels in a group and filters that are not packed, one filter at a time over staged rows. So artifacts before version
//! 1.11 compute all with few channels in a group, and record what tasks and memory that takes.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::planes::PlaneTasks;
use super::staged::{GroupPlanes, Reader, Stage};
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
    // SAFETY: the scratch is as long as `scratch` says.
    let reader = unsafe { Reader::new(Stage::of_all(shape), scratch) };
    let filters = EvenSplit::by(shape.out_channels, 1);
    let compute = |image: usize, channel: usize, rows: Range<usize>| {
        let group = channel / shape.out_channels;
        let planes = GroupPlanes {
            x: tensors.left.wrapping_add(image * shape.image() + group * shape.in_channels * shape.plane()),
            w: tensors.right.wrapping_add(channel * shape.depth()),
            y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
        };
        // SAFETY: the planes and the filters are inside their tensors.
        unsafe { reader.rows(level, planes, filters, rows) };
    };
    // SAFETY: passed on from the caller.
    unsafe { plane_tasks(shape).run(tasks, epilogue, compute) };
}
