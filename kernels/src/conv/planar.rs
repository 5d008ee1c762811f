//! Convolutions whose output channels read one input channel each, plane by plane and tap by tap: what artifacts ask for that were made
//! before version 1.9 of their format. [`super::grouped`] has taken their place.

use core::ops::Range;

use super::planes::PlaneTasks;
use super::{Tensors, WindowShape};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, LANES, Plane};

pub(super) fn tasks(shape: &WindowShape) -> usize {
    PlaneTasks::new(shape, 1, 1).tasks()
}

/// Elements of scratch one thread needs, as artifacts provide them: more than the list of [`columns`].
pub(super) fn scratch(shape: &WindowShape) -> usize {
    if shape.is_empty() {
        return 0;
    }
    let masks = shape.output[1].div_ceil(LANES) * shape.kernel[1];
    2 * shape.kernel[1] + masks.div_ceil(2)
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
    let columns = unsafe { columns(shape, scratch) };
    let compute = |image: usize, channel: usize, rows: Range<usize>| {
        let source = image * shape.image() + channel / shape.out_channels * shape.plane();
        let plane = Plane {
            x: tensors.left.wrapping_add(source),
            w: tensors.right.wrapping_add(channel * shape.taps()),
            y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
            rows,
            input: shape.input,
            output: shape.output,
            kernel: shape.kernel,
            strides: shape.strides,
            dilations: shape.dilations,
            pads: shape.pads,
            columns,
        };
        // SAFETY: the planes and the filter are inside their tensors.
        unsafe { level.plane(&plane) };
    };
    // SAFETY: passed on from the caller.
    unsafe { PlaneTasks::new(shape, 1, 1).run(tasks, epilogue, compute) };
}

/// For each filter column, the half-open range of output columns whose tap lies in the image.
///
/// # Safety
/// `memory` has [`scratch`] elements, which nothing else uses.
unsafe fn columns<'s>(shape: &WindowShape, memory: *mut f32) -> &'s [[u32; 2]] {
    let step = shape.strides[1];
    // SAFETY: the scratch is aligned for four bytes and holds the list, which is written before it is read as integers.
    let columns = unsafe {
        memory.write_bytes(0, scratch(shape));
        core::slice::from_raw_parts_mut(memory.cast::<[u32; 2]>(), shape.kernel[1])
    };
    for (s, column) in columns.iter_mut().enumerate() {
        let shift = s * shape.dilations[1];
        let first = shape.pads[1].saturating_sub(shift).div_ceil(step);
        let end = (shape.input[1] + shape.pads[1]).saturating_sub(shift).div_ceil(step);
        *column = [first as u32, end.min(shape.output[1]) as u32];
    }
    columns
}
