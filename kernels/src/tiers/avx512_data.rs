//! AVX-512 kernels bound by data movement: packing, implicit im2col and depthwise convolution.

use std::arch::x86_64::*;

use super::{Depthwise, DepthwiseShape, Fetch, Panel, portable};

const LANES: usize = 16;

/// The first `count` of sixteen lanes.
const fn first(count: usize) -> __mmask16 {
    if count >= LANES { u16::MAX } else { (1u16 << count) - 1 }
}

/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn panel(p: &Panel) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (p.k_stride, p.j_stride) {
            (_, 1) => copy_rows(p),
            (1, _) => transpose(p),
            _ => portable::panel(p),
        }
    }
}

/// # Safety
/// As [`super::Tier`], with `p.j_stride == 1`.
#[target_feature(enable = "avx512f")]
unsafe fn copy_rows(p: &Panel) {
    let (low, high) = (first(p.width), first(p.width.saturating_sub(LANES)));
    let (pad_low, pad_high) = (first(p.pad), first(p.pad.saturating_sub(LANES)));
    let (mut src, mut dst) = (p.src, p.dst);
    // SAFETY: columns past `width` are not read and columns past `pad` not written.
    unsafe {
        if p.pad <= LANES {
            for _ in 0..p.k {
                _mm512_mask_storeu_ps(dst, pad_low, _mm512_maskz_loadu_ps(low, src));
                (src, dst) = (src.wrapping_offset(p.k_stride), dst.wrapping_add(p.ld));
            }
            return;
        }
        for _ in 0..p.k {
            let left = _mm512_maskz_loadu_ps(low, src);
            let right = _mm512_maskz_loadu_ps(high, src.wrapping_add(LANES));
            _mm512_storeu_ps(dst, left);
            _mm512_mask_storeu_ps(dst.add(LANES), pad_high, right);
            (src, dst) = (src.wrapping_offset(p.k_stride), dst.wrapping_add(p.ld));
        }
    }
}

/// # Safety
/// As [`super::Tier`], with `p.k_stride == 1`.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(p: &Panel) {
    for k0 in (0..p.k).step_by(LANES) {
        let depth = LANES.min(p.k - k0);
        for j0 in (0..p.pad).step_by(LANES) {
            let width = p.width.saturating_sub(j0).min(LANES);
            let store = first(p.pad - j0);
            let mut rows = [_mm512_setzero_ps(); LANES];
            // SAFETY: row j0 + j exists for j < width, and has `depth` elements from k0 on.
            unsafe {
                let src = p.src.add(k0).wrapping_offset(j0 as isize * p.j_stride);
                for (j, row) in rows.iter_mut().enumerate().take(width) {
                    *row = _mm512_maskz_loadu_ps(first(depth), src.offset(j as isize * p.j_stride));
                }
                let columns = transposed(rows);
                for (k, column) in columns.iter().enumerate().take(depth) {
                    _mm512_mask_storeu_ps(p.dst.add((k0 + k) * p.ld + j0), store, *column);
                }
            }
        }
    }
}

/// The transpose of a 16×16 block: pairs, then quadruples within 128 bits, then 128-bit lanes.
#[target_feature(enable = "avx512f")]
fn transposed(r: [__m512; LANES]) -> [__m512; LANES] {
    let mut pairs = r;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let mut quads = pairs;
    for i in 0..4 {
        let q = |n: usize| _mm512_castps_pd(pairs[4 * i + n]);
        quads[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(q(0), q(2)));
        quads[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(q(0), q(2)));
        quads[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(q(1), q(3)));
        quads[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(q(1), q(3)));
    }
    let mut out = quads;
    for i in 0..4 {
        let even = _mm512_shuffle_f32x4::<0x88>(quads[i], quads[4 + i]);
        let odd = _mm512_shuffle_f32x4::<0xdd>(quads[i], quads[4 + i]);
        let even_high = _mm512_shuffle_f32x4::<0x88>(quads[8 + i], quads[12 + i]);
        let odd_high = _mm512_shuffle_f32x4::<0xdd>(quads[8 + i], quads[12 + i]);
        out[i] = _mm512_shuffle_f32x4::<0x88>(even, even_high);
        out[4 + i] = _mm512_shuffle_f32x4::<0x88>(odd, odd_high);
        out[8 + i] = _mm512_shuffle_f32x4::<0xdd>(even, even_high);
        out[12 + i] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_high);
    }
    out
}

