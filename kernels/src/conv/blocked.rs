//! Convolutions whose result holds its channels in blocks of 16 ([`tensorc_abi::ConvLayout`]).
//!
//! Strips of neighbouring pixels are computed directly from the image: what a tap reads lies at a fixed
//! distance from pixel to pixel, so no patches are fetched. Only images with padding are copied, part by
//! part, into scratch with the zeros around them. The sum is cut into chunks of channel blocks whose
//! filters stay in the first-level cache; between chunks y holds it. A panel of filters is read from
//! beginning to end for each band of rows, x under the band from the second-level cache.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvLayout};

use super::{Shape, Tensors, compute_pixels};
use crate::EpilogueCall;
use crate::blocking::{Split, tasks_worth};
use crate::tiers::{LANES, STRIP_PIXELS, Strip, Tier};

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

/// The most parts, a power of two up to `most`, of as many pixels each that fill strips; 1 if there are none.
fn whole_strips(pixels: usize, most: usize) -> usize {
    let parts = core::iter::successors(Some(most.next_power_of_two()), |n| Some(n / 2)).take_while(|n| *n > 1);
    parts.into_iter().find(|n| *n <= most && pixels.is_multiple_of(n * STRIP_PIXELS)).unwrap_or(1)
}

/// The geometry of a call and its division into tasks; a function of the call alone.
pub(super) struct Schedule {
    shape: Shape,
    /// Channels of x that lie side by side.
    channels: usize,
    /// Channel blocks of x, cut into chunks.
    chunks: Split,
    /// Channel blocks of y.
    outputs: usize,
    /// Panels of filters, cut into runs.
    panels: Split,
    /// Output rows, cut into runs.
    bands: Split,
    /// Whether a tap may lie outside the image.
    padded: bool,
}

