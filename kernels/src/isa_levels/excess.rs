//! Filters whose products with unsigned bytes can be added in pairs of 16 bits, and what is left of them.
//!
//! Two weights of one sign that make more than 128 together are a pair whose sum may saturate. The first is reduced until they
//! make 128; what it had beyond is multiplied by itself.

use core::ops::Range;

use super::{INTEGER_COLS, TERMS};

/// Largest sum of the weights of a pair with one sign: times 255 it fits 16 bits.
const MOST_PAIR: i16 = 128;

/// A row of signed weights to be narrowed.
pub(crate) struct NarrowedRow {
    pub from: *const i8,
    pub terms: usize,
    pub to: *mut i8,
    /// What weights have beyond their narrowed ones, as (term, value).
    pub excess: *mut [i32; 2],
    pub room: usize,
    /// How many there are; beyond `room`, the row is not narrowed to its end.
    pub found: *mut usize,
}

/// What the excess of a row adds to [`INTEGER_COLS`] columns of C.
pub(crate) struct Excess<'a> {
    /// Bytes from `b` to the term of the first column, and the value.
    pub values: &'a [[i32; 2]],
    /// Columns are [`TERMS`] bytes apart.
    pub b: *const u8,
    /// All of the columns are writable.
    pub c: *mut i32,
}

/// Narrows the weights of a row from `first` up to `end`.
///
/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn narrow(r: &NarrowedRow, terms: Range<usize>) {
    for pair in terms.step_by(2) {
        // SAFETY: by the caller's contract; terms come in groups.
        unsafe {
            let [mut x, y] = [0, 1].map(|i| i16::from(*r.from.add(pair + i)));
            if (x < 0) == (y < 0) && (x + y).abs() > MOST_PAIR {
                let kept = if x < 0 { -MOST_PAIR - y } else { MOST_PAIR - y };
                if *r.found < r.room {
                    *r.excess.add(*r.found) = [pair as i32, i32::from(x - kept)];
                }
                *r.found += 1;
                x = kept;
            }
            *r.to.add(pair) = x as i8;
            *r.to.add(pair + 1) = y as i8;
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;

    use super::{Excess, INTEGER_COLS, MOST_PAIR, NarrowedRow, TERMS, narrow};

    /// Columns of a vector.
    const LANES: usize = 8;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn narrowed_row(r: &NarrowedRow) {
        const BYTES: usize = 32;
        let (most, least) = (_mm256_set1_epi16(MOST_PAIR), _mm256_set1_epi16(-MOST_PAIR));
        let mut done = 0;
        // SAFETY: by the caller's contract.
        unsafe {
            while done + BYTES <= r.terms && *r.found <= r.room {
                let weights = _mm256_loadu_si256(r.from.add(done).cast());
                let x = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(weights));
                let y = _mm256_srai_epi16::<8>(weights);
                // What the second of a pair leaves for the first.
                let kept = _mm256_min_epi16(x, _mm256_sub_epi16(most, y));
                let kept = _mm256_max_epi16(kept, _mm256_sub_epi16(least, y));
                let pair = _mm256_blendv_epi8(kept, weights, _mm256_set1_epi16(-256));
                _mm256_storeu_si256(r.to.add(done).cast(), pair);
                let beyond = _mm256_sub_epi16(x, kept);
                let equal = _mm256_movemask_epi8(_mm256_cmpeq_epi16(beyond, _mm256_setzero_si256()));
                list(r, done, !equal as u32, beyond);
                done += BYTES;
            }
            if *r.found <= r.room {
                narrow(r, done..r.terms);
            }
        }
    }

    /// Lists what pairs of weights from `first` on have beyond their narrowed ones; there are two bits for a pair that has any.
    ///
    /// # Safety
    /// As [`narrowed_row`].
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn list(r: &NarrowedRow, first: usize, mut pairs: u32, beyond: __m256i) {
        if pairs == 0 {
            return;
        }
        let mut values = [0i16; 16];
        // SAFETY: the list has room for as many as it says.
        unsafe {
            _mm256_storeu_si256(values.as_mut_ptr().cast(), beyond);
            while pairs != 0 {
                let at = pairs.trailing_zeros() as usize;
                if *r.found < r.room {
                    *r.excess.add(*r.found) = [(first + at) as i32, i32::from(values[at / 2])];
                }
                *r.found += 1;
                pairs &= !(3 << at);
            }
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn add_excess(e: &Excess<'_>) {
        const V: usize = INTEGER_COLS / LANES;
        // SAFETY: all columns are readable and writable by the caller's contract.
        unsafe {
            let mut acc: [__m256i; V] = core::array::from_fn(|v| _mm256_loadu_si256(e.c.add(LANES * v).cast()));
            for [offset, value] in e.values {
                let value = _mm256_set1_epi32(value & 0xffff);
                for (v, sum) in acc.iter_mut().enumerate() {
                    let terms = _mm256_loadu_si256(e.b.add(*offset as usize + TERMS * LANES * v).cast());
                    let terms = _mm256_and_si256(terms, _mm256_set1_epi32(0xff));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(terms, value));
                }
            }
            for (v, sum) in acc.iter().enumerate() {
                _mm256_storeu_si256(e.c.add(LANES * v).cast(), *sum);
            }
        }
    }
}

pub(super) mod portable {
    use super::{Excess, INTEGER_COLS, NarrowedRow, TERMS, narrow};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn narrowed_row(r: &NarrowedRow) {
        // SAFETY: passed on from the caller.
        unsafe { narrow(r, 0..r.terms) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn add_excess(e: &Excess<'_>) {
        // SAFETY: all columns are readable and writable by the caller's contract.
        unsafe {
            let sums = &mut *e.c.cast::<[i32; INTEGER_COLS]>();
            for [offset, value] in e.values {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.wrapping_add(value * i32::from(*e.b.add(*offset as usize + TERMS * j)));
                }
            }
        }
    }
}
