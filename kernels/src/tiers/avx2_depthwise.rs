//! Depthwise convolution for AVX2: eight output columns in a vector, four output rows at a time.

use core::arch::x86_64::*;

use crate::fused::Fma;

use super::avx2::{bit_mask, lane_mask};
use super::{Depthwise, LANES, portable, spread};

/// Output rows computed together.
const BAND: usize = 4;
/// Lanes of one vector; the masks of a shape are for two.
const HALF: usize = LANES / 2;

/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn depthwise(d: &Depthwise<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        let g = d.shape;
        match (g.strides, g.dilations, g.kernel) {
            ([1, 1], [1, 1], [3, 3]) => square::<1, 3, 6>(d),
            ([2, 2], [1, 1], [3, 3]) => square::<2, 3, 9>(d),
            ([1, 1], [1, 1], [5, 5]) => square::<1, 5, 8>(d),
            ([2, 2], [1, 1], [5, 5]) => square::<2, 5, 11>(d),
            _ => portable::depthwise(d, Fma::new()),
        }
    }
}

/// Square filters `K` wide with stride `STEP` both ways and no dilation. Each input row of a band is
/// loaded once and used by every output row it lies under; there are `LINES = (BAND - 1)·STEP + K`.
///
/// # Safety
/// As [`super::Tier`], with that shape.
#[target_feature(enable = "avx2,fma")]
unsafe fn square<const STEP: usize, const K: usize, const LINES: usize>(d: &Depthwise<'_>) {
    let g = d.shape;
    let mut filter = [[_mm256_setzero_ps(); K]; K];
    for (i, w) in filter.as_flattened_mut().iter_mut().enumerate() {
        // SAFETY: the filter has K×K elements.
        *w = unsafe { _mm256_set1_ps(*d.w.add(i)) };
    }
    for p in d.rows.clone().step_by(BAND) {
        let mut lines = [None; LINES];
        for (j, line) in lines.iter_mut().enumerate() {
            let ih = (p * STEP + j).wrapping_sub(g.pads[0]);
            if ih < g.input[0] {
                *line = Some(d.x.wrapping_add(ih * g.input[1]).wrapping_sub(g.pads[1]));
            }
        }
        let rows = p..d.rows.end.min(p + BAND);
        for half in 0..g.output[1].div_ceil(HALF) {
            // SAFETY: the rows are inside `d.rows`, and `masks` says which lanes are in the image.
            unsafe {
                if g.inside.contains(&(half / 2)) {
                    square_at::<STEP, K, LINES, true>(d, &filter, &lines, rows.clone(), half);
                } else {
                    square_at::<STEP, K, LINES, false>(d, &filter, &lines, rows.clone(), half);
                }
            }
        }
    }
}

/// Output columns `8·half..8·half + 8` of the output rows `rows`, at most BAND, of [`square`].
///
/// # Safety
/// As [`square`]; with `INSIDE` every tap of the vector lies in the columns of the image.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn square_at<const STEP: usize, const K: usize, const LINES: usize, const INSIDE: bool>(
    d: &Depthwise<'_>,
    filter: &[[__m256; K]; K],
    lines: &[Option<*const f32>; LINES],
    rows: core::ops::Range<usize>,
    half: usize,
) {
    let g = d.shape;
    let mut lanes = [_mm256_set1_epi32(-1); K];
    let mut reads = [[_mm256_set1_epi32(-1); STEP]; K];
    for s in 0..K {
        let bits = if INSIDE { u8::MAX } else { (g.masks[half / 2 * K + s] >> (half % 2 * HALF)) as u8 };
        lanes[s] = bit_mask(bits);
        for (v, read) in reads[s].iter_mut().enumerate() {
            *read = bit_mask(if STEP == 1 { bits } else { (spread(bits) >> (v * HALF)) as u8 });
        }
    }
    let mut acc = [_mm256_setzero_ps(); BAND];
    for (j, line) in lines.iter().enumerate() {
        let Some(line) = line else { continue };
        for s in 0..K {
            let x = line.wrapping_add(half * HALF * STEP + s);
            // SAFETY: elements outside the image are masked off.
            let values = unsafe {
                if STEP == 2 {
                    let left = _mm256_maskload_ps(x, reads[s][0]);
                    let right = _mm256_maskload_ps(x.wrapping_add(HALF), reads[s][STEP - 1]);
                    let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(left, right));
                    _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(even))
                } else if INSIDE {
                    _mm256_loadu_ps(x)
                } else {
                    _mm256_maskload_ps(x, reads[s][0])
                }
            };
            for (i, sum) in acc.iter_mut().enumerate() {
                if j >= i * STEP && j - i * STEP < K {
                    let next = _mm256_fmadd_ps(values, filter[j - i * STEP][s], *sum);
                    *sum = if INSIDE { next } else { _mm256_blendv_ps(*sum, next, _mm256_castsi256_ps(lanes[s])) };
                }
            }
        }
    }
    let store = lane_mask((g.output[1] - half * HALF).min(HALF));
    for (i, sum) in acc.iter().enumerate() {
        // A condition instead of a loop bound lets the compiler keep the sums in registers.
        if i < rows.len() {
            // SAFETY: the row exists and columns past its end are masked off.
            unsafe { _mm256_maskstore_ps(d.y.add((rows.start + i) * g.output[1] + half * HALF), store, *sum) };
        }
    }
}
