//! Kernels for AVX2 with FMA: a 6×16 register tile over the common packed layout.

use std::arch::x86_64::*;

use super::{Depthwise, Fetch, Panel, Skinny, Tier, Tile, portable};

pub(super) static TIER: Tier = Tier { tile, skinny, panel, fetch, depthwise };

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
        let (mut a, mut b) = (t.a.add(i0), t.b.add(j0));
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
                let value = _mm256_set1_ps(*a.add(i));
                for (sum, column) in row.iter_mut().zip(&columns) {
                    *sum = _mm256_fmadd_ps(value, *column, *sum);
                }
            }
            a = a.wrapping_add(t.mr);
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
fn lane_mask(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn skinny(s: &Skinny) {
    // SAFETY: passed on from the caller.
    unsafe { portable::skinny(s) }
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn panel(p: &Panel) {
    // SAFETY: passed on from the caller.
    unsafe { portable::panel(p) }
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn fetch(f: &Fetch<'_>) {
    // SAFETY: passed on from the caller.
    unsafe { portable::fetch(f) }
}

/// # Safety
/// As [`Tier`].
#[target_feature(enable = "avx2,fma")]
unsafe fn depthwise(d: &Depthwise<'_>) {
    // SAFETY: passed on from the caller.
    unsafe { portable::depthwise(d) }
}
