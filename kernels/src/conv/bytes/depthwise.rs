//! Depthwise convolutions of bytes, a few channels at a time. What some rows of them read is copied in 16 bits with zeros around it,
//! if the processor does not leave out what lies outside.
//!
//! In the packed form of filters, rows of taps are filled up with zeros to groups of four.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvPass};

use super::super::WindowShape;
use super::ByteTensors;
use super::staging::COPIED;
use crate::blocking::{EvenSplit, row_panels, tasks_worth};
use crate::epilogue::{EpilogueCall, SumBlock};
use crate::gemm::TASKS;
use crate::isa_levels::{ByteRows, IsaLevel, LANES, MR, PIXELS, PermutedRows, READABLE, TERMS, WordRows, tap_places};

/// Most bytes of the rows of a few channels, about: they stay in the second-level cache.
const STAGED_BYTES: usize = 128 * 1024;
/// Multiply-adds that are worth a task of their own.
const TASK_TERMS: f64 = 200_000.0;

/// The division of a convolution into tasks.
pub(super) struct DepthwiseTasks {
    shape: WindowShape,
    packed: bool,
    /// Channels that are computed together.
    panels: EvenSplit,
    row_blocks: EvenSplit,
}

impl DepthwiseTasks {
    pub fn new(call: &Conv2d) -> DepthwiseTasks {
        let shape = WindowShape::stated(call);
        let (batch, panels) = (shape.batch, row_panels(shape.groups));
        let mut tasks = DepthwiseTasks {
            shape,
            packed: call.pass == ConvPass::PackedBytes,
            panels,
            row_blocks: EvenSplit::into(0, 1),
        };
        let rows = tasks.shape.output[0];
        let most = (STAGED_BYTES / (MR * tasks.shape.strides[0] * tasks.width()).max(1)).max(1);
        let wanted = tasks_worth(call.products() as f64 / TASK_TERMS, TASKS).div_ceil((batch * panels.parts()).max(1));
        tasks.row_blocks = EvenSplit::into(rows, rows.div_ceil(most).max(wanted));
        tasks
    }

    pub fn tasks(&self) -> usize {
        let has_elements = self.shape.output.iter().all(|n| *n > 0) && self.panels.longest() > 0;
        if has_elements { self.shape.batch * self.row_blocks.parts() * self.panels.parts() } else { 0 }
    }

    /// Words of a row that is copied.
    fn width(&self) -> usize {
        self.shape.output[1].saturating_sub(1) * self.shape.strides[1]
            + (self.shape.kernel[1] - 1) * self.shape.dilations[1]
            + 1
    }

    /// Rows that are copied for so many of the result.
    fn height(&self, rows: usize) -> usize {
        rows.saturating_sub(1) * self.shape.strides[0] + (self.shape.kernel[0] - 1) * self.shape.dilations[0] + 1
    }

    /// How many channels and rows of the result are computed from one copy: as many pixels as there is room for.
    fn copied(&self) -> [usize; 2] {
        let [stride, step] = self.shape.strides;
        // Pixels are computed, and words copied, a few at a time.
        let beyond = (1 + step.min(2)) * PIXELS.max(COPIED);
        let room = (self.parts()[0] / size_of::<u16>()).saturating_sub(beyond);
        let rows = |channels: usize| {
            let copied = room / (channels * self.width());
            copied.checked_sub(self.height(1)).map_or(0, |more| 1 + more / stride)
        };
        let rows = |channels| rows(channels).min(self.row_blocks.longest());
        let sizes = (1..=self.panels.longest()).map(|channels| [channels, rows(channels)]);
        sizes.max_by_key(|[channels, rows]| channels * rows).unwrap_or([1; 2])
    }

    /// Weights of a filter in the packed form.
    fn weights(&self) -> usize {
        self.shape.kernel[0] * self.shape.kernel[1].next_multiple_of(TERMS)
    }

    /// Bytes for copies and of packed filters.
    fn parts(&self) -> [usize; 2] {
        // Taps that fill up a group read beyond the plane. Their weights are 0.
        let beyond = TERMS * self.shape.dilations[1] + LANES * self.shape.strides[1] + READABLE;
        let planes = MR * self.height(self.row_blocks.longest()) * self.width() + beyond;
        [planes.next_multiple_of(TERMS), if self.packed { 0 } else { MR * self.weights() }]
    }

    /// Elements of f32 of scratch.
    pub fn scratch(&self) -> usize {
        self.parts().iter().sum::<usize>() / TERMS
    }
}

/// Elements of four bytes of the packed form.
pub(super) fn packed_len(call: &Conv2d) -> usize {
    (call.groups * call.kernel[0]) as usize * (call.kernel[1] as usize).div_ceil(TERMS)
}

