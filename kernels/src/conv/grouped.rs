//! Convolutions with few channels in a group, such as depthwise ones. They are computed plane by plane, without packing.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::planes::PlaneTasks;
use super::staged::{GroupPlanes, Reader, Stage};
use super::{Tensors, WindowShape};
use crate::blocking::EvenSplit;
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, Panel};

/// Output channels of a group up to which a plane at a time beats a matrix product, and most input channels.
const FILTERS: u64 = 8;
const CHANNELS: u64 = 64;

/// Whether a convolution is computed so: a question of its filters alone, which are packed for it.
pub(crate) fn has_small_groups(call: &Conv2d) -> bool {
    let forward = matches!(call.pass, ConvPass::Packed(ConvAlgorithm::Direct) | ConvPass::Forward);
    forward && call.groups > 1 && call.kernel != [1, 1] && call.out_channels <= FILTERS && call.in_channels <= CHANNELS
}

/// Fewest output rows of a task.
const MIN_ROWS: usize = 8;

/// Elements of the packed filters of a group; a filter alone needs no packing.
fn packed_elements(shape: &WindowShape) -> usize {
    if shape.out_channels > 1 { shape.out_channels * shape.depth() } else { 0 }
}

fn plane_tasks(shape: &WindowShape) -> PlaneTasks<'_> {
    PlaneTasks::new(shape, shape.out_channels, MIN_ROWS)
}

pub(super) fn tasks(shape: &WindowShape) -> usize {
    plane_tasks(shape).tasks()
}

/// Elements of scratch one thread needs.
pub(super) fn scratch(shape: &WindowShape) -> usize {
    match shape.is_empty() {
        true => 0,
        false => Stage::new(shape).scratch() + packed_elements(shape),
    }
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
    let packed = scratch.wrapping_add(Stage::new(shape).scratch());
    let (panel, depth) = (EvenSplit::into(shape.out_channels, 1), shape.depth());
    // SAFETY: the scratch is as long as `scratch` says.
    let reader = unsafe { Reader::new(Stage::new(shape), scratch) };
    let mut kept = None;
    let compute = |image: usize, channel: usize, rows: Range<usize>| {
        let group = channel / shape.out_channels;
        let w = tensors.right.wrapping_add(channel * depth);
        if shape.out_channels > 1 && kept.replace(group) != Some(group) {
            let (dst, width) = (packed, shape.out_channels);
            let filters = Panel {
                src: w,
                k_stride: 1,
                j_stride: depth as isize,
                k: depth,
                width,
                dst,
                ld: width as isize,
                pad: width,
            };
            // SAFETY: the filters of the group are as many, and scratch has room for them.
            unsafe { level.panel(&filters) };
        }
        let planes = GroupPlanes {
            x: tensors.left.wrapping_add(image * shape.image() + group * shape.in_channels * shape.plane()),
            w: if shape.out_channels > 1 { packed } else { w },
            y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
        };
        // SAFETY: the planes and the filters are inside their tensors.
        unsafe { reader.rows(level, planes, panel, rows) };
    };
    // SAFETY: passed on from the caller.
    unsafe { plane_tasks(shape).run(tasks, epilogue, compute) };
}
