//! The order of sums: a tree over leaves that does not depend on who holds them.
//!
//! The tree over n > 1 leaves is that over the first p, plus that over the other n - p, where p is the largest power of
//! two below n. Who holds consecutive leaves computes the sums over the complete subtrees among them; the rest of the tree
//! is added by whoever gets these. So floating-point sums have the same bits for every division of the leaves.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use tensorc_runtime::DType;

use crate::error::KvError;
use crate::sum;

/// Leaves of the left side of a tree over `n` > 1.
fn split(n: u32) -> u32 {
    1 << (31 - (n - 1).leading_zeros())
}

/// The maximal complete subtrees inside the leaves `begin..end` of a tree over `n`, in order.
pub fn subtrees(n: u32, begin: u32, end: u32) -> Vec<Range<u32>> {
    let mut found = vec![];
    descend(0..n, &(begin..end.min(n)), &mut found);
    found
}

fn descend(node: Range<u32>, within: &Range<u32>, found: &mut Vec<Range<u32>>) {
    if node.end <= within.start || within.end <= node.start || node.is_empty() {
        return;
    }
    if within.start <= node.start && node.end <= within.end {
        found.push(node);
        return;
    }
    let middle = node.start + split(node.end - node.start);
    descend(node.start..middle, within, found);
    descend(middle..node.end, within, found);
}

/// Sums over the subtrees inside a range of leaves, as these come one after the other.
#[derive(Debug)]
pub struct Accumulator<T> {
    /// Leaves of the tree, and those to come.
    leaves: u32,
    next: Range<u32>,
    parts: Vec<(Range<u32>, T)>,
}

impl<T> Accumulator<T> {
    /// For the leaves `range` of a tree over `leaves`.
    pub fn new(leaves: u32, range: Range<u32>) -> Accumulator<T> {
        Accumulator { leaves, next: range, parts: vec![] }
    }

    /// Takes the next leaf, and adds what makes up a node of the tree: the first operand of `add` becomes the sum of both.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn push<E>(&mut self, leaf: T, mut add: impl FnMut(&mut T, T) -> Result<(), E>) -> Result<(), E> {
        let at = self.next.start;
        self.next.start += 1;
        self.parts.push((at..at + 1, leaf));
        while let [.., (left, _), (right, _)] = &self.parts[..] {
            let node = left.start..right.end;
            if subtrees(self.leaves, node.start, node.end) != [node.clone()] {
                break;
            }
            let Some((_, right)) = self.parts.pop() else { break };
            if let Some((range, left)) = self.parts.last_mut() {
                *range = node;
                add(left, right)?;
            }
        }
        Ok(())
    }

    /// The latest sum.
    pub fn last(&self) -> Option<&T> {
        self.parts.last().map(|(_, part)| part)
    }

    /// The newest partial sum, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.parts.last_mut().map(|(_, part)| part)
    }

    /// The sums, with the leaves of each.
    pub fn into_parts(self) -> Vec<(Range<u32>, T)> {
        self.parts
    }
}

/// Adds the sums over subtrees that make up the whole tree, in its order.
///
/// # Errors
/// Those of `add`, or that the parts are not such sums.
pub fn combine<T>(
    leaves: u32,
    mut parts: Vec<(Range<u32>, T)>,
    add: &mut impl FnMut(T, T) -> Result<T, KvError>,
) -> Result<T, KvError> {
    parts.sort_by_key(|(range, _)| range.start);
    let ranges: Vec<Range<u32>> = parts.iter().map(|(range, _)| range.clone()).collect();
    let mut rest = parts.into_iter().peekable();
    let total = node(0..leaves, &mut rest, add)?;
    match (total, rest.next()) {
        (Some(total), None) => Ok(total),
        _ => Err(KvError::Parts { leaves, found: format!("{ranges:?}") }),
    }
}

/// The sum over a node, from parts that lie in it; none if they do not make it up.
fn node<T>(
    range: Range<u32>,
    parts: &mut std::iter::Peekable<impl Iterator<Item = (Range<u32>, T)>>,
    add: &mut impl FnMut(T, T) -> Result<T, KvError>,
) -> Result<Option<T>, KvError> {
    if parts.peek().is_some_and(|(part, _)| *part == range) {
        return Ok(parts.next().map(|(_, part)| part));
    }
    if range.end - range.start < 2 {
        return Ok(None);
    }
    let middle = range.start + split(range.end - range.start);
    let Some(left) = node(range.start..middle, parts, add)? else { return Ok(None) };
    let Some(right) = node(middle..range.end, parts, add)? else { return Ok(None) };
    add(left, right).map(Some)
}

/// Memory that may be written because nobody else has it, or must be copied.
enum PartialSum {
    Shared(Bytes),
    Own(BytesMut),
}

