//! Convolutions and data gradients as products: for every group, the filter matrix (result channels
//! × (operand channel, filter row, filter column)) by the matrix of image patches.
//!
//! The latter is never stored: panels of it are fetched into scratch when they are needed. Results of
//! several small images, or of a phase of a gradient, are computed side by side in scratch and then
//! moved to their places.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvPass};

use super::Tensors;
use super::filters::Filters;
use super::patches::{self, PatchColumns};
use super::shape::{ConvPhase, WindowShape, steps};
use crate::blocking::{
    EvenSplit, KC, Left, OutputMatrix, PackedOperands, Rect, Right, multiply, reads_in_place, row_panels, whole_lines,
};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{Ahead, IsaLevel, MR, NR, Panel};

/// Most row panels of one task: 648 KiB of filters for each block of k.
const TASK_ROW_PANELS: usize = 24;
/// Most column panels of one task, or of one product of a task that gathers its result in scratch.
const TASK_COL_PANELS: usize = 8;
/// Floating-point operations that are worth a task of their own.
const TASK_FLOPS: f64 = 4e6;
/// Tasks wanted of a large convolution.
const TASKS: usize = 16;
/// Tasks wanted where every task fetches all patches anew.
const MIN_TASKS: usize = 4;
/// Most elements of fetched patches kept for the following tasks.
const MAX_CACHED_PATCHES: usize = 1 << 20;
/// Most elements of packed filters kept for the following tasks.
const MAX_CACHED_FILTERS: usize = 1 << 18;
/// Images with fewer pixels than this are computed together.
const MIN_IMAGE_PIXELS: usize = 128;
/// Elements of the result in one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 24 * 1024;

/// Panels of packed filters, over all groups.
pub(super) fn panels(call: &Conv2d) -> usize {
    call.groups as usize * row_panels(WindowShape::forward(call).out_channels).parts()
}

/// The output channels of a panel, counted over all groups.
pub(super) fn panel(call: &Conv2d, panel: usize) -> Range<usize> {
    let channels = WindowShape::forward(call).out_channels;
    let rows = row_panels(channels);
    let (base, range) = (panel / rows.parts() * channels, rows.range(panel % rows.parts()));
    base + range.start..base + range.end
}

/// Writes panels of packed filters, each k×rows with k in the order of the sum.
///
/// # Safety
/// `src` addresses the filters of the panels, with any alignment.
///
/// # Panics
/// If `dst` is shorter than the packed filters.
pub(super) unsafe fn pack(level: &IsaLevel, call: &Conv2d, panels: Range<usize>, src: *const f32, dst: &mut [f32]) {
    let k = WindowShape::forward(call).depth();
    let origin = src.wrapping_sub(panel(call, panels.start).start * k);
    for channels in panels.map(|i| panel(call, i)) {
        let terms = Panel {
            src: origin.wrapping_add(channels.start * k),
            k_stride: 1,
            j_stride: k as isize,
            k,
            width: channels.len(),
            dst: dst[channels.start * k..channels.end * k].as_mut_ptr(),
            ld: channels.len() as isize,
            pad: channels.len(),
        };
        // SAFETY: both sides hold these rows of the filter matrix.
        unsafe { level.panel(&terms) };
    }
}

/// The division of a call into tasks; a function of the call alone.
pub(super) struct WindowTasks {
    call: Conv2d,
    /// The first phase: it has the most pixels.
    shape: WindowShape,
    filters: Filters,
    steps: [usize; 2],
    /// Rows and columns of the result.
    target: [usize; 2],
    rows: EvenSplit,
    row_blocks: EvenSplit,
    /// Batch entries computed together.
    images: EvenSplit,
    /// Column panels of an image, or rows of a phase where the result is gathered in scratch.
    bands: EvenSplit,
    /// Whether the result is gathered in scratch.
    staged: bool,
}

