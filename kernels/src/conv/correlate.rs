//! Gradients of filters as products: for every group, the gradient of y (output channels × pixels of
//! all images) by the transposed matrix of image patches (pixels × (input channel, tap)).
//!
//! Neither matrix lies in memory as the tiles want it. Both are transposed into scratch, a block of
//! pixels at a time.

use core::ops::Range;

use tensorc_abi::Conv2d;

use super::Tensors;
use super::patches::{self, PatchColumns};
use super::shape::WindowShape;
use crate::blocking::{EvenSplit, Left, OutputMatrix, PackedOperands, Rect, Right, multiply, row_panels, whole_lines};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{Ahead, IsaLevel, MR, NR, Panel};

/// Floating-point operations that are worth a task of their own.
const TASK_FLOPS: f64 = 4e6;
/// Tasks wanted of a large gradient.
const TASKS: usize = 8;
/// Most row panels of one task.
const TASK_ROW_PANELS: usize = 24;
/// Elements of transposed patches in scratch, about.
const BLOCK_ELEMENTS: usize = 96 * 1024;
/// Bounds of the pixels of one block.
const MIN_PIXELS: usize = 2 * NR;
const MAX_PIXELS: usize = 16 * NR;

/// The division of a call into tasks; a function of the call alone.
pub(super) struct CorrelationTasks {
    shape: WindowShape,
    rows: EvenSplit,
    row_blocks: EvenSplit,
    /// Column panels.
    col_blocks: EvenSplit,
    /// Pixels of all images cut into blocks.
    blocks: EvenSplit,
}

impl CorrelationTasks {
    pub(super) fn new(call: &Conv2d) -> CorrelationTasks {
        let shape = WindowShape::forward(call);
        let rows = row_panels(shape.out_channels);
        let panels = shape.depth().div_ceil(NR);
        let want = ((shape.flops() / TASK_FLOPS) as usize).clamp(1, TASKS).div_ceil(shape.groups.max(1));
        let fewest = rows.parts().div_ceil(TASK_ROW_PANELS);
        // Every row block transposes its patches, every column block its rows.
        let cost = |r: usize| r * shape.depth() * 3 + want.div_ceil(r).min(panels.max(1)) * shape.out_channels * 2;
        let enough = |r: &usize| r * panels >= want || *r == rows.parts();
        let row_blocks =
            (fewest.max(1)..=rows.parts().max(1)).filter(enough).take(want.max(1)).min_by_key(|r| cost(*r));
        let row_blocks = EvenSplit::into(rows.parts(), row_blocks.unwrap_or(fewest));
        let col_blocks = EvenSplit::into(panels, want.div_ceil(row_blocks.parts()));
        let columns = col_blocks.longest().max(1) * NR;
        let pixels = (BLOCK_ELEMENTS / columns).clamp(MIN_PIXELS, MAX_PIXELS);
        let blocks = EvenSplit::by(shape.batch * shape.pixels(), pixels);
        CorrelationTasks { shape, rows, row_blocks, col_blocks, blocks }
    }

    pub(super) fn tasks(&self) -> usize {
        match self.shape.groups * self.shape.out_channels * self.shape.depth() {
            0 => 0,
            _ => self.shape.groups * self.row_blocks.parts() * self.col_blocks.parts(),
        }
    }

    fn left_elements(&self) -> usize {
        whole_lines(self.row_blocks.longest() * MR * self.blocks.longest())
    }

    fn right_elements(&self) -> usize {
        self.col_blocks.longest() * NR * self.blocks.longest()
    }

    /// Rows of patches that the columns of a task and their whole channels span.
    fn patch_rows(&self) -> usize {
        self.col_blocks.longest() * NR + 2 * self.shape.taps()
    }

    /// Elements of scratch.
    pub(super) fn scratch(&self) -> usize {
        match self.tasks() {
            0 => 0,
            _ => self.left_elements() + self.right_elements() + self.patch_rows() * NR,
        }
    }
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    schedule: &CorrelationTasks,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    let CorrelationTasks { shape, rows, .. } = *schedule;
    let (row_blocks, col_blocks) = (schedule.row_blocks.parts(), schedule.col_blocks.parts());
    for task in tasks {
        let (row_block, rest) = (task % row_blocks, task / row_blocks);
        let (col_block, group) = (rest % col_blocks, rest / col_blocks);
        let panels = schedule.col_blocks.range(col_block);
        let cols = panels.start * NR..shape.depth().min(panels.end * NR);
        let channel = group * shape.out_channels;
        let right = scratch.wrapping_add(schedule.left_elements());
        let mut operands = Transposed {
            schedule,
            level,
            x: tensors.left.wrapping_add(group * shape.in_channels * shape.plane()),
            dy: tensors.right.wrapping_add(channel * shape.pixels()),
            left: scratch,
            right,
            patches: right.wrapping_add(schedule.right_elements()),
            first_col: cols.start,
        };
        let (panels, depth) = (schedule.row_blocks.range(row_block), schedule.blocks);
        let rect = Rect { rows, panels, cols, depth, unit: 1 };
        let c = OutputMatrix { base: tensors.result.wrapping_add(channel * shape.depth()), ld: shape.depth() as isize };
        // SAFETY: the operands cover the block and the result is the caller's; the epilogue fits.
        unsafe {
            multiply(level, &rect, &mut operands, c, &mut |rows, cols| {
                let rows = channel + rows.start..channel + rows.end;
                EpilogueCall::finish(epilogue, [0; 3], rows, cols);
            });
        }
    }
}

