//! Rows of pixels from the ring of decoded samples.

use std::ops::Range;

use super::error::{JpegError, grow};
use super::kernels::{Kernels, STEP};
use super::plan::{ComponentPlan, RegionPlan};

/// Rows between the ring and the pixels.
#[derive(Default)]
pub(super) struct RowScratch {
    /// Blended chroma of one row.
    blended: [Vec<i16>; 2],
    /// The same with every sample twice, where neighbours are not interpolated.
    doubled: [Vec<i16>; 2],
    /// Pixels of a row that has no room for what is written beyond its ends.
    pixels: Vec<u8>,
}

impl RowScratch {
    /// Makes room for rows of `width` pixels.
    pub fn reserve(&mut self, width: usize) -> Result<(), JpegError> {
        let samples = width + 4 * STEP;
        for row in self.blended.iter_mut().chain(&mut self.doubled) {
            grow(row, samples)?;
        }
        grow(&mut self.pixels, 3 * samples)
    }
}

/// Writes rows of pixels to `out`, which holds those of the whole region, in order.
#[inline(always)]
pub(super) fn write<K: Kernels>(
    kernels: K,
    plan: &RegionPlan,
    ring: &[u8],
    scratch: &mut RowScratch,
    rows: Range<usize>,
    out: &mut [u8],
) {
    for y in rows {
        if plan.parts().len() == 1 {
            write_grey(plan, ring, y, out);
        } else {
            write_rgb(kernels, plan, ring, scratch, y, out);
        }
    }
}

fn write_grey(plan: &RegionPlan, ring: &[u8], y: usize, out: &mut [u8]) {
    let (width, luma) = (plan.columns.len(), &plan.parts()[0]);
    let (from, to) = (luma.at(y) + plan.columns.start - luma.column, (y - plan.rows.start) * width);
    out[to..to + width].copy_from_slice(&ring[from..from + width]);
}

/// Rows are written in steps of [`STEP`] pixels, from an even one on where chroma needs that. What lies before the row
/// is put back, what is written behind it is the next row's.
#[inline(always)]
fn write_rgb<K: Kernels>(
    kernels: K,
    plan: &RegionPlan,
    ring: &[u8],
    scratch: &mut RowScratch,
    y: usize,
    out: &mut [u8],
) {
    let (luma, wide) = (&plan.parts()[0], plan.parts()[1].across == 2 && plan.parts()[1].smooth);
    let first = if wide { plan.columns.start & !1 } else { plan.columns.start };
    let lead = 3 * (plan.columns.start - first);
    let padded = (plan.columns.end - first).next_multiple_of(STEP);
    let from = luma.at(y) + first - luma.column;
    let luma = &ring[from..from + padded];
    let width = 3 * plan.columns.len();
    let begin = (y - plan.rows.start) * width;

    let RowScratch { blended: [cb, cr], doubled, pixels } = scratch;
    for (part, row) in plan.parts()[1..].iter().zip([&mut *cb, cr]) {
        blend(kernels, plan, part, ring, y, row);
    }
    let mut convert = |pixels: &mut [u8]| {
        if wide {
            let odd = if plan.parts()[1].down == 2 { -1 } else { 4 };
            let samples = padded / 2 + 2;
            kernels.rgb_wide(luma, &cb[..samples], &cr[..samples], odd, pixels);
        } else if plan.parts()[1].across == 2 {
            let [wide_cb, wide_cr] = doubled;
            double(cb, plan.columns.start % 2, &mut wide_cb[..padded]);
            double(cr, plan.columns.start % 2, &mut wide_cr[..padded]);
            kernels.rgb(luma, &wide_cb[..padded], &wide_cr[..padded], pixels);
        } else {
            kernels.rgb(luma, &cb[..padded], &cr[..padded], pixels);
        }
    };
    match begin.checked_sub(lead).filter(|start| start + 3 * padded <= out.len()) {
        Some(start) => {
            let mut before = [0; 3];
            before[..lead].copy_from_slice(&out[start..begin]);
            convert(&mut out[start..start + 3 * padded]);
            out[start..begin].copy_from_slice(&before[..lead]);
        }
        None => {
            convert(&mut pixels[..3 * padded]);
            out[begin..begin + width].copy_from_slice(&pixels[lead..lead + width]);
        }
    }
}

/// Blends the samples of a component that a row of pixels needs: those that the pixels lie in, for interpolated columns
/// with one more on both sides. The last ones of the image are repeated there.
#[inline(always)]
fn blend<K: Kernels>(kernels: K, plan: &RegionPlan, part: &ComponentPlan, ring: &[u8], y: usize, row: &mut [i16]) {
    let wide = part.across == 2 && part.smooth;
    let (first, last) = (plan.columns.start / part.across, (plan.columns.end - 1) / part.across);
    let margin = usize::from(wide);
    let columns = first.saturating_sub(margin)..(last + margin + 1).min(part.width);
    let at = columns.start + margin - first;
    let length = columns.len().next_multiple_of(STEP);
    let bias = match (part.smooth, part.across, part.down) {
        (true, 1, 2) => 1 + (y % 2) as i16,
        (true, 2, down) => down as i16,
        _ => 0,
    };
    let (near, far) = part.rows(y);
    let [near, far] = [near, far].map(|y| {
        let from = part.at(y) + columns.start - part.column;
        &ring[from..from + length]
    });
    kernels.blend(near, far, bias, &mut row[at..at + length]);
    if wide {
        let end = at + columns.len();
        row[0] = row[at];
        if last + 1 == part.width {
            row[end] = row[end - 1];
        }
    }
}

/// Every sample twice, the first one once if `odd` is 1.
fn double(samples: &[i16], odd: usize, out: &mut [i16]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = samples[(i + odd) / 2];
    }
}