impl WindowTasks {
    pub(super) fn new(call: &Conv2d) -> WindowTasks {
        let shape = ConvPhase::new(call, 0).shape;
        let (steps, filters) = (steps(call), Filters::new(call));
        let strided = steps != [1, 1];
        let (pixels, rows) = (shape.pixels().max(1), row_panels(shape.out_channels));
        let merge = shape.batch > 1 && pixels < MIN_IMAGE_PIXELS && !(filters.packed && pixels.is_multiple_of(NR));
        let together = if merge { (TASK_COL_PANELS * NR / pixels).max(1) } else { 1 };
        let images = EvenSplit::by(shape.batch, together);
        let staged = strided || images.longest() > 1;
        let want = ((WindowShape::forward(call).flops() / TASK_FLOPS) as usize).clamp(1, TASKS);
        let want = want.div_ceil((images.parts() * shape.groups).max(1));
        let panels = pixels.div_ceil(NR);
        let bands = match staged {
            false => EvenSplit::into(panels, panels.div_ceil(TASK_COL_PANELS).max(want.min(panels / 2))),
            true => EvenSplit::into(shape.output[0], panels.div_ceil(TASK_COL_PANELS)),
        };
        let column_tasks = images.parts() * bands.parts();
        let mut row_blocks =
            want.div_ceil(bands.parts()).min(rows.parts() / 2).max(rows.parts().div_ceil(TASK_ROW_PANELS));
        if !filters.packed && column_tasks > 1 {
            let panel = MR * call.out_channels.max(1) as usize * (call.kernel[0] * call.kernel[1]) as usize;
            row_blocks = row_blocks.max(rows.parts().div_ceil((MAX_CACHED_FILTERS / panel.max(1)).max(2)));
        } else if !filters.packed {
            row_blocks = row_blocks.min(MIN_TASKS.max(rows.parts().div_ceil(TASK_ROW_PANELS)));
        }
        let target = match call.pass {
            ConvPass::DataGradient if strided => [call.input[0] as usize, call.input[1] as usize],
            _ => shape.output,
        };
        let row_blocks = EvenSplit::into(rows.parts(), row_blocks);
        WindowTasks { call: *call, shape, filters, steps, target, rows, row_blocks, images, bands, staged }
    }

    fn column_tasks(&self) -> usize {
        self.images.parts() * self.bands.parts()
    }

    pub(super) fn tasks(&self) -> usize {
        match self.shape.is_empty() {
            true => 0,
            false => self.shape.groups * self.column_tasks() * self.row_blocks.parts(),
        }
    }

    /// Whether the image itself is the patch matrix, and copying its panels would not pay.
    fn reads_in_place(&self) -> bool {
        !self.staged && self.shape.pointwise && reads_in_place(self.shape.out_channels)
    }

    /// Whether fetched patches are kept for the other row blocks of the same pixels.
    fn keeps_right(&self) -> bool {
        self.filters.packed
            && !self.staged
            && self.row_blocks.parts() > 1
            && self.bands.longest() * NR * self.shape.depth() <= MAX_CACHED_PATCHES
    }

    /// Whether all of the filters of a row block are packed for all column tasks.
    fn keeps_left(&self) -> bool {
        !self.filters.packed && (self.column_tasks() > 1 || self.steps != [1, 1])
    }

    /// Elements of filters of one row of the result, over all phases.
    fn depth(&self) -> usize {
        self.shape.in_channels * (self.call.kernel[0] * self.call.kernel[1]) as usize
    }

    /// The division of a phase's operand channels.
    fn channels(&self, shape: &WindowShape) -> EvenSplit {
        EvenSplit::by(shape.in_channels, (KC / shape.taps().max(1)).max(1))
    }

    /// Most filter taps of one block of k, over all phases.
    fn block_terms(&self) -> usize {
        let phases = (0..self.steps[0] * self.steps[1]).map(|i| ConvPhase::new(&self.call, i).shape);
        phases.map(|shape| self.channels(&shape).longest() * shape.taps()).max().unwrap_or(0)
    }

    fn block_rows(&self) -> usize {
        self.row_blocks.longest() * MR
    }

    fn left_elements(&self) -> usize {
        whole_lines(match () {
            _ if self.filters.packed => 0,
            _ if self.keeps_left() => self.block_rows() * self.depth(),
            _ => self.block_rows() * self.block_terms(),
        })
    }

