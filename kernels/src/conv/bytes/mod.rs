//! Convolutions of images of u8 with filters of i8, with exact sums in i32.
//!
//! What some rows of the result read of the image is staged (`staging`), and multiplied with panels of filters (`panel`), whose
//! terms come in groups of four in a fixed order (`terms`), by tiles of columns ([`IntegerTile`]). Where staged planes have a
//! halo, tiles go over several rows and compute sums between them as well, which are dropped. `depthwise` computes convolutions
//! of one channel each.

mod depthwise;
mod panel;
mod staging;
mod terms;

use core::mem::MaybeUninit;
use core::ops::Range;

use tensorc_abi::{Conv2d, ConvPass};

use super::WindowShape;
use crate::blocking::{EvenSplit, tasks_worth};
use crate::epilogue::{EpilogueCall, SumBlock};
use crate::gemm::{TASK_FLOPS, TASKS};
use crate::isa_levels::{INTEGER_COLS, IntegerTile, IsaLevel, LANES, MR, TERMS};

use depthwise::DepthwiseTasks;
use panel::{FilterPanel, PanelScratch};
use staging::Staging;
use terms::FilterTerms;

/// Most bytes of what a tile reads of the image, about: they stay in the second-level cache.
const STAGED_BYTES: usize = 448 * 1024;
/// The same for filters that are not packed. Artifacts made before version 1.17 have working memory and numbers of tasks for it.
const STAGED_BYTES_UNPACKED: usize = 192 * 1024;
/// Columns that a tile computes together.
const STEP: usize = LANES / 2;
/// Copying the windows of a pixel takes about as long as multiplying them with so many filters.
const COPIED_FILTERS: usize = 8;
/// How many times the terms of a convolution of f32 are computed in the same time.
const SPEED: f64 = 2.0;

/// Operands and result.
pub(super) struct ByteTensors {
    pub x: *const u8,
    pub filters: *const i8,
    pub y: *mut i32,
}

/// Number of tasks.
pub(super) fn tasks(call: &Conv2d) -> usize {
    if call.is_depthwise() { DepthwiseTasks::new(call).tasks() } else { ByteTasks::new(call).tasks() }
}

/// Number of tasks in turn that read what is staged once.
pub(super) fn affinity(call: &Conv2d) -> usize {
    if call.is_depthwise() { 1 } else { ByteTasks::new(call).filter_blocks.parts() }
}

/// Elements of f32 of scratch.
pub(super) fn scratch(call: &Conv2d) -> usize {
    if call.is_depthwise() { DepthwiseTasks::new(call).scratch() } else { ByteTasks::new(call).scratch() }
}

/// Elements of four bytes of the packed form of filters.
pub(super) fn packed_len(call: &Conv2d) -> usize {
    if call.is_depthwise() { depthwise::packed_len(call) } else { terms::packed_len(call) }
}

/// Panels of packed filters; one where they are for one channel each.
pub(super) fn pack_units(call: &Conv2d) -> usize {
    if call.is_depthwise() { 1 } else { terms::panels(call).parts() }
}

/// The filters of some units.
pub(super) fn filters_of(call: &Conv2d, units: Range<usize>) -> Range<usize> {
    let panels = if call.is_depthwise() { EvenSplit::into(call.groups as usize, 1) } else { terms::panels(call) };
    panels.start(units.start)..panels.start(units.end)
}

/// Packs the filters of some units.
///
/// # Safety
/// `src` addresses their weights, and `dst` has [`packed_len`] elements.
pub(super) unsafe fn pack(call: &Conv2d, units: Range<usize>, src: *const i8, dst: &mut [f32]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match call.is_depthwise() {
            true => depthwise::pack(call, call.groups as usize, src, dst.as_mut_ptr().cast()),
            false => terms::pack(call, units, src, dst),
        }
    }
}

/// The division of a convolution into tasks, and the form of what is staged.
struct ByteTasks {
    shape: WindowShape,
    terms: FilterTerms,
    /// Whether filters are in their packed form.
    packed: bool,
    /// Planes along rows and along columns.
    phases: [usize; 2],
    /// How many rows and columns a plane has more than the result.
    halo: [usize; 2],
    /// Whether windows are copied from the planes.
    windows: bool,
    /// Filters in panels, which tasks take some of.
    panels: EvenSplit,
    filter_blocks: EvenSplit,
    row_blocks: EvenSplit,
}

