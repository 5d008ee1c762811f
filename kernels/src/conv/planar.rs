//! Convolutions whose output channels read one input channel each: depthwise ones and those with a
//! small channel multiplier. They are computed plane by plane, without packing.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::{Tensors, WindowShape};
use crate::blocking::EvenSplit;
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{Depthwise, DepthwiseShape, IsaLevel, LANES};

/// Output elements of one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;
/// Multiply-adds that are worth a task of their own.
const TASK_TERMS: usize = 150_000;
/// Output channels of a group up to which a plane at a time beats a matrix product.
const MULTIPLIER: u64 = 4;

/// Whether a convolution is computed plane by plane.
pub(crate) fn is_planar(call: &Conv2d) -> bool {
    let forward = matches!(call.pass, ConvPass::Packed(ConvAlgorithm::Direct) | ConvPass::Forward);
    forward && call.in_channels == 1 && call.groups > 1 && call.out_channels <= MULTIPLIER
}

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

/// Elements of scratch one thread needs: for what [`DepthwiseShape`] lists of columns.
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
    let common = unsafe { common(shape, scratch) };
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
                let depthwise = Depthwise {
                    x: tensors.left.wrapping_add(source),
                    w: tensors.right.wrapping_add(channel * shape.taps()),
                    y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
                    rows: rows.clone(),
                    shape: &common,
                };
                // SAFETY: the planes and the filter are inside their tensors.
                unsafe { level.depthwise(&depthwise) };
            }
            // SAFETY: the block is finished; the epilogue fits by the caller's contract.
            unsafe { EpilogueCall::finish(epilogue, [image as u64, 0, 0], first..first + end - plane, cols.clone()) };
            plane = end;
        }
    }
}

/// The geometry every plane shares; what it lists by column is put into the scratch.
///
/// # Safety
/// `memory` has [`scratch`] elements, which nothing else uses.
unsafe fn common<'s>(shape: &WindowShape, memory: *mut f32) -> DepthwiseShape<'s> {
    let step = shape.strides[1];
    let width = shape.kernel[1];
    // SAFETY: the scratch is aligned for four bytes and holds both lists, one behind the other; all bytes of
    // them are written before they are read as integers.
    let (columns, masks) = unsafe {
        memory.write_bytes(0, scratch(shape));
        let columns = core::slice::from_raw_parts_mut(memory.cast::<[u32; 2]>(), width);
        let masks = memory.add(2 * width).cast::<u16>();
        (columns, core::slice::from_raw_parts_mut(masks, shape.output[1].div_ceil(LANES) * width))
    };
    for (s, column) in columns.iter_mut().enumerate() {
        let shift = s * shape.dilations[1];
        let first = shape.pads[1].saturating_sub(shift).div_ceil(step);
        let end = (shape.input[1] + shape.pads[1]).saturating_sub(shift).div_ceil(step);
        *column = [first as u32, end.min(shape.output[1]) as u32];
    }
    for (v, masks) in masks.chunks_exact_mut(width.max(1)).enumerate() {
        for (mask, &[first, end]) in masks.iter_mut().zip(&*columns) {
            let lanes = (0..LANES).filter(|lane| (first as usize..end as usize).contains(&(v * LANES + lane)));
            *mask = lanes.fold(0u16, |mask, lane| mask | 1 << lane);
        }
    }
    DepthwiseShape {
        input: shape.input,
        output: shape.output,
        kernel: shape.kernel,
        strides: shape.strides,
        dilations: shape.dilations,
        pads: shape.pads,
        inside: inside(columns),
        columns,
        masks,
    }
}

/// The vectors of output columns that no filter column takes out of the image.
fn inside(columns: &[[u32; 2]]) -> Range<usize> {
    let first = columns.iter().map(|c| c[0] as usize).max().unwrap_or(0).div_ceil(LANES);
    let end = columns.iter().map(|c| c[1] as usize).min().unwrap_or(0) / LANES;
    first..end.max(first)
}