/// Packs filters of so many channels.
///
/// # Safety
/// `from` addresses their weights `[c, kh, kw]`, and `to` has room for the packed form.
pub(super) unsafe fn pack(call: &Conv2d, channels: usize, from: *const i8, to: *mut i8) {
    let taps = call.kernel[1] as usize;
    let packed = taps.next_multiple_of(TERMS);
    for row in 0..channels * call.kernel[0] as usize {
        let to = to.wrapping_add(row * packed);
        // SAFETY: by the caller's contract.
        unsafe {
            core::ptr::copy_nonoverlapping(from.wrapping_add(row * taps), to, taps);
            to.add(taps).write_bytes(0, packed - taps);
        }
    }
}

/// Executes some tasks, and the epilogue on what each finishes.
///
/// # Safety
/// As [`super::super::conv_run`].
pub(super) unsafe fn run(
    level: IsaLevel,
    call: &Conv2d,
    tensors: &ByteTensors,
    epilogue: Option<EpilogueCall>,
    tasks: Range<usize>,
    scratch: *mut f32,
) {
    let t = DepthwiseTasks::new(call);
    let (panels, row_blocks) = (t.panels.parts(), t.row_blocks.parts());
    let strides = t.shape.images;
    let end = tensors.x.wrapping_add(t.shape.batch.saturating_sub(1) * strides[0] + call.image_sizes()[0] as usize);
    let planes: *mut u16 = scratch.cast();
    let weights: *mut i8 = scratch.cast::<i8>().wrapping_add(t.parts()[0]);
    let groups = t.shape.kernel[1].div_ceil(TERMS);
    let images = match level.permuted_rows(groups, t.shape.strides[1], t.shape.dilations[1]) {
        Some(compute) => Images::InPlace(compute),
        None => Images::Copied(level),
    };
    let [most_channels, most_rows] = match images {
        Images::InPlace(_) => [t.panels.longest(), t.row_blocks.longest()],
        Images::Copied(_) => t.copied(),
    };
    // SAFETY: passed on from the caller.
    let mut block = unsafe { SumBlock::new(epilogue) };
    for task in tasks {
        let (image, rest) = (task / (row_blocks * panels), task % (row_blocks * panels));
        let (panel, rows) = (t.panels.range(rest % panels), t.row_blocks.range(rest / panels));
        let mut filters = tensors.filters.wrapping_add(panel.start * t.weights());
        if !t.packed {
            let from = tensors.filters.wrapping_add(panel.start * t.shape.kernel[0] * t.shape.kernel[1]);
            // SAFETY: scratch is as large as `scratch` says.
            unsafe { pack(call, panel.len(), from, weights) };
            filters = weights;
        }
        for channels in parts(panel.clone(), most_channels) {
            for rows in parts(rows.clone(), most_rows) {
                let work = DepthwiseWork {
                    t: &t,
                    image,
                    filters: filters.wrapping_add((channels.start - panel.start) * t.weights()),
                    channels: channels.clone(),
                    rows,
                    x: tensors.x.wrapping_add(image * strides[0]),
                    end,
                    planes,
                    y: tensors.y.wrapping_add(image * strides[1]),
                };
                // SAFETY: `tasks` lies within the call by the caller's contract; scratch is as large as `scratch` says.
                unsafe {
                    if let Images::Copied(_) = images {
                        work.copy();
                    }
                    work.multiply(&images, &mut block);
                }
            }
        }
    }
}

/// A range in parts of at most so many.
fn parts(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(most).map(move |start| start..range.end.min(start + most))
}

/// Where rows are read, and what with.
enum Images {
    InPlace(PermutedRows),
    Copied(IsaLevel),
}

/// Some rows of some channels of an image.
struct DepthwiseWork<'a> {
    t: &'a DepthwiseTasks,
    image: usize,
    channels: Range<usize>,
    rows: Range<usize>,
    x: *const u8,
    /// Where the last image ends.
    end: *const u8,
    planes: *mut u16,
    filters: *const i8,
    y: *mut i32,
}

