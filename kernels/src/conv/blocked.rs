//! Convolutions of one group whose result comes in blocks of 16 channels, in any layout of x and y
//! ([`tensorc_abi::ImageLayout`]).
//!
//! Strips of neighbouring pixels are computed directly from the image: what a tap reads lies at a fixed
//! distance from pixel to pixel, so no patches are fetched. Images with padding are copied, part by
//! part, into scratch with the zeros around them, and so are those with their channels last, into blocks. The sum is
//! cut into chunks of channel blocks, or of filter rows of one, whose filters stay in the first-level cache; between
//! chunks y holds it. A panel of
//! filters is read from beginning to end for each band of rows, x under the band from the second-level cache. Where y is
//! in planes, or its last block has fewer channels, a tile is completed beside it and then moved there.
//!
//! Where operands are rounded to bf16, two neighbouring channels are a word, and everything that is said of channels of x holds
//! for words: x is rounded as it is copied, filters are when they are packed.

mod filters;

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ImageLayout};

pub(super) use filters::{pack, pack_rounded, packed_len, panels};

use super::shape::Distances;
use super::{Tensors, WindowShape, compute_pixels, copy_channels};
use crate::blocking::{EvenSplit, tasks_worth};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, LANES, PAIR, Products, RegisterTile, RoundedRow, TILE_PIXELS};

/// Channel blocks of y in one panel of filters.
pub(crate) const PANEL: usize = 2;
/// Terms of the sum in one chunk, about.
const CHUNK_TERMS: usize = 144;
/// Elements of x under one band, about.
const BAND_ELEMENTS: usize = 96 * 1024;
/// Elements of y in one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;
/// Floating-point operations that are worth a task of their own.
const TASK_FLOPS: f64 = 2e6;
/// Tasks wanted of a large convolution.
const TASKS: usize = 16;
/// Fewest output rows of a band that only is one for the sake of tasks.
const BAND_ROWS: usize = 3;

/// The most parts, a power of two up to `most`, of as many pixels each that fill tiles; 1 if there are none.
fn whole_strips(pixels: usize, most: usize) -> usize {
    let parts = core::iter::successors(Some(most.next_power_of_two()), |n| Some(n / 2)).take_while(|n| *n > 1);
    parts.into_iter().find(|n| *n <= most && pixels.is_multiple_of(n * TILE_PIXELS)).unwrap_or(1)
}

/// The geometry of a call and its division into tasks; a function of the call alone.
pub(super) struct BlockedTasks {
    shape: WindowShape,
    layouts: [ImageLayout; 2],
    /// Where y lies.
    y: Distances,
    /// Elements from a pixel of x to the next, unless channels lie in planes.
    pixel: usize,
    /// Channels of x that lie side by side where tiles read them, mostly.
    lanes: usize,
    /// Blocks of so many channels of x, cut into chunks.
    chunks: EvenSplit,
    /// Filter rows, cut into chunks where those of one block are too many.
    filter_rows: EvenSplit,
    /// Channels of x in a block after them.
    tail: usize,
    /// Channel blocks of y.
    outputs: usize,
    /// Panels of filters, cut into runs.
    panels: EvenSplit,
    /// Output rows, cut into runs.
    bands: EvenSplit,
    /// Whether tiles read a copy of x.
    copied: bool,
}

/// Blocks of x, and rows of their filters, whose terms are added in one go.
#[derive(Clone)]
struct Chunk {
    blocks: Range<usize>,
    rows: Range<usize>,
    /// Channels of each block.
    channels: usize,
}

