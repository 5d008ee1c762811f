//! Convolutions with 3×3 filters by Winograd convolution, in blocks of 16 channels: F(2×2, 3×3) and
//! F(4×4, 3×3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016).
//!
//! A tile of m×m outputs needs (m + 2)² products for every pair of channels in place of 9·m². The patch of x
//! under each tile is transformed into as many coefficients; for every coefficient, the sum over channels is a
//! matrix product of tiles × channels by channels × filters, computed strip by strip as pointwise convolutions
//! are; the results of all coefficients are transformed into the tile. A task takes rows of tiles whose
//! coefficients stay in the second-level cache, and panels of filters, which it reads once. Filters are
//! transformed when they are packed. Where x has its channels in planes, what lies under a run of tiles is first
//! copied into blocks; where y has, a row of tiles is completed in blocks and then moved.

use core::ops::Range;

use tensorc_abi::{Conv2d, ImageLayout};

use super::blocked::PANEL;
use super::shape::Distances;
use super::{Tensors, WindowShape, compute_pixels, copy_channels};
use crate::blocking::EvenSplit;
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, LANES, PatchIn, PatchOut, RegisterTile, TILE_PIXELS};
use crate::prologue::Computed;

/// Taps of a filter along one axis.
const TAPS: usize = 3;
/// Most coefficients of a patch along one axis.
const MAX_PATCH: usize = 6;
/// Coefficients of patches in one task: an eighth of those of the filters, which every task reads, but few enough for
/// the second-level cache, mostly, and no fewer than it holds beside small filters.
const PATCHES_PER_FILTERS: usize = 8;
const MAX_TASK_COEFFICIENTS: usize = 128 * 1024;
const MANY_PATCHES: usize = 640 * 1024;
/// Elements of y in one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;
/// Floating-point operations of the sum that are worth a task of their own.
const TASK_FLOPS: f64 = 4e6;
/// Tasks wanted of a large convolution.
const TASKS: usize = 16;
/// Tiles in a task that make up for reading its filters, about.
const TASK_TILES: usize = 2 * TILE_PIXELS;

/// The geometry of a call and its division into tasks; a function of the call alone.
pub(super) struct WinogradTasks {
    shape: WindowShape,
    /// Pixels of a tile along one axis.
    size: usize,
    /// Rows and columns of tiles of an image.
    tiles: [usize; 2],
    /// Rows of tiles of all images, cut into runs.
    rows: EvenSplit,
    /// Channel blocks of y.
    outputs: usize,
    /// Panels of filters, cut into runs.
    panels: EvenSplit,
    layouts: [ImageLayout; 2],
    /// Where x and y lie.
    sides: [Distances; 2],
}

/// Pixels of a tile along one axis.
fn size(call: &Conv2d) -> usize {
    call.pass.tile().map_or(2, |size| size as usize)
}

impl WinogradTasks {
    pub(super) fn new(call: &Conv2d) -> WinogradTasks {
        let shape = WindowShape::forward(call);
        let size = size(call);
        let tiles = shape.output.map(|pixels| pixels.div_ceil(size));
        let rows = shape.batch * tiles[0];
        let coefficients = (size + TAPS - 1).pow(2);
        let per_row = tiles[1] * shape.in_channels * coefficients;
        let filters = shape.out_channels * shape.in_channels * coefficients;
        let most = (filters / PATCHES_PER_FILTERS).clamp(MAX_TASK_COEFFICIENTS, MANY_PATCHES);
        let outputs = shape.out_channels.div_ceil(LANES);
        let panels = outputs.div_ceil(PANEL);
        let want = ((shape.flops() / TASK_FLOPS) as usize).clamp(1, TASKS);
        let runs = (rows * per_row).div_ceil(most).max(want.min(rows * tiles[1] / TASK_TILES));
        let rows = EvenSplit::into(rows, runs);
        let groups = want.div_ceil(rows.parts()).min(panels);
        let sides = [
            Distances::new(call.layouts[0], shape.in_channels, shape.plane()),
            Distances::new(call.layouts[1], shape.out_channels, shape.pixels()),
        ];
        WinogradTasks {
            size,
            tiles,
            rows,
            outputs,
            panels: EvenSplit::into(panels, groups),
            layouts: call.layouts,
            sides,
            shape,
        }
    }

    pub(super) fn tasks(&self) -> usize {
        if self.shape.is_empty() { 0 } else { self.rows.parts() * self.panels.parts() }
    }

