//! Arithmetic kernels for AVX-512: a 12×32 register tile and the product of few rows.
//!
//! A tile keeps 12×2 vectors of 16 columns as accumulators, so that every broadcast element of A
//! feeds two fused multiply-adds and two vectors of B feed twelve each. Up to four columns past
//! the last full vector are *tails*: their accumulators hold rows in lanes (A as the vector, B
//! broadcast), which costs one multiply-add instead of twelve.

use core::arch::x86_64::*;

use crate::fused::Fma;

use super::avx512_data::first;
use super::{LANES, MR, NR, Plane, Skinny, Tile, portable};

type TileFn = unsafe fn(&Tile);

/// Terms in one turn of the tile's loop.
const TURN: usize = 4;

/// The register tiles of every row count for one division of the columns.
macro_rules! by_rows {
    ($vectors:literal, $tails:literal, $packed:literal) => {
        [
            block::<1, $vectors, $tails, false, $packed>,
            block::<2, $vectors, $tails, false, $packed>,
            block::<3, $vectors, $tails, false, $packed>,
            block::<4, $vectors, $tails, false, $packed>,
            block::<5, $vectors, $tails, false, $packed>,
            block::<6, $vectors, $tails, false, $packed>,
            block::<7, $vectors, $tails, false, $packed>,
            block::<8, $vectors, $tails, false, $packed>,
            block::<9, $vectors, $tails, false, $packed>,
            block::<10, $vectors, $tails, false, $packed>,
            block::<11, $vectors, $tails, false, $packed>,
            block::<12, $vectors, $tails, false, $packed>,
        ]
    };
}

static WIDE: [TileFn; 12] = by_rows!(2, 0, true);
static NARROW: [TileFn; 12] = by_rows!(1, 0, true);
static NARROW_TAILS: [TileFn; 12] = by_rows!(1, 4, true);
/// The same where rows of A are not side by side; a row of tails is a vector of its own there.
static STRIDED_WIDE: [TileFn; 12] = by_rows!(2, 0, false);
static STRIDED_NARROW: [TileFn; 12] = by_rows!(1, 0, false);

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn tile(t: &Tile) {
    let tails = t.nr % LANES;
    if (t.mr, t.nr) == (MR, NR) {
        // Only whole tiles are as many that loads without a mask are worth their space.
        // SAFETY: passed on from the caller.
        return unsafe {
            match t.a_row {
                1 => block::<MR, 2, 0, true, true>(t),
                _ => block::<MR, 2, 0, true, false>(t),
            }
        };
    }
    if t.a_row == 1 && t.nr <= 4 {
        // SAFETY: passed on from the caller.
        return unsafe {
            match t.nr {
                1 => block::<0, 0, 1, false, true>(t),
                _ => block::<0, 0, 4, false, true>(t),
            }
        };
    }
    let table = if t.a_row != 1 {
        if t.nr > LANES { &STRIDED_WIDE } else { &STRIDED_NARROW }
    } else if (1..=4).contains(&tails) {
        &NARROW_TAILS
    } else if t.nr > LANES {
        &WIDE
    } else {
        &NARROW
    };
    // SAFETY: passed on from the caller; `mr` is in 1..=MR.
    unsafe { table[t.mr - 1](t) }
}

/// One term of a tile: a row of B times a column of A, added to the accumulators; the pointers move on.
macro_rules! term {
    ($t:ident, $acc:ident, $tail:ident, $at:ident, $a:ident, $b:ident, $last:ident, $rows:ident) => {
        let mut columns = [_mm512_setzero_ps(); V];
        for (v, column) in columns.iter_mut().enumerate() {
            let b = $b.add(v * LANES);
            *column = if v + 1 == V && !WHOLE { _mm512_maskz_loadu_ps($last, b) } else { _mm512_loadu_ps(b) };
        }
        for (i, row) in $acc.iter_mut().enumerate() {
            let from = if PACKED { i as isize } else { i as isize * $t.a_row };
            let value = _mm512_set1_ps(*$a.offset(from));
            for (sum, column) in row.iter_mut().zip(&columns) {
                *sum = _mm512_fmadd_ps(value, *column, *sum);
            }
        }
        if T > 0 {
            let values = _mm512_maskz_loadu_ps($rows, $a);
            for (j, sum) in $tail.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(values, _mm512_set1_ps(*$b.add($at[j])), *sum);
            }
        }
        $a = $a.wrapping_offset($t.a_step);
        $b = $b.wrapping_add($t.ldb);
    };
}

