//! Depthwise convolution for ISA levels with vectors of four or eight lanes: a vector of output columns, four output
//! rows at a time.

use super::vector::Vector;
use super::{Depthwise, LANES};

/// Output rows computed together.
const BAND: usize = 4;

/// Chooses the function for a usual filter: square, of 3 or 5 columns, without dilation and at stride 1 or 2. They are
/// given for 3 columns at both strides, then 5, and are functions of their own, so that each has the registers.
pub(super) fn usual(d: &Depthwise<'_>, all: [DepthwiseFn; 4]) -> Option<DepthwiseFn> {
    let g = d.shape;
    match (g.strides, g.dilations, g.kernel) {
        ([1, 1], [1, 1], [3, 3]) => Some(all[0]),
        ([2, 2], [1, 1], [3, 3]) => Some(all[1]),
        ([1, 1], [1, 1], [5, 5]) => Some(all[2]),
        ([2, 2], [1, 1], [5, 5]) => Some(all[3]),
        _ => None,
    }
}

pub(super) type DepthwiseFn = unsafe fn(&Depthwise<'_>);

/// Square filters `K` wide with stride `STEP` both ways and no dilation. Each input row of a band is
/// loaded once and used by every output row it lies under; there are `LINES = (BAND - 1)·STEP + K`.
///
/// # Safety
/// As [`super::IsaLevel`], with that shape.
#[inline(always)]
pub(super) unsafe fn square<X: Vector, const STEP: usize, const K: usize, const LINES: usize>(d: &Depthwise<'_>) {
    let g = d.shape;
    // SAFETY: the filter has K×K elements.
    let filter: [[X; K]; K] = unsafe {
        let mut filter = [[X::splat(0.0); K]; K];
        for (i, w) in filter.as_flattened_mut().iter_mut().enumerate() {
            *w = X::splat(*d.w.add(i));
        }
        filter
    };
    for p in d.rows.clone().step_by(BAND) {
        let mut lines = [None; LINES];
        for (j, line) in lines.iter_mut().enumerate() {
            let ih = (p * STEP + j).wrapping_sub(g.pads[0]);
            if ih < g.input[0] {
                *line = Some(d.x.wrapping_add(ih * g.input[1]).wrapping_sub(g.pads[1]));
            }
        }
        let rows = p..d.rows.end.min(p + BAND);
        for first in (0..g.output[1]).step_by(X::LANES) {
            // SAFETY: the rows are inside `d.rows`, and `masks` says which lanes are in the image.
            unsafe {
                if g.inside.contains(&(first / LANES)) {
                    square_at::<X, STEP, K, LINES, true>(d, &filter, &lines, rows.clone(), first);
                } else {
                    square_at::<X, STEP, K, LINES, false>(d, &filter, &lines, rows.clone(), first);
                }
            }
        }
    }
}

/// A vector of output columns from `first` on, of the output rows `rows`, at most BAND, of [`square`].
///
/// # Safety
/// As [`square`]; with `INSIDE` every tap of the vector lies in the columns of the image.
#[inline(always)]
unsafe fn square_at<X: Vector, const STEP: usize, const K: usize, const LINES: usize, const INSIDE: bool>(
    d: &Depthwise<'_>,
    filter: &[[X; K]; K],
    lines: &[Option<*const f32>; LINES],
    rows: core::ops::Range<usize>,
    first: usize,
) {
    let g = d.shape;
    // SAFETY: elements outside the image are not read, and columns past the last not written.
    unsafe {
        let all = u8::MAX >> (8 - X::LANES);
        let mut bits = [all; K];
        if !INSIDE {
            for (s, bits) in bits.iter_mut().enumerate() {
                *bits = (g.masks[first / LANES * K + s] >> (first % LANES)) as u8 & all;
            }
        }
        let lanes = bits.map(|bits| X::lanes(bits));
        let taps = bits.map(|bits| X::taps::<STEP>(bits));
        let mut acc = [X::splat(0.0); BAND];
        for (j, line) in lines.iter().enumerate() {
            let Some(line) = line else { continue };
            for s in 0..K {
                let x = line.wrapping_add(first * STEP + s);
                let values = if INSIDE && STEP == 1 { X::load(x) } else { X::load_taps::<STEP>(x, taps[s]) };
                for (i, sum) in acc.iter_mut().enumerate() {
                    if j >= i * STEP && j - i * STEP < K {
                        let next = values.mul_add(filter[j - i * STEP][s], *sum);
                        *sum = if INSIDE { next } else { X::select(lanes[s], next, *sum) };
                    }
                }
            }
        }
        let store = X::first((g.output[1] - first).min(X::LANES));
        for (i, sum) in acc.iter().enumerate() {
            // A condition instead of a loop bound lets the compiler keep the sums in registers.
            if i < rows.len() {
                sum.store_first(d.y.add((rows.start + i) * g.output[1] + first), store);
            }
        }
    }
}