    /// Tasks in turn that read the same patches.
    pub(super) fn affinity(&self) -> usize {
        self.panels.parts()
    }

    /// Coefficients of a patch along one axis.
    fn extent(&self) -> usize {
        self.size + TAPS - 1
    }

    /// Most tiles of a task.
    fn most_tiles(&self) -> usize {
        self.rows.longest() * self.tiles[1]
    }

    /// Elements from a coefficient of the patches to the next: not a multiple of the distance at which
    /// addresses share places in a cache.
    fn patch_plane(&self) -> usize {
        (self.most_tiles() * self.shape.in_channels) | LANES
    }

    /// Elements from a sum of products to the next.
    fn sum_plane(&self) -> usize {
        (self.most_tiles() * PANEL * LANES) | LANES
    }

    /// Elements of scratch one thread needs, for an x that is computed or in memory.
    pub(super) fn scratch(&self, computed: bool) -> usize {
        match self.shape.is_empty() {
            true => 0,
            false => self.extent().pow(2) * (self.patch_plane() + self.sum_plane()) + self.window(computed),
        }
    }

    /// Elements of a block of channels: under a strip of tiles, which are copied from planes, or under all tiles
    /// of a task in one image, which are computed; and of a row of tiles of y, which are moved to planes.
    fn window(&self, computed: bool) -> usize {
        let columns = (TILE_PIXELS - 1) * self.size + self.extent();
        let rows = self.rows.longest().min(self.tiles[0]) * self.size + TAPS - 1;
        let entered = match (computed, self.layouts[0]) {
            (true, _) => rows.min(self.shape.input[0]) * self.shape.input[1],
            (false, ImageLayout::Nchw) => self.extent() * columns,
            (false, _) => 0,
        };
        let left = if self.layouts[1] == ImageLayout::Nchw { self.tiles[1] * self.size * self.size } else { 0 };
        entered.max(left) * LANES
    }

    /// Rows of an image under some of its rows of tiles.
    fn under(&self, rows: &Range<usize>) -> Range<usize> {
        let [height, pad] = [self.shape.input[0], self.shape.pads[0]];
        let first = (rows.start * self.size).saturating_sub(pad).min(height);
        first..(rows.end * self.size + TAPS - 1).saturating_sub(pad).clamp(first, height)
    }

    /// Whether a block of y has all its channels.
    fn is_whole(&self, block: usize) -> bool {
        (block + 1) * LANES <= self.shape.out_channels
    }
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    schedule: &WinogradTasks,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    let groups = schedule.panels.parts();
    let mut kept = None;
    for task in tasks {
        let (panels, run) = (schedule.panels.range(task % groups), task / groups);
        let sums = scratch.wrapping_add(schedule.extent().pow(2) * schedule.patch_plane());
        let window = sums.wrapping_add(schedule.extent().pow(2) * schedule.sum_plane());
        let rows = schedule.rows.range(run);
        let worker = WinogradTask { schedule, level, tensors, epilogue, rows, patches: scratch, sums, window };
        // SAFETY: the task is one of the call's.
        unsafe {
            if kept != Some(run) {
                worker.input_transform();
                kept = Some(run);
            }
            panels.for_each(|panel| worker.panel(panel));
        }
    }
}

/// One task in execution.
struct WinogradTask<'a> {
    schedule: &'a WinogradTasks,
    level: IsaLevel,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    /// Rows of tiles, counted over all images.
    rows: Range<usize>,
    /// Coefficient (r, c) of the patches at `patches[(r·extent + c)·patch_plane]`: by strip of tiles, block of
    /// channels, tile and channel.
    patches: *mut f32,
    /// Sum (r, c) of the tiles at `sums[(r·extent + c)·sum_plane]`: by block of channels, tile and channel.
    sums: *mut f32,
    /// What of x lies under some tiles, or a row of tiles of y, if they are copied or computed: [`WinogradTasks::window`]
    /// elements.
    window: *mut f32,
}

