//! Matrix products for ISA levels with vectors of four or eight lanes: a 6×16 register tile over the common packed
//! layout.
//!
//! The bodies are inlined into functions that a ISA level compiles for its instructions.

use super::vector::Vector;
use super::{NR, Skinny, Tile};

const ROWS: usize = 6;
const COLS: usize = 16;

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
pub(super) unsafe fn tile<X: Vector>(t: &Tile) {
    let mut i0 = 0;
    while i0 < t.mr {
        let rows =
            if t.mr - i0 == 2 * ROWS || t.mr - i0 <= ROWS { ROWS.min(t.mr - i0) } else { (t.mr - i0).div_ceil(2) };
        for j0 in (0..t.nr).step_by(COLS) {
            let cols = COLS.min(t.nr - j0);
            // SAFETY: rows i0..i0+rows and columns j0..j0+cols lie inside the tile.
            unsafe {
                match rows {
                    1 => wide::<X, 1>(t, i0, j0, cols),
                    2 => wide::<X, 2>(t, i0, j0, cols),
                    3 => wide::<X, 3>(t, i0, j0, cols),
                    4 => wide::<X, 4>(t, i0, j0, cols),
                    5 => wide::<X, 5>(t, i0, j0, cols),
                    _ => wide::<X, 6>(t, i0, j0, cols),
                }
            }
        }
        i0 += rows;
    }
}

/// # Safety
/// As [`super::IsaLevel`], with the named rows and columns inside the tile.
#[inline(always)]
unsafe fn wide<X: Vector, const M: usize>(t: &Tile, i0: usize, j0: usize, cols: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (cols.div_ceil(X::LANES), COLS / X::LANES) {
            (1, _) => block::<X, M, 1>(t, i0, j0, cols),
            (_, 2) | (2, _) => block::<X, M, 2>(t, i0, j0, cols),
            (3, _) => block::<X, M, 3>(t, i0, j0, cols),
            (_, _) => block::<X, M, 4>(t, i0, j0, cols),
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`], with the named rows and columns inside the tile; `cols` needs exactly V vectors.
#[inline(always)]
unsafe fn block<X: Vector, const M: usize, const V: usize>(t: &Tile, i0: usize, j0: usize, cols: usize) {
    // SAFETY: lanes outside the tile are left out in C, and in B unless its rows are padded.
    unsafe {
        let first = X::first(cols - (V - 1) * X::LANES);
        let full = cols == V * X::LANES || t.padded;
        let mut acc = [[X::splat(0.0); V]; M];
        let c = t.c.offset(i0 as isize * t.ldc).add(j0);
        if t.continued {
            for (i, row) in acc.iter_mut().enumerate() {
                let c = c.offset(i as isize * t.ldc);
                for (v, sum) in row.iter_mut().enumerate() {
                    let c = c.add(v * X::LANES);
                    *sum = if v + 1 == V { X::load_first(c, first) } else { X::load(c) };
                }
            }
        }
        let (mut a, mut b) = (t.a.offset(i0 as isize * t.a_row), t.b.add(j0));
        for _ in 0..t.k {
            let mut columns = [X::splat(0.0); V];
            for (v, column) in columns.iter_mut().enumerate() {
                let b = b.add(v * X::LANES);
                *column = if v + 1 == V && !full { X::load_first(b, first) } else { X::load(b) };
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let value = X::splat(*a.offset(i as isize * t.a_row));
                for (sum, column) in row.iter_mut().zip(&columns) {
                    *sum = value.mul_add(*column, *sum);
                }
            }
            a = a.wrapping_offset(t.a_step);
            b = b.wrapping_add(t.ldb);
        }
        for (i, row) in acc.iter().enumerate() {
            let c = c.offset(i as isize * t.ldc);
            for (v, sum) in row.iter().enumerate() {
                let c = c.add(v * X::LANES);
                if v + 1 == V { sum.store_first(c, first) } else { sum.store(c) }
            }
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
pub(super) unsafe fn skinny<X: Vector>(s: &Skinny) {
    // SAFETY: the columns that are named exist, or lanes past the last column are left out.
    unsafe {
        match s.m {
            1 => rows::<X, 1, 32>(s),
            2 => rows::<X, 2, 32>(s),
            3 => rows::<X, 3, 16>(s),
            4 => rows::<X, 4, 16>(s),
            5 => rows::<X, 5, 16>(s),
            _ => rows::<X, 6, 16>(s),
        }
    }
}

/// All columns, `WIDTH` at a time, then a vector at a time.
///
/// # Safety
/// As [`super::IsaLevel`], with `s.m == M`.
#[inline(always)]
unsafe fn rows<X: Vector, const M: usize, const WIDTH: usize>(s: &Skinny) {
    let mut j = 0;
    // SAFETY: WIDTH columns exist while so many are left; lanes past the last are left out.
    unsafe {
        while s.n - j >= WIDTH {
            match WIDTH / X::LANES {
                2 => columns::<X, M, 2>(s, j),
                4 => columns::<X, M, 4>(s, j),
                _ => columns::<X, M, 8>(s, j),
            }
            j += WIDTH;
        }
        while j < s.n {
            columns::<X, M, 1>(s, j);
            j += X::LANES;
        }
    }
}

/// All rows of `V` vectors of columns from `j` on, which all lie in one panel.
///
/// # Safety
/// As [`super::IsaLevel`], with `s.m == M`, and all columns present unless `V` is 1.
#[inline(always)]
unsafe fn columns<X: Vector, const M: usize, const V: usize>(s: &Skinny, j: usize) {
    // SAFETY: lanes past the last column are left out in B and C.
    unsafe {
        let first = X::first((s.n - j).min(X::LANES));
        let mut acc = [[X::splat(0.0); V]; M];
        let mut b = s.b.offset((j / NR) as isize * s.b_panel).wrapping_add(j % NR);
        let mut a = s.a;
        for _ in 0..s.k {
            let mut row = [X::splat(0.0); V];
            for (v, value) in row.iter_mut().enumerate() {
                let b = b.wrapping_add(v * X::LANES);
                *value = if V == 1 { X::load_first(b, first) } else { X::load(b) };
            }
            for (i, sums) in acc.iter_mut().enumerate() {
                let value = X::splat(*a.wrapping_offset(i as isize * s.a_row));
                for (sum, column) in sums.iter_mut().zip(&row) {
                    *sum = value.mul_add(*column, *sum);
                }
            }
            (a, b) = (a.wrapping_offset(s.a_col), b.wrapping_offset(s.b_row));
        }
        for (i, sums) in acc.iter().enumerate() {
            let c = s.c.offset(i as isize * s.ldc).add(j);
            for (v, sum) in sums.iter().enumerate() {
                if V == 1 { sum.store_first(c, first) } else { sum.store(c.add(v * X::LANES)) }
            }
        }
    }
}
