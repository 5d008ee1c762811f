//! Convolutions of images of u8 with filters of i8, with exact sums in i32.
//!
//! What some rows of the result read of the image is staged: groups of four channels of a pixel side by side, zeros for what
//! lies outside, and a plane for each remainder of rows and columns by the strides that a tap has. There, what a tap reads for
//! one pixel after the other lies side by side, also from the end of a row to the next, so that a tile of columns
//! ([`IntegerTile`]) may go over several rows. It computes sums between the rows as well, which are dropped.
//!
//! Where pairs of products are added in 16 bits, a panel of filters is narrowed before it is multiplied ([`NarrowedRow`]).

use core::ops::Range;

use tensorc_abi::Conv2d;

use crate::blocking::{EvenSplit, row_panels, tasks_worth};
use crate::epilogue::{EpilogueCall, SumBlock};
use crate::gemm::{TASK_FLOPS, TASKS};
use crate::isa_levels::{Excess, INTEGER_COLS, IntegerGroup, IntegerTile, IsaLevel, MR, NarrowedRow, TERMS};

/// Most bytes of staged planes, about: they stay in the second-level cache.
const STAGED_BYTES: usize = 192 * 1024;
/// Groups of terms that a tile adds up at a time: what sixteen columns of it read stays in the first-level cache.
const DEPTH: usize = 128;
/// Of how many weights one may have an excess.
const EXCESS_SHARE: usize = 20;
/// Fewest columns of staged rows that are worth narrowing a panel of filters.
const NARROWED_COLS: usize = INTEGER_COLS;
/// How many times the terms of a convolution of f32 are computed in the same time.
const SPEED: f64 = 2.0;

/// Operands and result.
pub(super) struct ByteTensors {
    pub x: *const u8,
    pub filters: *const i8,
    pub y: *mut i32,
}

/// The division of a convolution into tasks, and the form of its staged planes.
pub(super) struct ByteTasks {
    batch: usize,
    quads: usize,
    input: [usize; 2],
    output: [usize; 2],
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    pads: [usize; 2],
    /// Planes along rows and along columns.
    phases: [usize; 2],
    /// The halo: how many rows and columns a staged plane has more than the result.
    halo: [usize; 2],
    /// Filters in panels of [`MR`] rows, which tasks take some of.
    panels: EvenSplit,
    filter_blocks: EvenSplit,
    row_blocks: EvenSplit,
}

impl ByteTasks {
    pub fn new(call: &Conv2d) -> ByteTasks {
        let pair = |of: [u64; 2]| of.map(|n| n as usize);
        let (kernel, strides, dilations) = (pair(call.kernel), pair(call.strides), pair(call.dilations));
        let (output, quads) = (pair(call.output), call.in_channels as usize / TERMS);
        let last = |d: usize| kernel[d].saturating_sub(1) * dilations[d];
        let halo = [0, 1].map(|d| last(d) / strides[d]);
        // Taps a multiple of the stride apart read the same plane.
        let phases = [0, 1].map(|d| strides[d].min(last(d) + 1));
        let row = phases[0] * phases[1] * quads * (output[1] + halo[1]) * TERMS;
        let most = (STAGED_BYTES / row.max(1)).saturating_sub(halo[0]).max(1);
        let row_blocks = EvenSplit::by(output[0], most.max(2 * halo[0]));
        let panels = row_panels(call.out_channels as usize);
        let wanted = tasks_worth(call.flops() as f64 / (SPEED * TASK_FLOPS), TASKS);
        let others = call.batch as usize * row_blocks.parts();
        let filter_blocks = EvenSplit::into(panels.parts(), wanted.div_ceil(others.max(1)));
        ByteTasks {
            batch: call.batch as usize,
            quads,
            input: pair(call.input),
            output,
            kernel,
            strides,
            dilations,
            pads: pair(call.pads),
            phases,
            halo,
            panels,
            filter_blocks,
            row_blocks,
        }
    }

