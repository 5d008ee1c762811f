//! Fetches panels of the patch matrix (implicit im2col) out of an image.

use std::ops::Range;

use super::Shape;
use crate::tiers::{LANES, NR, Panel, Segment, Tier, Window};

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
    if shape.pointwise {
        let panel = Panel {
            src: x.wrapping_add(channels.start * shape.plane() + pixels.start),
            k_stride: shape.plane() as isize,
            j_stride: 1,
            k: channels.len(),
            width: pixels.len(),
            dst,
            ld: NR,
            pad: NR,
        };
        // SAFETY: the pixels of these channels exist, and `dst` holds the panel.
        unsafe { (tier.panel)(&panel) };
        return;
    }
    // Planes a multiple of 2 KiB apart share sets of the first-level cache: few are read at a time,
    // so that the lines one filter tap brings in are still there for the next.
    let together = if shape.plane().is_multiple_of(512) { 8 } else { channels.len().max(1) };
    let vectors: [_; NR / LANES] = std::array::from_fn(|v| {
        let start = pixels.start + v * LANES;
        segments(shape, start..pixels.end.min(start + LANES))
    });
    let blocks = channels.clone().step_by(together).flat_map(|first| (0..NR / LANES).map(move |v| (first, v)));
    for (first, v) in blocks {
        let (segments, count) = &vectors[v];
        let window = Window {
            segments: &segments[..(*count).max(1)],
            input: shape.input,
            kernel: shape.kernel,
            strides: shape.strides,
            dilations: shape.dilations,
            pads: shape.pads,
            src: x.wrapping_add(first * shape.plane()),
            channels: together.min(channels.end - first),
            dst: dst.wrapping_add((first - channels.start) * shape.taps() * NR + v * LANES),
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
