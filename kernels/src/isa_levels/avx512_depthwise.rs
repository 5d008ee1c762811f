//! Depthwise convolution for AVX-512: sixteen output columns in a vector, four output rows at a time.

use core::arch::x86_64::*;

use crate::fused::Fma;

use super::avx512_data::{even, first};
use super::{Depthwise, DepthwiseShape, LANES, portable, spread};

/// Output rows of a depthwise convolution computed together.
const BAND: usize = 4;

/// # Safety
/// As [`super::IsaLevel`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn depthwise(d: &Depthwise<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        let g = d.shape;
        match (g.strides, g.dilations, g.kernel) {
            ([1, 1], [1, 1], [3, 3]) => square::<1, 3, 6>(d),
            ([2, 2], [1, 1], [3, 3]) => square::<2, 3, 9>(d),
            ([1, 1], [1, 1], [5, 5]) => square::<1, 5, 8>(d),
            ([2, 2], [1, 1], [5, 5]) => square::<2, 5, 11>(d),
            ([_, 1], ..) => bands::<1>(d),
            ([_, 2], ..) => bands::<2>(d),
            _ => portable::depthwise(d, Fma::new()),
        }
    }
}

/// Square filters `K` wide with stride `STEP` both ways and no dilation. Each input row of a band is
/// loaded once and used by every output row it lies under; there are `LINES = (BAND - 1)·STEP + K`.
///
/// # Safety
/// As [`super::IsaLevel`], with that shape.
#[target_feature(enable = "avx512f")]
unsafe fn square<const STEP: usize, const K: usize, const LINES: usize>(d: &Depthwise<'_>) {
    let g = d.shape;
    let mut filter = [[_mm512_setzero_ps(); K]; K];
    for (i, w) in filter.as_flattened_mut().iter_mut().enumerate() {
        // SAFETY: the filter has K×K elements.
        *w = unsafe { _mm512_set1_ps(*d.w.add(i)) };
    }
    for p in d.rows.clone().step_by(BAND) {
        let mut lines = [None; LINES];
        for (j, line) in lines.iter_mut().enumerate() {
            let ih = (p * STEP + j).wrapping_sub(g.pads[0]);
            if ih < g.input[0] {
                *line = Some(d.x.wrapping_add(ih * g.input[1]).wrapping_sub(g.pads[1]));
            }
        }
        let rows = BAND.min(d.rows.end - p);
        for v in 0..g.output[1].div_ceil(LANES) {
            // SAFETY: the rows are inside `d.rows`, and `masks` says which lanes are in the image.
            unsafe {
                if g.inside.contains(&v) {
                    square_at::<STEP, K, LINES, true>(d, &filter, &lines, p..p + rows, v);
                } else {
                    square_at::<STEP, K, LINES, false>(d, &filter, &lines, p..p + rows, v);
                }
            }
        }
    }
}

/// Vector v of the output rows `rows`, at most BAND, of [`square`].
///
/// # Safety
/// As [`square`]; with `INSIDE` every tap of the vector lies in the columns of the image.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn square_at<const STEP: usize, const K: usize, const LINES: usize, const INSIDE: bool>(
    d: &Depthwise<'_>,
    filter: &[[__m512; K]; K],
    lines: &[Option<*const f32>; LINES],
    rows: core::ops::Range<usize>,
    v: usize,
) {
    let g = d.shape;
    let mut masks = [u16::MAX; K];
    if !INSIDE {
        masks.copy_from_slice(&g.masks[v * K..(v + 1) * K]);
    }
    let mut reads = [(u16::MAX, u16::MAX); K];
    if STEP == 2 {
        for (t, read) in reads.iter_mut().enumerate().take(K.div_ceil(2)) {
            let odd = if 2 * t + 1 < K { masks[2 * t + 1] } else { 0 };
            let pair = |shift: u32| spread((masks[2 * t] >> shift) as u8) | spread((odd >> shift) as u8) << 1;
            *read = (pair(0), pair(8));
        }
    }
    let mut acc = [_mm512_setzero_ps(); BAND];
    for (j, line) in lines.iter().enumerate() {
        let Some(line) = line else { continue };
        // SAFETY: elements outside the image are masked off.
        let values = unsafe { line_taps::<STEP, K>(line.wrapping_add(v * LANES * STEP), &masks, &reads) };
        for s in 0..K {
            for (i, sum) in acc.iter_mut().enumerate() {
                if j >= i * STEP && j - i * STEP < K {
                    let w = filter[j - i * STEP][s];
                    *sum = if INSIDE {
                        _mm512_fmadd_ps(values[s], w, *sum)
                    } else {
                        _mm512_mask3_fmadd_ps(values[s], w, *sum, masks[s])
                    };
                }
            }
        }
    }
    let store = first(g.output[1] - v * LANES);
    for (i, sum) in acc.iter().enumerate() {
        // A condition instead of a loop bound lets the compiler keep the sums in registers.
        if i < rows.len() {
            // SAFETY: the row exists and columns past its end are masked off.
            unsafe { _mm512_mask_storeu_ps(d.y.add((rows.start + i) * g.output[1] + v * LANES), store, *sum) };
        }
    }
}