/// A tile of `M` rows, `V` vectors of columns (the last one possibly partial unless they are all `WHOLE`) and
/// up to `T` tail columns; `PACKED` if its rows of A lie side by side, as tails need. Tails alone are one vector for any
/// number of rows, so there `M` and `V` are 0.
///
/// # Safety
/// As [`IsaLevel`], with `t.mr == M` unless `V == 0`.
#[target_feature(enable = "avx512f")]
unsafe fn block<const M: usize, const V: usize, const T: usize, const WHOLE: bool, const PACKED: bool>(t: &Tile) {
    let last = if T > 0 || WHOLE { u16::MAX } else { first(t.nr + LANES - V * LANES) };
    let m = if V == 0 { t.mr } else { M };
    let rows = first(m);
    // Fewer tails than `T` are computed as `T`, the last one several times.
    let at: [usize; T] = core::array::from_fn(|j| (V * LANES + j).min(t.nr - 1));
    let mut acc = [[_mm512_setzero_ps(); V]; M];
    let mut tail = [_mm512_setzero_ps(); T];
    // SAFETY: lanes outside the tile are masked off in A, B and C.
    unsafe {
        // Rows of C are fetched one a turn, or at once if soon needed: many at a time keep A and B waiting.
        let mut row = t.c;
        let end = t.c.wrapping_offset(m as isize * t.ldc);
        if T > 0 || t.continued || t.k < TURN * m {
            while row != end {
                fetch(row, t);
                row = row.wrapping_offset(t.ldc);
            }
        }
        if t.continued {
            for (i, row) in acc.iter_mut().enumerate() {
                let c = t.c.offset(i as isize * t.ldc);
                for (v, sum) in row.iter_mut().enumerate() {
                    let mask = if v + 1 == V { last } else { u16::MAX };
                    *sum = _mm512_maskz_loadu_ps(mask, c.add(v * LANES));
                }
            }
            for (j, sum) in tail.iter_mut().enumerate().take(t.nr.wrapping_sub(V * LANES)) {
                *sum = load_column(t.c.add(V * LANES + j), t.ldc, m);
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        let (mut ahead, mut ahead_rows) = (t.ahead.first, t.ahead.rows);
        // Counting and jumping at every term would take places that multiply-adds need. Tiles with tails are few:
        // they do not need the space of several terms.
        let turns = if T > 0 { 0 } else { t.k / TURN };
        for _ in 0..turns {
            if row != end {
                fetch(row, t);
                row = row.wrapping_offset(t.ldc);
            }
            for _ in 0..2 {
                if ahead_rows > 0 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(LANES).cast());
                    ahead = ahead.wrapping_offset(t.ahead.step);
                    ahead_rows -= 1;
                }
            }
            term!(t, acc, tail, at, a, b, last, rows);
            term!(t, acc, tail, at, a, b, last, rows);
            term!(t, acc, tail, at, a, b, last, rows);
            term!(t, acc, tail, at, a, b, last, rows);
        }
        for _ in 0..t.k - turns * TURN {
            term!(t, acc, tail, at, a, b, last, rows);
        }
        for (i, row) in acc.iter().enumerate() {
            let c = t.c.offset(i as isize * t.ldc);
            for (v, sum) in row.iter().enumerate() {
                let mask = if v + 1 == V { last } else { u16::MAX };
                _mm512_mask_storeu_ps(c.add(v * LANES), mask, *sum);
            }
        }
        for (j, sum) in tail.iter().enumerate().take(t.nr.wrapping_sub(V * LANES)) {
            store_column(t.c.add(V * LANES + j), t.ldc, m, *sum);
        }
    }
}

/// Fetches a row of the tile into the first-level cache, to be written; any address will do.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(row: *const f32, t: &Tile) {
    _mm_prefetch::<_MM_HINT_ET0>(row.cast());
    _mm_prefetch::<_MM_HINT_ET0>(row.wrapping_add(t.nr - 1).cast());
}

