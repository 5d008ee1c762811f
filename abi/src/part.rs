//! Buffers that lie in other buffers: slices that are written and read in place.

use crate::number::Number;
use crate::operand::BufferId;

/// Where a buffer lies in another one, its *whole*, in elements of both, which have one type.
///
/// Element `i` is element `offset + i / run * stride + i % run` of the whole. With `run` equal to the
/// number of elements it is one block, and what uses it need not know that it is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubBuffer<N: Number = u64> {
    /// A buffer that is itself no part.
    pub of: BufferId,
    /// Position of its first element in the whole.
    pub offset: N,
    /// Elements that lie side by side: a divisor of the number of elements, and at least one if there are any.
    pub run: N,
    /// Elements from the start of a run to that of the next; at least `run`.
    pub stride: N,
}

impl<N: Number> SubBuffer<N> {
    /// Elements from the first to one past the last of a part of `len` elements.
    pub fn span(&self, len: N) -> N {
        let (none, one) = (N::from(0), N::from(1));
        if len == none || self.run == none {
            return len;
        }
        (len / self.run - one).saturating_mul(self.stride).saturating_add(self.run)
    }

    /// Whether all elements lie side by side.
    pub fn is_dense(&self, len: N) -> bool {
        len <= self.run || self.run == self.stride
    }

    /// Whether two parts of one whole, with their numbers of elements, have an element in common. May say
    /// so of two that are strided differently and interleave.
    pub(crate) fn overlaps(&self, len: N, other: &SubBuffer<N>, other_len: N) -> bool {
        let (a, b, none) = (self.offset, other.offset, N::from(0));
        if len == none || other_len == none || a >= b + other.span(other_len) || b >= a + self.span(len) {
            return false;
        }
        match (self.is_dense(len), other.is_dense(other_len)) {
            (true, true) => true,
            (true, false) => other.meets(other_len, a, a + self.span(len)),
            (false, true) => self.meets(len, b, b + other.span(other_len)),
            (false, false) if self.stride == other.stride => {
                let ((a, m), (b, n)) = ((a % self.stride, self.run), (b % self.stride, other.run));
                // A run may reach into the next stride.
                let apart = |low: N, run: N, high: N, end: N| low + run <= high && end <= low + self.stride;
                !(apart(a, m, b, b + n) || apart(b, n, a, a + m))
            }
            (false, false) => true,
        }
    }

    /// Whether a strided part has an element in `begin..end`, which its span meets.
    fn meets(&self, len: N, begin: N, end: N) -> bool {
        let (one, first_end) = (N::from(1), self.offset + self.run);
        // The first block that ends after `begin`.
        let first = match begin + one > first_end {
            true => (begin - first_end + self.stride) / self.stride,
            false => N::from(0),
        };
        first < len / self.run && self.offset + first * self.stride < end
    }
}

impl SubBuffer {
    /// How many elements another part of the same whole has in common with this one. May be fewer than that
    /// if both are strided, differently.
    pub fn common(&self, len: u64, other: &SubBuffer, other_len: u64) -> u64 {
        if len == 0 || other_len == 0 {
            return 0;
        }
        match (self.is_dense(len), other.is_dense(other_len)) {
            (true, _) => other.before(other_len, self.offset + self.span(len)) - other.before(other_len, self.offset),
            (false, true) => other.common(other_len, self, len),
            (false, false) if self.stride == other.stride && other.offset >= self.offset => {
                let from = other.offset - self.offset;
                let (block, at) = (from / self.stride, from % self.stride);
                let blocks = (len / self.run).saturating_sub(block).min(other_len / other.run);
                if at + other.run <= self.run { blocks * other.run } else { 0 }
            }
            (false, false) => 0,
        }
    }

    /// The number of elements that lie before a position of the whole.
    fn before(&self, len: u64, position: u64) -> u64 {
        let from = position.saturating_sub(self.offset);
        let (block, at) = match self.is_dense(len) {
            true => (0, from),
            false => (from / self.stride, (from % self.stride).min(self.run)),
        };
        (block.saturating_mul(self.run)).saturating_add(at).min(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(p: &SubBuffer, len: u64) -> Vec<u64> {
        (0..len).map(|i| p.offset + i / p.run * p.stride + i % p.run).collect()
    }

    #[test]
    fn overlaps_are_those_of_the_elements() {
        let mut all = vec![];
        for (offset, run, gap, blocks) in (0..5u64).flat_map(|o| {
            (1..4u64).flat_map(move |r| (0..4u64).flat_map(move |g| (1..4u64).map(move |b| (o, r, g, b))))
        }) {
            all.push((SubBuffer { of: BufferId(0), offset, run, stride: run + gap }, run * blocks));
        }
        let mut met = 0;
        for (p, n) in &all {
            assert_eq!(p.offset + p.span(*n), elements(p, *n).last().map_or(0, |e| e + 1));
            for (q, m) in &all {
                let common = elements(p, *n).iter().any(|e| elements(q, *m).contains(e));
                let said = p.overlaps(*n, q, *m);
                assert!(said || !common, "{p:?} {n} {q:?} {m}");
                let shared = elements(q, *m).iter().filter(|e| elements(p, *n).contains(e)).count() as u64;
                let dense = p.is_dense(*n) || q.is_dense(*m);
                let residues = |p: &SubBuffer| (0..p.run).map(|i| (p.offset + i) % p.stride).collect::<Vec<_>>();
                if p.stride == q.stride && !dense && !residues(p).iter().any(|e| residues(q).contains(e)) {
                    assert!(!said, "{p:?} {n} {q:?} {m}");
                }
                let found = p.common(*n, q, *m);
                assert!(found <= shared && (!dense || found == shared), "{found} {shared} {p:?} {n} {q:?} {m}");
                if dense {
                    assert_eq!(said, common, "{p:?} {n} {q:?} {m}");
                }
                met += u32::from(said);
            }
        }
        assert!(met > 0);
    }
}
