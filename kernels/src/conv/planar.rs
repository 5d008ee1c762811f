//! Convolutions whose output channels read one input channel each, plane by plane and tap by tap: what artifacts ask for that were made
//! before version 1.9 of their format. [`super::grouped`] has taken their place.

use core::ops::Range;

use super::{Tensors, WindowShape};
use crate::blocking::EvenSplit;
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, LANES, Plane};

/// Output elements of one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;
/// Multiply-adds that are worth a task of their own.
const TASK_TERMS: usize = 150_000;
/// The division into tasks: runs of planes, or bands of rows of large planes.
struct PlanarTasks {
    /// Output planes, over images and channels, cut into runs.
    planes: EvenSplit,
    /// Output rows of a plane cut into bands.
    bands: EvenSplit,
}

impl PlanarTasks {
    fn new(shape: &WindowShape) -> Self {
        let planes = shape.batch * shape.groups * shape.out_channels;
        let terms = (shape.pixels() * shape.taps()).max(1);
        let bands = EvenSplit::into(shape.output[0], terms / TASK_TERMS);
        let together = if bands.parts() > 1 { 1 } else { (TASK_TERMS / terms).max(1) };
        PlanarTasks { planes: EvenSplit::by(planes, together), bands }
    }
}

pub(super) fn tasks(shape: &WindowShape) -> usize {
    if shape.is_empty() {
        return 0;
    }
    let schedule = PlanarTasks::new(shape);
    schedule.planes.parts() * schedule.bands.parts()
}

/// Elements of scratch one thread needs, as artifacts provide them: more than the list of [`columns`].
pub(super) fn scratch(shape: &WindowShape) -> usize {
    if shape.is_empty() {
        return 0;
    }
    let masks = shape.output[1].div_ceil(LANES) * shape.kernel[1];
    2 * shape.kernel[1] + masks.div_ceil(2)
}

/// The packed filters are those of the graph.
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
    let schedule = PlanarTasks::new(shape);
    // SAFETY: the scratch is as long as `scratch` says.
    let columns = unsafe { columns(shape, scratch) };
    let channels = shape.groups * shape.out_channels;
    for task in tasks {
        let rows = schedule.bands.range(task % schedule.bands.parts());
        let cols = rows.start * shape.output[1]..rows.end * shape.output[1];
        let planes = schedule.planes.range(task / schedule.bands.parts());
        let together = (EPILOGUE_ELEMENTS / cols.len().max(1)).max(1);
        let mut plane = planes.start;
        while plane < planes.end {
            let (image, first) = (plane / channels, plane % channels);
            let end = planes.end.min(plane + together).min((image + 1) * channels);
            for plane in plane..end {
                let channel = plane % channels;
                let source = image * shape.image() + channel / shape.out_channels * shape.plane();
                let plane = Plane {
                    x: tensors.left.wrapping_add(source),
                    w: tensors.right.wrapping_add(channel * shape.taps()),
                    y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
                    rows: rows.clone(),
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
            }
            // SAFETY: the block is finished; the epilogue fits by the caller's contract.
            unsafe { EpilogueCall::finish(epilogue, [image as u64, 0, 0], first..first + end - plane, cols.clone()) };
            plane = end;
        }
    }
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
