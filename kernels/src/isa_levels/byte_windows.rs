//! Windows of bytes, copied to panels of [`INTEGER_COLS`](super::INTEGER_COLS) columns: of each group of [`TERMS`](super::TERMS) terms
//! four bytes for each column.

use super::{INTEGER_COLS, TERMS};

/// Bytes of a group of a panel.
const GROUP: usize = INTEGER_COLS * TERMS;
/// Columns whose terms are put together at once.
const COLS: usize = 16;

/// Columns of a panel that are pixels side by side.
#[derive(Clone, Copy, Default)]
pub(crate) struct ColumnRun {
    /// Pixels to the first one.
    pub from: usize,
    pub column: usize,
    pub len: usize,
}

/// Groups whose bytes lie together. Some bytes behind a run are read and, before the next run or group, written.
pub(crate) struct QuadWindows<'a> {
    pub runs: &'a [ColumnRun],
    /// Pixel i of group g at `from[g·step + i·TERMS]`.
    pub from: *const u8,
    pub step: usize,
    pub groups: usize,
    /// Column j of group g at `to[(g·INTEGER_COLS + j)·TERMS]`.
    pub to: *mut u8,
}

/// Groups whose bytes lie apart. What is said of [`QuadWindows`] holds for what is written.
pub(crate) struct TermWindows<'a> {
    pub runs: &'a [ColumnRun],
    /// Pixel i of term t at `from[places[t] + i]`. Terms come in whole groups.
    pub from: *const u8,
    pub places: &'a [u32],
    /// Whether there are [`COLS`] readable bytes behind each pixel.
    pub readable: bool,
    pub to: *mut u8,
}

/// Copies parts of `N` bytes.
///
/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn quads<const N: usize>(w: &QuadWindows<'_>) {
    for group in 0..w.groups {
        for run in w.runs {
            let from = w.from.wrapping_add(group * w.step + run.from * TERMS);
            let to = w.to.wrapping_add(group * GROUP + run.column * TERMS);
            for at in (0..run.len * TERMS).step_by(N) {
                // SAFETY: by the caller's contract.
                unsafe { to.add(at).cast::<[u8; N]>().write(from.add(at).cast::<[u8; N]>().read()) };
            }
        }
    }
}

/// Puts groups together, [`COLS`] columns at once by `join`.
///
/// # Safety
/// As [`super::IsaLevel`]; `join` writes four bytes of so many columns.
#[inline(always)]
unsafe fn terms(w: &TermWindows<'_>, join: impl Fn([*const u8; TERMS], *mut u8)) {
    for (group, places) in w.places.as_chunks::<TERMS>().0.iter().enumerate() {
        for run in w.runs {
            let from = places.map(|place| w.from.wrapping_add(place as usize + run.from));
            let to = w.to.wrapping_add(group * GROUP + run.column * TERMS);
            for first in (0..run.len).step_by(COLS) {
                let (from, to) = (from.map(|from| from.wrapping_add(first)), to.wrapping_add(first * TERMS));
                if w.readable || run.len - first >= COLS {
                    join(from, to);
                    continue;
                }
                let mut rest = [[0; COLS]; TERMS];
                for (rest, from) in rest.iter_mut().zip(from) {
                    // SAFETY: so many columns are left.
                    unsafe { core::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), run.len - first) };
                }
                join(rest.each_ref().map(|rest| rest.as_ptr()), to);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::{QuadWindows, TermWindows};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn quad_windows(w: &QuadWindows<'_>) {
        // SAFETY: passed on from the caller.
        unsafe { super::quads::<64>(w) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn term_windows(w: &TermWindows<'_>) {
        // SAFETY: passed on from the caller; what is joined is readable, and its place writable.
        unsafe {
            super::terms(w, |from, to| {
                let [a, b, c, d] = from.map(|from| _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())));
                let low = _mm512_or_si512(a, _mm512_slli_epi32::<8>(b));
                let high = _mm512_or_si512(_mm512_slli_epi32::<16>(c), _mm512_slli_epi32::<24>(d));
                _mm512_storeu_si512(to.cast(), _mm512_or_si512(low, high));
            });
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;

    use super::super::integer::interleaved;
    use super::{QuadWindows, TermWindows};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn quad_windows(w: &QuadWindows<'_>) {
        // SAFETY: passed on from the caller.
        unsafe { super::quads::<32>(w) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn term_windows(w: &TermWindows<'_>) {
        // SAFETY: passed on from the caller; what is joined is readable, and its place writable.
        unsafe {
            super::terms(w, |from, to| {
                let columns = interleaved(from.map(|from| _mm_loadu_si128(from.cast())));
                to.cast::<[__m128i; 4]>().write_unaligned(columns);
            });
        }
    }
}

pub(super) mod portable {
    use super::{COLS, QuadWindows, TERMS, TermWindows};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn quad_windows(w: &QuadWindows<'_>) {
        // SAFETY: passed on from the caller.
        unsafe { super::quads::<16>(w) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn term_windows(w: &TermWindows<'_>) {
        // SAFETY: passed on from the caller; what is joined is readable, and its place writable.
        unsafe {
            super::terms(w, |from, to| {
                for column in 0..COLS {
                    let terms: [u8; TERMS] = from.map(|from| *from.add(column));
                    to.add(column * TERMS).cast::<[u8; TERMS]>().write(terms);
                }
            });
        }
    }
}