impl WinogradTask<'_> {
    fn tiles(&self) -> usize {
        self.rows.len() * self.schedule.tiles[1]
    }

    /// Strips of the task's tiles.
    fn strips(&self) -> EvenSplit {
        EvenSplit::by(self.tiles(), TILE_PIXELS)
    }

    /// Transforms the patches of all tiles.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn input_transform(&self) {
        match self.tensors.computed {
            // SAFETY: the tiles are the task's.
            None => unsafe { self.enter_tiles(0..self.tiles(), 0..self.schedule.shape.in_channels / LANES, None) },
            // SAFETY: passed on from the caller.
            Some(computed) => unsafe { self.enter_computed(computed) },
        }
    }

    /// Computes the blocks of channels under all tiles, and transforms their patches.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn enter_computed(&self, computed: Computed) {
        let WinogradTasks { shape, tiles, .. } = self.schedule;
        let mut row = self.rows.start;
        while row < self.rows.end {
            let image = row / tiles[0];
            let rows = row..self.rows.end.min((image + 1) * tiles[0]);
            row = rows.end;
            let under = self.schedule.under(&(rows.start - image * tiles[0]..rows.end - image * tiles[0]));
            let pixels = under.start * shape.input[1]..under.end * shape.input[1];
            let run = (rows.start - self.rows.start) * tiles[1]..(rows.end - self.rows.start) * tiles[1];
            for block in 0..shape.in_channels / LANES {
                let x = self.window.wrapping_sub((block * shape.plane() + pixels.start) * LANES);
                // SAFETY: the tiles are the task's, and what is under them is there.
                unsafe {
                    compute_pixels(computed, (image, block), pixels.clone(), None, self.window);
                    self.enter_tiles(run.clone(), block..block + 1, Some(x));
                }
            }
        }
    }

    /// Transforms the patches of some blocks of channels under whole rows of tiles; they are those of the image at `x`
    /// if that is computed.
    ///
    /// # Safety
    /// As for [`run`]; what lies under the tiles is there.
    #[inline(always)]
    unsafe fn enter_tiles(&self, tiles: Range<usize>, blocks: Range<usize>, x: Option<*const f32>) {
        let width = self.schedule.tiles[1];
        let strips = self.strips();
        for strip in (0..strips.parts()).map(|i| strips.range(i)) {
            let mut first = strip.start.max(tiles.start);
            while first < strip.end.min(tiles.end) {
                let end = strip.end.min((first / width + 1) * width);
                // SAFETY: the tiles are the task's, and of one row.
                unsafe { self.enter_run(&strip, first..end, &blocks, x) };
                first = end;
            }
        }
    }

    /// Transforms the patches of some tiles of a row, which are part of a strip.
    ///
    /// # Safety
    /// As for [`WinogradTask::enter_tiles`].
    #[inline(always)]
    unsafe fn enter_run(
        &self,
        strip: &Range<usize>,
        run: Range<usize>,
        blocks: &Range<usize>,
        computed: Option<*const f32>,
    ) {
        let WinogradTasks { shape, size, tiles, sides: [from, _], .. } = self.schedule;
        let (row, columns) = (self.rows.start + run.start / tiles[1], run.start % tiles[1]..);
        let columns = columns.start..columns.start + run.len();
        let image = computed.unwrap_or(self.tensors.left.wrapping_add(row / tiles[0] * shape.image()));
        let extent = self.schedule.extent() as isize;
        let top = (row % tiles[0] * size) as isize - shape.pads[0] as isize;
        let left = |column: usize| (column * size) as isize - shape.pads[1] as isize;
        let inside = |at: isize, pixels: usize| at >= 0 && at + extent <= pixels as isize;
        let whole = |column: &usize| inside(top, shape.input[0]) && inside(left(*column), shape.input[1]);
        let line = shape.input[1] * from.pixel;
        let mut column = columns.start;
        while column < columns.end {
            let together = (column..columns.end).take_while(whole).count();
            let at = run.start + column - columns.start - strip.start;
            for block in blocks.clone() {
                let x = image.wrapping_add(block * from.block);
                let to = strip.start * shape.in_channels + (block * strip.len() + at) * LANES;
                let mut patch = PatchIn {
                    size: *size,
                    x: x.wrapping_offset((top * line as isize) + left(column) * from.pixel as isize),
                    row: line,
                    pixel: from.pixel,
                    step: size * from.pixel,
                    v: self.patches.wrapping_add(to),
                    plane: self.schedule.patch_plane(),
                    count: together.max(1),
                };
                let mut edge = [0.0; MAX_PATCH * MAX_PATCH * LANES];
                // SAFETY: the patches are in the image, or what is of them is copied.
                unsafe {
                    if together == 0 {
                        self.copy_edge(x, [top, left(column)], &mut edge);
                        (patch.x, patch.row, patch.pixel) = (edge.as_ptr(), MAX_PATCH * LANES, LANES);
                    } else if self.schedule.layouts[0] == ImageLayout::Nchw {
                        let columns = (together - 1) * size + extent as usize;
                        let first = (top * shape.input[1] as isize + left(column)) as usize;
                        for row in 0..extent as usize {
                            let to = self.window.wrapping_add(row * columns * LANES);
                            self.copy_pixels(x, first + row * shape.input[1], columns, to);
                        }
                        (patch.x, patch.row) = (self.window, columns * LANES);
                        (patch.pixel, patch.step) = (LANES, size * LANES);
                    }
                    self.level.winograd_input_transform(&patch);
                }
            }
            column += together.max(1);
        }
    }

    /// Copies what a patch has of a block of channels.
    ///
    /// # Safety
    /// `x` addresses the block of channels.
    unsafe fn copy_edge(&self, x: *const f32, [top, left]: [isize; 2], to: &mut [f32; MAX_PATCH * MAX_PATCH * LANES]) {
        let [height, width] = self.schedule.shape.input.map(|pixels| pixels as isize);
        let extent = self.schedule.extent() as isize;
        let columns = (-left).clamp(0, extent)..(width - left).clamp(0, extent);
        let rows = (-top).clamp(0, extent)..(height - top).clamp(0, extent);
        if columns.is_empty() {
            return;
        }
        for row in rows {
            let src = (top + row) * width + left + columns.start;
            let first = (row as usize * MAX_PATCH + columns.start as usize) * LANES;
            // SAFETY: the pixels are in the image.
            unsafe { self.copy_pixels(x, src as usize, columns.len(), to[first..].as_mut_ptr()) };
        }
    }

    /// Copies neighbouring pixels of a block of channels, which become blocks.
    ///
    /// # Safety
    /// `x` addresses the block of channels, which has the pixels; `to` has room for them.
    unsafe fn copy_pixels(&self, x: *const f32, first: usize, pixels: usize, to: *mut f32) {
        let from = self.schedule.sides[0];
        if self.schedule.layouts[0] != ImageLayout::Nchw {
            for pixel in 0..pixels {
                let block = x.wrapping_add((first + pixel) * from.pixel);
                // SAFETY: by the caller's contract.
                unsafe { copy_channels(block, to.add(pixel * LANES), LANES) };
            }
            return;
        }
        // SAFETY: by the caller's contract.
        let to = unsafe { core::slice::from_raw_parts_mut(to, pixels * LANES) };
        for lane in 0..LANES {
            // SAFETY: as above.
            let plane = unsafe {
                let start = x.add(lane * from.lane + first);
                core::slice::from_raw_parts(start, pixels)
            };
            for (pixel, value) in to.chunks_exact_mut(LANES).zip(plane) {
                pixel[lane] = *value;
            }
        }
    }

    /// One panel of filters with all tiles.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn panel(&self, panel: usize) {
        let WinogradTasks { shape, outputs, .. } = self.schedule;
        let vectors = PANEL.min(outputs - panel * PANEL);
        let coefficients = self.schedule.extent().pow(2);
        let (strips, tiles) = (self.strips(), self.tiles());
        let slice = shape.in_channels * vectors * LANES;
        let first = panel * PANEL * LANES * shape.in_channels * coefficients;
        let mut w = self.tensors.right.wrapping_add(first);
        for coefficient in 0..coefficients {
            let patches = self.patches.wrapping_add(coefficient * self.schedule.patch_plane());
            let sums = self.sums.wrapping_add(coefficient * self.schedule.sum_plane());
            for i in 0..strips.parts() {
                let strip = strips.range(i);
                // The filters that follow come into the cache while these are in use.
                let ahead = w.wrapping_add(slice + (i % vectors) * shape.in_channels * LANES);
                let strip = RegisterTile {
                    x: patches.wrapping_add(strip.start * shape.in_channels),
                    step: LANES,
                    row: 0,
                    rows: 1,
                    pixels: strip.len(),
                    blocks: shape.in_channels / LANES,
                    block: strip.len() * LANES,
                    kernel: [1; 2],
                    tap: [0; 2],
                    channels: LANES,
                    w,
                    vectors,
                    ahead,
                    y: sums.wrapping_add(strip.start * LANES),
                    y_step: LANES,
                    y_block: tiles * LANES,
                    continued: false,
                };
                // SAFETY: scratch holds the tiles, and the filters this slice of the panel.
                unsafe { self.level.register_tile(&strip) };
            }
            w = w.wrapping_add(slice);
        }
        for v in 0..vectors {
            // SAFETY: the sums of the block are complete.
            unsafe { self.output_transform(panel * PANEL + v, self.sums.wrapping_add(v * tiles * LANES)) };
        }
    }

    /// Transforms the sums of a block of channels into y, and finishes it.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn output_transform(&self, block: usize, sums: *const f32) {
        let WinogradTasks { shape, size, tiles, .. } = self.schedule;
        let lot = (EPILOGUE_ELEMENTS / (size * shape.output[1] * LANES)).max(1);
        let mut row = self.rows.start;
        while row < self.rows.end {
            let (image, first) = (row / tiles[0], row % tiles[0]);
            let end = (first + lot).min(tiles[0]).min(first + self.rows.end - row);
            for r in first..end {
                let sums = sums.wrapping_add((row + r - first - self.rows.start) * tiles[1] * LANES);
                // SAFETY: the row is the task's.
                unsafe { self.leave_row(block, image, r, sums) };
            }
            let last = (end * size).min(shape.output[0]) * shape.output[1];
            let pixels = first * size * shape.output[1]..last;
            let channels = block * LANES..shape.out_channels.min((block + 1) * LANES);
            let whole = [image as u64, 0, 0];
            // SAFETY: the rows are finished; the epilogue fits by the caller's contract.
            unsafe {
                match self.schedule.layouts[1] {
                    ImageLayout::Nchw => EpilogueCall::finish(self.epilogue, whole, channels, pixels),
                    ImageLayout::Nchw16c => {
                        let batch = [image as u64, block as u64, 0];
                        EpilogueCall::finish(self.epilogue, batch, pixels, 0..LANES);
                    }
                    ImageLayout::Nhwc => EpilogueCall::finish(self.epilogue, whole, pixels, channels),
                }
            }
            row += end - first;
        }
    }

    /// Transforms a row of tiles of an image, whose sums are given.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn leave_row(&self, block: usize, image: usize, row: usize, sums: *const f32) {
        let WinogradTasks { shape, size, tiles, sides: [_, to], .. } = self.schedule;
        let [height, width] = shape.output;
        let rows = (*size).min(height - row * size);
        let start = image * shape.images[1] + block * to.block + row * size * width * to.pixel;
        let y = self.tensors.result.wrapping_add(start);
        let plane = self.schedule.sum_plane();
        let mut tile = PatchOut { size: *size, p: sums, plane, y, row: width * to.pixel, pixel: to.pixel, count: 0 };
        if self.schedule.layouts[1] == ImageLayout::Nchw {
            let line = tiles[1] * size * LANES;
            tile = PatchOut { y: self.window, row: line, pixel: LANES, count: tiles[1], ..tile };
            // SAFETY: the window holds a row of tiles, and y its pixels.
            return unsafe {
                self.level.winograd_output_transform(&tile);
                for r in 0..rows {
                    self.move_line(block, self.window.wrapping_add(r * line), y.wrapping_add(r * width));
                }
            };
        }
        tile.count = if rows == *size && self.schedule.is_whole(block) { width / size } else { 0 };
        // SAFETY: the tiles are in the image.
        unsafe { self.level.winograd_output_transform(&tile) };
        let channels = (shape.out_channels - block * LANES).min(LANES);
        for column in tile.count..tiles[1] {
            let mut edge = [0.0; (MAX_PATCH - TAPS + 1) * (MAX_PATCH - TAPS + 1) * LANES];
            let p = sums.wrapping_add(column * LANES);
            let staged = PatchOut { p, y: edge.as_mut_ptr(), row: size * LANES, pixel: LANES, count: 1, ..tile };
            // SAFETY: the tile fits the memory, and so many of its rows and columns are in the image.
            unsafe {
                self.level.winograd_output_transform(&staged);
                let columns = (*size).min(width - column * size);
                for (r, line) in edge.chunks(size * LANES).enumerate().take(rows) {
                    for (c, pixel) in line.chunks(LANES).enumerate().take(columns) {
                        let dst = y.add((r * width + column * size + c) * to.pixel);
                        copy_channels(pixel.as_ptr(), dst, channels);
                    }
                }
            }
        }
    }

    /// Moves a row of pixels of a block of channels to planes.
    ///
    /// # Safety
    /// `from` holds them in blocks; `to` is their place in the first plane of the block.
    unsafe fn move_line(&self, block: usize, from: *const f32, to: *mut f32) {
        let WinogradTasks { shape, sides: [_, y], .. } = self.schedule;
        let width = shape.output[1];
        // SAFETY: by the caller's contract.
        let from = unsafe { core::slice::from_raw_parts(from, width * LANES) };
        for lane in 0..(shape.out_channels - block * LANES).min(LANES) {
            // SAFETY: by the caller's contract.
            let line = unsafe { core::slice::from_raw_parts_mut(to.add(lane * y.lane), width) };
            for (value, pixel) in line.iter_mut().zip(from.chunks_exact(LANES)) {
                *value = pixel[lane];
            }
        }
    }
}