impl ByteTasks {
    fn new(call: &Conv2d) -> ByteTasks {
        let (shape, terms, panels) = (WindowShape::stated(call), FilterTerms::new(call), terms::panels(call));
        let last = |d: usize| shape.kernel[d].saturating_sub(1) * shape.dilations[d];
        // Taps a multiple of the stride apart read the same plane.
        let mut tasks = ByteTasks {
            shape,
            terms,
            packed: call.pass == ConvPass::PackedBytes,
            phases: [0, 1].map(|d| shape.strides[d].min(last(d) + 1)),
            halo: [0, 1].map(|d| last(d) / shape.strides[d]),
            windows: !terms.by_channels(),
            panels,
            filter_blocks: panels,
            row_blocks: EvenSplit::into(shape.output[0], 1),
        };
        tasks.row_blocks = tasks.blocks_of_rows();
        if tasks.packed && !tasks.windows && tasks.halo[1] > 0 {
            let (columns, filters) = (tasks.columns(), call.out_channels as usize);
            let plain = tasks.row_blocks;
            tasks.windows = true;
            tasks.row_blocks = tasks.blocks_of_rows();
            if tasks.columns() * (filters + COPIED_FILTERS) >= columns * filters {
                (tasks.windows, tasks.row_blocks) = (false, plain);
            }
        }
        let wanted = tasks_worth(call.flops() as f64 / (SPEED * TASK_FLOPS), TASKS);
        let others = tasks.shape.batch * tasks.row_blocks.parts();
        tasks.filter_blocks = EvenSplit::into(panels.parts(), wanted.div_ceil(others.max(1)));
        tasks
    }

    /// Rows of the result whose windows fit the cache.
    fn blocks_of_rows(&self) -> EvenSplit {
        let (row, halo) = match self.windows {
            true => (self.terms.groups() * self.shape.output[1], 0),
            false => (self.phases[0] * self.phases[1] * self.terms.quads() * self.width(), self.halo[0]),
        };
        let bytes = if self.packed { STAGED_BYTES } else { STAGED_BYTES_UNPACKED };
        let most = (bytes / (row * TERMS).max(1)).saturating_sub(halo).max(1);
        EvenSplit::by(self.shape.output[0], most.max(2 * halo))
    }

    /// Columns that tiles compute of an image.
    fn columns(&self) -> usize {
        let blocks = (0..self.row_blocks.parts()).map(|block| self.row_blocks.range(block).len());
        blocks.map(|rows| self.tiled(rows).next_multiple_of(STEP)).sum()
    }

    /// Columns of so many rows, up to the last pixel.
    fn tiled(&self, rows: usize) -> usize {
        match self.windows {
            true => rows * self.shape.output[1],
            false => rows * self.width() - self.halo[1],
        }
    }

    fn tasks(&self) -> usize {
        let has_elements = self.shape.output.iter().all(|n| *n > 0) && self.panels.longest() > 0;
        if has_elements { self.shape.batch * self.row_blocks.parts() * self.filter_blocks.parts() } else { 0 }
    }

    /// Columns of a row of a plane.
    fn width(&self) -> usize {
        self.shape.output[1] + self.halo[1]
    }

    /// Elements of a plane, for so many rows of the result.
    fn plane(&self, rows: usize) -> usize {
        (rows + self.halo[0]) * self.width()
    }

    /// Elements of four bytes in each part of scratch: positions of taps; planes and windows; what a panel needs.
    fn parts(&self) -> [usize; 5] {
        let [planes, windows] = staging::sizes(self, self.row_blocks.longest());
        let [weights, excess] = PanelScratch::sizes(self.terms);
        [self.terms.taps, planes, windows, weights, excess]
    }

    fn scratch(&self) -> usize {
        self.parts().iter().sum()
    }
}

