//! Depthwise convolutions over blocked channels: all channels of a block at once, taps outside the image
//! left out.

use core::ops::Range;

use tensorc_abi::Conv2d;

use super::{Shape, Tensors, compute_pixels};
use crate::EpilogueCall;
use crate::blocking::{Split, tasks_worth, whole_lines};
use crate::tiers::{DepthStrip, LANES, Tier};

/// Multiply-adds that are worth a task of their own.
const TASK_TERMS: f64 = 100_000.0;
/// Tasks wanted of a large convolution.
const TASKS: usize = 16;
/// Fewest output rows of a task. The convolutions before and after those of smaller images share out channels.
const LEAST_ROWS: usize = 7;
/// Elements of y in one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;

/// The division of a call into tasks.
pub(super) struct Schedule {
    shape: Shape,
    blocks: usize,
    /// Channel blocks over all images, cut into runs.
    runs: Split,
    /// Output rows, cut into runs.
    bands: Split,
}

impl Schedule {
    pub(super) fn new(call: &Conv2d) -> Schedule {
        let shape = Shape::forward(call);
        let blocks = shape.groups / LANES;
        let terms = shape.batch * blocks * shape.pixels() * shape.taps() * LANES;
        let want = tasks_worth(terms as f64 / TASK_TERMS, TASKS);
        let bands = Split::into(shape.output[0], want.min(shape.output[0] / LEAST_ROWS));
        let runs = Split::into(shape.batch * blocks, want.div_ceil(bands.parts()));
        Schedule { shape, blocks, runs, bands }
    }

    pub(super) fn tasks(&self) -> usize {
        if self.shape.is_empty() { 0 } else { self.runs.parts() * self.bands.parts() }
    }

    /// Runs of pixels of a row with the same filter columns: the first of these and the last fall from pixel
    /// to pixel.
    fn most_columns(&self) -> usize {
        self.shape.output[1].min(2 * self.shape.kernel[1] + 1)
    }

    /// Elements of scratch one thread needs: for [`Columns`], and for the rows under a band of a block of x if that is
    /// computed.
    pub(super) fn scratch(&self, computed: bool) -> usize {
        if self.shape.is_empty() {
            return 0;
        }
        self.column_elements() + if computed { self.most_rows() * self.shape.input[1] * LANES } else { 0 }
    }

    fn column_elements(&self) -> usize {
        whole_lines(self.most_columns() * size_of::<Columns>() / size_of::<f32>())
    }

    /// Rows of x under some rows of y.
    fn under(&self, rows: &Range<usize>) -> Range<usize> {
        let Shape { input, kernel, strides, dilations, pads, .. } = &self.shape;
        let end = (rows.end - 1) * strides[0] + (kernel[0] - 1) * dilations[0] + 1;
        let first = (rows.start * strides[0]).saturating_sub(pads[0]).min(input[0]);
        first..end.saturating_sub(pads[0]).clamp(first, input[0])
    }

    /// Most rows of x under a band.
    fn most_rows(&self) -> usize {
        (0..self.bands.parts()).map(|i| self.under(&self.bands.range(i)).len()).max().unwrap_or(0)
    }
}

/// Neighbouring pixels of a row whose taps in the image are of the same filter columns.
#[derive(Clone, Copy)]
#[repr(C)]
struct Columns {
    pixels: [u32; 2],
    taps: [u32; 2],
}

impl Columns {
    /// Fills the scratch with those of a row.
    ///
    /// # Safety
    /// `memory` has [`Schedule::scratch`] elements, which nothing else uses.
    unsafe fn of<'s>(schedule: &Schedule, memory: *mut f32) -> &'s [Columns] {
        let memory: *mut Columns = memory.cast();
        let mut count = 0;
        for q in 0..schedule.shape.output[1] {
            let taps = taps(&schedule.shape, 1, q);
            let next = Columns { pixels: [q as u32, q as u32 + 1], taps: [taps.start as u32, taps.end as u32] };
            // SAFETY: there are at most `most_columns` runs, and the scratch is aligned for four bytes.
            unsafe {
                if count > 0 && (*memory.add(count - 1)).taps == next.taps {
                    (*memory.add(count - 1)).pixels[1] = next.pixels[1];
                } else {
                    memory.add(count).write(next);
                    count += 1;
                }
            }
        }
        // SAFETY: so many have been written.
        unsafe { core::slice::from_raw_parts(memory, count) }
    }
}

