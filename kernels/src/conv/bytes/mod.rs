//! Convolutions of images of u8 with filters of i8, with exact sums in i32.
//!
//! What some rows of the result read of the image is staged (`staging`), as windows where filters are packed (`windows`), and
//! multiplied with panels of filters (`panel`), whose terms come in groups of four in a fixed order (`terms`), by tiles of columns
//! ([`IntegerTile`]). Where staged planes have a halo, tiles go over several rows and compute sums between them as well, which
//! are dropped. `depthwise` computes convolutions of one channel each.

mod depthwise;
mod panel;
mod staging;
mod terms;
mod windows;

use core::mem::MaybeUninit;
use core::ops::Range;

use tensorc_abi::{Conv2d, ConvPass};

use super::WindowShape;
use crate::blocking::{EvenSplit, LINE, tasks_worth, whole_lines};
use crate::epilogue::{EpilogueCall, SumBlock};
use crate::gemm::TASKS;
use crate::isa_levels::{CHUNK, INTEGER_COLS, IntegerTile, IsaLevel, MR, NextRows, Products, TERMS};

use depthwise::DepthwiseTasks;
use panel::{FilterPanel, PanelScratch};
use staging::Staging;
use terms::FilterTerms;

/// Most bytes of what a tile reads of the image, about: they stay in the second-level cache.
const STAGED_BYTES: usize = 448 * 1024;
/// The same for filters that are not packed. Artifacts made before version 1.17 have working memory for it.
const STAGED_BYTES_UNPACKED: usize = 192 * 1024;
/// Operations that are worth a task of their own: some microseconds.
const TASK_FLOPS: f64 = 2e6;

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

/// How tiles find what they read of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staged {
    /// In planes of four channels.
    Planes,
    /// In windows, of all columns of a block of rows for one group of terms after the other.
    Windows,
    /// In windows, of all groups for one panel of [`INTEGER_COLS`] columns after the other. Filters are packed.
    Panels,
}

/// The division of a convolution into tasks, and the form of what is staged.
struct ByteTasks {
    shape: WindowShape,
    terms: FilterTerms,
    staged: Staged,
    /// Planes along rows and along columns.
    phases: [usize; 2],
    /// How many rows and columns a plane has more than the result.
    halo: [usize; 2],
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
            staged: match (call.pass, terms.by_channels()) {
                (ConvPass::PackedBytes, _) => Staged::Panels,
                (_, true) => Staged::Planes,
                (_, false) => Staged::Windows,
            },
            phases: [0, 1].map(|d| shape.strides[d].min(last(d) + 1)),
            halo: [0, 1].map(|d| last(d) / shape.strides[d]),
            panels,
            filter_blocks: panels,
            row_blocks: EvenSplit::into(shape.output[0], 1),
        };
        tasks.row_blocks = tasks.blocks_of_rows();
        let wanted = tasks_worth(call.flops() as f64 / TASK_FLOPS, TASKS);
        let others = tasks.shape.batch * tasks.row_blocks.parts();
        tasks.filter_blocks = EvenSplit::into(panels.parts(), wanted.div_ceil(others.max(1)));
        tasks
    }

    /// Rows of the result whose windows fit the cache.
    fn blocks_of_rows(&self) -> EvenSplit {
        let windows = self.terms.groups() * self.shape.output[1];
        let (row, halo, bytes) = match self.staged {
            Staged::Panels => (windows, 0, STAGED_BYTES),
            Staged::Windows => (windows, 0, STAGED_BYTES_UNPACKED),
            Staged::Planes => {
                let row = self.phases[0] * self.phases[1] * self.terms.of_run() * self.width();
                (row, self.halo[0], STAGED_BYTES_UNPACKED)
            }
        };
        let most = (bytes / (row * TERMS).max(1)).saturating_sub(halo).max(1);
        EvenSplit::by(self.shape.output[0], most.max(2 * halo))
    }

    /// Columns of so many rows, up to the last pixel.
    fn tiled(&self, rows: usize) -> usize {
        match self.staged {
            Staged::Planes => rows * self.width() - self.halo[1],
            _ => rows * self.shape.output[1],
        }
    }

    /// Whether windows are copied from the image, of which each column is a pixel.
    fn reads_image(&self) -> bool {
        let s = &self.shape;
        self.staged == Staged::Panels
            && s.kernel == [1; 2]
            && s.strides == [1; 2]
            && s.pads == [0; 2]
            && s.output == s.input
            && self.terms.channels * s.input[0] * s.input[1] <= u32::MAX as usize
    }

    /// Whether windows are copied from planes of one channel each.
    fn by_terms(&self) -> bool {
        self.reads_image() || !self.terms.by_channels()
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

    /// Elements of four bytes in each part of scratch: positions of terms or taps; planes and windows; what a panel needs.
    fn parts(&self) -> [usize; 5] {
        let places = if self.staged == Staged::Panels && self.by_terms() {
            self.terms.groups() * TERMS
        } else {
            self.terms.taps
        };
        let [planes, windows] = staging::sizes(self, self.row_blocks.longest());
        let [weights, excess] = PanelScratch::sizes(self.terms);
        match self.staged {
            // Tiles read whole lines of the cache.
            Staged::Panels => [whole_lines(places), whole_lines(planes), whole_lines(windows), weights, excess],
            _ => [places, planes, windows, weights, excess],
        }
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
    let [places, planes, windows, weights, excess] = tasks_of.parts().map(|part| {
        end += part;
        scratch.wrapping_add(end - part)
    });
    let panel = PanelScratch { weights: weights.cast(), excess: excess.cast() };
    // SAFETY: passed on from the caller.
    let mut block_sums = unsafe { SumBlock::new(epilogue) };
    let products = Products::new(level);
    let mut staged = None;
    for task in tasks {
        let (image, block) = (task / filter_blocks / row_blocks, task / filter_blocks % row_blocks);
        let work = ByteWork {
            products: &products,
            image,
            filters: tensors.filters,
            y: tensors.y.wrapping_add(image * strides[1]),
            staging: Staging {
                level,
                t: &tasks_of,
                x: tensors.x.wrapping_add(image * strides[0]),
                rows: tasks_of.row_blocks.range(block),
                places: places.cast(),
                planes: planes.cast(),
                windows: windows.cast(),
            },
            panel,
        };
        let panels = tasks_of.filter_blocks.range(task % filter_blocks);
        // SAFETY: `tasks` lies within the call by the caller's contract; `scratch` has the elements of `ByteTasks::scratch`.
        unsafe {
            if staged != Some((image, block)) {
                work.staging.stage();
                staged = Some((image, block));
            }
            work.multiply(panels, &mut block_sums);
        }
    }
}

/// Some rows of the result of one image.
struct ByteWork<'a> {
    products: &'a Products,
    image: usize,
    filters: *const i8,
    y: *mut i32,
    staging: Staging<'a>,
    panel: PanelScratch,
}