    pub fn tasks(&self) -> usize {
        let has_elements = self.output.iter().all(|n| *n > 0) && self.panels.longest() > 0;
        if has_elements { self.batch * self.row_blocks.parts() * self.filter_blocks.parts() } else { 0 }
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Columns of a staged row.
    fn width(&self) -> usize {
        self.output[1] + self.halo[1]
    }

    /// Groups of a plane of one group of channels, for so many rows of the result.
    fn plane(&self, rows: usize) -> usize {
        (rows + self.halo[0]) * self.width()
    }

    /// Weights of a filter.
    fn terms(&self) -> usize {
        self.taps() * self.quads * TERMS
    }

    /// Most weights of a panel that have an excess.
    fn most_excess(&self) -> usize {
        MR * self.terms() / EXCESS_SHARE
    }

    /// Elements of four bytes in each part of scratch: positions of taps; the staged planes, behind which a tile may read;
    /// narrowed filters; their excess.
    fn parts(&self) -> [usize; 4] {
        let planes = self.phases[0] * self.phases[1] * self.quads;
        let groups = planes * self.plane(self.row_blocks.longest()) + INTEGER_COLS + 1;
        [self.taps(), groups, MR * self.terms() / TERMS, 2 * self.most_excess()]
    }

    /// Elements of f32 of scratch.
    pub fn scratch(&self) -> usize {
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
    let tasks_of = ByteTasks::new(call);
    let (row_blocks, filter_blocks) = (tasks_of.row_blocks.parts(), tasks_of.filter_blocks.parts());
    let strides = call.image_strides().map(|n| n as usize);
    let [taps, groups, weights, _] = tasks_of.parts();
    // SAFETY: passed on from the caller.
    let mut block_sums = unsafe { SumBlock::new(epilogue) };
    let mut staged = None;
    for task in tasks {
        let (image, block) = (task / filter_blocks / row_blocks, task / filter_blocks % row_blocks);
        let work = ByteWork {
            level,
            t: &tasks_of,
            image,
            x: tensors.x.wrapping_add(image * strides[0]),
            filters: tensors.filters,
            y: tensors.y.wrapping_add(image * strides[1]),
            rows: tasks_of.row_blocks.range(block),
            runs: scratch.cast(),
            planes: scratch.wrapping_add(taps).cast(),
            narrowed: scratch.wrapping_add(taps + groups).cast(),
            excess: scratch.wrapping_add(taps + groups + weights).cast(),
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
    level: IsaLevel,
    t: &'a ByteTasks,
    image: usize,
    x: *const u8,
    filters: *const i8,
    y: *mut i32,
    rows: Range<usize>,
    /// Groups from the first staged one to what each tap reads of the first pixel.
    runs: *mut u32,
    planes: *mut u8,
    narrowed: *mut i8,
    excess: *mut [i32; 2],
}

/// A panel of filters as it is multiplied.
struct FilterPanel {
    /// The first weight of the first filter.
    weights: *const i8,
    /// Where the excess of each filter ends, if the weights are narrowed.
    ends: Option<[usize; MR]>,
}

impl ByteWork<'_> {
    /// Groups of a plane of one group of channels.
    fn plane(&self) -> usize {
        self.t.plane(self.rows.len())
    }

    /// Copies what the rows read.
    ///
    /// # Safety
    /// The image and scratch are as the call states.
    unsafe fn stage(&self) {
        let t = self.t;
        for tap in 0..t.taps() {
            let at = [tap / t.kernel[1] * t.dilations[0], tap % t.kernel[1] * t.dilations[1]];
            let [row, column] = [0, 1].map(|d| at[d] / t.strides[d]);
            let phase = at[0] % t.strides[0] * t.phases[1] + at[1] % t.strides[1];
            let first = phase * t.quads * self.plane() + row * t.width() + column;
            // SAFETY: scratch holds a position for each tap.
            unsafe { self.runs.add(tap).write(first as u32) };
        }
        for (phase, quad) in
            (0..t.phases[0] * t.phases[1]).flat_map(|phase| (0..t.quads).map(move |quad| (phase, quad)))
        {
            let to = self.planes.wrapping_add((phase * t.quads + quad) * self.plane() * TERMS);
            let x = self.x.wrapping_add(quad * TERMS * t.input[0] * t.input[1]);
            // SAFETY: the channels are the image's, and the planes have room for them.
            unsafe { self.stage_plane([phase / t.phases[1], phase % t.phases[1]], x, to) };
        }
    }

    /// Copies what the rows read of a group of channels with the given remainders by the strides.
    ///
    /// # Safety
    /// As [`ByteWork::stage`], with four planes of the image from `x` on.
    unsafe fn stage_plane(&self, phase: [usize; 2], x: *const u8, to: *mut u8) {
        let t = self.t;
        let (width, plane) = (t.width(), t.input[0] * t.input[1]);
        let group = |from: usize, cols: usize, to: *mut u8| IntegerGroup {
            terms: TERMS,
            from: x.wrapping_add(from),
            row: plane as isize,
            step: t.strides[1] as isize,
            cols,
            to,
        };
        let count = self.rows.len() + t.halo[0];
        // SAFETY: what is read lies in the image, and what is written in the plane.
        unsafe {
            let whole = width == t.input[1] && self.rows.start + count <= t.input[0];
            if whole && t.strides == [1; 2] && t.pads == [0; 2] {
                return self.level.integer_group(&group(self.rows.start * width, count * width, to));
            }
            // Columns of the plane that lie in the image.
            let first = (t.pads[1].saturating_sub(phase[1])).div_ceil(t.strides[1]).min(width);
            let inside = t.input[1] + t.pads[1];
            let last = inside.saturating_sub(phase[1]).div_ceil(t.strides[1]).clamp(first, width);
            for row in 0..count {
                let to = to.wrapping_add(row * width * TERMS);
                let padded = (self.rows.start + row) * t.strides[0] + phase[0];
                let y = padded.wrapping_sub(t.pads[0]);
                if y >= t.input[0] || first == last {
                    to.write_bytes(0, width * TERMS);
                    continue;
                }
                let column = first * t.strides[1] + phase[1] - t.pads[1];
                to.write_bytes(0, first * TERMS);
                self.level.integer_group(&group(y * t.input[1] + column, last - first, to.wrapping_add(first * TERMS)));
                to.wrapping_add(last * TERMS).write_bytes(0, (width - last) * TERMS);
            }
        }
    }

    /// Pixels of the rows before a column of a staged plane.
    fn pixels(&self, column: usize) -> usize {
        let (width, pixels) = (self.t.width(), self.t.output[1]);
        column / width * pixels + pixels.min(column % width)
    }

    /// Computes the rows for some panels of filters, and applies the epilogue.
    ///
    /// # Safety
    /// What they read is staged, and the result writable.
    unsafe fn multiply(&self, panels: Range<usize>, block: &mut SumBlock) {
        let t = self.t;
        let total = self.rows.len() * t.width() - t.halo[1];
        let plane = t.output[0] * t.output[1];
        for filters in panels.map(|panel| t.panels.range(panel)) {
            let first = self.rows.start * t.output[1];
            let y = self.y.wrapping_add(filters.start * plane + first);
            // SAFETY: passed on from the caller.
            unsafe {
                let panel = self.panel(filters.clone());
                for columns in (0..total).step_by(SumBlock::COLS).map(|c| c..total.min(c + SumBlock::COLS)) {
                    let pixels = [columns.start, columns.end].map(|column| self.pixels(column));
                    if pixels[0] == pixels[1] {
                        continue;
                    }
                    let (y, ldc) = block.place(y.wrapping_add(pixels[0]), plane as isize);
                    for column in columns.clone().step_by(INTEGER_COLS) {
                        let cols = INTEGER_COLS.min(columns.end - column);
                        let y = y.wrapping_add(self.pixels(column) - pixels[0]);
                        let tile = [filters.len(), cols];
                        // Excess is added to all columns of a tile.
                        if t.halo[1] == 0 && (cols == INTEGER_COLS || panel.ends.is_none()) {
                            self.tile(&panel, tile, column, (y, ldc));
                            continue;
                        }
                        let mut sums = [[0; INTEGER_COLS]; MR];
                        self.tile(&panel, tile, column, (sums.as_mut_ptr().cast(), INTEGER_COLS as isize));
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

    /// Some filters, narrowed if that is of use and little is left.
    ///
    /// # Safety
    /// `filters` lies within the filters of the call; `narrowed` and `excess` have the sizes of [`ByteTasks::parts`].
    unsafe fn panel(&self, filters: Range<usize>) -> FilterPanel {
        let (t, terms) = (self.t, self.t.terms());
        let weights = self.filters.wrapping_add(filters.start * terms);
        if !self.level.widens() || self.rows.len() * t.width() < NARROWED_COLS {
            return FilterPanel { weights, ends: None };
        }
        let (mut found, mut ends) = (0, [0; MR]);
        for (i, end) in (0..filters.len()).zip(&mut ends) {
            let row = NarrowedRow {
                from: weights.wrapping_add(i * terms),
                terms,
                to: self.narrowed.wrapping_add(i * terms),
                excess: self.excess,
                room: t.most_excess(),
                found: &raw mut found,
            };
            // SAFETY: by the caller's contract.
            unsafe { self.level.narrowed_row(&row) };
            if found > row.room {
                return FilterPanel { weights, ends: None };
            }
            *end = found;
        }
        // SAFETY: so many have been written.
        for excess in unsafe { core::slice::from_raw_parts_mut(self.excess, found) } {
            let term = excess[0] as usize;
            let (tap, within) = (term / (t.quads * TERMS), term % (t.quads * TERMS));
            // SAFETY: `stage` has written a position for each tap.
            let run = unsafe { self.runs.add(tap).read() } as usize;
            excess[0] = ((run + within / TERMS * self.plane()) * TERMS + within % TERMS) as i32;
        }
        FilterPanel { weights: self.narrowed, ends: Some(ends) }
    }

    /// Writes the sums of columns from `first` on that are pixels side by side.
    ///
    /// # Safety
    /// So many are writable.
    unsafe fn keep(&self, sums: &[i32], first: usize, y: *mut i32) {
        let (width, pixels) = (self.t.width(), self.t.output[1]);
        let (mut at, mut done) = (0, 0);
        while at < sums.len() {
            let column = (first + at) % width;
            let run = (width - column).min(sums.len() - at);
            let kept = run.min(pixels.saturating_sub(column));
            // SAFETY: by the caller's contract.
            unsafe { core::ptr::copy_nonoverlapping(sums[at..].as_ptr(), y.add(done), kept) };
            (at, done) = (at + run, done + kept);
        }
    }

    /// The sums of the filters of a panel for at most [`INTEGER_COLS`] columns from `column` on.
    ///
    /// # Safety
    /// What they read is staged, and the sums are writable.
    unsafe fn tile(
        &self,
        panel: &FilterPanel,
        [filters, cols]: [usize; 2],
        column: usize,
        (c, ldc): (*mut i32, isize),
    ) {
        let (t, terms) = (self.t, self.t.terms());
        // SAFETY: `stage` has written them.
        let runs = unsafe { core::slice::from_raw_parts(self.runs.cast_const(), t.taps()) };
        let depth = EvenSplit::by(t.quads, (DEPTH / t.taps().max(1)).max(1));
        let b = self.planes.wrapping_add(column * TERMS);
        for quads in (0..depth.parts()).map(|part| depth.range(part)) {
            let tile = IntegerTile {
                runs,
                groups: quads.len(),
                a: panel.weights.wrapping_add(quads.start * TERMS).cast(),
                a_row: terms as isize,
                a_run: t.quads * TERMS,
                rows: filters,
                b: b.wrapping_add(quads.start * self.plane() * TERMS),
                b_step: self.plane(),
                cols,
                c,
                ldc,
                continued: quads.start > 0,
                left_signed: true,
                narrowed: panel.ends.is_some(),
            };
            // SAFETY: by the caller's contract.
            unsafe { self.level.integer_tile(&tile) };
        }
        let mut first = 0;
        for (filter, end) in panel.ends.iter().flatten().enumerate().take(filters) {
            if first < *end {
                // SAFETY: so many are found; what they are multiplied with is staged.
                unsafe {
                    let values = core::slice::from_raw_parts(self.excess.add(first), end - first);
                    self.level.add_excess(&Excess { values, b, c: c.wrapping_offset(filter as isize * ldc) });
                }
            }
            first = *end;
        }
    }
}
