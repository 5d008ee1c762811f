//! Fetches panels of the patch matrix (implicit im2col) out of images.

use core::ops::Range;

use super::WindowShape;
use crate::isa_levels::{InputWindow, IsaLevel, LANES, NR, Panel, Segment};

/// Columns of the patch matrix: the same run of output pixels of one image after another.
#[derive(Clone, Debug)]
pub(super) struct PatchColumns {
    /// The first image.
    pub image: usize,
    pub pixels: Range<usize>,
}

impl PatchColumns {
    /// Image and pixel of a column.
    pub(super) fn at(&self, column: usize) -> (usize, usize) {
        let len = self.pixels.len().max(1);
        (self.image + column / len, self.pixels.start + column % len)
    }

    /// Cuts columns where images end: image, its pixels, and the first of the columns.
    pub(super) fn by_image(&self, cols: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
        let this = self.clone();
        let mut next = cols.start;
        core::iter::from_fn(move || {
            let start = next;
            let (image, pixel) = this.at(start);
            next = cols.end.min(start + this.pixels.end - pixel);
            (start < cols.end).then(|| (image, pixel..pixel + next - start, start))
        })
    }
}

/// Writes the rows of the patch matrix of `channels` for the columns `cols` to `dst`, NR elements for
/// each (channel, filter row, filter column), zero past the last column and where a tap lies in the
/// padding.
///
/// # Safety
/// The ISA level is available, `x` addresses the group's planes of image 0, `dst` the panel, and `cols`
/// are at most NR existing columns.
pub(super) unsafe fn fetch(
    level: IsaLevel,
    shape: &WindowShape,
    x: *const f32,
    channels: Range<usize>,
    (columns, cols): (&PatchColumns, Range<usize>),
    dst: *mut f32,
) {
    let (image, pixel) = columns.at(cols.start);
    let x = x.wrapping_add(image * shape.image() + channels.start * shape.plane());
    if shape.pointwise && columns.at(cols.end - 1).0 == image {
        let panel = Panel {
            src: x.wrapping_add(pixel),
            k_stride: shape.plane() as isize,
            j_stride: 1,
            k: channels.len(),
            width: cols.len(),
            dst,
            ld: NR as isize,
            pad: NR,
        };
        // SAFETY: the pixels of these channels exist, and `dst` holds the panel.
        unsafe { level.panel(&panel) };
        return;
    }
    // Planes a multiple of 2 KiB apart share sets of the first-level cache: few are read at a time,
    // so that the lines one filter tap brings in are still there for the next.
    let together = if shape.plane().is_multiple_of(512) { 8 } else { channels.len().max(1) };
    let mut segments = [[Segment::default(); LANES]; NR / LANES];
    let mut counts = [0; NR / LANES];
    for (v, (segments, count)) in segments.iter_mut().zip(&mut counts).enumerate() {
        let start = cols.start + v * LANES;
        *count = cut(shape, columns, start..cols.end.min(start + LANES), image, segments);
    }
    let blocks = (0..channels.len()).step_by(together).flat_map(|first| (0..NR / LANES).map(move |v| (first, v)));
    for (first, v) in blocks {
        let window = InputWindow {
            segments: &segments[v][..counts[v].max(1)],
            input: shape.input,
            kernel: shape.kernel,
            strides: shape.strides,
            dilations: shape.dilations,
            pads: shape.pads,
            src: x.wrapping_add(first * shape.plane()),
            channels: together.min(channels.len() - first),
            dst: dst.wrapping_add(first * shape.taps() * NR + v * LANES),
        };
        // SAFETY: the pixels exist, and the panel has a row for each tap of each channel.
        unsafe { level.fetch(&window) };
    }
}

/// Cuts a vector of columns at the ends of output rows, and returns into how many segments.
fn cut(
    shape: &WindowShape,
    columns: &PatchColumns,
    cols: Range<usize>,
    first_image: usize,
    segments: &mut [Segment; LANES],
) -> usize {
    let mut count = 0;
    let mut column = cols.start;
    while column < cols.end {
        let (image, pixel) = columns.at(column);
        let (row, col) = (pixel / shape.output[1], pixel % shape.output[1]);
        let len = (shape.output[1] - col).min(columns.pixels.end - pixel).min(cols.end - column);
        let image = (image - first_image) * shape.image();
        segments[count] = Segment { first: column - cols.start, len, image, row, col };
        count += 1;
        column += len;
    }
    count
}
