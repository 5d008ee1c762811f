//! Inner loops of attention besides products of tiles: weights of a tile of scores, and scores of few rows.
//!
//! One body for all ISA levels, in the order of 16 lanes, vectorised by the compiler under the features of each.

use crate::fused::FusedMultiplyAdd;
use crate::vmath;

use super::LANES;

/// A tile of scores that becomes weights, and the state of the softmax of its rows.
pub(crate) struct Scores {
    /// Element (i, j) at `tile[i·ld + j]`; rows are writable up to a multiple of [`LANES`] columns.
    pub tile: *mut f32,
    pub ld: usize,
    pub rows: usize,
    pub cols: usize,
    /// Whether the maximum is subtracted.
    pub shifted: bool,
    /// For each row, the largest score so far, -∞ before the first; without use unless `shifted`.
    pub max: *mut f32,
    /// For each row, the sum of weights so far.
    pub sum: *mut f32,
    /// For each row, the factor that brings what was accumulated before to the new maximum.
    pub factor: *mut f32,
    /// For each row, the sum of the weights of this tile.
    pub weight: *mut f32,
}

/// `c[i·ldc + j] = Σ_d a[i·lda + d]·b[j·ldb + d]` for `i < m`, `j < n`, `d < depth`: lane `d mod 16` by
/// ascending d, lanes added pairwise.
pub(crate) struct Dots {
    pub m: usize,
    pub n: usize,
    pub depth: usize,
    /// Rows hold zeros up to a multiple of [`LANES`].
    pub a: *const f32,
    pub lda: usize,
    pub b: *const f32,
    pub ldb: isize,
    pub c: *mut f32,
    pub ldc: usize,
}

type AttentionVector = [f32; LANES];

/// Folds the halves onto each other until one value is left.
#[inline(always)]
fn fold(mut x: AttentionVector, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            x[l] = f(x[l], x[l + width]);
        }
        width /= 2;
    }
    x[0]
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Passes over all rows, one for each thing to do: the long chains within a row then overlap with those of
/// its neighbours.
///
/// # Safety
/// The arguments describe memory as [`Scores`] says.
#[inline(always)]
unsafe fn weigh_rows(s: &Scores, fused: impl FusedMultiplyAdd) {
    let whole = s.cols.next_multiple_of(LANES);
    // SAFETY: rows are writable up to `whole`, and the state has an element for each.
    let (row, max, sum, factor, weight) = unsafe {
        let state = |p: *mut f32| core::slice::from_raw_parts_mut(p, s.rows);
        let row = |i: usize| core::slice::from_raw_parts_mut(s.tile.add(i * s.ld), whole);
        (row, state(s.max), state(s.sum), state(s.factor), state(s.weight))
    };
    // Until the sums are known, the shifts are where they will be.
    let shift = weight;
    for i in 0..s.rows {
        row(i)[s.cols..].fill(f32::NEG_INFINITY);
        (shift[i], factor[i]) = (0.0, 0.0);
        if s.shifted {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            for part in row(i).chunks_exact(LANES) {
                for (lane, x) in lanes.iter_mut().zip(part) {
                    *lane = larger(*x, *lane);
                }
            }
            let new = larger(fold(lanes, larger), max[i]);
            // Without a score above -∞ there is nothing to subtract: all weights are 0, or NaN.
            shift[i] = if new == f32::NEG_INFINITY { 0.0 } else { new };
            factor[i] = if new > max[i] { max[i] - shift[i] } else { 0.0 };
            max[i] = new;
        }
    }
    for x in factor.iter_mut() {
        *x = vmath::exp(fused, *x);
    }
    for (i, shift) in shift.iter().enumerate() {
        for x in row(i) {
            *x = vmath::exp(fused, *x - *shift);
        }
    }
    let weight = shift;
    for i in 0..s.rows {
        let mut lanes = [0.0; LANES];
        for part in row(i).chunks_exact(LANES) {
            for (lane, x) in lanes.iter_mut().zip(part) {
                *lane += *x;
            }
        }
        weight[i] = fold(lanes, |a, b| a + b);
        sum[i] = fused.mul_add(sum[i], factor[i], weight[i]);
    }
}

/// # Safety
/// The arguments describe memory as [`Dots`] says.
#[inline(always)]
unsafe fn dot_products(d: &Dots, fused: impl FusedMultiplyAdd) {
    const M: usize = 4;
    for i0 in (0..d.m).step_by(M) {
        // SAFETY: passed on from the caller.
        unsafe {
            match d.m - i0 {
                1 => rows_of_dots::<1>(d, fused, i0),
                2 => rows_of_dots::<2>(d, fused, i0),
                3 => rows_of_dots::<3>(d, fused, i0),
                _ => rows_of_dots::<M>(d, fused, i0),
            }
        }
    }
}

/// # Safety
/// As for [`dot_products`], with rows `i0..i0 + M` present.
#[inline(always)]
unsafe fn rows_of_dots<const M: usize>(d: &Dots, fused: impl FusedMultiplyAdd, i0: usize) {
    let whole = d.depth / LANES * LANES;
    for j in 0..d.n {
        let mut sums = [[0.0f32; LANES]; M];
        // SAFETY: whole parts of the row are read, and what is left of it; rows of A are padded.
        unsafe {
            let b = d.b.offset(j as isize * d.ldb);
            let a = d.a.add(i0 * d.lda);
            for at in (0..whole).step_by(LANES) {
                add_products(&mut sums, a.add(at), d.lda, b.add(at).cast::<AttentionVector>().read_unaligned(), fused);
            }
            if whole < d.depth {
                let mut right = [0.0; LANES];
                core::ptr::copy_nonoverlapping(b.add(whole), right.as_mut_ptr(), d.depth - whole);
                add_products(&mut sums, a.add(whole), d.lda, right, fused);
            }
            for (i, sum) in sums.iter().enumerate() {
                *d.c.add((i0 + i) * d.ldc + j) = fold(*sum, |a, b| a + b);
            }
        }
    }
}

/// Adds the products of a part of each row of A with the same part of a row of B.
///
/// # Safety
/// Each of M rows has a whole part.
#[inline(always)]
unsafe fn add_products<const M: usize>(
    sums: &mut [AttentionVector; M],
    a: *const f32,
    lda: usize,
    right: AttentionVector,
    fused: impl FusedMultiplyAdd,
) {
    for (i, sum) in sums.iter_mut().enumerate() {
        // SAFETY: passed on from the caller.
        let left = unsafe { a.add(i * lda).cast::<AttentionVector>().read_unaligned() };
        for l in 0..LANES {
            sum[l] = fused.mul_add(left[l], right[l], sum[l]);
        }
    }
}

/// The bodies under the features of a ISA level.
macro_rules! level {
    ($name:ident, $fused:expr $(, $features:literal)?) => {
        pub(super) mod $name {
            use super::{Dots, Scores};

            /// # Safety
            /// As [`super::super::IsaLevel`].
            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn softmax_rows(s: &Scores) {
                // SAFETY: passed on from the caller.
                unsafe { super::weigh_rows(s, $fused) }
            }

            /// # Safety
            /// As [`super::super::IsaLevel`].
            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn qk_dot(d: &Dots) {
                // SAFETY: passed on from the caller.
                unsafe { super::dot_products(d, $fused) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
level!(avx512, crate::fused::Fma::new(), "avx512f,avx2,fma");
#[cfg(target_arch = "x86_64")]
level!(avx2, crate::fused::Fma::new(), "avx2,fma");
level!(portable, crate::fused::Baseline);
