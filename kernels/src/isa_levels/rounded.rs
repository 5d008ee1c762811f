//! Products of f32 rounded to bf16, with sums in f32: a register tile of twelve rows and 32 columns, two terms at a time.
//!
//! `vdpbf16ps` adds two products to each lane where the processor has it (AVX-512 BF16). It flushes subnormal numbers to
//! zero and rounds the sum of a pair once; results differ from those of the other levels in the last bits.

use super::{IsaLevel, LANES, NR, Panel};

/// Terms of a word: the first in its low half.
pub(crate) const PAIR: usize = 2;

/// One tile of C: `C[i, j] (+)= Σ_k A[i, k]·B[k, j]` for `i < rows ≤ MR`, `j < cols ≤ NR`; with tile registers, several side by side.
pub(crate) struct RoundedTile {
    /// Words, each a pair of terms.
    pub pairs: usize,
    /// Pair p of row i at `a[i·a_row + p]`.
    pub a: *const u32,
    pub a_row: usize,
    pub rows: usize,
    /// Pair p of column j at `b[p·NR + j]`, up to NR columns.
    pub b: *const u32,
    /// Words of B from a tile to the next.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AMX"))]
    pub b_tile: usize,
    pub cols: usize,
    /// Element (i, j) at `c[i·ldc + j]`.
    pub c: *mut f32,
    pub ldc: isize,
    /// Whether the sum continues from what C holds instead of zero.
    pub continued: bool,
    /// What to fetch into the cache for later tiles: so many pairs of [`NR`] columns, at most as many as there are; the address
    /// need not be valid.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AVX-512"))]
    pub ahead: (*const u32, usize),
}

/// A row to be rounded: term k, `scale` times `from[k·step]`, becomes a half of `to[k / 2]`, beside a zero if it is the last of an odd number.
pub(crate) struct RoundedRow {
    pub from: *const f32,
    pub step: isize,
    pub terms: usize,
    pub scale: f32,
    pub to: *mut u32,
}

/// Two rows of B, of the same panel of columns, to be rounded: column j of both becomes `to[j]`.
pub(crate) struct RoundedPair {
    /// Both rows, one after the other.
    pub rows: *const [[f32; NR]; PAIR],
    pub to: *mut [u32; NR],
}

/// Columns of B to be packed as pairs: term k of column j, at `from[k·steps[0] + j·steps[1]]`, becomes a half of `to[k / 2][j]`.
/// Columns beyond the last, and a term beside the last of an odd number, become zeros.
pub(crate) struct RoundedPanel {
    pub from: *const f32,
    pub steps: [isize; 2],
    pub terms: usize,
    /// At most [`NR`].
    pub columns: usize,
    pub to: *mut [u32; NR],
}

impl IsaLevel {
    /// # Safety
    /// The columns are readable, with any alignment, and `to` has room for the pairs.
    pub unsafe fn rounded_panel(self, p: &RoundedPanel) {
        for first in (0..p.terms).step_by(LANES) {
            let mut wide = [[0.0f32; NR]; LANES];
            let terms = LANES.min(p.terms - first);
            let panel = Panel {
                src: p.from.wrapping_offset(first as isize * p.steps[0]),
                k_stride: p.steps[0],
                j_stride: p.steps[1],
                k: terms,
                width: p.columns,
                dst: wide.as_flattened_mut().as_mut_ptr(),
                ld: NR as isize,
                pad: NR,
            };
            // SAFETY: by the caller's contract; so many terms fit.
            unsafe {
                self.panel(&panel);
                for (i, rows) in wide.as_chunks::<PAIR>().0.iter().take(terms.div_ceil(PAIR)).enumerate() {
                    self.rounded_pair(&RoundedPair { rows, to: p.to.add(first / PAIR + i) });
                }
            }
        }
    }
}