/// Executes some tasks, and the epilogue on what each finishes.
///
/// # Safety
/// As [`super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    call: &Conv2d,
    tensors: &ByteTensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    if call.is_depthwise() {
        // SAFETY: passed on from the caller.
        return unsafe { depthwise::run(level, call, tensors, epilogue, tasks, scratch) };
    }
    let tasks_of = ByteTasks::new(call);
    let (row_blocks, filter_blocks) = (tasks_of.row_blocks.parts(), tasks_of.filter_blocks.parts());
    let strides = tasks_of.shape.images;
    let mut end = 0;
    let [runs, planes, windows, weights, excess] = tasks_of.parts().map(|part| {
        end += part;
        scratch.wrapping_add(end - part)
    });
    let panel = PanelScratch { weights: weights.cast(), excess: excess.cast() };
    // SAFETY: passed on from the caller.
    let mut block_sums = unsafe { SumBlock::new(epilogue) };
    let mut staged = None;
    for task in tasks {
        let (image, block) = (task / filter_blocks / row_blocks, task / filter_blocks % row_blocks);
        let work = ByteWork {
            image,
            filters: tensors.filters,
            y: tensors.y.wrapping_add(image * strides[1]),
            staging: Staging {
                level,
                t: &tasks_of,
                x: tensors.x.wrapping_add(image * strides[0]),
                rows: tasks_of.row_blocks.range(block),
                planes: planes.cast(),
                windows: windows.cast(),
            },
            runs: runs.cast(),
            panel,
        };
        let panels = tasks_of.filter_blocks.range(task % filter_blocks);
        // SAFETY: `tasks` lies within the call by the caller's contract; `scratch` has the elements of `ByteTasks::scratch`.
        unsafe {
            if staged != Some((image, block)) {
                work.stage();
                staged = Some((image, block));
            }
            work.multiply(panels, &mut block_sums);
        }
    }
}

/// Some rows of the result of one image.
struct ByteWork<'a> {
    image: usize,
    filters: *const i8,
    y: *mut i32,
    staging: Staging<'a>,
    /// Groups from the first column to the first one of each tap, where tiles read planes.
    runs: *mut u32,
    panel: PanelScratch,
}

