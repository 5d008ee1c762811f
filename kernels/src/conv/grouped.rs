//! Convolutions with few channels in a group, such as depthwise ones. They are computed plane by plane, without packing.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::planes::PlaneTasks;
use super::staged::Stage;
use super::{Tensors, WindowShape};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, StagedRows};

/// Output channels of a group up to which a plane at a time beats a matrix product, and most input channels.
const FILTERS: u64 = 8;
const CHANNELS: u64 = 64;

/// Whether a convolution is computed so: a question of its filters alone, which are packed for it.
pub(crate) fn has_small_groups(call: &Conv2d) -> bool {
    let forward = matches!(call.pass, ConvPass::Packed(ConvAlgorithm::Direct) | ConvPass::Forward);
    forward && call.groups > 1 && call.kernel != [1, 1] && call.out_channels <= FILTERS && call.in_channels <= CHANNELS
}

pub(super) fn tasks(shape: &WindowShape) -> usize {
    PlaneTasks::new(shape, shape.out_channels).tasks()
}

/// Elements of scratch one thread needs: for staged rows, and a list of the terms of the sum.
pub(super) fn scratch(shape: &WindowShape) -> usize {
    match shape.is_empty() {
        true => 0,
        false => Stage::new(shape).elements() + shape.depth(),
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
    // SAFETY: the scratch is as long as `scratch` says.
    let reader = unsafe { Reader::new(shape, scratch) };
    let compute = |image: usize, channel: usize, rows: Range<usize>| {
        let group = channel / shape.out_channels;
        let planes = GroupPlanes {
            x: tensors.left.wrapping_add(image * shape.image() + group * shape.in_channels * shape.plane()),
            w: tensors.right.wrapping_add(channel * shape.depth()),
            y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
        };
        // SAFETY: the planes and the filters are inside their tensors.
        unsafe { reader.rows(level, shape, planes, rows) };
    };
    // SAFETY: passed on from the caller.
    unsafe { PlaneTasks::new(shape, shape.out_channels).run(tasks, epilogue, compute) };
}

/// What a group reads and writes.
#[derive(Clone, Copy)]
struct GroupPlanes {
    x: *const f32,
    w: *const f32,
    y: *mut f32,
}

/// Staged rows in the scratch, with the list of the terms.
struct Reader<'a> {
    stage: Stage<'a>,
    terms: &'a [u32],
    memory: *mut f32,
}

impl<'a> Reader<'a> {
    /// # Safety
    /// `memory` has [`scratch`] elements, which nothing else uses.
    unsafe fn new(shape: &'a WindowShape, memory: *mut f32) -> Reader<'a> {
        let stage = Stage::new(shape);
        // SAFETY: the scratch is aligned for four bytes, and holds the terms, which are written before they are read, behind the rows.
        let terms = unsafe {
            let terms = memory.add(stage.elements()).cast::<u32>();
            terms.write_bytes(0, shape.depth());
            core::slice::from_raw_parts_mut(terms, shape.depth())
        };
        stage.list_terms(terms);
        Reader { stage, terms, memory }
    }

    /// Computes some rows of the output channels of a group.
    ///
    /// # Safety
    /// `planes` holds the input, the filters and the output of one group.
    unsafe fn rows(&self, level: IsaLevel, shape: &WindowShape, planes: GroupPlanes, rows: Range<usize>) {
        for first in rows.clone().step_by(self.stage.rows) {
            let rows = first..rows.end.min(first + self.stage.rows);
            // SAFETY: passed on from the caller; the scratch holds the staged rows.
            unsafe {
                self.stage.fill(level, planes.x, rows.clone(), self.memory);
                level.staged_rows(&StagedRows {
                    x: self.memory,
                    row: self.stage.row(),
                    terms: self.terms,
                    w: planes.w,
                    channels: shape.out_channels,
                    rows: rows.len(),
                    columns: shape.output[1],
                    y: planes.y.add(first * shape.output[1]),
                    plane: shape.pixels(),
                });
            }
        }
    }
}