impl PartialSum {
    fn new(bytes: Bytes) -> PartialSum {
        bytes.try_into_mut().map_or_else(PartialSum::Shared, PartialSum::Own)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            PartialSum::Shared(bytes) => bytes,
            PartialSum::Own(bytes) => bytes,
        }
    }

    fn freeze(self) -> Bytes {
        match self {
            PartialSum::Shared(bytes) => bytes,
            PartialSum::Own(bytes) => bytes.freeze(),
        }
    }
}

/// The element-wise sum of arrays of a type over the whole tree. Sums of f16 and bf16 are computed in f32 and rounded once.
/// Memory of parts that nobody else has takes the sum, or is appended to `used`.
///
/// # Errors
/// The parts do not make up the tree, or differ in length.
pub fn sum(
    leaves: u32,
    parts: Vec<(Range<u32>, Bytes)>,
    dtype: DType,
    used: &mut Vec<Bytes>,
) -> Result<Bytes, KvError> {
    if let [(_, only)] = &parts[..] {
        return Ok(only.clone());
    }
    let wide = sum::accumulator(dtype);
    let mut put_away = |part: PartialSum| used.extend(matches!(part, PartialSum::Own(_)).then(|| part.freeze()));
    let parts = parts.into_iter().map(|(range, bytes)| {
        let part = PartialSum::new(bytes);
        if wide == dtype {
            return (range, part);
        }
        let widened = PartialSum::new(sum::widen(part.bytes(), dtype).into());
        put_away(part);
        (range, widened)
    });
    let parts = parts.collect();
    let total = combine(leaves, parts, &mut |left, right| {
        let (mut to, other) = match (left, right) {
            (PartialSum::Own(left), right) => (left, right),
            // Addition is commutative, so the memory of either side may take the sum.
            (left, PartialSum::Own(right)) => (right, left),
            (PartialSum::Shared(left), right) => (left.into(), right),
        };
        sum::add_assign(&mut to, other.bytes(), wide)?;
        if wide == dtype {
            put_away(other);
        }
        Ok(PartialSum::Own(to))
    })?;
    Ok(match wide == dtype {
        true => total.freeze(),
        false => sum::narrow(total.bytes(), dtype).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(leaves: u32, bounds: &[u32]) -> String {
        let mut parts = vec![];
        for range in bounds.windows(2) {
            let mut own = Accumulator::new(leaves, range[0]..range[1]);
            for leaf in range[0]..range[1] {
                own.push(leaf.to_string(), |left, right| {
                    *left = format!("({left}+{right})");
                    Ok::<(), ()>(())
                })
                .unwrap();
            }
            let own = own.into_parts();
            let ranges: Vec<_> = own.iter().map(|(range, _)| range.clone()).collect();
            assert_eq!(ranges, subtrees(leaves, range[0], range[1]), "{bounds:?} of {leaves}");
            parts.extend(own);
        }
        combine(leaves, parts, &mut |left, right| Ok(format!("({left}+{right})"))).unwrap()
    }

    #[test]
    fn small_trees_are_as_defined() {
        assert_eq!(text(1, &[0, 1]), "0");
        assert_eq!(text(3, &[0, 3]), "((0+1)+2)");
        assert_eq!(text(6, &[0, 6]), "(((0+1)+(2+3))+(4+5))");
    }

    #[test]
    fn the_order_does_not_depend_on_who_holds_the_leaves() {
        for n in 1..=24 {
            let whole = text(n, &[0, n]);
            for a in 0..=n {
                assert_eq!(text(n, &[0, a, n]), whole);
                for b in a..=n {
                    assert_eq!(text(n, &[0, a, b, n]), whole);
                    for c in (b..=n).step_by(3) {
                        assert_eq!(text(n, &[0, a, b, c, n]), whole);
                    }
                }
            }
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let add = &mut |a: u32, b: u32| Ok(a + b);
        for parts in [
            vec![],
            vec![(0..1, 1)],
            vec![(0..2, 1), (1..3, 1)],
            vec![(0..4, 1), (4..5, 1)],
            vec![(1..3, 1), (0..1, 1), (3..4, 1)],
        ] {
            assert!(matches!(combine(4, parts, add), Err(KvError::Parts { leaves: 4, .. })));
        }
        assert_eq!(combine(4, vec![(2..4, 5), (0..1, 1), (1..2, 2)], add).unwrap(), 8);
    }

    #[test]
    fn narrow_sums_are_rounded_once() {
        let of = |value: f32| Bytes::copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
        // In f16, 2048 + 1 is 2048; in f32, the ones add up to 2.
        let parts = vec![(0..1, of(2048.0)), (1..2, of(1.0)), (2..3, of(1.0))];
        assert_eq!(sum(3, parts, DType::F16, &mut vec![]).unwrap(), of(2050.0));
    }
}