impl ByteWork<'_> {
    /// Groups from those that tiles read first to the first ones of each run.
    fn runs(&self) -> &[u32] {
        let t = self.staging.t;
        // SAFETY: `stage` has written them.
        if t.staged == Staged::Planes { unsafe { self.staging.places(t.terms.taps) } } else { &[0] }
    }

    /// Groups from a group of a run to the next.
    fn step(&self) -> usize {
        let (t, rows) = (self.staging.t, self.staging.rows.len());
        match t.staged {
            Staged::Planes => t.plane(rows),
            Staged::Windows => t.tiled(rows),
            Staged::Panels => INTEGER_COLS,
        }
    }

    /// What tiles read of columns from `column` on, which begin a tile.
    fn columns(&self, column: usize) -> *const u8 {
        let staging = &self.staging;
        match staging.t.staged {
            Staged::Planes => staging.planes.wrapping_add(column * TERMS),
            Staged::Windows => staging.windows.wrapping_add(column * TERMS),
            Staged::Panels => staging.windows.wrapping_add(column * staging.t.terms.groups() * TERMS),
        }
    }

    /// Pixels of the rows before a column.
    fn pixels(&self, column: usize) -> usize {
        let (width, pixels) = (self.staging.t.width(), self.staging.t.shape.output[1]);
        if self.has_gaps() { column / width * pixels + pixels.min(column % width) } else { column }
    }

    /// Whether some columns between rows are no pixels.
    fn has_gaps(&self) -> bool {
        self.staging.t.staged == Staged::Planes && self.staging.t.halo[1] > 0
    }

    /// Computes the rows for some panels of filters, and applies the epilogue.
    ///
    /// # Safety
    /// What they read is staged, and the result writable.
    unsafe fn multiply(&self, panels: Range<usize>, block: &mut SumBlock) {
        let (t, level) = (self.staging.t, self.staging.level);
        let total = t.tiled(self.staging.rows.len());
        let plane = t.shape.output[0] * t.shape.output[1];
        let together = if t.staged == Staged::Panels { self.products.panels_together() } else { 1 };
        for first in panels.clone().step_by(together) {
            let end = panels.end.min(first + together);
            let filters = t.panels.start(first)..t.panels.start(end);
            let first_pixel = self.staging.rows.start * t.shape.output[1];
            let y = self.y.wrapping_add(filters.start * plane + first_pixel);
            let weights = (self.filters, t.staged == Staged::Panels);
            // SAFETY: passed on from the caller.
            unsafe {
                let panel = FilterPanel::new(level, t.terms, weights, t.panels.range(first), total, &self.panel);
                let next = (end > first + 1).then(|| t.panels.range(first + 1).len());
                for columns in (0..total).step_by(SumBlock::COLS).map(|c| c..total.min(c + SumBlock::COLS)) {
                    let pixels = [columns.start, columns.end].map(|column| self.pixels(column));
                    if pixels[0] == pixels[1] {
                        continue;
                    }
                    let (y, ldc) = block.place(y.wrapping_add(pixels[0]), plane as isize);
                    // Panels that are not narrowed are multiplied together.
                    let plain = t.staged == Staged::Panels && panel.narrowed().is_none();
                    let step = if plain { SumBlock::COLS } else { INTEGER_COLS };
                    for column in columns.clone().step_by(step) {
                        let cols = step.min(columns.end - column);
                        let y = y.wrapping_add(self.pixels(column) - pixels[0]);
                        // Excess is added to all columns of a tile.
                        if !self.has_gaps() && (cols == INTEGER_COLS || panel.narrowed().is_none()) {
                            self.tile((&panel, next), cols, column, (y, ldc));
                            continue;
                        }
                        let mut sums = [[MaybeUninit::<i32>::uninit(); INTEGER_COLS]; MR];
                        self.tile((&panel, next), cols, column, (sums.as_mut_ptr().cast(), INTEGER_COLS as isize));
                        for (filter, sums) in sums.iter().enumerate().take(filters.len()) {
                            self.keep(&sums[..cols], column, y.wrapping_offset(filter as isize * ldc));
                        }
                    }
                    let [from, to] = pixels.map(|pixel| first_pixel + pixel);
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

    /// The sums of the filters of a panel, and of so many in the one packed behind it, for columns from `column` on.
    ///
    /// # Safety
    /// What they read is staged, and the sums are writable.
    unsafe fn tile(
        &self,
        (panel, next): (&FilterPanel, Option<usize>),
        cols: usize,
        column: usize,
        (c, ldc): (*mut i32, isize),
    ) {
        let terms = self.staging.t.terms;
        let (group, step, runs) = (panel.filters * TERMS, self.step(), self.runs());
        let filled = self.staging.t.staged == Staged::Panels;
        let b = self.columns(column);
        // The next panel, while this one is read for the first time. Tile registers gain nothing by it.
        let fetches = filled && column == 0 && self.products.panels_together() == 1;
        let next_panel = panel.weights.wrapping_add(terms.packed_groups() * group).cast::<u8>();
        for groups in terms.parts() {
            let lines = if fetches { groups.len() * group / LINE } else { 0 };
            let tile = IntegerTile {
                runs,
                groups: groups.len(),
                a: panel.weights.wrapping_add(groups.start * runs.len() * group).cast(),
                a_row: (CHUNK * TERMS) as isize,
                a_rest_row: (if filled { CHUNK } else { groups.len() % CHUNK } * TERMS) as isize,
                a_chunk: CHUNK * group,
                a_run: groups.len() * group,
                rows: panel.filters,
                filled,
                b: b.wrapping_add(groups.start * step * TERMS),
                b_step: step,
                b_tile: terms.groups() * INTEGER_COLS * TERMS,
                cols,
                c,
                ldc,
                continued: groups.start > 0,
                ahead: (next_panel.wrapping_add(groups.start * group), lines),
                left_signed: true,
                narrowed: panel.narrowed(),
            };
            let next = next.map(|rows| {
                let behind = panel.filters * terms.packed_groups() + rows * groups.start;
                let a = panel.weights.wrapping_add(behind * TERMS).cast();
                NextRows { a, a_chunk: CHUNK * rows * TERMS, rows }
            });
            // SAFETY: by the caller's contract.
            unsafe { self.products.integer_tiles(&tile, next) };
        }
        // SAFETY: as above.
        unsafe { panel.add_excess(self.staging.level, b, (c, ldc)) };
    }
}
