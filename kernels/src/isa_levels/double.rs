//! Products of f64: tiles of 24 rows and columns, in register tiles of each ISA level.

/// Most rows of a [`DoubleTile`]: whole register tiles of every ISA level.
pub(crate) const DOUBLE_ROWS: usize = 24;
/// Columns of a [`DoubleTile`].
pub(crate) const DOUBLE_COLS: usize = 24;

/// One tile of C: `C[i, j] (+)= Σ_k A[i, k]·B[k, j]` for `i < rows ≤ DOUBLE_ROWS`, `j < cols ≤ DOUBLE_COLS`.
pub(crate) struct DoubleTile {
    pub k: usize,
    /// Element (i, k) at `a[i·a_row + k·a_step]`.
    pub a: *const f64,
    pub a_row: isize,
    pub a_step: isize,
    pub rows: usize,
    /// Element (k, j) at `b[k·ldb + j]`, readable for all columns of a tile. It need not be aligned.
    pub b: *const f64,
    pub ldb: isize,
    pub cols: usize,
    /// Element (i, j) at `c[i·ldc + j]`.
    pub c: *mut f64,
    pub ldc: isize,
    /// Whether the sum continues from what C holds instead of zero.
    pub continued: bool,
}

/// A few f64.
///
/// # Safety
/// Every function needs the instructions of its vector, and to be inlined into code compiled for them to be fast; the elements that
/// are loaded or stored must be valid.
trait Doubles: Copy {
    const LANES: usize;
    unsafe fn splat(x: f64) -> Self;
    unsafe fn load(p: *const f64) -> Self;
    unsafe fn store(self, p: *mut f64);
    /// `self·b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
}

/// A tile in pieces of at most `ROWS` rows and `V` vectors of columns.
///
/// # Safety
/// As [`super::IsaLevel`], with the instructions of X.
#[inline(always)]
unsafe fn tile<X: Doubles, const ROWS: usize, const V: usize>(t: &DoubleTile) {
    let width = V * X::LANES;
    for j in (0..t.cols).step_by(width) {
        for i in (0..t.rows).step_by(ROWS) {
            // SAFETY: the rows and columns from (i, j) on lie inside the tile.
            unsafe {
                match ROWS.min(t.rows - i) {
                    1 => piece::<X, 1, V>(t, i, j),
                    2 => piece::<X, 2, V>(t, i, j),
                    3 => piece::<X, 3, V>(t, i, j),
                    4 => piece::<X, 4, V>(t, i, j),
                    5 => piece::<X, 5, V>(t, i, j),
                    6 => piece::<X, 6, V>(t, i, j),
                    7 => piece::<X, 7, V>(t, i, j),
                    _ => piece::<X, 8, V>(t, i, j),
                }
            }
        }
    }
}

/// # Safety
/// As [`tile`], with M rows from `i0` on and columns from `j0` on inside it.
#[inline(always)]
unsafe fn piece<X: Doubles, const M: usize, const V: usize>(t: &DoubleTile, i0: usize, j0: usize) {
    let cols = t.cols - j0;
    let whole = cols >= V * X::LANES;
    // A row of which not all columns are in C.
    let mut row = [0.0f64; DOUBLE_COLS];
    // SAFETY: the rows, columns and terms are inside the operands by the caller's contract; `row` holds all columns of a tile.
    unsafe {
        let c = |i: usize| t.c.wrapping_offset((i0 + i) as isize * t.ldc).wrapping_add(j0);
        let mut acc = [[X::splat(0.0); V]; M];
        for (i, sums) in acc.iter_mut().enumerate().filter(|_| t.continued) {
            let from = match whole {
                true => c(i).cast_const(),
                false => {
                    core::ptr::copy_nonoverlapping(c(i), row.as_mut_ptr(), cols);
                    row.as_ptr()
                }
            };
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = X::load(from.wrapping_add(v * X::LANES));
            }
        }
        let (mut a, mut b) = (t.a.wrapping_offset(i0 as isize * t.a_row), t.b.wrapping_add(j0));
        for _ in 0..t.k {
            let mut columns = [X::splat(0.0); V];
            for (v, column) in columns.iter_mut().enumerate() {
                *column = X::load(b.wrapping_add(v * X::LANES));
            }
            for (i, sums) in acc.iter_mut().enumerate() {
                let value = X::splat(*a.wrapping_offset(i as isize * t.a_row));
                for (sum, column) in sums.iter_mut().zip(&columns) {
                    *sum = value.mul_add(*column, *sum);
                }
            }
            a = a.wrapping_offset(t.a_step);
            b = b.wrapping_offset(t.ldb);
        }
        for (i, sums) in acc.iter().enumerate() {
            let to = if whole { c(i) } else { row.as_mut_ptr() };
            for (v, sum) in sums.iter().enumerate() {
                sum.store(to.wrapping_add(v * X::LANES));
            }
            if !whole {
                core::ptr::copy_nonoverlapping(row.as_ptr(), c(i), cols);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::{DoubleTile, Doubles};

    impl Doubles for __m512d {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            // SAFETY: passed on from the caller, as below.
            unsafe { _mm512_set1_pd(x) }
        }

        #[inline(always)]
        unsafe fn load(p: *const f64) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_loadu_pd(p) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f64) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_pd(p, self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_pd(self, b, c) }
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx512f,avx2,fma")]
    pub unsafe fn double_tile(t: &DoubleTile) {
        // SAFETY: passed on from the caller.
        unsafe { super::tile::<__m512d, 8, 3>(t) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;

    use super::{DoubleTile, Doubles};

    impl Doubles for __m256d {
        const LANES: usize = 4;

        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            // SAFETY: passed on from the caller, as below.
            unsafe { _mm256_set1_pd(x) }
        }

        #[inline(always)]
        unsafe fn load(p: *const f64) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_loadu_pd(p) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f64) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_pd(p, self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_pd(self, b, c) }
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn double_tile(t: &DoubleTile) {
        // Twelve sums, two vectors of B and one of A: a register is left, without which the compiler keeps a sum in memory.
        // SAFETY: passed on from the caller.
        unsafe { super::tile::<__m256d, 6, 2>(t) }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use core::arch::aarch64::*;

    use super::{DoubleTile, Doubles};

    impl Doubles for float64x2_t {
        const LANES: usize = 2;

        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            // SAFETY: passed on from the caller, as below.
            unsafe { vdupq_n_f64(x) }
        }

        #[inline(always)]
        unsafe fn load(p: *const f64) -> Self {
            // SAFETY: as above.
            unsafe { vld1q_f64(p) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f64) {
            // SAFETY: as above.
            unsafe { vst1q_f64(p, self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { vfmaq_f64(c, self, b) }
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn double_tile(t: &DoubleTile) {
        // SAFETY: passed on from the caller.
        unsafe { super::tile::<float64x2_t, 4, 6>(t) }
    }
}

pub(super) mod portable {
    use super::{DoubleTile, Doubles};

    impl Doubles for f64 {
        const LANES: usize = 1;

        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            x
        }

        #[inline(always)]
        unsafe fn load(p: *const f64) -> Self {
            // SAFETY: passed on from the caller.
            unsafe { p.read_unaligned() }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f64) {
            // SAFETY: passed on from the caller.
            unsafe { p.write_unaligned(self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            libm::fma(self, b, c)
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn double_tile(t: &DoubleTile) {
        // SAFETY: passed on from the caller.
        unsafe { super::tile::<f64, 4, 4>(t) }
    }
}
