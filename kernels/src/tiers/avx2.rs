//! Kernels for AVX2 with FMA: a 6×16 register tile over the common packed layout.

use core::arch::x86_64::*;

use super::{NR, Panel, Skinny, Tier, Tile, Window, attention, avx2_blocked, avx2_depthwise, portable, spread};

pub(super) static TIER: Tier = Tier {
    tile,
    skinny,
    panel,
    fetch,
    depthwise: avx2_depthwise::depthwise,
    strip: avx2_blocked::strip,
    depth_strip: avx2_blocked::depth_strip,
    weigh: attention::avx2::weigh,
    dots: attention::avx2::dots,
};

const ROWS: usize = 6;
const COLS: usize = 16;
const LANES: usize = 8;

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile(t: &Tile) {
    let mut i0 = 0;
    while i0 < t.mr {
        let rows =
            if t.mr - i0 == 2 * ROWS || t.mr - i0 <= ROWS { ROWS.min(t.mr - i0) } else { (t.mr - i0).div_ceil(2) };
        for j0 in (0..t.nr).step_by(COLS) {
            let cols = COLS.min(t.nr - j0);
            // SAFETY: rows i0..i0+rows and columns j0..j0+cols lie inside the tile.
            unsafe {
                match rows {
                    1 => wide::<1>(t, i0, j0, cols),
                    2 => wide::<2>(t, i0, j0, cols),
                    3 => wide::<3>(t, i0, j0, cols),
                    4 => wide::<4>(t, i0, j0, cols),
                    5 => wide::<5>(t, i0, j0, cols),
                    _ => wide::<6>(t, i0, j0, cols),
                }
            }
        }
        i0 += rows;
    }
}

/// # Safety
/// As [`Tier`], with the named rows and columns inside the tile.
#[target_feature(enable = "avx2,fma")]
unsafe fn wide<const M: usize>(t: &Tile, i0: usize, j0: usize, cols: usize) {
    // SAFETY: passed on from the caller.
    unsafe { if cols > LANES { block::<M, 2>(t, i0, j0, cols) } else { block::<M, 1>(t, i0, j0, cols) } }
}

/// # Safety
/// As [`Tier`], with the named rows and columns inside the tile; `cols` needs exactly V vectors.
#[target_feature(enable = "avx2,fma")]
unsafe fn block<const M: usize, const V: usize>(t: &Tile, i0: usize, j0: usize, cols: usize) {
    let mask = lane_mask(cols - (V - 1) * LANES);
    let full = cols == V * LANES || t.padded;
    let mut acc = [[_mm256_setzero_ps(); V]; M];
    // SAFETY: lanes outside the tile are masked off in C, and in B unless its rows are padded.
    unsafe {
        let c = t.c.offset(i0 as isize * t.ldc).add(j0);
        if t.continued {
            for (i, row) in acc.iter_mut().enumerate() {
                let c = c.offset(i as isize * t.ldc);
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = if v + 1 == V {
                        _mm256_maskload_ps(c.add(v * LANES), mask)
                    } else {
                        _mm256_loadu_ps(c.add(v * LANES))
                    };
                }
            }
        }
        let (mut a, mut b) = (t.a.offset(i0 as isize * t.a_row), t.b.add(j0));
        for _ in 0..t.k {
            let mut columns = [_mm256_setzero_ps(); V];
            for (v, column) in columns.iter_mut().enumerate() {
                *column = if v + 1 == V && !full {
                    _mm256_maskload_ps(b.add(v * LANES), mask)
                } else {
                    _mm256_loadu_ps(b.add(v * LANES))
                };
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let value = _mm256_set1_ps(*a.offset(i as isize * t.a_row));
                for (sum, column) in row.iter_mut().zip(&columns) {
                    *sum = _mm256_fmadd_ps(value, *column, *sum);
                }
            }
            a = a.wrapping_offset(t.a_step);
            b = b.wrapping_add(t.ldb);
        }
        for (i, row) in acc.iter().enumerate() {
            let c = c.offset(i as isize * t.ldc);
            for (v, sum) in row.iter().enumerate() {
                if v + 1 == V {
                    _mm256_maskstore_ps(c.add(v * LANES), mask, *sum);
                } else {
                    _mm256_storeu_ps(c.add(v * LANES), *sum);
                }
            }
        }
    }
}