/// # Safety
/// `rows` elements of C at distance `ldc` are readable.
#[target_feature(enable = "avx512f")]
unsafe fn load_column(c: *const f32, ldc: isize, rows: usize) -> __m512 {
    let mut lanes = [0.0f32; LANES];
    for (i, lane) in lanes.iter_mut().enumerate().take(rows) {
        // SAFETY: row i exists.
        *lane = unsafe { *c.offset(i as isize * ldc) };
    }
    // SAFETY: sixteen lanes are readable.
    unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
}

/// # Safety
/// `rows` elements of C at distance `ldc` are writable.
#[target_feature(enable = "avx512f")]
unsafe fn store_column(c: *mut f32, ldc: isize, rows: usize, values: __m512) {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: sixteen lanes are writable.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), values) };
    for (i, lane) in lanes.iter().enumerate().take(rows) {
        // SAFETY: row i exists.
        unsafe { *c.offset(i as isize * ldc) = *lane };
    }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn skinny(s: &Skinny) {
    // SAFETY: passed on from the caller.
    unsafe {
        match s.m {
            1 => stream::<1, 4>(s),
            2 => stream::<2, 2>(s),
            3 => stream::<3, 2>(s),
            4 => stream::<4, 2>(s),
            5 => stream::<5, 2>(s),
            _ => stream::<6, 2>(s),
        }
    }
}

/// `P` panels at a time, then one at a time.
///
/// # Safety
/// As [`IsaLevel`], with `s.m == M`.
#[target_feature(enable = "avx512f")]
unsafe fn stream<const M: usize, const P: usize>(s: &Skinny) {
    let panels = s.n.div_ceil(NR);
    let mut panel = 0;
    // SAFETY: panel numbers are in range; partial panels are masked.
    unsafe {
        while panel + P <= panels {
            panels_of::<M, P>(s, panel);
            panel += P;
        }
        while panel < panels {
            panels_of::<M, 1>(s, panel);
            panel += 1;
        }
    }
}

/// # Safety
/// As [`IsaLevel`], with `s.m == M` and panels `panel..panel + P` present.
#[target_feature(enable = "avx512f")]
unsafe fn panels_of<const M: usize, const P: usize>(s: &Skinny, panel: usize) {
    /// Rows of B fetched ahead of their use.
    const AHEAD: isize = 16;
    let columns = s.n - panel * NR;
    let mut masks = [[u16::MAX; 2]; P];
    masks[P - 1] = [first(columns - (P - 1) * NR), first((columns - (P - 1) * NR).saturating_sub(LANES))];
    let mut acc = [[[_mm512_setzero_ps(); 2]; P]; M];
    // SAFETY: columns past `n` are masked off in B and C; prefetches may address anything.
    unsafe {
        let mut b = s.b.offset(panel as isize * s.b_panel);
        let mut a = s.a;
        for _ in 0..s.k {
            for (p, masks) in masks.iter().enumerate() {
                let row = b.wrapping_offset(p as isize * s.b_panel);
                let ahead = row.wrapping_offset(AHEAD * s.b_row);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(LANES).cast());
                let (low, high) = if p + 1 == P {
                    let high = row.wrapping_add(LANES);
                    (_mm512_maskz_loadu_ps(masks[0], row), _mm512_maskz_loadu_ps(masks[1], high))
                } else {
                    (_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(LANES)))
                };
                for (i, sums) in acc.iter_mut().enumerate() {
                    let value = _mm512_set1_ps(*a.wrapping_offset(i as isize * s.a_row));
                    sums[p][0] = _mm512_fmadd_ps(value, low, sums[p][0]);
                    sums[p][1] = _mm512_fmadd_ps(value, high, sums[p][1]);
                }
            }
            a = a.wrapping_offset(s.a_col);
            b = b.wrapping_offset(s.b_row);
        }
        for (i, sums) in acc.iter().enumerate() {
            let c = s.c.offset(i as isize * s.ldc).add(panel * NR);
            for (p, (sums, masks)) in sums.iter().zip(&masks).enumerate() {
                _mm512_mask_storeu_ps(c.add(p * NR), masks[0], sums[0]);
                _mm512_mask_storeu_ps(c.wrapping_add(p * NR + LANES), masks[1], sums[1]);
            }
        }
    }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn plane(p: &Plane<'_>) {
    // SAFETY: passed on from the caller.
    unsafe { portable::plane(p, Fma::new()) }
}
