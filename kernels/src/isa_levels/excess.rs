//! Weights whose products with unsigned bytes can be added up in 16 bits, two or four at a time, and what is left of others.
//!
//! A pair is two neighbouring weights; a quad is a pair and another one some bytes behind it. Where weights of one sign make more
//! than 128 together, the sum may not fit. They are reduced until they make 128; what they had beyond is multiplied by itself.

use super::{INTEGER_COLS, IsaLevel, TERMS};

/// Largest sum of the weights of one sign: times 255 it fits 16 bits.
const MOST: i16 = 128;
/// Bytes that are looked at together.
const BYTES: usize = 32;
/// How many more weights with an excess the first ones may have than their share.
const SLACK: usize = 16;

/// What is added up in 16 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums16 {
    Pairs,
    Quads,
}

/// Panels of signed weights to be narrowed.
#[derive(Clone, Copy)]
pub(crate) struct NarrowedRow {
    pub from: *const i8,
    /// Whole vectors of them.
    pub terms: usize,
    pub sums: Sums16,
    /// Terms from the first pair of a quad to the second: [`TERMS`], or whole vectors. The last quads may have one pair each.
    pub apart: usize,
    pub to: *mut i8,
    /// What weights have beyond their narrowed ones, as (term, value).
    pub excess: *mut [i32; 2],
    pub room: usize,
    /// How many there are; where that is more than `room`, weights have not been narrowed to the end.
    pub found: *mut usize,
}

impl IsaLevel {
    /// Narrows weights for the first kind of sums for which at most one of so many weights has an excess. Returns the kind, and the number
    /// of weights with an excess.
    ///
    /// # Safety
    /// As [`IsaLevel`]; there is room for what is left of weights that are narrowed.
    pub unsafe fn narrowed(self, row: NarrowedRow, shares: [(Sums16, usize); 2]) -> Option<(Sums16, usize)> {
        shares.into_iter().find_map(|(sums, share)| {
            let mut found = 0;
            let row = NarrowedRow { sums, room: row.room.min(row.terms / share), found: &raw mut found, ..row };
            // SAFETY: passed on from the caller.
            unsafe { self.narrowed_row(&row) };
            (found <= row.room).then_some((sums, found))
        })
    }
}

impl NarrowedRow {
    /// Whether too many weights have an excess, when so many terms have been narrowed.
    #[inline(always)]
    fn fails(&self, done: usize) -> bool {
        // SAFETY: it is the caller's.
        let found = unsafe { *self.found };
        found > self.room || found > SLACK + self.room * done / self.terms
    }

    /// Lists more than there is room for.
    fn give_up(&self) {
        // SAFETY: as above.
        unsafe { *self.found = self.room + 1 };
    }

    /// Narrows the pair that begins at `first`, which has been copied, or the quad, unless a quad before has it.
    ///
    /// # Safety
    /// As [`super::IsaLevel`].
    #[inline]
    unsafe fn narrow(&self, first: usize) {
        let quads = self.sums == Sums16::Quads;
        if quads && first & self.apart != 0 {
            return;
        }
        let second = first + self.apart;
        let terms = [first, first + 1, second, second + 1];
        let count = if quads && second < self.terms { 4 } else { 2 };
        for positive in [true, false] {
            // SAFETY: by the caller's contract.
            unsafe { self.reduce(&terms[..count], positive) };
        }
    }

    /// Reduces the weights of one sign, the last ones first, until they fit.
    ///
    /// # Safety
    /// As [`super::IsaLevel`].
    #[inline]
    unsafe fn reduce(&self, terms: &[usize], positive: bool) {
        // SAFETY: by the caller's contract; so many are listed as there is room for.
        unsafe {
            let weight = |at: usize| {
                let weight = i16::from(*self.to.add(at));
                if positive { weight.max(0) } else { -weight.min(0) }
            };
            let mut beyond = terms.iter().map(|at| weight(*at)).sum::<i16>() - MOST;
            for at in terms.iter().rev() {
                if beyond <= 0 {
                    return;
                }
                let [all, taken] = [weight(*at), weight(*at).min(beyond)];
                if taken > 0 {
                    let signed = |x: i16| if positive { x } else { -x };
                    *self.to.add(*at) = signed(all - taken) as i8;
                    if *self.found < self.room {
                        *self.excess.add(*self.found) = [*at as i32, i32::from(signed(taken))];
                    }
                    *self.found += 1;
                    beyond -= taken;
                }
            }
        }
    }
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

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;

    use super::{BYTES, Excess, INTEGER_COLS, MOST, NarrowedRow, Sums16, TERMS};