/// Cuts the rows into bands.
///
/// # Safety
/// As [`super::IsaLevel`], with the column stride `STEP`.
#[target_feature(enable = "avx512f")]
unsafe fn bands<const STEP: usize>(d: &Depthwise<'_>) {
    let mut p = d.rows.start;
    while p < d.rows.end {
        let rows = BAND.min(d.rows.end - p);
        // SAFETY: rows p..p + rows are inside `d.rows`.
        unsafe {
            match rows {
                1 => band::<1, STEP>(d, p),
                2 => band::<2, STEP>(d, p),
                3 => band::<3, STEP>(d, p),
                _ => band::<BAND, STEP>(d, p),
            }
        }
        p += rows;
    }
}

/// `ROWS` output rows from `p` on, for any filter.
///
/// # Safety
/// As [`super::IsaLevel`], with rows `p..p + ROWS` inside `d.rows` and the column stride `STEP`.
#[target_feature(enable = "avx512f")]
unsafe fn band<const ROWS: usize, const STEP: usize>(d: &Depthwise<'_>, p: usize) {
    let g: &DepthwiseShape<'_> = d.shape;
    let width = g.kernel[1];
    for v in 0..g.output[1].div_ceil(LANES) {
        let masks = &g.masks[v * width..(v + 1) * width];
        let mut acc = [_mm512_setzero_ps(); ROWS];
        for r in 0..g.kernel[0] {
            for (i, sum) in acc.iter_mut().enumerate() {
                let ih = ((p + i) * g.strides[0] + r * g.dilations[0]).wrapping_sub(g.pads[0]);
                if ih >= g.input[0] {
                    continue;
                }
                let column = (v * LANES * STEP) as isize - g.pads[1] as isize;
                let line = d.x.wrapping_offset((ih * g.input[1]) as isize + column);
                for (s, &mask) in masks.iter().enumerate() {
                    let x = line.wrapping_add(s * g.dilations[1]);
                    // SAFETY: lanes whose tap lies outside the image are masked off.
                    unsafe {
                        let w = _mm512_set1_ps(*d.w.add(r * width + s));
                        *sum = _mm512_mask3_fmadd_ps(taps::<STEP>(x, mask), w, *sum, mask);
                    }
                }
            }
        }
        let store = first(g.output[1] - v * LANES);
        for (i, sum) in acc.iter().enumerate() {
            // SAFETY: row p + i exists and columns past its end are masked off.
            unsafe { _mm512_mask_storeu_ps(d.y.add((p + i) * g.output[1] + v * LANES), store, *sum) };
        }
    }
}

/// The taps of all `K` filter columns in one input row. With stride 2, taps 2·t and 2·t + 1 are the
/// even and odd ones of the same 32 elements, of which `reads` says which lie in the image.
///
/// # Safety
/// The elements of the lanes are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn line_taps<const STEP: usize, const K: usize>(
    x: *const f32,
    masks: &[u16; K],
    reads: &[(u16, u16); K],
) -> [__m512; K] {
    let mut values = [_mm512_setzero_ps(); K];
    // SAFETY: masked-off elements are not read.
    unsafe {
        if STEP == 1 {
            for s in 0..K {
                values[s] = _mm512_maskz_loadu_ps(masks[s], x.wrapping_add(s));
            }
            return values;
        }
        let (even, odd) = (even(), _mm512_add_epi32(even(), _mm512_set1_epi32(1)));
        for t in 0..K.div_ceil(2) {
            let left = _mm512_maskz_loadu_ps(reads[t].0, x.wrapping_add(2 * t));
            let right = _mm512_maskz_loadu_ps(reads[t].1, x.wrapping_add(2 * t + LANES));
            values[2 * t] = _mm512_permutex2var_ps(left, even, right);
            if 2 * t + 1 < K {
                values[2 * t + 1] = _mm512_permutex2var_ps(left, odd, right);
            }
        }
    }
    values
}

/// Every `STEP`-th element from `x` on, in the lanes of `mask`.
///
/// # Safety
/// The elements of the lanes are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn taps<const STEP: usize>(x: *const f32, mask: u16) -> __m512 {
    // SAFETY: masked-off elements are not read.
    unsafe {
        if STEP == 1 {
            return _mm512_maskz_loadu_ps(mask, x);
        }
        let left = _mm512_maskz_loadu_ps(spread(mask as u8), x);
        let right = _mm512_maskz_loadu_ps(spread((mask >> 8) as u8), x.wrapping_add(LANES));
        _mm512_permutex2var_ps(left, even(), right)
    }
}