/// The first `count` of eight lanes.
#[target_feature(enable = "avx2")]
pub(super) fn lane_mask(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn skinny(s: &Skinny) {
    let mut j = 0;
    while j < s.n {
        let left = s.n - j;
        // SAFETY: columns j..j + 8·V exist, or their lanes past the last column are masked off.
        unsafe {
            match (s.m, left) {
                (1, 32..) => j += columns::<1, 4>(s, j),
                (1, _) => j += columns::<1, 1>(s, j),
                (2, 32..) => j += columns::<2, 4>(s, j),
                (2, _) => j += columns::<2, 1>(s, j),
                (3, 16..) => j += columns::<3, 2>(s, j),
                (3, _) => j += columns::<3, 1>(s, j),
                (4, 16..) => j += columns::<4, 2>(s, j),
                (4, _) => j += columns::<4, 1>(s, j),
                (5, 16..) => j += columns::<5, 2>(s, j),
                (5, _) => j += columns::<5, 1>(s, j),
                (_, 16..) => j += columns::<6, 2>(s, j),
                (_, _) => j += columns::<6, 1>(s, j),
            }
        }
    }
}

/// All rows of `V` vectors of columns from `j` on, which all lie in one panel; returns how many.
///
/// # Safety
/// As [`Tier`], with `s.m == M`, and all columns present unless `V` is 1.
#[target_feature(enable = "avx2,fma")]
unsafe fn columns<const M: usize, const V: usize>(s: &Skinny, j: usize) -> usize {
    let mask = lane_mask((s.n - j - (V - 1) * LANES).min(LANES));
    let mut acc = [[_mm256_setzero_ps(); V]; M];
    // SAFETY: lanes past the last column are masked off in B and C.
    unsafe {
        let mut b = s.b.offset((j / NR) as isize * s.b_panel).wrapping_add(j % NR);
        let mut a = s.a;
        for _ in 0..s.k {
            let mut row = [_mm256_setzero_ps(); V];
            for (v, value) in row.iter_mut().enumerate() {
                let b = b.wrapping_add(v * LANES);
                *value = if V == 1 { _mm256_maskload_ps(b, mask) } else { _mm256_loadu_ps(b) };
            }
            for (i, sums) in acc.iter_mut().enumerate() {
                let value = _mm256_set1_ps(*a.wrapping_offset(i as isize * s.a_row));
                for (sum, column) in sums.iter_mut().zip(&row) {
                    *sum = _mm256_fmadd_ps(value, *column, *sum);
                }
            }
            (a, b) = (a.wrapping_offset(s.a_col), b.wrapping_offset(s.b_row));
        }
        for (i, sums) in acc.iter().enumerate() {
            let c = s.c.offset(i as isize * s.ldc).add(j);
            for (v, sum) in sums.iter().enumerate() {
                if V == 1 {
                    _mm256_maskstore_ps(c, mask, *sum);
                } else {
                    _mm256_storeu_ps(c.add(v * LANES), *sum);
                }
            }
        }
    }
    V * LANES
}

/// Both halves of a vector of sixteen pixels: where they come from and which elements are read, one
/// vector of them for each column of the stride.
#[derive(Clone, Copy)]
struct Run<const STEP: usize> {
    src: *const f32,
    masks: [[__m256i; STEP]; 2],
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn fetch(f: &Window<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match f.strides[1] {
            1 => fetch_runs::<1>(f),
            2 => fetch_runs::<2>(f),
            _ => portable::fetch(f),
        }
    }
}

/// # Safety
/// As [`Tier`], with the column stride `STEP`, 1 or 2.
#[target_feature(enable = "avx2,fma")]
unsafe fn fetch_runs<const STEP: usize>(f: &Window<'_>) {
    let none = Run { src: f.src, masks: [[_mm256_setzero_si256(); STEP]; 2] };
    for tap in 0..f.taps() {
        let mut runs = [none; 2 * LANES];
        let mut count = 0;
        for segment in f.segments {
            let (column, mask) = f.columns(segment, tap % f.kernel[1]);
            let Some(row) = f.row(segment, tap / f.kernel[1]) else { continue };
            if mask != 0 {
                let run = &mut runs[count];
                run.src = f.src.wrapping_offset((segment.image + row * f.input[1]) as isize + column);
                for (h, masks) in run.masks.iter_mut().enumerate() {
                    let half = (mask >> (h * LANES)) as u8;
                    for (v, elements) in masks.iter_mut().enumerate() {
                        let bits = if STEP == 1 { half } else { (spread(half) >> (v * LANES)) as u8 };
                        *elements = bit_mask(bits);
                    }
                }
                count += 1;
            }
        }
        for channel in 0..f.channels {
            let mut halves = [_mm256_setzero_ps(); 2];
            // SAFETY: only elements in the image are read; the destination has a row for each tap.
            unsafe {
                for run in &runs[..count] {
                    let src = run.src.wrapping_add(channel * f.plane());
                    for (h, half) in halves.iter_mut().enumerate() {
                        let src = src.wrapping_add(h * LANES * STEP);
                        let first = _mm256_maskload_ps(src, run.masks[h][0]);
                        let lanes = if STEP == 1 {
                            first
                        } else {
                            let second = _mm256_maskload_ps(src.wrapping_add(LANES), run.masks[h][STEP - 1]);
                            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(first, second));
                            _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(even))
                        };
                        *half = _mm256_or_ps(*half, lanes);
                    }
                }
                let dst = f.dst.add((channel * f.taps() + tap) * NR);
                _mm256_storeu_ps(dst, halves[0]);
                _mm256_storeu_ps(dst.add(LANES), halves[1]);
            }
        }
    }
}

/// Lane l is set if bit l is.
#[target_feature(enable = "avx2")]
pub(super) fn bit_mask(bits: u8) -> __m256i {
    let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), each), each)
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn panel(p: &Panel) {
    // SAFETY: passed on from the caller.
    unsafe { portable::panel(p) }
}