/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fetch(f: &Fetch<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (f.runs.step, f.runs.count) {
            (1, 0) => fetch_unit::<0>(f),
            (1, 1) => fetch_unit::<1>(f),
            (1, 2) => fetch_unit::<2>(f),
            (1, 3) => fetch_unit::<3>(f),
            (1, 4) => fetch_unit::<4>(f),
            (2, 0..=4) => fetch_double(f),
            _ => fetch_gather(f),
        }
    }
}

/// Runs of consecutive elements.
///
/// # Safety
/// As [`super::Tier`], with `f.runs.count == N`.
#[target_feature(enable = "avx512f")]
unsafe fn fetch_unit<const N: usize>(f: &Fetch<'_>) {
    let (mut src, mut dst) = (f.src, f.dst);
    for _ in 0..f.planes {
        let mut lanes = _mm512_setzero_ps();
        // SAFETY: only lanes of the runs are read.
        unsafe {
            for i in 0..N {
                lanes = _mm512_mask_loadu_ps(lanes, f.runs.mask[i], src.wrapping_offset(f.runs.offset[i]));
            }
            _mm512_storeu_ps(dst, lanes);
        }
        (src, dst) = (src.wrapping_add(f.plane), dst.wrapping_add(f.dst_step));
    }
}

/// Runs of every second element: two loads and a permutation.
///
/// # Safety
/// As [`super::Tier`], with `f.runs.step == 2`.
#[target_feature(enable = "avx512f")]
unsafe fn fetch_double(f: &Fetch<'_>) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let mut sources = [(0u16, 0u16); LANES];
    for (source, &mask) in sources.iter_mut().zip(&f.runs.mask).take(f.runs.count) {
        *source = (spread(mask as u8), spread((mask >> 8) as u8));
    }
    let (mut src, mut dst) = (f.src, f.dst);
    for _ in 0..f.planes {
        let mut lanes = _mm512_setzero_ps();
        // SAFETY: lane l reads element 2·l of its run; only those elements are loaded.
        unsafe {
            for (i, &(low, high)) in sources.iter().enumerate().take(f.runs.count) {
                let run = src.wrapping_offset(f.runs.offset[i]);
                let left = _mm512_maskz_loadu_ps(low, run);
                let right = _mm512_maskz_loadu_ps(high, run.wrapping_add(LANES));
                let taken = _mm512_permutex2var_ps(left, even, right);
                lanes = _mm512_mask_mov_ps(lanes, f.runs.mask[i], taken);
            }
            _mm512_storeu_ps(dst, lanes);
        }
        (src, dst) = (src.wrapping_add(f.plane), dst.wrapping_add(f.dst_step));
    }
}

/// Bit i of `mask` at bit 2·i.
const fn spread(mask: u8) -> u16 {
    let mut bits = mask as u16;
    bits = (bits | bits << 4) & 0x0f0f;
    bits = (bits | bits << 2) & 0x3333;
    (bits | bits << 1) & 0x5555
}