impl ByteWork<'_> {
    /// Copies what the rows read, and notes where tiles find it in planes.
    ///
    /// # Safety
    /// The image and scratch are as the call states.
    unsafe fn stage(&self) {
        let (t, terms) = (self.staging.t, self.staging.t.terms);
        // SAFETY: scratch holds a position for each tap.
        unsafe {
            for tap in 0..if t.windows { 0 } else { terms.taps } {
                self.runs.add(tap).write((self.staging.place(tap * terms.channels) / TERMS) as u32);
            }
            self.staging.stage();
        }
    }

    /// Bytes from the first column of the first group that tiles read to that of a group.
    fn place(&self, group: usize) -> usize {
        let (t, rows) = (self.staging.t, self.staging.rows.len());
        match t.windows {
            true => group * rows * t.shape.output[1] * TERMS,
            false => self.staging.place(t.terms.first(group)),
        }
    }

    /// Pixels of the rows before a column.
    fn pixels(&self, column: usize) -> usize {
        let (width, pixels) = (self.staging.t.width(), self.staging.t.shape.output[1]);
        if self.has_gaps() { column / width * pixels + pixels.min(column % width) } else { column }
    }

    /// Whether some columns between rows are no pixels.
    fn has_gaps(&self) -> bool {
        !self.staging.t.windows && self.staging.t.halo[1] > 0
    }

    /// Computes the rows for some panels of filters, and applies the epilogue.
    ///
    /// # Safety
    /// What they read is staged, and the result writable.
    unsafe fn multiply(&self, panels: Range<usize>, block: &mut SumBlock) {
        let (t, level) = (self.staging.t, self.staging.level);
        let total = t.tiled(self.staging.rows.len());
        let plane = t.shape.output[0] * t.shape.output[1];
        for filters in panels.map(|panel| t.panels.range(panel)) {
            let first = self.staging.rows.start * t.shape.output[1];
            let y = self.y.wrapping_add(filters.start * plane + first);
            let (weights, place) = ((self.filters, t.packed), |group| self.place(group));
            // SAFETY: passed on from the caller.
            unsafe {
                let panel = FilterPanel::new(level, t.terms, weights, filters.clone(), total, &self.panel, place);
                for columns in (0..total).step_by(SumBlock::COLS).map(|c| c..total.min(c + SumBlock::COLS)) {
                    let pixels = [columns.start, columns.end].map(|column| self.pixels(column));
                    if pixels[0] == pixels[1] {
                        continue;
                    }
                    let (y, ldc) = block.place(y.wrapping_add(pixels[0]), plane as isize);
                    for column in columns.clone().step_by(INTEGER_COLS) {
                        let cols = INTEGER_COLS.min(columns.end - column);
                        let y = y.wrapping_add(self.pixels(column) - pixels[0]);
                        // Excess is added to all columns of a tile.
                        if !self.has_gaps() && (cols == INTEGER_COLS || !panel.is_narrowed()) {
                            self.tile(&panel, cols, column, (y, ldc));
                            continue;
                        }
                        let mut sums = [[MaybeUninit::<i32>::uninit(); INTEGER_COLS]; MR];
                        self.tile(&panel, cols, column, (sums.as_mut_ptr().cast(), INTEGER_COLS as isize));
                        for (filter, sums) in sums.iter().enumerate().take(filters.len()) {
                            self.keep(&sums[..cols], column, y.wrapping_offset(filter as isize * ldc));
                        }
                    }
                    let [from, to] = pixels.map(|pixel| first + pixel);
                    block.finish([self.image as u64, 0, 0], filters.clone(), from..to);
                }
            }
        }
    }

    /// Writes the sums of columns from `first` on that are pixels side by side.
    ///
    /// # Safety
    /// They are known, and so many are writable.
    unsafe fn keep(&self, sums: &[MaybeUninit<i32>], first: usize, y: *mut i32) {
        let pixels = self.staging.t.shape.output[1];
        let width = if self.has_gaps() { self.staging.t.width() } else { pixels };
        let (mut at, mut done) = (0, 0);
        while at < sums.len() {
            let column = (first + at) % width;
            let run = (width - column).min(sums.len() - at);
            let kept = run.min(pixels.saturating_sub(column));
            // SAFETY: by the caller's contract.
            unsafe { core::ptr::copy_nonoverlapping(sums[at..].as_ptr().cast(), y.add(done), kept) };
            (at, done) = (at + run, done + kept);
        }
    }

    /// The sums of the filters of a panel for at most [`INTEGER_COLS`] columns from `column` on.
    ///
    /// # Safety
    /// What they read is staged, and the sums are writable.
    unsafe fn tile(&self, panel: &FilterPanel, cols: usize, column: usize, (c, ldc): (*mut i32, isize)) {
        let (t, terms, rows) = (self.staging.t, self.staging.t.terms, self.staging.rows.len());
        let group = panel.filters * TERMS;
        let (staged, parts, runs, b_step) = match t.windows {
            true => (self.staging.windows, terms.parts(), &[0][..], rows * t.shape.output[1]),
            false => {
                // SAFETY: `stage` has written them.
                let taps = unsafe { core::slice::from_raw_parts(self.runs.cast_const(), terms.taps) };
                (self.staging.planes, terms.quad_parts(), taps, t.plane(rows))
            }
        };
        let b = staged.wrapping_add(column * TERMS).cast_const();
        for groups in (0..parts.parts()).map(|part| parts.range(part)) {
            let tile = IntegerTile {
                runs,
                groups: groups.len(),
                a: panel.weights.wrapping_add(groups.start * runs.len() * group).cast(),
                a_row: TERMS as isize,
                a_step: group,
                a_run: groups.len() * group,
                rows: panel.filters,
                b: b.wrapping_add(groups.start * b_step * TERMS),
                b_step,
                cols,
                c,
                ldc,
                continued: groups.start > 0,
                left_signed: true,
                narrowed: panel.is_narrowed(),
            };
            // SAFETY: by the caller's contract.
            unsafe { self.staging.level.integer_tile(&tile) };
        }
        // SAFETY: as above.
        unsafe { panel.add_excess(self.staging.level, b, (c, ldc)) };
    }
}
