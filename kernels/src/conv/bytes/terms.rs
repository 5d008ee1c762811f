//! The terms of filters of bytes `[oc, kh, kw, ic]` in groups of four, in the order in which a tile adds them up, and the
//! packed form of filters: panels of at most [`MR`] filters of nearly equal number, for each chunk of groups its weights of one
//! filter after the other. Weights that there are not are 0, also those behind the last group of a chunk that is packed ahead of time.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvPass};

use crate::blocking::{EvenSplit, row_panels};
use crate::isa_levels::{CHUNK, MR, TERMS};

/// Groups of terms that a tile adds up at a time: what sixteen columns of it read stays in the first-level cache.
const DEPTH: usize = 128;

/// What a filter reads: taps, each of so many channels.
#[derive(Clone, Copy)]
pub(super) struct FilterTerms {
    pub taps: usize,
    pub channels: usize,
    /// Whether filters are packed ahead of time: their terms are added up in turn, and not some channels of all taps before the next
    /// ones; and zeros fill their last chunk.
    filled: bool,
}

impl FilterTerms {
    pub fn new(call: &Conv2d) -> FilterTerms {
        let channels = call.in_channels as usize;
        FilterTerms {
            taps: (call.kernel[0] * call.kernel[1]) as usize,
            channels,
            filled: call.pass == ConvPass::PackedBytes,
        }
    }

    pub fn count(&self) -> usize {
        self.taps * self.channels
    }

    pub fn groups(&self) -> usize {
        self.count().div_ceil(TERMS)
    }

    /// Groups of a filter in a panel.
    pub fn packed_groups(&self) -> usize {
        if self.filled { self.groups().next_multiple_of(CHUNK) } else { self.groups() }
    }

    /// Whether all terms are added up in turn.
    fn in_turn(&self) -> bool {
        self.filled || !self.by_channels()
    }

    /// Whether a group is four channels of a tap, and not of several taps.
    pub fn by_channels(&self) -> bool {
        self.channels.is_multiple_of(TERMS)
    }

    /// Channels that lie side by side where an image is staged.
    pub fn channels_together(&self) -> usize {
        if self.by_channels() { TERMS } else { 1 }
    }

    /// Runs of groups that lie one after the other: the groups of channels of each tap, or all groups.
    pub fn runs(&self) -> usize {
        if self.in_turn() { 1 } else { self.taps }
    }

    /// Groups of a run.
    pub fn of_run(&self) -> usize {
        if self.in_turn() { self.groups() } else { self.channels / TERMS }
    }

    /// Parts of a run, in whole chunks but for the last one. A part of all runs is added up before the next one.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let groups = self.of_run();
        let parts = EvenSplit::by(groups.div_ceil(CHUNK), (DEPTH / self.runs().max(1) / CHUNK).max(1));
        (0..parts.parts()).map(move |part| parts.start(part) * CHUNK..groups.min(parts.start(part + 1) * CHUNK))
    }

    /// Chunks of groups of a run, in the order in which they are packed: the run, and the groups.
    fn chunks(self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let of_run = |part: Range<usize>| part.clone().step_by(CHUNK).map(move |g| g..part.end.min(g + CHUNK));
        self.parts().flat_map(move |part| {
            (0..self.runs()).flat_map(move |run| of_run(part.clone()).map(move |groups| (run, groups)))
        })
    }

    /// A term that there is: weights of others are 0, whatever they are multiplied with.
    pub fn readable(&self, term: usize) -> usize {
        if term < self.count() { term } else { term / TERMS * TERMS }
    }

    /// The first term of a group of a run.
    fn first(&self, run: usize, group: usize) -> usize {
        run * self.channels + group * TERMS
    }
}

/// The filter and the term at byte `at` of a panel of so many filters that is packed ahead of time.
pub(super) fn packed_place(filters: usize, at: usize) -> (usize, usize) {
    let (chunk, within) = (at / (filters * CHUNK * TERMS), at % (filters * CHUNK * TERMS));
    (within / (CHUNK * TERMS), chunk * CHUNK * TERMS + within % (CHUNK * TERMS))
}

/// Filters in panels.
pub(super) fn panels(call: &Conv2d) -> EvenSplit {
    row_panels(call.out_channels as usize)
}

/// Elements of four bytes of the packed form.
pub(super) fn packed_len(call: &Conv2d) -> usize {
    call.out_channels as usize * FilterTerms::new(call).packed_groups()
}

/// Writes some panels.
///
/// # Safety
/// `src` addresses the weights of their filters, and `dst` has [`packed_len`] elements.
pub(super) unsafe fn pack(call: &Conv2d, units: Range<usize>, src: *const i8, dst: &mut [f32]) {
    let (terms, panels) = (FilterTerms::new(call), panels(call));
    let first = panels.start(units.start);
    for filters in units.map(|unit| panels.range(unit)) {
        let from = src.wrapping_add((filters.start - first) * terms.count());
        let to = dst[filters.start * terms.packed_groups()..filters.end * terms.packed_groups()].as_mut_ptr().cast();
        // SAFETY: by the caller's contract.
        unsafe { pack_panel(terms, filters.len(), from, to) };
    }
}

/// Writes a panel of so many filters.
///
/// # Safety
/// `from` addresses their weights, one filter after the other, and `to` has room for their groups.
pub(super) unsafe fn pack_panel(terms: FilterTerms, filters: usize, from: *const i8, to: *mut i8) {
    debug_assert!(filters <= MR, "a panel of at most {MR} filters");
    let mut to = to.cast::<[i8; TERMS]>();
    for (run, groups) in terms.chunks() {
        let room = if terms.filled { CHUNK } else { groups.len() };
        for weights in (0..filters).map(|filter| from.wrapping_add(filter * terms.count())) {
            for first in groups.clone().map(|group| terms.first(run, group)) {
                // SAFETY: the weights are the filter's, and the group has room for four.
                unsafe {
                    match terms.count() - first {
                        TERMS.. => to.write(weights.add(first).cast::<[i8; TERMS]>().read()),
                        count => {
                            to.write([0; TERMS]);
                            core::ptr::copy_nonoverlapping(weights.add(first), to.cast(), count);
                        }
                    }
                }
                to = to.wrapping_add(1);
            }
            for _ in groups.len()..room {
                // SAFETY: the chunk has room for them.
                unsafe { to.write([0; TERMS]) };
                to = to.wrapping_add(1);
            }
        }
    }
}