    fn right_elements(&self) -> usize {
        match self.keeps_right() {
            true => self.bands.longest() * NR * self.shape.depth(),
            false => NR * self.block_terms(),
        }
    }

    fn staged_elements(&self) -> usize {
        if self.staged { self.block_rows() * TASK_COL_PANELS * NR } else { 0 }
    }

    /// Elements of scratch.
    pub(super) fn scratch(&self) -> usize {
        match self.shape.is_empty() {
            true => 0,
            false => self.left_elements() + self.right_elements() + self.staged_elements(),
        }
    }

    /// Group, row block, images and band of a task. Packed filters are read by tasks of the same
    /// pixels in turn, others are packed by tasks of the same rows in turn.
    fn task(&self, task: usize) -> WindowTask {
        let (rows, bands, images) = (self.row_blocks.parts(), self.bands.parts(), self.images.parts());
        if self.filters.packed {
            let (row_block, rest) = (task % rows, task / rows);
            let (band, rest) = (rest % bands, rest / bands);
            return WindowTask { row_block, band, group: rest % self.shape.groups, images: rest / self.shape.groups };
        }
        let (band, rest) = (task % bands, task / bands);
        let (images, rest) = (rest % images, rest / images);
        WindowTask { row_block: rest % rows, band, images, group: rest / rows }
    }
}

#[derive(Clone, Copy, Debug)]
struct WindowTask {
    group: usize,
    row_block: usize,
    images: usize,
    band: usize,
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    schedule: &WindowTasks,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    let right = scratch.wrapping_add(schedule.left_elements());
    let stage = right.wrapping_add(schedule.right_elements());
    let mut kept = None;
    let mut kept_pixels = None;
    for task in tasks {
        let task = schedule.task(task);
        let mut worker =
            WindowWorker { schedule, level, tensors, epilogue, task, left: scratch, right, stage, fresh: true };
        // SAFETY: the task is one of the call's, and scratch as large as it says.
        unsafe {
            if schedule.keeps_left() && kept.replace((task.group, task.row_block)) != Some((task.group, task.row_block))
            {
                worker.pack_all();
            }
            if schedule.staged {
                worker.gather();
            } else {
                let pixels = (task.images, task.group, task.band);
                worker.fresh = !schedule.keeps_right() || kept_pixels.replace(pixels) != Some(pixels);
                worker.direct();
            }
        }
    }
}

/// One task in execution.
struct WindowWorker<'a> {
    schedule: &'a WindowTasks,
    level: IsaLevel,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    task: WindowTask,
    left: *mut f32,
    right: *mut f32,
    stage: *mut f32,
    /// Whether the patches must be fetched.
    fresh: bool,
}