impl BlockedTasks {
    pub(super) fn new(call: &Conv2d) -> BlockedTasks {
        let mut shape = WindowShape::forward(call);
        let rounded = call.pass.algorithm() == ConvAlgorithm::Bf16;
        let lanes = match call.layouts[0] {
            ImageLayout::Nchw => 1,
            _ if rounded => LANES / PAIR,
            _ => LANES,
        };
        let pixel = if call.layouts[0] == ImageLayout::Nhwc { shape.in_channels } else { LANES };
        if rounded {
            shape.in_channels /= PAIR;
        }
        let (whole, tail) = (shape.in_channels / lanes, shape.in_channels % lanes);
        let reach = |d: usize| {
            (shape.output[d].max(1) - 1) * shape.strides[d] + (shape.kernel[d].max(1) - 1) * shape.dilations[d] + 1
        };
        let padded = (0..2).any(|d| shape.pads[d] > 0 || reach(d) > shape.input[d]);
        // One block of channels that are last is as any other.
        let copied = rounded || padded || call.layouts[0] == ImageLayout::Nhwc && shape.in_channels != LANES;
        let most = |terms: usize| (CHUNK_TERMS / terms.max(1)).max(1);
        let chunks = EvenSplit::by(whole, most(shape.taps() * lanes));
        let filter_rows = match shape.taps() * lanes > CHUNK_TERMS {
            true => EvenSplit::by(shape.kernel[0], most(shape.kernel[1] * lanes)),
            false => EvenSplit::into(shape.kernel[0], 1),
        };
        let outputs = shape.out_channels.div_ceil(LANES);
        let panels = outputs.div_ceil(PANEL);
        let want = tasks_worth(shape.flops() / TASK_FLOPS, TASKS).div_ceil(shape.batch.max(1));
        let images = shape.plane() * shape.in_channels + shape.pixels() * shape.out_channels;
        // Bands leave the rows to the thread that has them in its caches; panels read fewer filters.
        let by_bands = images > shape.in_channels * shape.out_channels * shape.taps();
        if shape.pointwise && copied {
            shape.in_rows(call.output[0].max(1) as usize);
        } else if shape.pointwise && by_bands {
            shape.in_rows(whole_strips(shape.pixels(), want));
        }
        let row = shape.strides[0] * shape.input[1] * shape.in_channels.next_multiple_of(lanes);
        let mut bands = (shape.output[0] * row).div_ceil(BAND_ELEMENTS);
        let most_bands = shape.pixels().div_ceil(4 * TILE_PIXELS);
        if by_bands {
            let least_rows = if shape.pointwise { 1 } else { BAND_ROWS };
            bands = bands.max(want.min(most_bands).min(shape.output[0] / least_rows));
        }
        let groups = want.div_ceil(bands.max(1)).min(panels).max(1);
        bands = bands.max(want.div_ceil(groups).min(most_bands));
        BlockedTasks {
            layouts: call.layouts,
            y: Distances::new(call.layouts[1], shape.out_channels, shape.pixels()),
            pixel,
            lanes,
            chunks,
            filter_rows,
            tail,
            outputs,
            panels: EvenSplit::into(panels, groups),
            bands: EvenSplit::into(shape.output[0], bands),
            copied,
            shape,
        }
    }

    pub(super) fn tasks(&self) -> usize {
        match self.shape.is_empty() {
            true => 0,
            false => self.shape.batch * self.bands.parts() * self.panels.parts(),
        }
    }

    /// Tasks in turn that read the same band.
    pub(super) fn affinity(&self) -> usize {
        self.panels.parts()
    }

    /// Pixels of a channel of x, if channels lie in planes.
    fn plane(&self) -> Option<usize> {
        (self.layouts[0] == ImageLayout::Nchw).then(|| self.shape.plane())
    }

    /// Rows and columns of x under a band, padding included.
    fn window(&self) -> [usize; 2] {
        let s = &self.shape;
        let extent = |outputs: usize, d: usize| (outputs - 1) * s.strides[d] + (s.kernel[d] - 1) * s.dilations[d] + 1;
        [extent(self.bands.longest(), 0), extent(s.output[1], 1)]
    }

    /// Elements of scratch, for an x that is computed or in memory.
    pub(super) fn scratch(&self, computed: bool) -> usize {
        match (self.copied || computed) && !self.shape.is_empty() {
            true => self.window().iter().product::<usize>() * self.shape.in_channels.next_multiple_of(self.lanes),
            false => 0,
        }
    }