/// Blocks of both operands transposed into scratch.
struct Transposed<'a> {
    schedule: &'a CorrelationTasks,
    level: IsaLevel,
    /// The group's planes of image 0, in x and in the gradient of y.
    x: *const f32,
    dy: *const f32,
    left: *mut f32,
    right: *mut f32,
    /// Patches of NR pixels as they are fetched.
    patches: *mut f32,
    first_col: usize,
}

impl Transposed<'_> {
    /// The pixels of all images.
    fn columns(&self) -> PatchColumns {
        PatchColumns { image: 0, pixels: 0..self.schedule.shape.pixels() }
    }

    /// # Safety
    /// As for [`run`], with the terms and rows inside the operands.
    unsafe fn transpose_left(&self, rect: &Rect, k: Range<usize>) {
        let (shape, stride) = (&self.schedule.shape, k.len());
        let first = rect.rows.start(rect.panels.start);
        for (image, pixels, term) in self.columns().by_image(k.clone()) {
            for p in rect.panels.clone() {
                let rows = rect.rows.range(p);
                let at = (rows.start - first) * stride + (term - k.start) * rows.len();
                let panel = Panel {
                    src: self.dy.wrapping_add(image * shape.images[1] + rows.start * shape.pixels() + pixels.start),
                    k_stride: 1,
                    j_stride: shape.pixels() as isize,
                    k: pixels.len(),
                    width: rows.len(),
                    dst: self.left.wrapping_add(at),
                    ld: rows.len() as isize,
                    pad: rows.len(),
                };
                // SAFETY: the pixels of these channels exist, and scratch holds the block.
                unsafe { self.level.panel(&panel) };
            }
        }
    }

    /// # Safety
    /// As for [`run`], with the terms and columns inside the operands.
    unsafe fn transpose_right(&self, cols: Range<usize>, k: Range<usize>) {
        let (shape, taps, stride) = (&self.schedule.shape, self.schedule.shape.taps(), k.len());
        let channels = cols.start / taps..cols.end.div_ceil(taps);
        let columns = self.columns();
        for start in k.clone().step_by(NR) {
            let terms = start..k.end.min(start + NR);
            let width = terms.len();
            // SAFETY: the channels and pixels exist, and `patches` holds their rows.
            unsafe { patches::fetch(self.level, shape, self.x, channels.clone(), (&columns, terms), self.patches) };
            for j0 in cols.clone().step_by(NR) {
                let panel = Panel {
                    src: self.patches.wrapping_add((j0 - channels.start * taps) * NR),
                    k_stride: 1,
                    j_stride: NR as isize,
                    k: width,
                    width: NR.min(cols.end - j0),
                    dst: self.right.wrapping_add((j0 - cols.start) * stride + (start - k.start) * NR),
                    ld: NR as isize,
                    pad: NR,
                };
                // SAFETY: the rows of these columns were fetched, and scratch holds the block.
                unsafe { self.level.panel(&panel) };
            }
        }
    }
}

impl PackedOperands for Transposed<'_> {
    unsafe fn left(&mut self, rect: &Rect, k: Range<usize>) -> Left {
        // SAFETY: the block is inside the operands; right panels of it are read after this call.
        unsafe {
            self.transpose_left(rect, k.clone());
            self.transpose_right(rect.cols.clone(), k.clone());
        }
        Left::Packed { base: self.left, stride: k.len(), skip: 0 }
    }

    unsafe fn right(&mut self, k: Range<usize>, cols: Range<usize>) -> Right {
        let base = self.right.wrapping_add((cols.start - self.first_col) * k.len());
        Right { base, ld: NR, padded: true }
    }

    fn ahead(&self, _: &Rect, _: &Range<usize>, _: &Range<usize>, _: usize, _: *const f32) -> Ahead {
        Ahead::NOTHING
    }
}
