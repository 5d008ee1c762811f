//! Depthwise convolutions of 16 channels at once, taps outside the image left out. Images in planes are transposed to blocks and back a few
//! rows at a time.
//!
//! Where that leaves some channels over, the last block begins earlier; only those are taken from it.

use core::ops::Range;

use tensorc_abi::{Conv2d, ImageLayout};

use super::shape::Distances;
use super::{Tensors, WindowShape, compute_pixels, copy_channels};
use crate::blocking::{EvenSplit, tasks_worth, whole_lines};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{DepthwiseTile, IsaLevel, LANES, NR, Panel};

/// Multiply-adds that are worth a task of their own.
const TASK_TERMS: f64 = 100_000.0;
/// Tasks wanted of a large convolution.
const TASKS: usize = 16;
/// Fewest output rows of a task. The convolutions before and after those of smaller images share out channels.
const MIN_ROWS: usize = 7;
/// Elements of y in one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;
/// Pixels that are computed beside y in one go.
const STAGE_PIXELS: usize = 16;
/// Pixels of a block that are transposed to planes in one go, about.
const PLANE_PIXELS: usize = 256;
/// Elements of a block of x that are transposed from planes in one go, about.
const BLOCK_ELEMENTS: usize = 32 * 1024;

/// Whether images in planes are transposed: a question of the filters alone, which are packed for it.
pub(super) fn takes_planes(call: &Conv2d) -> bool {
    call.pass.is_packed() && call.groups >= LANES as u64 && call.kernel != [1, 1]
}

/// The division of a call into tasks.
pub(super) struct DepthwiseTasks {
    shape: WindowShape,
    layouts: [ImageLayout; 2],
    /// Where x and y lie.
    sides: [Distances; 2],
    blocks: usize,
    /// Channel blocks over all images, cut into runs.
    runs: EvenSplit,
    /// Output rows, cut into runs.
    bands: EvenSplit,
    /// Whether images lie in planes.
    planes: bool,
}

impl DepthwiseTasks {
    pub(super) fn new(call: &Conv2d) -> DepthwiseTasks {
        let shape = WindowShape::forward(call);
        let blocks = shape.groups.div_ceil(LANES);
        let terms = shape.batch * blocks * shape.pixels() * shape.taps() * LANES;
        let want = tasks_worth(terms as f64 / TASK_TERMS, TASKS);
        let bands = EvenSplit::into(shape.output[0], want.min(shape.output[0] / MIN_ROWS));
        let runs = EvenSplit::into(shape.batch * blocks, want.div_ceil(bands.parts()));
        let planes = call.in_planes();
        let layouts = if planes { [ImageLayout::Nchw16c; 2] } else { call.layouts };
        let sides = [
            Distances::new(layouts[0], shape.groups, shape.plane()),
            Distances::new(layouts[1], shape.groups, shape.pixels()),
        ];
        DepthwiseTasks { shape, layouts: call.layouts, sides, blocks, runs, bands, planes }
    }

    pub(super) fn tasks(&self) -> usize {
        if self.shape.is_empty() { 0 } else { self.runs.parts() * self.bands.parts() }
    }

    /// Runs of pixels of a row with the same filter columns: the first of these and the last fall from pixel
    /// to pixel.
    fn most_columns(&self) -> usize {
        self.shape.output[1].min(2 * self.shape.kernel[1] + 1)
    }

    /// Elements of scratch one thread needs: for [`PixelSpan`], and for the rows under a band of a block of x if that is
    /// computed.
    pub(super) fn scratch(&self, computed: bool) -> usize {
        if self.shape.is_empty() {
            return 0;
        }
        let rows = match self.planes {
            true => self.most_under(self.piece_rows()),
            false if computed => self.most_rows(),
            false => 0,
        };
        self.column_elements() + rows * self.row_pixels() * LANES + self.plane_elements()
    }

    /// Pixels of a row of x where it is read: rows of planes are transposed with their padding.
    fn row_pixels(&self) -> usize {
        let WindowShape { input, output, kernel, strides, dilations, pads, .. } = &self.shape;
        let read = output[1].saturating_sub(1) * strides[1] + kernel[1].saturating_sub(1) * dilations[1] + 1;
        if self.planes { read.max(pads[1]) } else { input[1] }
    }

