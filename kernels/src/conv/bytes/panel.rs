//! Panels of filters as they are multiplied: where they are packed, packed on the way, or narrowed for processors that add
//! pairs of products in 16 bits ([`NarrowedRow`]).

use core::ops::Range;

use super::terms::{FilterTerms, pack_panel, packed_place};
use crate::isa_levels::{Excess, INTEGER_COLS, IsaLevel, MR, NarrowedRow, Sums16, TERMS};

/// Of how many weights one may have an excess, in sums of two weights and of four.
const EXCESS_SHARE: usize = 20;
const QUADS_SHARE: usize = 100;
/// Fewest columns that are worth narrowing a panel.
const NARROWED_COLS: usize = INTEGER_COLS;

/// Memory for a panel.
#[derive(Clone, Copy)]
pub(super) struct PanelScratch {
    /// Filters that are packed on the way, or narrowed.
    pub weights: *mut i8,
    /// Places and values of what narrowed weights had beyond.
    pub excess: *mut [i32; 2],
}

impl PanelScratch {
    /// Elements of four bytes of each part.
    pub fn sizes(terms: FilterTerms) -> [usize; 2] {
        [MR * terms.packed_groups(), 2 * most_excess(terms)]
    }
}

/// Most weights of a panel that have an excess.
fn most_excess(terms: FilterTerms) -> usize {
    MR * terms.groups() * TERMS / EXCESS_SHARE
}

/// Filters that are multiplied together.
pub(super) struct FilterPanel {
    /// Groups of weights ([`super::terms`]).
    pub weights: *const i8,
    pub filters: usize,
    excess: *const [i32; 2],
    /// What the weights are narrowed for, and where the excess of each filter ends, if they are.
    narrowed: Option<(Sums16, [usize; MR])>,
}

impl FilterPanel {
    /// The panel of some filters. If they are packed, it is narrowed where the processor needs that, for at least [`NARROWED_COLS`]
    /// columns and few weights with an excess. `weights`: all filters, `packed` or row-major.
    ///
    /// # Safety
    /// The filters exist, and scratch has the sizes of [`PanelScratch::sizes`].
    pub unsafe fn new(
        level: IsaLevel,
        terms: FilterTerms,
        (weights, packed): (*const i8, bool),
        filters: Range<usize>,
        columns: usize,
        scratch: &PanelScratch,
    ) -> FilterPanel {
        let rows = filters.len();
        let plain = FilterPanel { weights: scratch.weights, filters: rows, excess: scratch.excess, narrowed: None };
        if !packed {
            // SAFETY: by the caller's contract.
            unsafe { pack_panel(terms, rows, weights.wrapping_add(filters.start * terms.count()), scratch.weights) };
            return plain;
        }
        let plain =
            FilterPanel { weights: weights.wrapping_add(filters.start * terms.packed_groups() * TERMS), ..plain };
        if !level.widens() || columns < NARROWED_COLS {
            return plain;
        }
        let row = NarrowedRow {
            from: plain.weights,
            terms: rows * terms.packed_groups() * TERMS,
            sums: Sums16::Quads,
            apart: TERMS,
            to: scratch.weights,
            excess: scratch.excess,
            room: most_excess(terms),
            found: core::ptr::null_mut(),
        };
        // SAFETY: by the caller's contract; so many are listed as are found.
        unsafe {
            let shares = [(Sums16::Quads, QUADS_SHARE), (Sums16::Pairs, EXCESS_SHARE)];
            let Some((sums, found)) = level.narrowed(row, shares) else { return plain };
            let ends = by_filter(core::slice::from_raw_parts_mut(scratch.excess, found), rows);
            FilterPanel { weights: scratch.weights, narrowed: Some((sums, ends)), ..plain }
        }
    }

    /// What the weights are narrowed for, if they are.
    pub fn narrowed(&self) -> Option<Sums16> {
        self.narrowed.map(|(sums, _)| sums)
    }

    /// Adds what the weights had beyond their narrowed ones.
    ///
    /// # Safety
    /// [`INTEGER_COLS`] columns are readable from `b` on, and sums writable in each row of `c`.
    pub unsafe fn add_excess(&self, level: IsaLevel, b: *const u8, (c, ldc): (*mut i32, isize)) {
        let mut first = 0;
        let ends = self.narrowed.iter().flat_map(|(_, ends)| ends);
        for (filter, end) in ends.enumerate().take(self.filters) {
            if first < *end {
                // SAFETY: so many are listed; what they are multiplied with is staged.
                unsafe {
                    let values = core::slice::from_raw_parts(self.excess.add(first), end - first);
                    level.add_excess(&Excess { values, b, c: c.wrapping_offset(filter as isize * ldc) });
                }
            }
            first = *end;
        }
    }
}

/// Makes a list of (place in a packed panel, value) one of (place of the first column, value), in the order of filters; where each
/// filter's end.
fn by_filter(listed: &mut [[i32; 2]], filters: usize) -> [usize; MR] {
    let filter = |at: i32| packed_place(filters, at as usize).0;
    let mut ends = [0; MR];
    listed.iter().for_each(|[at, _]| ends[filter(*at)] += 1);
    let (mut next, mut before) = ([0; MR], 0);
    for (next, end) in next.iter_mut().zip(&mut ends) {
        (*next, *end) = (before, before + *end);
        before = *end;
    }
    for of in 0..filters {
        while next[of] < ends[of] {
            let at = next[of];
            let other = filter(listed[at][0]);
            listed.swap(at, next[other]);
            next[other] += 1;
        }
    }
    for [at, _] in listed {
        let (_, term) = packed_place(filters, *at as usize);
        *at = (term / TERMS * INTEGER_COLS * TERMS + term % TERMS) as i32;
    }
    ends
}