impl WindowWorker<'_> {
    /// The row panels of the task, and the group's first result channel.
    fn panels(&self) -> (Range<usize>, usize) {
        (self.schedule.row_blocks.range(self.task.row_block), self.task.group * self.schedule.shape.out_channels)
    }

    /// The rows of the result within the group.
    fn rows(&self) -> Range<usize> {
        let (panels, _) = self.panels();
        self.schedule.rows.start(panels.start)..self.schedule.rows.start(panels.end)
    }

    /// Packs the task's rows of the filters, one phase after the other.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn pack_all(&self) {
        let schedule = self.schedule;
        let mut dst = self.left;
        for index in 0..schedule.steps[0] * schedule.steps[1] {
            let phase = ConvPhase::new(&schedule.call, index);
            let (rows, channels) = ((schedule.rows, self.panels().0), 0..schedule.shape.in_channels);
            let to = (dst, phase.shape.depth());
            // SAFETY: scratch holds the rows of all phases.
            unsafe {
                schedule.filters.pack(self.level, self.tensors.right, &phase, self.task.group, rows, channels, to)
            };
            dst = dst.wrapping_add(self.rows().len() * phase.shape.depth());
        }
    }

    fn rect(&self, shape: &WindowShape, cols: Range<usize>) -> Rect {
        let schedule = self.schedule;
        let (depth, unit) = (schedule.channels(shape), shape.taps());
        Rect { rows: schedule.rows, panels: self.panels().0, cols, depth, unit }
    }

    /// The operands of a phase; `left` is where its packed filters are or go.
    fn operands(
        &self,
        phase: ConvPhase,
        columns: PatchColumns,
        left: *mut f32,
        first_col: usize,
    ) -> WindowOperands<'_> {
        let plane = self.task.group * phase.shape.in_channels * phase.shape.plane();
        WindowOperands { worker: self, phase, columns, x: self.tensors.left.wrapping_add(plane), left, first_col }
    }

    /// Computes a block of one image in its place.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn direct(&mut self) {
        let schedule = self.schedule;
        let (shape, image, (_, channel)) = (schedule.shape, self.task.images, self.panels());
        let band = schedule.bands.range(self.task.band);
        let cols = band.start * NR..shape.pixels().min(band.end * NR);
        let columns = PatchColumns { image, pixels: 0..shape.pixels() };
        let phase = ConvPhase::new(&schedule.call, 0);
        let mut operands = self.operands(phase, columns, self.left, cols.start);
        let plane = image * shape.images[1] + channel * shape.pixels();
        let c = OutputMatrix { base: self.tensors.result.wrapping_add(plane), ld: shape.pixels() as isize };
        // SAFETY: the operands cover the block and the result is the caller's; the epilogue fits.
        unsafe {
            multiply(self.level, &self.rect(&shape, cols), &mut operands, c, &mut |rows, cols| {
                let rows = channel + rows.start..channel + rows.end;
                EpilogueCall::finish(self.epilogue, [image as u64, 0, 0], rows, cols);
            });
        }
    }

    /// Computes a band of some images phase by phase, in scratch.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn gather(&mut self) {
        let schedule = self.schedule;
        let images = schedule.images.range(self.task.images);
        let band = schedule.bands.range(self.task.band);
        let mut left = self.left;
        for index in 0..schedule.steps[0] * schedule.steps[1] {
            let phase = ConvPhase::new(&schedule.call, index);
            let width = phase.shape.output[1];
            let pixels = band.start * width..phase.shape.output[0].min(band.end) * width;
            let count = images.len() * pixels.len();
            let columns = PatchColumns { image: images.start, pixels };
            for first in (0..count).step_by(TASK_COL_PANELS * NR) {
                let cols = first..count.min(first + TASK_COL_PANELS * NR);
                let ld = TASK_COL_PANELS * NR;
                let c = OutputMatrix { base: self.stage.wrapping_sub(first), ld: ld as isize };
                let mut operands = self.operands(phase, columns.clone(), left, first);
                let c_rows = self.rows();
                let c = OutputMatrix { base: c.base.wrapping_sub(c_rows.start * ld), ..c };
                // SAFETY: the operands cover the columns, and the stage holds a block of them.
                unsafe {
                    multiply(self.level, &self.rect(&phase.shape, cols), &mut operands, c, &mut |rows, cols| {
                        self.deliver(&phase, &columns, rows, cols, c);
                    });
                }
            }
            left = left.wrapping_add(self.rows().len() * phase.shape.depth());
        }
        let (rows, [down, _]) = (self.rows(), schedule.steps);
        let width = schedule.target[1];
        let pixels = band.start * down * width..(band.end * down).min(schedule.target[0]) * width;
        let channel = self.panels().1;
        let most = (EPILOGUE_ELEMENTS / rows.len().max(1)).max(NR);
        for image in images {
            for first in pixels.clone().step_by(most) {
                let rows = channel + rows.start..channel + rows.end;
                // SAFETY: the block is finished; the epilogue fits by the caller's contract.
                unsafe {
                    EpilogueCall::finish(
                        self.epilogue,
                        [image as u64, 0, 0],
                        rows,
                        first..pixels.end.min(first + most),
                    );
                }
            }
        }
    }

    /// Moves a block from scratch to its place.
    ///
    /// # Safety
    /// `from` and the result hold the block.
    unsafe fn deliver(
        &self,
        phase: &ConvPhase,
        columns: &PatchColumns,
        rows: Range<usize>,
        cols: Range<usize>,
        from: OutputMatrix,
    ) {
        let WindowTasks { shape, target, steps: [down, across], .. } = *self.schedule;
        let (plane, width) = (target[0] * target[1], phase.shape.output[1]);
        let channel = self.panels().1;
        for (image, pixels, col) in columns.by_image(cols) {
            for row in rows.clone() {
                let plane = image * shape.images[1] + (channel + row) * plane;
                let result = self.tensors.result.wrapping_add(plane);
                let src = from.base.wrapping_offset(row as isize * from.ld).wrapping_add(col);
                if (down, across) == (1, 1) {
                    // SAFETY: the pixels of this plane are the task's, and the stage holds them.
                    unsafe { core::ptr::copy_nonoverlapping(src, result.add(pixels.start), pixels.len()) };
                    continue;
                }
                let mut pixel = pixels.start;
                while pixel < pixels.end {
                    let (y, x) = (pixel / width, pixel % width);
                    let run = (width - x).min(pixels.end - pixel);
                    let src = src.wrapping_add(pixel - pixels.start);
                    let dst = (y * down + phase.at[0]) * target[1] + x * across + phase.at[1];
                    for i in 0..run {
                        // SAFETY: as above.
                        unsafe { *result.add(dst + i * across) = *src.add(i) };
                    }
                    pixel += run;
                }
            }
        }
    }
}