    /// Blocks of x before the last, smaller one.
    fn whole(&self) -> usize {
        self.shape.in_channels / self.lanes
    }

    /// The channels of block `block` of x.
    fn channels(&self, block: usize) -> usize {
        if block < self.whole() { self.lanes } else { self.tail }
    }

    /// The sum in parts; at least one, also where there is nothing to add.
    fn parts(&self) -> usize {
        let whole = if self.whole() > 0 || self.tail == 0 { self.chunks.parts() } else { 0 };
        (whole + usize::from(self.tail > 0)) * self.filter_rows.parts()
    }

    fn chunk(&self, part: usize) -> Chunk {
        let turns = self.filter_rows.parts();
        let (rows, at) = (self.filter_rows.range(part % turns), part / turns);
        match self.tail > 0 && at + 1 == self.parts() / turns {
            true => Chunk { blocks: self.whole()..self.whole() + 1, rows, channels: self.tail },
            false => Chunk { blocks: self.chunks.range(at), rows, channels: self.lanes },
        }
    }

    /// Whether blocks `panel·PANEL..` of y are completed where they lie.
    fn in_place(&self, panel: usize) -> bool {
        let end = ((panel + 1) * PANEL).min(self.outputs) * LANES;
        self.layouts[1] != ImageLayout::Nchw && end <= self.shape.out_channels
    }
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run<const ROUNDED: bool>(
    level: IsaLevel,
    schedule: &BlockedTasks,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    let (products, groups) = (Products::new(level), schedule.panels.parts());
    let mut kept = None;
    for task in tasks {
        let (panels, place) = (schedule.panels.range(task % groups), task / groups);
        let band = schedule.bands.range(place % schedule.bands.parts());
        let image = place / schedule.bands.parts();
        let worker = BlockedTask::<ROUNDED> { schedule, products: &products, tensors, epilogue, image, band };
        // SAFETY: the task is one of the call's.
        unsafe {
            let source = match kept {
                Some((at, source)) if at == place => source,
                _ => worker.source(scratch),
            };
            kept = Some((place, source));
            panels.for_each(|panel| worker.panel(panel, source));
        }
    }
}

/// One task in execution, of operands that are rounded or not: what the others need is not linked.
struct BlockedTask<'a, const ROUNDED: bool> {
    schedule: &'a BlockedTasks,
    products: &'a Products,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    image: usize,
    band: Range<usize>,
}

/// Where x is read: its first element under the band, and the elements between rows and between channel
/// blocks.
#[derive(Clone, Copy)]
struct InputRows {
    base: *const f32,
    row: usize,
    block: usize,
}

/// The sums of a tile: pixel by pixel in blocks of channels.
type RowSums = [f32; PANEL * TILE_PIXELS * LANES];

