//! AVX-512 kernels that only move data: packing and implicit im2col.

use core::arch::x86_64::*;

use super::{InputWindow, LANES, NR, Panel, portable, spread, terms_before_line};

/// The first `count` of sixteen lanes.
pub(super) const fn first(count: usize) -> __mmask16 {
    if count >= LANES { u16::MAX } else { (1u16 << count) - 1 }
}

/// # Safety
/// As [`super::IsaLevel`].
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
/// As [`super::IsaLevel`], with `p.j_stride == 1`.
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
                (src, dst) = (src.wrapping_offset(p.k_stride), dst.wrapping_offset(p.ld));
            }
            return;
        }
        for _ in 0..p.k {
            let left = _mm512_maskz_loadu_ps(low, src);
            let right = _mm512_maskz_loadu_ps(high, src.wrapping_add(LANES));
            _mm512_storeu_ps(dst, left);
            _mm512_mask_storeu_ps(dst.add(LANES), pad_high, right);
            (src, dst) = (src.wrapping_offset(p.k_stride), dst.wrapping_offset(p.ld));
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`], with `p.k_stride == 1`.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(p: &Panel) {
    /// Elements of each row fetched ahead of their use.
    const AHEAD: isize = 64;
    // A load across two lines of the cache takes as long as two.
    let lead = terms_before_line(p.src, p.j_stride);
    let mut k0 = 0;
    if p.k >= LANES && p.width.is_multiple_of(LANES) && p.width == p.pad {
        // SAFETY: passed on from the caller.
        return unsafe { transpose_whole(p, if lead > 0 { lead } else { LANES }) };
    }
    while k0 < p.k {
        let depth = if k0 == 0 && lead > 0 { lead } else { LANES }.min(p.k - k0);
        for j0 in (0..p.pad).step_by(LANES) {
            let width = p.width.saturating_sub(j0).min(LANES);
            let store = first(p.pad - j0);
            let mut rows = [_mm512_setzero_ps(); LANES];
            // SAFETY: row j0 + j exists for j < width, and has `depth` elements from k0 on.
            unsafe {
                let src = p.src.add(k0).wrapping_offset(j0 as isize * p.j_stride);
                // Conditions instead of loop bounds let the compiler keep the block in registers.
                for (j, row) in rows.iter_mut().enumerate() {
                    let (mask, offset) = if j < width { (first(depth), j as isize * p.j_stride) } else { (0, 0) };
                    _mm_prefetch::<_MM_HINT_T0>(src.wrapping_offset(offset + AHEAD).cast());
                    *row = _mm512_maskz_loadu_ps(mask, src.wrapping_offset(offset));
                }
                let columns = transposed(rows);
                for (k, column) in columns.iter().enumerate() {
                    if k < depth {
                        _mm512_mask_storeu_ps(p.dst.offset((k0 + k) as isize * p.ld).add(j0), store, *column);
                    }
                }
            }
        }
        k0 += depth;
    }
}

/// [`transpose`] where all blocks are whole: but for the first one, which counts for `lead` terms, each begins where the one before it ends, or
/// earlier if it would reach too far.
///
/// # Safety
/// As [`super::IsaLevel`].
#[target_feature(enable = "avx512f")]
unsafe fn transpose_whole(p: &Panel, lead: usize) {
    /// Elements of each row fetched ahead of their use.
    const AHEAD: isize = 64;
    let mut k0 = 0;
    let mut next = lead;
    loop {
        for j0 in (0..p.width).step_by(LANES) {
            let src = p.src.wrapping_add(k0).wrapping_offset(j0 as isize * p.j_stride);
            let dst = p.dst.wrapping_offset(k0 as isize * p.ld).wrapping_add(j0);
            let mut rows = [_mm512_setzero_ps(); LANES];
            // SAFETY: the block is inside both sides.
            unsafe {
                for (j, row) in rows.iter_mut().enumerate() {
                    let src = src.wrapping_offset(j as isize * p.j_stride);
                    _mm_prefetch::<_MM_HINT_T0>(src.wrapping_offset(AHEAD).cast());
                    *row = _mm512_loadu_ps(src);
                }
                for (k, column) in transposed(rows).into_iter().enumerate() {
                    _mm512_storeu_ps(dst.wrapping_offset(k as isize * p.ld), column);
                }
            }
        }
        if k0 + LANES >= p.k {
            return;
        }
        k0 = next.min(p.k - LANES);
        next = k0 + LANES;
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
/// As [`super::IsaLevel`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fetch(f: &InputWindow<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (f.strides[1], f.segments.len()) {
            (1, 1) => fetch_segments::<1, 1>(f),
            (1, 2) => fetch_segments::<1, 2>(f),
            (1, 3) => fetch_segments::<1, 3>(f),
            (1, 4) => fetch_segments::<1, 4>(f),
            (2, 1) => fetch_segments::<2, 1>(f),
            (2, 2) => fetch_segments::<2, 2>(f),
            (2, 3) => fetch_segments::<2, 3>(f),
            (2, 4) => fetch_segments::<2, 4>(f),
            _ => fetch_gather(f),
        }
    }
}

/// The even ones of 32 elements.
#[target_feature(enable = "avx512f")]
pub(super) fn even() -> __m512i {
    _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
}

/// `N` segments at column stride `STEP`, 1 or 2: masked loads, one or two for each segment.
///
/// # Safety
/// As [`super::IsaLevel`], with `N` segments and the column stride `STEP`.
#[target_feature(enable = "avx512f")]
unsafe fn fetch_segments<const STEP: usize, const N: usize>(f: &InputWindow<'_>) {
    let (plane, dst_step) = (f.plane(), f.taps() * NR);
    let even = even();
    for s in 0..f.kernel[1] {
        let mut columns = [(0isize, 0u16); N];
        for (column, segment) in columns.iter_mut().zip(f.segments) {
            *column = f.columns(segment, s);
        }
        for r in 0..f.kernel[0] {
            let mut runs = [f.src; N];
            let mut masks = [0u16; N];
            for i in 0..N {
                if let Some(row) = f.row(&f.segments[i], r) {
                    masks[i] = columns[i].1;
                    runs[i] = f.src.wrapping_offset((f.segments[i].image + row * f.input[1]) as isize + columns[i].0);
                }
            }
            let mut dst = f.dst.wrapping_add((r * f.kernel[1] + s) * NR);
            for channel in 0..f.channels {
                let mut lanes = _mm512_setzero_ps();
                // SAFETY: lane l of a segment reads its element STEP·l; only lanes in the image are read.
                unsafe {
                    for i in 0..N {
                        let run = runs[i].wrapping_add(channel * plane);
                        if STEP == 1 {
                            lanes = _mm512_mask_loadu_ps(lanes, masks[i], run);
                        } else {
                            let left = _mm512_maskz_loadu_ps(spread(masks[i] as u8), run);
                            let right = _mm512_maskz_loadu_ps(spread((masks[i] >> 8) as u8), run.wrapping_add(LANES));
                            lanes = join(lanes, _mm512_permutex2var_ps(left, even, right));
                        }
                    }
                    _mm512_storeu_ps(dst, lanes);
                }
                dst = dst.wrapping_add(dst_step);
            }
        }
    }
}

/// Joins vectors of which at most one is nonzero in each lane.
#[target_feature(enable = "avx512f")]
fn join(a: __m512, b: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)))
}

/// Any segments and strides.
///
/// # Safety
/// As [`super::IsaLevel`].
#[target_feature(enable = "avx512f")]
unsafe fn fetch_gather(f: &InputWindow<'_>) {
    let (plane, dst_step) = (f.plane(), f.taps() * NR);
    for tap in 0..f.taps() {
        let mut index = [0i32; LANES];
        let mut all = 0;
        for segment in f.segments {
            let (column, mask) = f.columns(segment, tap % f.kernel[1]);
            let Some(row) = f.row(segment, tap / f.kernel[1]) else { continue };
            let base = (segment.image + row * f.input[1]) as isize + column;
            for (lane, index) in index.iter_mut().enumerate().skip(segment.first).take(segment.len) {
                *index = (base + (lane * f.strides[1]) as isize) as i32;
            }
            all |= mask;
        }
        // SAFETY: only lanes in the image are read; an operand has fewer than 2³¹ elements.
        unsafe {
            let index = _mm512_loadu_si512(index.as_ptr().cast());
            for channel in 0..f.channels {
                let src = f.src.add(channel * plane);
                let lanes = _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), all, index, src);
                _mm512_storeu_ps(f.dst.add(channel * dst_step + tap * NR), lanes);
            }
        }
    }
}