/// Filters packed ahead of time or into scratch, and patches fetched into scratch.
struct WindowOperands<'a> {
    worker: &'a WindowWorker<'a>,
    phase: ConvPhase,
    columns: PatchColumns,
    /// The group's planes of image 0.
    x: *const f32,
    left: *mut f32,
    first_col: usize,
}

impl PackedOperands for WindowOperands<'_> {
    unsafe fn left(&mut self, rect: &Rect, k: Range<usize>) -> Left {
        let (worker, depth) = (self.worker, self.phase.shape.depth());
        let schedule = worker.schedule;
        if schedule.filters.packed {
            let row = worker.panels().1 + rect.rows.start(rect.panels.start);
            return Left::Packed { base: worker.tensors.right.wrapping_add(row * depth), stride: depth, skip: k.start };
        }
        if schedule.keeps_left() {
            return Left::Packed { base: self.left, stride: depth, skip: k.start };
        }
        let channels = k.start / rect.unit.max(1)..k.end / rect.unit.max(1);
        let rows = (rect.rows, rect.panels.clone());
        let (w, group, to) = (worker.tensors.right, worker.task.group, (self.left, k.len()));
        // SAFETY: the filters hold these rows and channels, and scratch a block of them.
        unsafe { schedule.filters.pack(worker.level, w, &self.phase, group, rows, channels, to) };
        Left::Packed { base: self.left, stride: k.len(), skip: 0 }
    }

    unsafe fn right(&mut self, k: Range<usize>, cols: Range<usize>) -> Right {
        let (worker, shape) = (self.worker, &self.phase.shape);
        if worker.schedule.reads_in_place() {
            let base = self.x.wrapping_add(self.columns.image * shape.image() + k.start * shape.plane() + cols.start);
            return Right { base, ld: shape.plane(), padded: false };
        }
        let base = match worker.schedule.keeps_right() {
            true => worker.right.wrapping_add((cols.start - self.first_col) * shape.depth() + k.start * NR),
            false => worker.right,
        };
        if worker.fresh && !k.is_empty() {
            let channels = k.start / shape.taps()..k.end / shape.taps();
            // SAFETY: the channels and pixels are inside the images, and scratch holds the panel.
            unsafe { patches::fetch(worker.level, shape, self.x, channels, (&self.columns, cols), base) };
        }
        Right { base, ld: NR, padded: true }
    }

    fn ahead(&self, rect: &Rect, k: &Range<usize>, cols: &Range<usize>, p: usize, a: *const f32) -> Ahead {
        if cols.end < rect.cols.end {
            return Ahead::NOTHING;
        }
        // The filters of the next block follow those of this one.
        let len = k.len() * rect.rows.range(p).len();
        Ahead::elements(a.wrapping_add(len), len)
    }
}

const _: () = assert!(MR <= 16 && NR == 32, "tiles are addressed by 16-bit lane masks");