    /// Columns of a vector.
    const LANES: usize = 8;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn narrowed_row(r: &NarrowedRow) {
        // SAFETY: passed on from the caller.
        unsafe {
            match r.sums {
                Sums16::Pairs => narrowed_pairs(r),
                Sums16::Quads => narrowed_quads(r),
            }
        }
    }

    /// # Safety
    /// As [`narrowed_row`].
    #[target_feature(enable = "avx2")]
    unsafe fn narrowed_pairs(r: &NarrowedRow) {
        let (most, least) = (_mm256_set1_epi16(MOST), _mm256_set1_epi16(-MOST));
        for at in (0..r.terms).step_by(BYTES) {
            // SAFETY: by the caller's contract.
            unsafe {
                let weights = _mm256_loadu_si256(r.from.add(at).cast());
                let first = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(weights));
                let second = _mm256_srai_epi16::<8>(weights);
                // What the first of a pair leaves for the second.
                let kept = _mm256_min_epi16(second, _mm256_sub_epi16(most, first));
                let kept = _mm256_max_epi16(kept, _mm256_sub_epi16(least, first));
                let pairs = _mm256_blendv_epi8(_mm256_slli_epi16::<8>(kept), weights, _mm256_set1_epi16(0xff));
                _mm256_storeu_si256(r.to.add(at).cast(), pairs);
                let beyond = _mm256_sub_epi16(second, kept);
                let equal = _mm256_movemask_epi8(_mm256_cmpeq_epi16(beyond, _mm256_setzero_si256()));
                list(r, at + 1, !equal as u32, beyond);
            }
            if r.fails(at + BYTES) {
                return r.give_up();
            }
        }
    }

    /// Lists what pairs of weights have beyond their narrowed ones, with the terms from `first` on; there are two bits for a pair that
    /// has any.
    ///
    /// # Safety
    /// As [`narrowed_row`].
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn list(r: &NarrowedRow, first: usize, mut pairs: u32, beyond: __m256i) {
        if pairs == 0 {
            return;
        }
        let mut values = [0i16; BYTES / 2];
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
    /// As [`narrowed_row`].
    #[target_feature(enable = "avx2")]
    unsafe fn narrowed_quads(r: &NarrowedRow) {
        let within = r.apart < BYTES;
        // First pairs of quads lie side by side, and the second ones behind them.
        let [firsts, both] = if within { [BYTES; 2] } else { [r.apart, 2 * r.apart] };
        let copied = |at: usize| {
            // SAFETY: by the caller's contract.
            unsafe {
                let weights = _mm256_loadu_si256(r.from.add(at).cast());
                _mm256_storeu_si256(r.to.add(at).cast(), weights);
                sums(weights)
            }
        };
        for start in (0..r.terms).step_by(both) {
            for at in (start..start + firsts).step_by(BYTES) {
                let first = copied(at);
                let second = match at + r.apart < r.terms {
                    true if within => first.map(|sums| _mm256_shuffle_epi32::<0xb1>(sums)),
                    true => copied(at + r.apart),
                    false => [_mm256_setzero_si256(); 2],
                };
                let mut beyond = beyond(first, second);
                while beyond != 0 {
                    let pair = beyond.trailing_zeros();
                    // SAFETY: by the caller's contract.
                    unsafe { r.narrow(at + pair as usize) };
                    beyond &= !(3 << pair);
                }
            }
            if r.fails(start + both) {
                return r.give_up();
            }
        }
    }

    /// Sums of the positive and of the negative weights of pairs.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sums(weights: __m256i) -> [__m256i; 2] {
        let (zero, ones) = (_mm256_setzero_si256(), _mm256_set1_epi8(1));
        [_mm256_max_epi8(weights, zero), _mm256_min_epi8(weights, zero)].map(|w| _mm256_maddubs_epi16(ones, w))
    }

    /// Two bits for each pair whose sum does not fit.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn beyond(first: [__m256i; 2], second: [__m256i; 2]) -> u32 {
        let [positive, negative] = core::array::from_fn(|i| _mm256_add_epi16(first[i], second[i]));
        let more = _mm256_cmpgt_epi16(positive, _mm256_set1_epi16(MOST));
        let less = _mm256_cmpgt_epi16(_mm256_set1_epi16(-MOST), negative);
        _mm256_movemask_epi8(_mm256_or_si256(more, less)) as u32
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
    use super::{BYTES, Excess, INTEGER_COLS, NarrowedRow, TERMS};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn narrowed_row(r: &NarrowedRow) {
        // SAFETY: passed on from the caller.
        unsafe {
            core::ptr::copy_nonoverlapping(r.from, r.to, r.terms);
            for done in (0..r.terms).step_by(BYTES) {
                (done..done + BYTES).step_by(2).for_each(|first| r.narrow(first));
                if r.fails(done + BYTES) {
                    return r.give_up();
                }
            }
        }
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