    /// Transposes rows of the planes of a block, with zeros for the padding of columns.
    ///
    /// # Safety
    /// The rows are in the planes, and `to` has room for them.
    unsafe fn to_block(&self, level: IsaLevel, x: *const f32, rows: &Range<usize>, to: *mut f32) {
        let (shape, pixels) = (&self.shape, self.row_pixels());
        let left = shape.pads[1].min(pixels);
        let inside = shape.input[1].min(pixels - left);
        for (i, row) in rows.clone().enumerate() {
            let to = to.wrapping_add(i * pixels * LANES);
            let panel = Panel {
                src: x.wrapping_add(row * shape.input[1]),
                k_stride: 1,
                j_stride: shape.plane() as isize,
                k: inside,
                width: LANES,
                dst: to.wrapping_add(left * LANES),
                ld: LANES as isize,
                pad: LANES,
            };
            // SAFETY: passed on from the caller.
            unsafe {
                to.write_bytes(0, left * LANES);
                level.panel(&panel);
                to.add((left + inside) * LANES).write_bytes(0, (pixels - left - inside) * LANES);
            }
        }
    }

    /// Output rows whose rows of x are transposed together.
    fn piece_rows(&self) -> usize {
        let WindowShape { kernel, strides, dilations, .. } = &self.shape;
        let fitting = BLOCK_ELEMENTS / (self.row_pixels() * LANES).max(1);
        (fitting.saturating_sub((kernel[0] - 1) * dilations[0] + 1) / strides[0])
            .clamp(MIN_ROWS, self.bands.longest().max(MIN_ROWS))
    }

    /// Most rows of x that so many output rows read.
    fn most_under(&self, rows: usize) -> usize {
        let WindowShape { input, kernel, strides, dilations, .. } = &self.shape;
        ((rows - 1) * strides[0] + (kernel[0] - 1) * dilations[0] + 1).min(input[0])
    }

    /// Rows of a block of y that are transposed to planes together.
    fn rows_together(&self) -> usize {
        (PLANE_PIXELS / self.shape.output[1].max(1)).max(1)
    }

    /// Elements of scratch for rows of a block of y.
    fn plane_elements(&self) -> usize {
        if self.planes { self.rows_together() * self.shape.output[1] * LANES } else { 0 }
    }

    fn column_elements(&self) -> usize {
        whole_lines(self.most_columns() * size_of::<PixelSpan>() / size_of::<f32>())
    }

