//! Fetches panels of the patch matrix (implicit im2col) out of an image.

use std::ops::Range;

use super::Shape;
use crate::tiers::{Fetch, LANES, NR, Runs, Tier};

/// Output pixels `lanes` of a vector, consecutive within one output row from (row, col) on.
#[derive(Clone, Copy, Default)]
struct Segment {
    first: usize,
    len: usize,
    row: usize,
    col: usize,
}

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
    let taps = shape.taps();
    for v in 0..NR / LANES {
        let start = pixels.start + v * LANES;
        let (segments, count) = segments(shape, start..pixels.end.min(start + LANES));
        for tap in 0..taps {
            let runs = runs(shape, &segments[..count], tap / shape.kernel[1], tap % shape.kernel[1]);
            let fetch = Fetch {
                runs: &runs,
                src: x.wrapping_add(channels.start * shape.plane()),
                plane: shape.plane(),
                planes: channels.len(),
                dst: dst.wrapping_add(tap * NR + v * LANES),
                dst_step: taps * NR,
            };
            // SAFETY: the runs lie inside each plane, and the panel has a row for each tap.
            unsafe { (tier.fetch)(&fetch) };
        }
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

/// Where the filter tap (r, s) of every pixel of the segments lies in an input plane.
fn runs(shape: &Shape, segments: &[Segment], r: usize, s: usize) -> Runs {
    let step = shape.strides[1];
    let mut runs = Runs::empty(step);
    for segment in segments {
        let ih = (segment.row * shape.strides[0] + r * shape.dilations[0]).wrapping_sub(shape.pads[0]);
        if ih >= shape.input[0] {
            continue;
        }
        let column = (segment.col * step + s * shape.dilations[1]) as isize - shape.pads[1] as isize;
        let skipped = if column < 0 { column.unsigned_abs().div_ceil(step) } else { 0 };
        let ahead = shape.input[1] as isize - column;
        let end = if ahead <= 0 { 0 } else { (ahead as usize).div_ceil(step).min(segment.len) };
        if skipped < end {
            let bits = |count: usize| (1u32 << count) - 1;
            let mask = bits(segment.first + end) & !bits(segment.first + skipped);
            let lane_zero = (ih * shape.input[1]) as isize + column - (segment.first * step) as isize;
            runs.push(lane_zero, mask as u16);
        }
    }
    runs
}
