//! Fetches panels of the patch matrix (implicit im2col) out of an image.

use std::ops::Range;

use super::Shape;
use crate::tiers::{LANES, NR, Segment, Tier, Window};

/// Writes the rows of the patch matrix of `channels` for the output pixels `pixels` to `dst`, NR
/// elements for each (channel, filter row, filter column), zero past the last pixel and where a tap
/// lies in the padding.
///
/// # Safety
/// The tier is available, `x` addresses the image's planes, `dst` the panel, and `pixels` are at
/// most NR existing output pixels.
pub(super) unsafe fn fetch(
    tier: &Tier,
    shape: &Shape,
    x: *const f32,
    channels: Range<usize>,
    pixels: Range<usize>,
    dst: *mut f32,
) {
    for v in 0..NR / LANES {
        let start = pixels.start + v * LANES;
        let (segments, count) = segments(shape, start..pixels.end.min(start + LANES));
        let window = Window {
            segments: &segments[..count.max(1)],
            input: shape.input,
            kernel: shape.kernel,
            strides: shape.strides,
            dilations: shape.dilations,
            pads: shape.pads,
            src: x.wrapping_add(channels.start * shape.plane()),
            channels: channels.len(),
            dst: dst.wrapping_add(v * LANES),
        };
        // SAFETY: the pixels exist, and the panel has a row for each tap of each channel.
        unsafe { (tier.fetch)(&window) };
    }
}

/// Cuts a vector of output pixels at the ends of output rows.
fn segments(shape: &Shape, pixels: Range<usize>) -> ([Segment; LANES], usize) {
    let mut segments = [Segment::default(); LANES];
    let mut count = 0;
    let mut pixel = pixels.start;
    while pixel < pixels.end {
        let (row, col) = (pixel / shape.output[1], pixel % shape.output[1]);
        let len = (shape.output[1] - col).min(pixels.end - pixel);
        segments[count] = Segment { first: pixel - pixels.start, len, row, col };
        count += 1;
        pixel += len;
    }
    (segments, count)
}