    /// Rows of x under some rows of y.
    fn under(&self, rows: &Range<usize>) -> Range<usize> {
        let WindowShape { input, kernel, strides, dilations, pads, .. } = &self.shape;
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
struct PixelSpan {
    pixels: [u32; 2],
    taps: [u32; 2],
}

impl PixelSpan {
    /// Fills the scratch with those of a row.
    ///
    /// # Safety
    /// `memory` has [`DepthwiseTasks::scratch`] elements, which nothing else uses.
    unsafe fn of<'s>(schedule: &DepthwiseTasks, memory: *mut f32) -> &'s [PixelSpan] {
        let memory: *mut PixelSpan = memory.cast();
        let mut count = 0;
        if schedule.planes {
            let whole = [schedule.shape.output[1], schedule.shape.kernel[1]].map(|end| [0, end as u32]);
            // SAFETY: there is room for a run.
            unsafe { memory.write(PixelSpan { pixels: whole[0], taps: whole[1] }) };
            count = 1;
        }
        let pixels = if schedule.planes { 0 } else { schedule.shape.output[1] };
        for q in 0..pixels {
            let taps = taps(&schedule.shape, 1, q);
            let next = PixelSpan { pixels: [q as u32, q as u32 + 1], taps: [taps.start as u32, taps.end as u32] };
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
fn taps(shape: &WindowShape, d: usize, at: usize) -> Range<usize> {
    let (start, dilation) = (at * shape.strides[d], shape.dilations[d]);
    let first = shape.pads[d].saturating_sub(start).div_ceil(dilation).min(shape.kernel[d]);
    let end = (shape.input[d] + shape.pads[d]).saturating_sub(start).div_ceil(dilation).min(shape.kernel[d]);
    first..end.max(first)
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    schedule: &DepthwiseTasks,
    tensors: Tensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    if tasks.is_empty() {
        return;
    }
    let DepthwiseTasks { shape, blocks, layouts, .. } = schedule;
    let width = shape.output[1];
    // SAFETY: the scratch is as long as the schedule says.
    let columns = unsafe { PixelSpan::of(schedule, scratch) };
    let memory = scratch.wrapping_add(schedule.column_elements());
    for task in tasks {
        let band = schedule.bands.range(task / schedule.runs.parts());
        for block in schedule.runs.range(task % schedule.runs.parts()) {
            let at = (block / blocks, block % blocks);
            if schedule.planes {
                // SAFETY: scratch holds rows of a block of x and of y.
                unsafe { block_of_planes(level, schedule, tensors, at, &band, (columns, memory), epilogue) };
                continue;
            }
            let (batch, channels) = match layouts[1] {
                ImageLayout::Nhwc => ([at.0 as u64, 0, 0], at.1 * LANES..shape.groups.min((at.1 + 1) * LANES)),
                _ => ([at.0 as u64, at.1 as u64, 0], 0..LANES),
            };
            let y = tensors.result.wrapping_add(at.0 * shape.images[1] + at.1 * schedule.sides[1].block);
            // SAFETY: scratch holds what is under a band.
            let x = unsafe { source(schedule, tensors, at, &band, memory) };
            let mut finished = band.start;
            for p in band.clone() {
                let y = y.wrapping_add(p * width * schedule.sides[1].pixel);
                // SAFETY: the row is one of y, and its taps lie in the image.
                unsafe { row(level, schedule, tensors.right, (x, y), at.1, p, columns) };
                if p + 1 == band.end || (p + 1 - finished) * width * LANES >= EPILOGUE_ELEMENTS {
                    let pixels = finished * width..(p + 1) * width;
                    // SAFETY: the rows are finished; the epilogue fits by the caller's contract.
                    unsafe { EpilogueCall::finish(epilogue, batch, pixels, channels.clone()) };
                    finished = p + 1;
                }
            }
        }
    }
}

/// A band of a block of channels of an image in planes.
///
/// # Safety
/// As for [`super::conv_run`]; `memory` has room for rows of a block of x and of y.
unsafe fn block_of_planes(
    level: IsaLevel,
    schedule: &DepthwiseTasks,
    tensors: Tensors,
    (image, block): (usize, usize),
    band: &Range<usize>,
    (columns, memory): (&[PixelSpan], *mut f32),
    epilogue: Option<EpilogueCall>,
) {
    let shape = &schedule.shape;
    let width = shape.output[1];
    let first = (block * LANES).min(shape.groups - LANES);
    let channels = block * LANES..shape.groups.min((block + 1) * LANES);
    let image_x = tensors.left.wrapping_add(image * shape.image() + first * shape.plane());
    let image_y = tensors.result.wrapping_add(image * shape.images[1] + channels.start * shape.pixels());
    let stage = memory.wrapping_add(schedule.most_under(schedule.piece_rows()) * schedule.row_pixels() * LANES);
    let mut finished = band.start;
    for piece in band.clone().step_by(schedule.piece_rows()) {
        let piece = piece..band.end.min(piece + schedule.piece_rows());
        let rows = schedule.under(&piece);
        // SAFETY: the rows are in the planes, and fit in the memory.
        unsafe { schedule.to_block(level, image_x, &rows, memory) };
        let x: *const f32 = memory.wrapping_sub(rows.start * schedule.row_pixels() * LANES);
        for start in piece.clone().step_by(schedule.rows_together()) {
            let together = start..piece.end.min(start + schedule.rows_together());
            for p in together.clone() {
                let y = stage.wrapping_add((p - start) * width * LANES);
                // SAFETY: the row fits in the stage, and its taps lie in the image.
                unsafe { row(level, schedule, tensors.right, (x, y), block, p, columns) };
            }
            let to = image_y.wrapping_add(start * width);
            // SAFETY: the pixels are staged, and are of y.
            unsafe {
                to_planes(
                    level,
                    stage.wrapping_add(channels.start - first),
                    together.len() * width,
                    (channels.len(), to, shape.pixels()),
                )
            };
            if together.end == band.end || (together.end - finished) * width * LANES >= EPILOGUE_ELEMENTS {
                let pixels = finished * width..together.end * width;
                // SAFETY: the rows are finished; the epilogue fits by the caller's contract.
                unsafe { EpilogueCall::finish(epilogue, [image as u64, 0, 0], channels.clone(), pixels) };
                finished = together.end;
            }
        }
    }
}

/// Transposes pixels of a block to so many planes at a distance.
///
/// # Safety
/// The elements are readable and writable.
unsafe fn to_planes(
    level: IsaLevel,
    block: *const f32,
    pixels: usize,
    (channels, to, plane): (usize, *mut f32, usize),
) {
    for first in (0..pixels).step_by(NR) {
        let width = NR.min(pixels - first);
        let panel = Panel {
            src: block.wrapping_add(first * LANES),
            k_stride: 1,
            j_stride: LANES as isize,
            k: channels,
            width,
            dst: to.wrapping_add(first),
            ld: plane as isize,
            pad: width,
        };
        // SAFETY: passed on from the caller.
        unsafe { level.panel(&panel) };
    }
}

/// Where a channel block of an image begins, of which the rows under a band are there: they are computed if x is.
///
/// # Safety
/// As for [`super::conv_run`]; `scratch` has room for the rows.
unsafe fn source(
    schedule: &DepthwiseTasks,
    tensors: Tensors,
    (image, block): (usize, usize),
    band: &Range<usize>,
    scratch: *mut f32,
) -> *const f32 {
    let shape = &schedule.shape;
    let Some(computed) = tensors.computed else {
        return tensors.left.wrapping_add(image * shape.images[0] + block * schedule.sides[0].block);
    };
    let rows = schedule.under(band);
    let pixels = rows.start * shape.input[1]..rows.end * shape.input[1];
    // SAFETY: the rows are in the image.
    unsafe { compute_pixels(computed, (image, block), pixels.clone(), None, scratch) };
    scratch.wrapping_sub(pixels.start * LANES)
}

/// Row `p` of a channel block of an image, which begins at `x`; the row goes to `y`.
///
/// # Safety
/// As for [`super::conv_run`]; `columns` holds runs of pixels with the filter columns in the image.
unsafe fn row(
    level: IsaLevel,
    schedule: &DepthwiseTasks,
    filters: *const f32,
    (x, y): (*const f32, *mut f32),
    block: usize,
    p: usize,
    columns: &[PixelSpan],
) {
    let DepthwiseTasks { shape, sides: [from, to], .. } = schedule;
    let rows = taps(shape, 0, p);
    let w = filters.wrapping_add(block * shape.taps() * LANES);
    // Channels that the block before has computed already; a block of planes is transposed without them.
    let done = if schedule.planes { 0 } else { ((block + 1) * LANES).saturating_sub(shape.groups) };
    let x = x.wrapping_sub(done);
    let line = (p * shape.strides[0] + rows.start * shape.dilations[0]).wrapping_sub(shape.pads[0]);
    let (pixels_of_row, pad) = (schedule.row_pixels(), if schedule.planes { 0 } else { shape.pads[1] });
    for run in columns {
        let [pixels, taps] = [run.pixels, run.taps].map(|[start, end]| start as usize..end as usize);
        let column = (pixels.start * shape.strides[1] + taps.start * shape.dilations[1]).wrapping_sub(pad);
        let first = line.wrapping_mul(pixels_of_row).wrapping_add(column);
        let tile = DepthwiseTile {
            x: x.wrapping_add(first.wrapping_mul(from.pixel)),
            step: shape.strides[1] * from.pixel,
            pixels: pixels.len(),
            kernel: [rows.len(), taps.len()],
            tap: [shape.dilations[0] * pixels_of_row * from.pixel, shape.dilations[1] * from.pixel],
            w: w.wrapping_add((rows.start * shape.kernel[1] + taps.start) * LANES),
            w_row: shape.kernel[1] * LANES,
            y: y.wrapping_add(pixels.start * to.pixel),
            y_step: to.pixel,
        };
        // SAFETY: the taps lie in the image, the pixels in y.
        unsafe {
            match done {
                0 => level.depthwise_tile(&tile),
                _ => beside(level, &tile, done),
            }
        }
    }
}

/// A tile of whose channels the first `done` are left alone.
///
/// # Safety
/// As for [`row`].
unsafe fn beside(level: IsaLevel, tile: &DepthwiseTile, done: usize) {
    let mut stage = [0.0; STAGE_PIXELS * LANES];
    for first in (0..tile.pixels).step_by(STAGE_PIXELS) {
        let pixels = STAGE_PIXELS.min(tile.pixels - first);
        let x = tile.x.wrapping_add(first * tile.step);
        let y = stage.as_mut_ptr();
        // SAFETY: the stage holds the pixels.
        unsafe { level.depthwise_tile(&DepthwiseTile { x, pixels, y, y_step: LANES, ..*tile }) };
        for (i, block) in stage.chunks_exact(LANES).enumerate().take(pixels) {
            let to = tile.y.wrapping_add((first + i) * tile.y_step);
            // SAFETY: the pixel has so many channels left.
            unsafe { copy_channels(block[done..].as_ptr(), to, LANES - done) };
        }
    }
}

/// Elements of packed filters: whole blocks of channels.
pub(super) fn packed_len(call: &Conv2d) -> usize {
    let shape = WindowShape::forward(call);
    shape.groups.next_multiple_of(LANES) * shape.taps()
}

/// Writes packed filters: those of a block of channels tap by tap.
///
/// # Safety
/// `src` addresses the filters `[channels, 1, kh, kw]`, with any alignment.
///
/// # Panics
/// If `dst` is shorter than [`packed_len`].
pub(crate) unsafe fn pack(call: &Conv2d, src: *const f32, dst: &mut [f32]) {
    let (taps, channels) = (WindowShape::forward(call).taps(), call.groups as usize);
    for (i, w) in dst[..packed_len(call)].iter_mut().enumerate() {
        let (block, tap, channel) = (i / (taps * LANES), i / LANES % taps, i % LANES);
        let first = (block * LANES).min(channels - LANES);
        // SAFETY: channel and tap are inside the filters.
        *w = unsafe { src.wrapping_add((first + channel) * taps + tap).read_unaligned() };
    }
}