impl Schedule {
    pub(super) fn new(call: &Conv2d) -> Schedule {
        let mut shape = Shape::forward(call);
        let channels = if call.layout == ConvLayout::Blocked { LANES } else { 1 };
        let reach = |d: usize| {
            (shape.output[d].max(1) - 1) * shape.strides[d] + (shape.kernel[d].max(1) - 1) * shape.dilations[d] + 1
        };
        let padded = (0..2).any(|d| shape.pads[d] > 0 || reach(d) > shape.input[d]);
        let chunks = Split::by(shape.in_channels / channels, (CHUNK_TERMS / (shape.taps() * channels).max(1)).max(1));
        let outputs = shape.out_channels / LANES;
        let panels = outputs.div_ceil(PANEL);
        let want = tasks_worth(shape.flops() / TASK_FLOPS, TASKS).div_ceil(shape.batch.max(1));
        let images = shape.plane() * shape.in_channels + shape.pixels() * shape.out_channels;
        // Bands leave the rows to the thread that has them in its caches; panels read fewer filters.
        let by_bands = images > shape.in_channels * shape.out_channels * shape.taps();
        if shape.pointwise && by_bands {
            shape.in_rows(whole_strips(shape.pixels(), want));
        }
        let row = shape.strides[0] * shape.input[1] * shape.in_channels;
        let mut bands = (shape.output[0] * row).div_ceil(BAND_ELEMENTS);
        let most_bands = shape.pixels().div_ceil(4 * STRIP_PIXELS);
        if by_bands {
            let least_rows = if shape.pointwise { 1 } else { BAND_ROWS };
            bands = bands.max(want.min(most_bands).min(shape.output[0] / least_rows));
        }
        let groups = want.div_ceil(bands.max(1)).min(panels).max(1);
        bands = bands.max(want.div_ceil(groups).min(most_bands));
        Schedule {
            channels,
            chunks,
            outputs,
            panels: Split::into(panels, groups),
            bands: Split::into(shape.output[0], bands),
            padded,
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
    pub(super) fn together(&self) -> usize {
        self.panels.parts()
    }

    /// Pixels of a channel of x, if channels lie in planes.
    fn plane(&self) -> Option<usize> {
        (self.channels == 1).then(|| self.shape.plane())
    }

    /// Rows and columns of x under a band, padding included.
    fn window(&self) -> [usize; 2] {
        let s = &self.shape;
        let extent = |outputs: usize, d: usize| (outputs - 1) * s.strides[d] + (s.kernel[d] - 1) * s.dilations[d] + 1;
        [extent(self.bands.longest(), 0), extent(s.output[1], 1)]
    }

    /// Elements of scratch, for an x that is computed or in memory.
    pub(super) fn scratch(&self, computed: bool) -> usize {
        match (self.padded || computed) && !self.shape.is_empty() {
            true => self.window().iter().product::<usize>() * self.shape.in_channels,
            false => 0,
        }
    }
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(
    tier: Tier,
    schedule: &Schedule,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    let groups = schedule.panels.parts();
    let mut kept = None;
    for task in tasks {
        let (panels, place) = (schedule.panels.range(task % groups), task / groups);
        let band = schedule.bands.range(place % schedule.bands.parts());
        let image = place / schedule.bands.parts();
        let worker = Worker { schedule, tier, tensors, epilogue, image, band };
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

/// One task in execution.
struct Worker<'a> {
    schedule: &'a Schedule,
    tier: Tier,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    image: usize,
    band: Range<usize>,
}

/// Where x is read: its first element under the band, and the elements between rows and between channel
/// blocks.
#[derive(Clone, Copy)]
struct Source {
    base: *const f32,
    row: usize,
    block: usize,
}

impl Worker<'_> {
    /// What lies under the band.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn source(&self, scratch: *mut f32) -> Source {
        let Schedule { shape, channels, .. } = self.schedule;
        let x = self.tensors.left.wrapping_add(self.image * shape.image());
        match self.schedule.padded || self.tensors.computed.is_some() {
            // SAFETY: passed on from the caller.
            true => unsafe { self.copy(x, scratch) },
            false => Source {
                base: x.wrapping_add(self.band.start * shape.strides[0] * shape.input[1] * channels),
                row: shape.input[1] * channels,
                block: channels * shape.plane(),
            },
        }
    }

    /// Copies what lies under the band to scratch, or computes it there, with zeros for padding.
    ///
    /// # Safety
    /// As for [`run`]; `x` addresses the image if that is in memory.
    unsafe fn copy(&self, x: *const f32, scratch: *mut f32) -> Source {
        let Schedule { shape, channels, .. } = self.schedule;
        let [_, width] = self.schedule.window();
        let height = (self.band.len() - 1) * shape.strides[0] + (shape.kernel[0] - 1) * shape.dilations[0] + 1;
        let first_row = (self.band.start * shape.strides[0]) as isize - shape.pads[0] as isize;
        let left = shape.pads[1].min(width);
        let inside = shape.input[1].min(width - left);
        let mut dst = scratch;
        for block in 0..shape.in_channels / channels {
            // SAFETY: scratch has the rows of the block.
            if unsafe { self.compute_rows(block, first_row, [height, width], dst) } {
                dst = dst.wrapping_add(height * width * channels);
                continue;
            }
            for row in first_row..first_row + height as isize {
                // SAFETY: a row of scratch is `width` pixels, the inner ones of which are in the image.
                unsafe {
                    let line = core::slice::from_raw_parts_mut(dst, width * channels);
                    let (before, rest) = line.split_at_mut(left * channels);
                    let (middle, after) = rest.split_at_mut(inside * channels);
                    if (0..shape.input[0] as isize).contains(&row) {
                        let first = row as usize * shape.input[1];
                        match self.tensors.computed {
                            None => {
                                let src = x.add((block * shape.plane() + first) * channels);
                                core::ptr::copy_nonoverlapping(src, middle.as_mut_ptr(), middle.len());
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
                dst = dst.wrapping_add(width * channels);
            }
        }
        Source { base: scratch, row: width * channels, block: height * width * channels }
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
    unsafe fn panel(&self, panel: usize, source: Source) {
        let Schedule { shape, channels, outputs, chunks, .. } = self.schedule;
        let vectors = PANEL.min(outputs - panel * PANEL);
        let pixels = shape.pixels();
        let terms = shape.taps() * channels;
        let filters = self.tensors.right.wrapping_add(panel * PANEL * LANES * shape.depth());
        let mut strip = Strip {
            x: source.base,
            step: shape.strides[1] * channels,
            row: shape.strides[0] * source.row,
            rows: 1,
            pixels: 0,
            blocks: 0,
            block: source.block,
            kernel: shape.kernel,
            tap: [shape.dilations[0] * source.row, shape.dilations[1] * channels],
            channels: *channels,
            w: filters,
            vectors,
            ahead: filters,
            y: self.tensors.result.wrapping_add(self.image * shape.images[1] + panel * PANEL * pixels * LANES),
            y_block: pixels * LANES,
            continued: false,
        };
        for chunk in 0..chunks.parts() {
            let blocks = chunks.range(chunk);
            strip.x = source.base.wrapping_add(blocks.start * source.block);
            strip.w = filters.wrapping_add(blocks.start * terms * vectors * LANES);
            strip.continued = chunk > 0;
            strip.blocks = blocks.len();
            let last = chunk + 1 == chunks.parts();
            // SAFETY: the blocks and the panel exist.
            unsafe { self.rows(strip, last.then_some(panel)) };
        }
    }

    /// The rows of the band, given a strip's operands at the origin of x under the band and of y's blocks;
    /// `last` is the panel if its sum ends here.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn rows(&self, origin: Strip, last: Option<usize>) {
        let width = self.schedule.shape.output[1];
        let together = if 2 * width <= STRIP_PIXELS { 2 } else { 1 };
        let strips = Split::by(width, STRIP_PIXELS);
        let lot = (EPILOGUE_ELEMENTS / (width * LANES * origin.vectors)).max(1);
        // Later strips find in the cache what the first ones have fetched: the filters that follow.
        let terms = origin.blocks * self.schedule.shape.taps() * origin.channels;
        let mut ahead = (0..origin.vectors).map(|i| origin.w.wrapping_add((origin.vectors + i) * terms * LANES));
        for first in self.band.clone().step_by(lot) {
            let end = self.band.end.min(first + lot);
            for row in (first..end).step_by(together) {
                for i in 0..strips.parts() {
                    let columns = strips.range(i);
                    let x = (row - self.band.start) * origin.row + columns.start * origin.step;
                    let strip = Strip {
                        x: origin.x.wrapping_add(x),
                        y: origin.y.wrapping_add((row * width + columns.start) * LANES),
                        rows: together.min(end - row),
                        pixels: columns.len(),
                        ahead: ahead.next().unwrap_or(origin.w),
                        ..origin
                    };
                    // SAFETY: the pixels are of the band.
                    unsafe { self.tier.strip(&strip) };
                }
            }
            for v in 0..if last.is_some() { origin.vectors } else { 0 } {
                let block = last.unwrap_or(0) * PANEL + v;
                let batch = [self.image as u64, block as u64, 0];
                // SAFETY: the rows are finished; the epilogue fits by the caller's contract.
                unsafe { EpilogueCall::finish(self.epilogue, batch, first * width..end * width, 0..LANES) };
            }
        }
    }
}

/// Writes packed filters of a dense convolution: panels of up to two blocks of output channels, in each the
/// terms in the order of the sum (see [`Strip`]).
///
/// # Safety
/// `src` addresses the filters `[oc, ic, kh, kw]`, with any alignment, and `dst` has as many elements.
pub(crate) unsafe fn pack(call: &Conv2d, src: *const f32, dst: &mut [f32]) {
    let schedule = Schedule::new(call);
    let Schedule { shape, channels, outputs, .. } = &schedule;
    let (depth, taps) = (shape.depth(), shape.taps());
    for panel in 0..outputs.div_ceil(PANEL) {
        let rows = PANEL.min(outputs - panel * PANEL) * LANES;
        let first = panel * PANEL * LANES;
        let panel = &mut dst[first * depth..(first + rows) * depth];
        for (k, terms) in panel.chunks_exact_mut(rows).enumerate() {
            let (block, tap, channel) = (k / (taps * channels), k / channels % taps, k % channels);
            let term = (block * channels + channel) * taps + tap;
            for (j, w) in terms.iter_mut().enumerate() {
                // SAFETY: row and term are inside the filter matrix.
                *w = unsafe { src.wrapping_add((first + j) * depth + term).read_unaligned() };
            }
        }
    }
}
