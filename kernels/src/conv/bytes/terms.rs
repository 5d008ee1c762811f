//! The terms of filters of bytes `[oc, kh, kw, ic]` in groups of four, in the order in which a tile adds them up, and the
//! packed form of filters: panels of at most [`MR`] filters of nearly equal number, for each group four weights of one filter
//! after the other. Weights that there are not are 0.

use core::ops::Range;

use tensorc_abi::Conv2d;

use crate::blocking::{EvenSplit, row_panels};
use crate::isa_levels::{MR, TERMS};

/// Groups of terms that a tile adds up at a time: what sixteen columns of it read stays in the first-level cache.
const DEPTH: usize = 128;

/// What a filter reads: taps, each of so many channels.
#[derive(Clone, Copy)]
pub(super) struct FilterTerms {
    pub taps: usize,
    pub channels: usize,
}

impl FilterTerms {
    pub fn new(call: &Conv2d) -> FilterTerms {
        FilterTerms { taps: (call.kernel[0] * call.kernel[1]) as usize, channels: call.in_channels as usize }
    }

    pub fn count(&self) -> usize {
        self.taps * self.channels
    }

    pub fn groups(&self) -> usize {
        self.count().div_ceil(TERMS)
    }

    /// Whether a group is four channels of a tap, and not any four terms in turn.
    pub fn by_channels(&self) -> bool {
        self.channels.is_multiple_of(TERMS)
    }

    /// Channels that lie side by side where an image is staged.
    pub fn channels_together(&self) -> usize {
        if self.by_channels() { TERMS } else { 1 }
    }

    /// Groups of channels, if a group is four of them.
    pub fn quads(&self) -> usize {
        self.channels / TERMS
    }

    /// Groups of channels that all taps have a turn with before the next ones.
    pub fn quad_parts(&self) -> EvenSplit {
        EvenSplit::by(self.quads(), (DEPTH / self.taps.max(1)).max(1))
    }

    /// Groups of a panel that are added up together, in their order.
    pub fn parts(&self) -> EvenSplit {
        EvenSplit::by(self.groups(), DEPTH)
    }

    /// The first term of each group.
    pub fn firsts(self) -> impl Iterator<Item = usize> {
        let parts = if self.by_channels() { self.quad_parts() } else { EvenSplit::into(0, 1) };
        let of_part = move |part: usize| {
            let quads = parts.range(part);
            (0..self.taps).flat_map(move |tap| quads.clone().map(move |quad| tap * self.channels + quad * TERMS))
        };
        let in_turn = if self.by_channels() { 0 } else { self.groups() };
        (0..parts.parts()).flat_map(of_part).chain((0..in_turn).map(|group| group * TERMS))
    }

    /// The first term of a group.
    pub fn first(&self, group: usize) -> usize {
        if !self.by_channels() {
            return group * TERMS;
        }
        let parts = self.quad_parts();
        let starts = (0..parts.parts()).map(|part| parts.range(part));
        let quads = starts.take_while(|quads| quads.start * self.taps <= group).last().unwrap_or(0..1);
        let within = group - quads.start * self.taps;
        within / quads.len() * self.channels + (quads.start + within % quads.len()) * TERMS
    }
}

/// Filters in panels.
pub(super) fn panels(call: &Conv2d) -> EvenSplit {
    row_panels(call.out_channels as usize)
}

/// Elements of four bytes of the packed form.
pub(super) fn packed_len(call: &Conv2d) -> usize {
    call.out_channels as usize * FilterTerms::new(call).groups()
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
        let to = dst[filters.start * terms.groups()..filters.end * terms.groups()].as_mut_ptr().cast();
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
    for (group, first) in terms.firsts().enumerate() {
        let count = TERMS.min(terms.count() - first);
        for filter in 0..filters {
            let weights = from.wrapping_add(filter * terms.count() + first);
            let to = to.wrapping_add((group * filters + filter) * TERMS);
            // SAFETY: the weights are the filter's, and the group has room for four.
            unsafe {
                match count {
                    TERMS => to.cast::<[i8; TERMS]>().write(weights.cast::<[i8; TERMS]>().read()),
                    _ => {
                        to.cast::<[i8; TERMS]>().write([0; TERMS]);
                        core::ptr::copy_nonoverlapping(weights, to, count);
                    }
                }
            }
        }
    }
}