/// Any runs.
///
/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx512f")]
unsafe fn fetch_gather(f: &Fetch<'_>) {
    let mut index = [0i32; LANES];
    let mut all = 0;
    for (&offset, &mask) in f.runs.offset.iter().zip(&f.runs.mask).take(f.runs.count) {
        for (lane, index) in index.iter_mut().enumerate() {
            if mask >> lane & 1 == 1 {
                *index = (offset + (lane * f.runs.step) as isize) as i32;
            }
        }
        all |= mask;
    }
    let (mut src, mut dst) = (f.src, f.dst);
    // SAFETY: only lanes of the runs are read; an image plane has fewer than 2³¹ elements.
    unsafe {
        let index = _mm512_loadu_si512(index.as_ptr().cast());
        for _ in 0..f.planes {
            let lanes = _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), all, index, src);
            _mm512_storeu_ps(dst, lanes);
            (src, dst) = (src.wrapping_add(f.plane), dst.wrapping_add(f.dst_step));
        }
    }
}

/// Output rows of a depthwise convolution computed together.
const BAND: usize = 4;

/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn depthwise(d: &Depthwise<'_>) {
    let mut p = d.rows.start;
    // SAFETY: passed on from the caller, with the rows cut into bands.
    unsafe {
        match d.shape.strides[1] {
            1 => {
                while p < d.rows.end {
                    let rows = BAND.min(d.rows.end - p);
                    if rows == BAND {
                        band::<BAND, 1>(d, p)
                    } else {
                        single_rows::<1>(d, p)
                    }
                    p += rows;
                }
            }
            2 => {
                while p < d.rows.end {
                    let rows = BAND.min(d.rows.end - p);
                    if rows == BAND {
                        band::<BAND, 2>(d, p)
                    } else {
                        single_rows::<2>(d, p)
                    }
                    p += rows;
                }
            }
            _ => portable::depthwise(d),
        }
    }
}

/// The rows left over by whole bands.
///
/// # Safety
/// As [`super::Tier`], with the column stride `STEP`.
#[target_feature(enable = "avx512f")]
unsafe fn single_rows<const STEP: usize>(d: &Depthwise<'_>, p: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match d.rows.end - p {
            1 => band::<1, STEP>(d, p),
            2 => band::<2, STEP>(d, p),
            _ => band::<3, STEP>(d, p),
        }
    }
}

/// `ROWS` output rows from `p` on, a vector of columns at a time.
///
/// # Safety
/// As [`super::Tier`], with rows `p..p + ROWS` inside `d.rows` and the column stride `STEP`.
#[target_feature(enable = "avx512f")]
unsafe fn band<const ROWS: usize, const STEP: usize>(d: &Depthwise<'_>, p: usize) {
    let g: &DepthwiseShape = d.shape;
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for v in 0..g.output[1].div_ceil(LANES) {
        let masks = &g.masks[v * g.kernel[1]..(v + 1) * g.kernel[1]];
        let mut acc = [_mm512_setzero_ps(); ROWS];
        for r in 0..g.kernel[0] {
            let mut lines = [d.x; ROWS];
            let mut valid = [0u16; ROWS];
            for i in 0..ROWS {
                let ih = ((p + i) * g.strides[0] + r * g.dilations[0]).wrapping_sub(g.pads[0]);
                if ih < g.input[0] {
                    valid[i] = u16::MAX;
                    let column = (v * LANES * STEP) as isize - g.pads[1] as isize;
                    lines[i] = d.x.wrapping_offset((ih * g.input[1]) as isize + column);
                }
            }
            for (s, &mask) in masks.iter().enumerate() {
                // SAFETY: lanes whose tap lies outside the image are masked off.
                unsafe {
                    let w = _mm512_set1_ps(*d.w.add(r * g.kernel[1] + s));
                    for i in 0..ROWS {
                        let mask = mask & valid[i];
                        let x = lines[i].wrapping_add(s * g.dilations[1]);
                        let taps = if STEP == 1 {
                            _mm512_maskz_loadu_ps(mask, x)
                        } else {
                            let left = _mm512_maskz_loadu_ps(spread(mask as u8), x);
                            let right = _mm512_maskz_loadu_ps(spread((mask >> 8) as u8), x.wrapping_add(LANES));
                            _mm512_permutex2var_ps(left, even, right)
                        };
                        acc[i] = _mm512_mask3_fmadd_ps(taps, w, acc[i], mask);
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