impl<const ROUNDED: bool> BlockedTask<'_, ROUNDED> {
    /// What lies under the band.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn source(&self, scratch: *mut f32) -> InputRows {
        let BlockedTasks { shape, lanes, .. } = self.schedule;
        let x = self.tensors.left.wrapping_add(self.image * shape.image());
        match ROUNDED || self.schedule.copied || self.tensors.computed.is_some() {
            // SAFETY: passed on from the caller.
            true => unsafe { self.copy(x, scratch) },
            false => InputRows {
                base: x.wrapping_add(self.band.start * shape.strides[0] * shape.input[1] * lanes),
                row: shape.input[1] * lanes,
                block: lanes * shape.plane(),
            },
        }
    }

    /// Copies what lies under the band to scratch, in planes or blocks, or computes it there, with zeros for padding.
    ///
    /// # Safety
    /// As for [`run`]; `x` addresses the image if that is in memory.
    unsafe fn copy(&self, x: *const f32, scratch: *mut f32) -> InputRows {
        let BlockedTasks { shape, lanes, layouts, .. } = self.schedule;
        let [_, width] = self.schedule.window();
        let height = (self.band.len() - 1) * shape.strides[0] + (shape.kernel[0] - 1) * shape.dilations[0] + 1;
        let first_row = (self.band.start * shape.strides[0]) as isize - shape.pads[0] as isize;
        let left = shape.pads[1].min(width);
        let inside = shape.input[1].min(width - left);
        let (pixel, block_step) = match layouts[0] {
            ImageLayout::Nchw => (1, shape.plane()),
            ImageLayout::Nchw16c => (LANES, LANES * shape.plane()),
            ImageLayout::Nhwc => (self.schedule.pixel, LANES),
        };
        let mut dst = scratch;
        for block in 0..shape.in_channels.div_ceil(*lanes) {
            // SAFETY: scratch has the rows of the block.
            if unsafe { self.compute_rows(block, first_row, [height, width], dst) } {
                dst = dst.wrapping_add(height * width * lanes);
                continue;
            }
            for row in first_row..first_row + height as isize {
                // SAFETY: a row of scratch is `width` pixels, the inner ones of which are in the image.
                unsafe {
                    let line = core::slice::from_raw_parts_mut(dst, width * lanes);
                    let (before, rest) = line.split_at_mut(left * lanes);
                    let (middle, after) = rest.split_at_mut(inside * lanes);
                    if (0..shape.input[0] as isize).contains(&row) {
                        let first = row as usize * shape.input[1];
                        match self.tensors.computed {
                            None => {
                                let src = x.add(block * block_step + first * pixel);
                                match ROUNDED {
                                    true => self.round_pixels(src, pixel, middle),
                                    false => copy_pixels(src, pixel, self.schedule.channels(block), *lanes, middle),
                                }
                            }
                            Some(computed) => {
                                let at = (self.image, block);
                                let to = middle.as_mut_ptr();
                                compute_pixels(computed, at, first..first + inside, self.schedule.plane(), to);
                            }
                        }
                    } else {
                        middle.fill(0.0);
                    }
                    before.fill(0.0);
                    after.fill(0.0);
                }
                dst = dst.wrapping_add(width * lanes);
            }
        }
        InputRows { base: scratch, row: width * lanes, block: height * width * lanes }
    }

    /// Rounds a block of channels of pixels at a distance of `pixel` elements.
    ///
    /// # Safety
    /// `src` addresses as many pixels as `dst` holds.
    unsafe fn round_pixels(&self, src: *const f32, pixel: usize, dst: &mut [f32]) {
        const WORDS: usize = LANES / PAIR;
        // Pixels that lie side by side are one row.
        let (pixels, terms) = if pixel == LANES { (1, PAIR * dst.len()) } else { (dst.len() / WORDS, LANES) };
        for i in 0..pixels {
            let to = dst[i * WORDS..].as_mut_ptr().cast();
            let row = RoundedRow { from: src.wrapping_add(i * pixel), step: 1, terms, scale: 1.0, to };
            // SAFETY: by the caller's contract; a row of scratch is as many words.
            unsafe { self.products.level().rounded_row(&row) };
        }
    }

    /// Computes all rows of a block at once, if x is computed and they are whole rows of the image.
    ///
    /// # Safety
    /// As for [`run`]; `to` has room for so many rows of so many pixels.
    unsafe fn compute_rows(&self, block: usize, first: isize, [height, width]: [usize; 2], to: *mut f32) -> bool {
        let shape = &self.schedule.shape;
        let inside = width == shape.input[1] && first >= 0 && first as usize + height <= shape.input[0];
        let Some(computed) = self.tensors.computed.filter(|_| inside && shape.pads[1] == 0) else { return false };
        let first = first as usize * width;
        let pixels = first..first + height * width;
        // SAFETY: the pixels are in the image, and side by side.
        unsafe { compute_pixels(computed, (self.image, block), pixels, self.schedule.plane(), to) };
        true
    }

    /// One panel of filters over the band.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn panel(&self, panel: usize, source: InputRows) {
        let BlockedTasks { shape, lanes, outputs, y, .. } = self.schedule;
        let vectors = PANEL.min(outputs - panel * PANEL);
        let filters = self.tensors.right.wrapping_add(panel * PANEL * LANES * shape.depth());
        let origin = RegisterTile {
            x: source.base,
            step: shape.strides[1] * lanes,
            row: shape.strides[0] * source.row,
            rows: 1,
            pixels: 0,
            blocks: 0,
            block: source.block,
            kernel: shape.kernel,
            tap: [shape.dilations[0] * source.row, shape.dilations[1] * lanes],
            channels: *lanes,
            w: filters,
            vectors,
            ahead: filters,
            y: self.tensors.result.wrapping_add(self.image * shape.images[1] + panel * PANEL * y.block),
            y_step: y.pixel,
            y_block: y.block,
            continued: false,
        };
        let parts = self.schedule.parts();
        // SAFETY: the panel exists.
        unsafe {
            match self.schedule.in_place(panel) {
                true => (0..parts).for_each(|part| self.rows(origin, panel, part..part + 1)),
                false => self.rows(origin, panel, 0..parts),
            }
        }
    }

    /// Some parts of the sum for the rows of the band, given a tile's operands at the origin of x under the band, of
    /// the panel's filters and of y's blocks. Parts that are not all of them are added up in y.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn rows(&self, origin: RegisterTile, panel: usize, parts: Range<usize>) {
        let schedule = self.schedule;
        let width = schedule.shape.output[1];
        let together = if 2 * width <= TILE_PIXELS { 2 } else { 1 };
        let tiles = EvenSplit::by(width, TILE_PIXELS);
        let lot = (EPILOGUE_ELEMENTS / (width * LANES * origin.vectors)).max(1);
        // Later tiles find in the cache what the first ones have fetched: the filters that follow.
        let first_chunk = self.chunk(&origin, parts.start);
        let terms = first_chunk.blocks * first_chunk.kernel.iter().product::<usize>() * first_chunk.channels;
        let mut ahead = (0..origin.vectors).map(|i| first_chunk.w.wrapping_add((origin.vectors + i) * terms * LANES));
        for first in self.band.clone().step_by(lot) {
            let end = self.band.end.min(first + lot);
            for row in (first..end).step_by(together) {
                for i in 0..tiles.parts() {
                    let columns = tiles.range(i);
                    let x = (row - self.band.start) * origin.row + columns.start * origin.step;
                    let at = row * width + columns.start;
                    let tile = RegisterTile {
                        x: origin.x.wrapping_add(x),
                        y: origin.y.wrapping_add(at * schedule.y.pixel),
                        rows: together.min(end - row),
                        pixels: columns.len(),
                        ahead: ahead.next().unwrap_or(origin.w),
                        ..origin
                    };
                    // SAFETY: the pixels are of the band.
                    unsafe {
                        match schedule.in_place(panel) {
                            true => self.tile(&self.chunk(&tile, parts.start)),
                            false => self.beside(&tile, panel, parts.clone()),
                        }
                    }
                }
            }
            if parts.end == schedule.parts() {
                // SAFETY: the rows are finished.
                unsafe { self.finish(panel, first * width..end * width) };
            }
        }
    }

    /// # Safety
    /// As for [`IsaLevel::register_tile`].
    unsafe fn tile(&self, tile: &RegisterTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            match ROUNDED {
                true => self.products.rounded_register_tile(tile),
                false => self.products.level().register_tile(tile),
            }
        }
    }

    /// A part of the sum of a tile whose operands are at the origin of x and filters.
    fn chunk(&self, tile: &RegisterTile, part: usize) -> RegisterTile {
        let BlockedTasks { shape, lanes, .. } = self.schedule;
        let Chunk { blocks, rows, channels } = self.schedule.chunk(part);
        let terms = blocks.start * shape.taps() * lanes + rows.start * shape.kernel[1] * channels;
        RegisterTile {
            x: tile.x.wrapping_add(blocks.start * tile.block + rows.start * tile.tap[0]),
            w: tile.w.wrapping_add(terms * tile.vectors * LANES),
            blocks: blocks.len(),
            kernel: [rows.len(), shape.kernel[1]],
            channels,
            continued: part > 0,
            ..*tile
        }
    }

    /// A tile that is completed beside y.
    ///
    /// # Safety
    /// As for [`run`].
    #[inline(never)]
    unsafe fn beside(&self, tile: &RegisterTile, panel: usize, parts: Range<usize>) {
        let BlockedTasks { shape, y, .. } = self.schedule;
        let mut stage: RowSums = [0.0; PANEL * TILE_PIXELS * LANES];
        let block = TILE_PIXELS * LANES;
        let staged = RegisterTile { y: stage.as_mut_ptr(), y_step: LANES, y_block: block, ..*tile };
        for part in parts {
            // SAFETY: the pixels are of the band, and the stage holds them.
            unsafe { self.tile(&self.chunk(&staged, part)) };
        }
        let count = tile.rows * tile.pixels;
        let first = panel * PANEL;
        for (v, from) in stage.chunks_exact(block).enumerate().take(tile.vectors) {
            let channels = (shape.out_channels - (first + v) * LANES).min(LANES);
            let to = tile.y.wrapping_add(v * y.block);
            let pixels = from.chunks_exact(LANES).enumerate().take(count);
            if y.lane == 1 {
                for (pixel, values) in pixels {
                    // SAFETY: the pixels are of y, and have so many channels left.
                    unsafe { copy_channels(values.as_ptr(), to.add(pixel * y.pixel), channels) };
                }
                continue;
            }
            for (lane, plane) in (0..channels).map(|lane| (lane, to.wrapping_add(lane * y.lane))) {
                for (pixel, values) in pixels.clone() {
                    // SAFETY: the pixels are of y's planes.
                    unsafe { *plane.add(pixel) = values[lane] };
                }
            }
        }
    }

    /// Calls the epilogue on finished pixels of a panel.
    ///
    /// # Safety
    /// As for [`run`].
    #[inline(never)]
    unsafe fn finish(&self, panel: usize, pixels: Range<usize>) {
        let BlockedTasks { shape, outputs, layouts, .. } = self.schedule;
        let blocks = panel * PANEL..((panel + 1) * PANEL).min(*outputs);
        let channels = blocks.start * LANES..shape.out_channels.min(blocks.end * LANES);
        let batch = [self.image as u64, 0, 0];
        // SAFETY: the epilogue fits by the caller's contract.
        unsafe {
            match layouts[1] {
                ImageLayout::Nchw => EpilogueCall::finish(self.epilogue, batch, channels, pixels),
                ImageLayout::Nhwc => EpilogueCall::finish(self.epilogue, batch, pixels, channels),
                ImageLayout::Nchw16c => {
                    for block in blocks {
                        let batch = [self.image as u64, block as u64, 0];
                        EpilogueCall::finish(self.epilogue, batch, pixels.clone(), 0..LANES);
                    }
                }
            }
        }
    }
}

/// Copies pixels at a distance of `pixel` elements, of which `channels` count, to a distance of `lanes`.
///
/// # Safety
/// `src` addresses as many pixels as `dst` holds.
unsafe fn copy_pixels(src: *const f32, pixel: usize, channels: usize, lanes: usize, dst: &mut [f32]) {
    // SAFETY: by the caller's contract.
    unsafe {
        if pixel == lanes && channels == lanes {
            return core::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len());
        }
        for (i, to) in dst.chunks_exact_mut(lanes).enumerate() {
            copy_channels(src.add(i * pixel), to.as_mut_ptr(), channels);
        }
    }
}