/// A number rounded to bf16, ties to even; NaNs stay NaNs.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    const QUIET: u32 = 1 << 6;
    let bits = x.to_bits();
    let nearest = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
    if x.is_nan() { bits >> 16 | QUIET } else { nearest }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn row(r: &RoundedRow) {
    let (pairs, rest) = (r.terms / PAIR, r.terms % PAIR);
    // SAFETY: by the caller's contract.
    unsafe {
        let to = core::slice::from_raw_parts_mut(r.to, pairs + rest);
        if r.step == 1 {
            let from = core::slice::from_raw_parts(r.from, PAIR * pairs).as_chunks::<PAIR>().0;
            for (to, [low, high]) in to.iter_mut().zip(from) {
                *to = rounded(*low * r.scale) | rounded(*high * r.scale) << 16;
            }
        } else {
            let term = |k: usize| rounded(*r.from.wrapping_offset(k as isize * r.step) * r.scale);
            for (p, to) in to.iter_mut().enumerate().take(pairs) {
                *to = term(PAIR * p) | term(PAIR * p + 1) << 16;
            }
        }
        if rest > 0 {
            to[pairs] = rounded(*r.from.wrapping_offset((r.terms - 1) as isize * r.step) * r.scale);
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn pair(p: &RoundedPair) {
    // SAFETY: by the caller's contract.
    unsafe {
        let ([low, high], to) = (&*p.rows, &mut *p.to);
        for (to, (low, high)) in to.iter_mut().zip(low.iter().zip(high)) {
            *to = rounded(*low) | rounded(*high) << 16;
        }
    }
}

/// The halves of a word as numbers.
#[inline(always)]
pub(super) fn halves(word: u32) -> [f32; PAIR] {
    [word << 16, word & 0xffff_0000].map(f32::from_bits)
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn tile(t: &RoundedTile) {
    for i in 0..t.rows {
        let c = t.c.wrapping_offset(i as isize * t.ldc);
        let mut sums = [0.0f32; NR];
        // SAFETY: by the caller's contract.
        unsafe {
            if t.continued {
                core::ptr::copy_nonoverlapping(c, sums.as_mut_ptr(), t.cols);
            }
            for p in 0..t.pairs {
                let [x, y] = halves(*t.a.add(i * t.a_row + p));
                let columns = &*t.b.add(p * NR).cast::<[u32; NR]>();
                for (sum, word) in sums.iter_mut().zip(columns) {
                    let [low, high] = halves(*word);
                    *sum += x * low;
                    *sum += y * high;
                }
            }
            core::ptr::copy_nonoverlapping(sums.as_ptr(), c, t.cols);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::super::{LANES, MR, NR};
    use super::{PAIR, RoundedPair, RoundedRow, RoundedTile};
    use crate::isa::has_bf16_products;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_row(r: &RoundedRow) {
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match has_bf16_products() && r.step == 1 {
                true => neighbours(r),
                false => any_row(r),
            }
        }
    }

    /// # Safety
    /// As [`rounded_row`].
    #[target_feature(enable = "avx512f")]
    unsafe fn any_row(r: &RoundedRow) {
        // SAFETY: passed on from the caller.
        unsafe { super::row(r) }
    }

    /// # Safety
    /// As [`rounded_row`], with AVX-512 BF16 and terms side by side.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn neighbours(r: &RoundedRow) {
        const TERMS: usize = 2 * LANES;
        let (scale, whole) = (_mm512_set1_ps(r.scale), r.terms / TERMS * TERMS);
        // SAFETY: the terms are in the row, and their words in what it becomes.
        unsafe {
            for k in (0..whole).step_by(TERMS) {
                let [low, high] = [0, LANES].map(|at| _mm512_mul_ps(_mm512_loadu_ps(r.from.add(k + at)), scale));
                let words = core::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(r.to.add(k / PAIR).cast(), words);
            }
            super::row(&RoundedRow {
                from: r.from.wrapping_add(whole),
                terms: r.terms - whole,
                to: r.to.wrapping_add(whole / PAIR),
                ..*r
            });
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn rounded_pair(p: &RoundedPair) {
        // SAFETY: passed on from the caller.
        unsafe { super::pair(p) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_tile(t: &RoundedTile) {
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match has_bf16_products() {
                true => dispatch(t),
                false => super::avx2::rounded_tile(t),
            }
        }
    }

    /// # Safety
    /// As [`rounded_tile`], with AVX-512 BF16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn dispatch(t: &RoundedTile) {
        macro_rules! rows {
            ($($m:literal)*) => {
                // SAFETY: passed on from the caller.
                unsafe {
                    match t.rows {
                        $($m => block::<$m>(t),)*
                        _ => block::<MR>(t),
                    }
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8 9 10 11)
    }

    /// # Safety
    /// As [`dispatch`], with `t.rows == M`.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn block<const M: usize>(t: &RoundedTile) {
        const V: usize = NR / LANES;
        let masks: [u16; V] = core::array::from_fn(|v| {
            let lanes = t.cols.saturating_sub(v * LANES).min(LANES);
            ((1u32 << lanes) - 1) as u16
        });
        let mut acc = [[_mm512_setzero_ps(); V]; M];
        // SAFETY: lanes outside the tile are masked off in C; A and B are readable by the caller's contract.
        unsafe {
            for (i, row) in acc.iter_mut().enumerate().filter(|_| t.continued) {
                for (v, sum) in row.iter_mut().enumerate() {
                    let c = t.c.offset(i as isize * t.ldc).wrapping_add(v * LANES);
                    *sum = _mm512_maskz_loadu_ps(masks[v], c);
                }
            }
            let (mut a, mut b, (mut ahead, lines)) = (t.a, t.b, t.ahead);
            for pair in 0..t.pairs {
                if pair < lines {
                    for v in 0..V {
                        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(v * LANES).cast());
                    }
                    ahead = ahead.wrapping_add(NR);
                }
                let columns: [__m512bh; V] =
                    core::array::from_fn(|v| core::mem::transmute(_mm512_loadu_si512(b.add(v * LANES).cast())));
                for (i, row) in acc.iter_mut().enumerate() {
                    let word = _mm512_set1_epi32(*a.add(i * t.a_row) as i32);
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, core::mem::transmute::<__m512i, __m512bh>(word), column);
                    }
                }
                a = a.wrapping_add(1);
                b = b.wrapping_add(NR);
            }
            for (i, row) in acc.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    let c = t.c.offset(i as isize * t.ldc).wrapping_add(v * LANES);
                    _mm512_mask_storeu_ps(c, masks[v], *sum);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use super::{RoundedPair, RoundedRow, RoundedTile};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn rounded_row(r: &RoundedRow) {
        // SAFETY: passed on from the caller.
        unsafe { super::row(r) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn rounded_pair(p: &RoundedPair) {
        // SAFETY: passed on from the caller.
        unsafe { super::pair(p) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn rounded_tile(t: &RoundedTile) {
        // SAFETY: passed on from the caller.
        unsafe { super::tile(t) }
    }
}

pub(super) mod portable {
    use super::{RoundedPair, RoundedRow, RoundedTile};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_row(r: &RoundedRow) {
        // SAFETY: passed on from the caller.
        unsafe { super::row(r) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_pair(p: &RoundedPair) {
        // SAFETY: passed on from the caller.
        unsafe { super::pair(p) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_tile(t: &RoundedTile) {
        // SAFETY: passed on from the caller.
        unsafe { super::tile(t) }
    }
}