/// Panels of transformed filters: up to two blocks of output channels each.
pub(super) use super::blocked::panels;

/// Transforms the filters of panels; in each, for every coefficient, channels × output channels. Computed in f64 and
/// rounded once.
///
/// # Safety
/// `src` addresses the filters `[oc, ic, 3, 3]` of the panels, with any alignment.
///
/// # Panics
/// If `dst` is shorter than [`packed_len`].
pub(super) unsafe fn pack(call: &Conv2d, panels: Range<usize>, src: *const f32, dst: &mut [f32]) {
    let schedule = WinogradTasks::new(call);
    let (channels, extent) = (schedule.shape.in_channels, schedule.extent());
    let first = panels.start * PANEL * LANES * channels;
    let origin = src.wrapping_sub(first * TAPS * TAPS);
    let mut rest = &mut dst[first * extent * extent..];
    for panel in panels {
        let width = PANEL.min(schedule.outputs - panel * PANEL) * LANES;
        let filters = origin.wrapping_add(panel * PANEL * LANES * channels * TAPS * TAPS);
        let (slices, others) = core::mem::take(&mut rest).split_at_mut(extent * extent * channels * width);
        for inner in 0..channels {
            let mut block = [[0.0; MAX_PATCH * MAX_PATCH]; PANEL * LANES];
            let outputs = width.min(call.out_channels as usize - panel * PANEL * LANES);
            for (outer, values) in block.iter_mut().enumerate().take(outputs) {
                let plane = filters.wrapping_add((outer * channels + inner) * TAPS * TAPS);
                // SAFETY: the filter has nine taps.
                let tap = |i: usize| f64::from(unsafe { plane.wrapping_add(i).read_unaligned() });
                let rows: [_; TAPS] =
                    core::array::from_fn(|r| coefficients(schedule.size, core::array::from_fn(|s| tap(r * TAPS + s))));
                for c in 0..extent {
                    let column = coefficients(schedule.size, core::array::from_fn(|r| rows[r][c]));
                    for (r, value) in column.iter().enumerate().take(extent) {
                        values[r * extent + c] = *value as f32;
                    }
                }
            }
            for (i, slice) in slices.chunks_exact_mut(channels * width).enumerate() {
                for (w, values) in slice[inner * width..][..width].iter_mut().zip(&block) {
                    *w = values[i];
                }
            }
        }
        rest = others;
    }
}

/// Values of a filter of three taps at the points of F(m, 3), over what the products are to be divided by.
fn coefficients(size: usize, [x, y, z]: [f64; TAPS]) -> [f64; MAX_PATCH] {
    if size == 2 {
        return [x, (x + y + z) / 2.0, (x - y + z) / 2.0, z, 0.0, 0.0];
    }
    // At a = √½: (x ± a·y + a²·z) / (2a²·(a² - b²)); at b = √2: (x ± b·y + b²·z) / (2b²·(b² - a²)).
    let (a, b) = (core::f64::consts::FRAC_1_SQRT_2 * y, core::f64::consts::SQRT_2 * y);
    let (even_a, even_b) = (x + 0.5 * z, x + 2.0 * z);
    [x, (even_a + a) / -1.5, (even_a - a) / -1.5, (even_b + b) / 6.0, (even_b - b) / 6.0, z]
}

/// Elements of packed filters: whole blocks of output channels.
pub(super) fn packed_len(call: &Conv2d) -> usize {
    let [outputs, inputs] = [call.out_channels, call.in_channels].map(|channels| channels as usize);
    outputs.next_multiple_of(LANES) * inputs * (size(call) + TAPS - 1).pow(2)
}