/// Filter rows or columns `first..end` of output position `at` whose taps lie in the image.
fn taps(shape: &Shape, d: usize, at: usize) -> Range<usize> {
    let (start, dilation) = (at * shape.strides[d], shape.dilations[d]);
    let first = shape.pads[d].saturating_sub(start).div_ceil(dilation).min(shape.kernel[d]);
    let end = (shape.input[d] + shape.pads[d]).saturating_sub(start).div_ceil(dilation).min(shape.kernel[d]);
    first..end.max(first)
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
    if tasks.is_empty() {
        return;
    }
    let Schedule { shape, blocks, .. } = schedule;
    let width = shape.output[1];
    // SAFETY: the scratch is as long as the schedule says.
    let columns = unsafe { Columns::of(schedule, scratch) };
    for task in tasks {
        let band = schedule.bands.range(task / schedule.runs.parts());
        for block in schedule.runs.range(task % schedule.runs.parts()) {
            let at = (block / blocks, block % blocks);
            let batch = [at.0 as u64, at.1 as u64, 0];
            // SAFETY: scratch holds what is under a band.
            let x = unsafe { source(schedule, tensors, at, &band, scratch.wrapping_add(schedule.column_elements())) };
            let mut finished = band.start;
            for p in band.clone() {
                // SAFETY: the row is one of y, and its taps lie in the image.
                unsafe { row(tier, shape, tensors, x, at, p, columns) };
                if p + 1 == band.end || (p + 1 - finished) * width * LANES >= EPILOGUE_ELEMENTS {
                    // SAFETY: the rows are finished; the epilogue fits by the caller's contract.
                    unsafe { EpilogueCall::finish(epilogue, batch, finished * width..(p + 1) * width, 0..LANES) };
                    finished = p + 1;
                }
            }
        }
    }
}

/// Where a channel block of an image begins, of which the rows under a band are there: they are computed if x is.
///
/// # Safety
/// As for [`super::conv_run`]; `scratch` has room for the rows.
unsafe fn source(
    schedule: &Schedule,
    tensors: Tensors,
    (image, block): (usize, usize),
    band: &Range<usize>,
    scratch: *mut f32,
) -> *const f32 {
    let shape = &schedule.shape;
    let Some(computed) = tensors.computed else {
        return tensors.left.wrapping_add(image * shape.images[0] + block * shape.plane() * LANES);
    };
    let rows = schedule.under(band);
    let pixels = rows.start * shape.input[1]..rows.end * shape.input[1];
    // SAFETY: the rows are in the image.
    unsafe { compute_pixels(computed, (image, block), pixels.clone(), None, scratch) };
    scratch.wrapping_sub(pixels.start * LANES)
}

/// Row `p` of a channel block of an image, which begins at `x`.
///
/// # Safety
/// As for [`super::conv_run`]; `columns` holds runs of pixels with the filter columns in the image.
unsafe fn row(
    tier: Tier,
    shape: &Shape,
    tensors: Tensors,
    x: *const f32,
    (image, block): (usize, usize),
    p: usize,
    columns: &[Columns],
) {
    let rows = taps(shape, 0, p);
    let w = tensors.right.wrapping_add(block * shape.taps() * LANES);
    let y =
        tensors.result.wrapping_add(image * shape.images[1] + (block * shape.pixels() + p * shape.output[1]) * LANES);
    let line = (p * shape.strides[0] + rows.start * shape.dilations[0]).wrapping_sub(shape.pads[0]);
    for run in columns {
        let [pixels, taps] = [run.pixels, run.taps].map(|[start, end]| start as usize..end as usize);
        let column = (pixels.start * shape.strides[1] + taps.start * shape.dilations[1]).wrapping_sub(shape.pads[1]);
        let first = line.wrapping_mul(shape.input[1]).wrapping_add(column);
        let strip = DepthStrip {
            x: x.wrapping_add(first.wrapping_mul(LANES)),
            step: shape.strides[1] * LANES,
            pixels: pixels.len(),
            kernel: [rows.len(), taps.len()],
            tap: [shape.dilations[0] * shape.input[1] * LANES, shape.dilations[1] * LANES],
            w: w.wrapping_add((rows.start * shape.kernel[1] + taps.start) * LANES),
            w_row: shape.kernel[1] * LANES,
            y: y.wrapping_add(pixels.start * LANES),
        };
        // SAFETY: the taps lie in the image, the pixels in y.
        unsafe { tier.depth_strip(&strip) };
    }
}

/// Writes packed filters: those of a block of channels tap by tap.
///
/// # Safety
/// `src` addresses the filters `[channels, 1, kh, kw]`, with any alignment, and `dst` has as many elements.
pub(crate) unsafe fn pack(call: &Conv2d, src: *const f32, dst: &mut [f32]) {
    let taps = Shape::forward(call).taps();
    for (i, w) in dst.iter_mut().enumerate().take(call.groups as usize * taps) {
        let (block, tap, channel) = (i / (taps * LANES), i / LANES % taps, i % LANES);
        // SAFETY: channel and tap are inside the filters.
        *w = unsafe { src.wrapping_add((block * LANES + channel) * taps + tap).read_unaligned() };
    }
}