impl DepthwiseWork<'_> {
    /// Words of a copied plane.
    fn plane(&self) -> usize {
        self.t.height(self.rows.len()) * self.t.width()
    }

    /// The image of a channel.
    fn channel(&self, channel: usize) -> *const u8 {
        self.x.wrapping_add(channel * self.t.shape.input[0] * self.t.shape.input[1])
    }

    /// Copies what the rows read, with zeros around it.
    ///
    /// # Safety
    /// The image is as the call states, and there is room for the planes.
    unsafe fn copy(&self) {
        let t = self.t;
        let (height, width) = (t.height(self.rows.len()), t.width());
        let left = t.shape.pads[1].min(width);
        let inside = t.shape.input[1].min(width - left);
        for (i, channel) in self.channels.clone().enumerate() {
            let x = self.channel(channel);
            for row in 0..height {
                let to = self.planes.wrapping_add(i * self.plane() + row * width);
                let y = (self.rows.start * t.shape.strides[0] + row).wrapping_sub(t.shape.pads[0]);
                let from = x.wrapping_add(y.wrapping_mul(t.shape.input[1]));
                // SAFETY: by the caller's contract: planes have room for whole parts, and what is written behind a row is
                // overwritten by the next one.
                unsafe {
                    if y >= t.shape.input[0] || inside == 0 {
                        zeros(to, width);
                        continue;
                    }
                    zeros(to, left);
                    let to = to.wrapping_add(left);
                    if from.wrapping_add(inside.next_multiple_of(COPIED)) <= self.end {
                        copy_whole(from, to, inside);
                    } else {
                        for at in 0..inside {
                            to.add(at).write(u16::from(*from.add(at)));
                        }
                    }
                    zeros(to.wrapping_add(inside), width - left - inside);
                }
            }
        }
    }

    /// Computes the rows, and applies the epilogue.
    ///
    /// # Safety
    /// They have been copied unless they are read in place, and the result is writable.
    unsafe fn multiply(&self, images: &Images, block: &mut SumBlock) {
        let (t, pixels) = (self.t, self.t.shape.output[1]);
        let places = tap_places(t.shape.strides[1], t.shape.dilations[1]);
        let plane = t.shape.output[0] * pixels;
        let y = self.y.wrapping_add(self.channels.start * plane);
        // Whole rows, or parts of one.
        let together = (SumBlock::COLS / pixels).max(1);
        for rows in parts(0..self.rows.len(), together) {
            for columns in parts(0..pixels, SumBlock::COLS) {
                let pixel = (self.rows.start + rows.start) * pixels + columns.start;
                let (sums, ldc) = block.place(y.wrapping_add(pixel), plane as isize);
                for (i, channel) in self.channels.clone().enumerate() {
                    let y = sums.wrapping_offset(i as isize * ldc);
                    let w = self.filters.wrapping_add(i * t.weights());
                    // SAFETY: by the caller's contract.
                    unsafe {
                        match images {
                            Images::InPlace(compute) => {
                                let at = [
                                    (self.rows.start + rows.start) * t.shape.strides[0],
                                    columns.start * t.shape.strides[1],
                                ];
                                compute(&ByteRows {
                                    x: self.channel(channel),
                                    image: t.shape.input,
                                    first: [0, 1].map(|d| at[d] as isize - t.shape.pads[d] as isize),
                                    step: t.shape.strides,
                                    dilation: t.shape.dilations,
                                    places: &places,
                                    taps: [t.shape.kernel[0], t.shape.kernel[1].div_ceil(TERMS)],
                                    w,
                                    rows: rows.len(),
                                    pixels: columns.len(),
                                    y,
                                });
                            }
                            Images::Copied(level) => {
                                let at =
                                    rows.start * t.shape.strides[0] * t.width() + columns.start * t.shape.strides[1];
                                level.word_rows(&WordRows {
                                    x: self.planes.wrapping_add(i * self.plane() + at),
                                    row: t.width(),
                                    step: t.shape.strides,
                                    dilation: t.shape.dilations,
                                    taps: t.shape.kernel,
                                    w,
                                    rows: rows.len(),
                                    pixels: columns.len(),
                                    y,
                                });
                            }
                        }
                    }
                }
                let done = pixel..pixel + rows.len() * columns.len();
                // SAFETY: as above.
                unsafe { block.finish([self.image as u64, 0, 0], self.channels.clone(), done) };
            }
        }
    }
}

/// Writes zeros, in parts of [`COPIED`].
///
/// # Safety
/// There is room for whole parts.
unsafe fn zeros(to: *mut u16, words: usize) {
    let part = |at: usize| {
        // SAFETY: by the caller's contract.
        unsafe { to.wrapping_add(at).cast::<[u16; COPIED]>().write_unaligned([0; COPIED]) }
    };
    // One part is most often enough, and less than a call.
    if words > 0 {
        part(0);
    }
    (COPIED..words).step_by(COPIED).for_each(part);
}

/// Copies so many bytes as words, in parts of [`COPIED`].
///
/// # Safety
/// Both sides have room for whole parts.
unsafe fn copy_whole(from: *const u8, to: *mut u16, bytes: usize) {
    for at in (0..bytes).step_by(COPIED) {
        // SAFETY: by the caller's contract.
        unsafe {
            let part = from.wrapping_add(at).cast::<[u8; COPIED]>().read();
            to.wrapping_add(at).cast::<[u16; COPIED]>().write_unaligned(part.map(u16::from));
        }
    }
}
