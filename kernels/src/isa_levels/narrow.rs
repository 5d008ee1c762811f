//! Matrix products for ISA levels with vectors of four or eight lanes: a 6×16 register tile over the common packed
//! layout.
//!
//! The bodies are inlined into functions that a ISA level compiles for its instructions.

use super::vector::Vector;
use super::{Ahead, NR, Skinny, Tile};

const ROWS: usize = 6;
const COLS: usize = 16;
/// Terms in one turn of the loop of whole blocks.
const TURN: usize = 4;
/// Terms before its use that a row of B is fetched into the first-level cache, which rarely holds half a panel: its
/// rows lie two lines apart, or so far that they fall into few sets, which have room for no more rows than these.
const FETCH_TERMS: isize = 6;
/// The same where B comes from memory.
const STREAM_TERMS: isize = 32;

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
pub(super) unsafe fn tile<X: Vector>(t: &Tile) {
    let mut ahead = t.ahead;
    for j0 in (0..t.nr).step_by(COLS) {
        let cols = COLS.min(t.nr - j0);
        let mut i0 = 0;
        while i0 < t.mr {
            let left = t.mr - i0;
            let rows = if left > ROWS { left.div_ceil(2).min(ROWS) } else { left };
            // SAFETY: rows i0..i0+rows and columns j0..j0+cols lie inside the tile.
            unsafe {
                match rows {
                    1 => wide::<X, 1>(t, i0, j0, cols, &mut ahead),
                    2 => wide::<X, 2>(t, i0, j0, cols, &mut ahead),
                    3 => wide::<X, 3>(t, i0, j0, cols, &mut ahead),
                    4 => wide::<X, 4>(t, i0, j0, cols, &mut ahead),
                    5 => wide::<X, 5>(t, i0, j0, cols, &mut ahead),
                    _ => wide::<X, 6>(t, i0, j0, cols, &mut ahead),
                }
            }
            i0 += rows;
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`], with the named rows and columns inside the tile.
#[inline(always)]
unsafe fn wide<X: Vector, const M: usize>(t: &Tile, i0: usize, j0: usize, cols: usize, ahead: &mut Ahead) {
    // SAFETY: passed on from the caller.
    unsafe {
        if cols == COLS {
            return match COLS / X::LANES {
                2 => whole::<X, M, 2>(t, i0, j0, ahead),
                _ => whole::<X, M, 4>(t, i0, j0, ahead),
            };
        }
        match (cols.div_ceil(X::LANES), COLS / X::LANES) {
            (1, _) => block::<X, M, 1>(t, i0, j0, cols),
            (_, 2) | (2, _) => block::<X, M, 2>(t, i0, j0, cols),
            (3, _) => block::<X, M, 3>(t, i0, j0, cols),
            (_, _) => block::<X, M, 4>(t, i0, j0, cols),
        }
    }
}

/// Where the next term of a block is read: rows of A in two groups, so that one register of their distance is all
/// that addresses need.
struct Term {
    a: [*const f32; 2],
    a_row: isize,
    a_step: isize,
    b: *const f32,
    b_row: isize,
}

impl Term {
    /// Of a block whose first elements of A and B are at `a` and `b`.
    #[inline(always)]
    fn first(a: *const f32, [a_row, a_step]: [isize; 2], b: *const f32, b_row: isize) -> Term {
        Term { a: [a, a.wrapping_offset(3 * a_row)], a_row, a_step, b, b_row }
    }

    /// # Safety
    /// As [`super::IsaLevel`], with M rows and V whole vectors of columns at the addresses.
    #[inline(always)]
    unsafe fn add_to<X: Vector, const M: usize, const V: usize>(&mut self, acc: &mut [[X; V]; M]) {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut columns = [X::splat(0.0); V];
            for (v, column) in columns.iter_mut().enumerate() {
                *column = X::load(self.b.wrapping_add(v * X::LANES));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let value = X::splat(*self.a[i / 3].wrapping_offset((i % 3) as isize * self.a_row));
                for (sum, column) in row.iter_mut().zip(&columns) {
                    *sum = value.mul_add(*column, *sum);
                }
            }
        }
        self.a = self.a.map(|a| step(a, self.a_step));
        self.b = step(self.b, self.b_row);
    }
}

/// `p` moved on, in a way that hides from the compiler how: it would keep the addresses of all terms of a turn, and the
/// elements of later terms, in registers, of which there are too few.
#[inline(always)]
fn step(p: *const f32, by: isize) -> *const f32 {
    let mut p = p.wrapping_offset(by);
    // SAFETY: there is no instruction.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) p, options(nostack, preserves_flags)) };
    p
}

/// A block of V whole vectors of columns.
///
/// # Safety
/// As [`super::IsaLevel`], with the named rows and columns inside the tile.
#[inline(always)]
unsafe fn whole<X: Vector, const M: usize, const V: usize>(t: &Tile, i0: usize, j0: usize, ahead: &mut Ahead) {
    // SAFETY: the rows and columns are inside the tile; any address can be fetched.
    unsafe {
        let c = t.c.offset(i0 as isize * t.ldc).add(j0);
        let row = |i: usize| c.wrapping_offset(i as isize * t.ldc);
        let mut acc = [[X::splat(0.0); V]; M];
        if t.continued {
            for (i, sums) in acc.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = X::load(row(i).add(v * X::LANES));
                }
            }
        } else {
            (0..M).for_each(|i| X::fetch(row(i)));
        }
        let (a, b_row) = (t.a.offset(i0 as isize * t.a_row), t.ldb as isize);
        let mut term = Term::first(a, [t.a_row, t.a_step], t.b.add(j0), b_row);
        for _ in 0..t.k / TURN {
            fetch_ahead::<X>(ahead);
            for _ in 0..TURN {
                X::fetch(term.b.wrapping_offset(FETCH_TERMS * b_row));
                term.add_to(&mut acc);
            }
        }
        for _ in 0..t.k % TURN {
            term.add_to(&mut acc);
        }
        for (i, sums) in acc.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                sum.store(row(i).add(v * X::LANES));
            }
        }
    }
}

/// Fetches a row of what later tiles need.
///
/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn fetch_ahead<X: Vector>(ahead: &mut Ahead) {
    if ahead.rows > 0 {
        // SAFETY: any address can be fetched.
        unsafe {
            X::fetch_far(ahead.first);
            X::fetch_far(ahead.first.wrapping_add(COLS));
        }
        ahead.first = ahead.first.wrapping_offset(ahead.step);
        ahead.rows -= 1;
    }
}

/// A block of V vectors of columns, the last of which may not be whole.
///
/// # Safety
/// As [`super::IsaLevel`], with the named rows and columns inside the tile; `cols` needs exactly V vectors.
#[inline(always)]
unsafe fn block<X: Vector, const M: usize, const V: usize>(t: &Tile, i0: usize, j0: usize, cols: usize) {
    // SAFETY: lanes outside the tile are left out in C, and in B unless its rows are padded.
    unsafe {
        let first = X::first(cols - (V - 1) * X::LANES);
        let partial = cols < V * X::LANES;
        let full = t.padded || !partial;
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
                if v + 1 == V && partial { sum.store_first(c, first) } else { sum.store(c) }
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
            last_columns::<X, M>(s, j);
            j += X::LANES;
        }
    }
}

/// Where column `j` of B begins.
#[inline(always)]
fn column(s: &Skinny, j: usize) -> *const f32 {
    s.b.wrapping_offset((j / NR) as isize * s.b_panel).wrapping_add(j % NR)
}

/// All rows of `V` vectors of columns from `j` on, which all lie in one panel.
///
/// # Safety
/// As [`super::IsaLevel`], with `s.m == M` and the columns present.
#[inline(always)]
unsafe fn columns<X: Vector, const M: usize, const V: usize>(s: &Skinny, j: usize) {
    // SAFETY: the rows and columns are the product's; any address can be fetched.
    unsafe {
        let mut acc = [[X::splat(0.0); V]; M];
        let mut term = Term::first(s.a, [s.a_row, s.a_col], column(s, j), s.b_row);
        for _ in 0..s.k {
            // Both halves of a panel: what is fetched of the other one waits in a farther cache.
            let soon = term.b.wrapping_offset(STREAM_TERMS * s.b_row);
            X::fetch(soon);
            X::fetch(soon.wrapping_add(COLS));
            term.add_to(&mut acc);
        }
        for (i, sums) in acc.iter().enumerate() {
            let c = s.c.offset(i as isize * s.ldc).add(j);
            for (v, sum) in sums.iter().enumerate() {
                sum.store(c.add(v * X::LANES));
            }
        }
    }
}

/// All rows of at most a vector of columns from `j` on.
///
/// # Safety
/// As [`super::IsaLevel`], with `s.m == M`.
#[inline(always)]
unsafe fn last_columns<X: Vector, const M: usize>(s: &Skinny, j: usize) {
    // SAFETY: lanes past the last column are left out in B and C.
    unsafe {
        let first = X::first((s.n - j).min(X::LANES));
        let mut acc = [X::splat(0.0); M];
        let (mut a, mut b) = (s.a, column(s, j));
        for _ in 0..s.k {
            let row = X::load_first(b, first);
            for (i, sum) in acc.iter_mut().enumerate() {
                *sum = X::splat(*a.wrapping_offset(i as isize * s.a_row)).mul_add(row, *sum);
            }
            (a, b) = (a.wrapping_offset(s.a_col), b.wrapping_offset(s.b_row));
        }
        for (i, sum) in acc.iter().enumerate() {
            sum.store_first(s.c.offset(i as isize * s.ldc).add(j), first);
        }
    }
}
