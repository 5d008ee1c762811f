//! Boxes of which those are kept that overlap none of a better score too much.

use super::{FindError, FindOperand, numbers};
use crate::isa::Isa;

/// Words to note what there is of so many boxes of a class: their ranks and the tree above, and those that are kept.
pub(super) fn words(boxes: u64) -> u64 {
    let kept = boxes.saturating_add(GROUP as u64 - 1) / GROUP as u64 * GROUP as u64;
    boxes.saturating_mul(2).saturating_add(kept.saturating_mul(Extremes::NUMBERS as u64))
}

/// Which boxes are kept.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub most: Option<f64>,
    pub overlap: Option<f64>,
    pub least: Option<f64>,
    pub centered: bool,
}

/// A box: its ends along both axes, and its area.
struct Extremes {
    low: [f64; 2],
    high: [f64; 2],
    area: f64,
}

impl Extremes {
    const NUMBERS: usize = 5;

    fn of(b: [f64; 4], centered: bool) -> Extremes {
        let ends = |axis: usize| match centered {
            true => (b[axis] - b[axis + 2] / 2.0, b[axis] + b[axis + 2] / 2.0),
            false => (b[axis].min(b[axis + 2]), b[axis].max(b[axis + 2])),
        };
        let [first, second] = [ends(0), ends(1)];
        let area = (first.1 - first.0) * (second.1 - second.0);
        Extremes { low: [first.0, second.0], high: [first.1, second.1], area }
    }

    fn is_plain(&self) -> bool {
        !self.numbers().iter().any(|number| number.is_nan())
    }

    fn numbers(&self) -> [f64; Extremes::NUMBERS] {
        [self.low[0], self.low[1], self.high[0], self.high[1], self.area]
    }
}

/// Boxes that are compared at a time, for the compiler to use vectors.
const GROUP: usize = 8;

/// The first number of each box of a group, the second of each, and so on, as bits.
type Group = [[u64; GROUP]; Extremes::NUMBERS];

/// The boxes that are kept, in groups.
struct Kept<'a> {
    groups: &'a mut [Group],
    count: usize,
    /// Whether no number is NaN.
    plain: bool,
}

impl Kept<'_> {
    fn push(&mut self, one: &Extremes) {
        let (group, at) = (self.count / GROUP, self.count % GROUP);
        for (numbers, number) in self.groups[group].iter_mut().zip(one.numbers()) {
            // Behind it, too: that a box is compared several times changes nothing.
            for (i, to) in numbers.iter_mut().enumerate() {
                *to = if i < at { *to } else { number.to_bits() };
            }
        }
        self.count += 1;
        self.plain &= one.is_plain();
    }

    /// Whether no box overlaps another by more than `most`.
    fn all_apart(&self, other: &Extremes, most: f64, isa: Isa) -> bool {
        let groups = &self.groups[..self.count.div_ceil(GROUP)];
        if !(self.plain && other.is_plain()) {
            return groups.iter().all(|group| apart(group, other, most, f64::min, f64::max));
        }
        match isa {
            // SAFETY: the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512 => unsafe { plain_apart_512(groups, other, most) },
            // SAFETY: the same.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { plain_apart_256(groups, other, most) },
            _ => plain_apart(groups, other, most),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn plain_apart_512(groups: &[Group], other: &Extremes, most: f64) -> bool {
    plain_apart(groups, other, most)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn plain_apart_256(groups: &[Group], other: &Extremes, most: f64) -> bool {
    plain_apart(groups, other, most)
}

/// Without NaN minima and maxima are single instructions, which give the second of two numbers if one is NaN.
#[inline(always)]
fn plain_apart(groups: &[Group], other: &Extremes, most: f64) -> bool {
    let least = |a: f64, b: f64| if a < b { a } else { b };
    let greatest = |a: f64, b: f64| if a > b { a } else { b };
    // No iterator with a closure: that would be a function of its own, without the instructions of the caller.
    for group in groups {
        if !apart(group, other, most, least, greatest) {
            return false;
        }
    }
    true
}

/// Whether no box of a group overlaps another by more than `most`: area of the intersection over that of the union, 0 for an
/// empty box.
#[inline(always)]
fn apart(
    group: &Group,
    other: &Extremes,
    most: f64,
    least: impl Fn(f64, f64) -> f64,
    greatest: impl Fn(f64, f64) -> f64,
) -> bool {
    let [mut common, mut union, mut share] = [[0.0; GROUP]; 3];
    for i in 0..GROUP {
        let [low0, low1, high0, high1, area] = [0, 1, 2, 3, 4].map(|of| f64::from_bits(group[of][i]));
        let first = greatest(least(high0, other.high[0]) - greatest(low0, other.low[0]), 0.0);
        let second = greatest(least(high1, other.high[1]) - greatest(low1, other.low[1]), 0.0);
        common[i] = first * second;
        union[i] = area + other.area - common[i];
    }
    for i in 0..GROUP {
        share[i] = common[i] / union[i];
    }
    let mut apart = true;
    for i in 0..GROUP {
        let empty = (common[i] <= 0.0) | (union[i] <= 0.0);
        apart &= (empty & (0.0 <= most)) | (!empty & (share[i] <= most));
    }
    apart
}

/// A number above 0 that orders floats as [`f64::total_cmp`] does, but for the last NaN.
fn rank(x: f64) -> u64 {
    let bits = x.to_bits();
    (if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }).max(1)
}

/// Positions by descending rank, equal ones ascending: a tree whose nodes hold the position of the first of the greatest ranks
/// below them. A rank of 0 is no candidate.
struct Ranking<'a> {
    ranks: &'a mut [u64],
    /// Level by level, the one above the ranks first.
    nodes: &'a mut [u64],
}

/// Most children of a node. They are compared one after the other, without jumps that would often be foretold wrongly.
const CHILDREN: usize = 16;

impl<'a> Ranking<'a> {
    /// Takes as many words for nodes as there are ranks.
    fn of(ranks: &'a mut [u64], nodes: &'a mut [u64]) -> Self {
        let (mut level, mut below) = (0, ranks.len());
        let mut ranking = Ranking { ranks, nodes };
        while below > 0 {
            let len = below.div_ceil(CHILDREN);
            for i in 0..len {
                ranking.update(level, below, i);
            }
            level += len;
            below = if len > 1 { len } else { 0 };
        }
        ranking.nodes = &mut ranking.nodes[..level];
        ranking
    }

    /// Sets node `i` of the level that begins at `level`, above one of `below` nodes or ranks.
    fn update(&mut self, level: usize, below: usize, i: usize) {
        let children = i * CHILDREN..below.min((i + 1) * CHILDREN);
        let (mut best, mut at) = (0, children.start as u64);
        let mut see = |rank: u64, position: u64| {
            let greater = rank > best;
            best = core::hint::select_unpredictable(greater, rank, best);
            at = core::hint::select_unpredictable(greater, position, at);
        };
        match level {
            0 => self.ranks[children.clone()].iter().zip(children.start as u64..).for_each(|(r, p)| see(*r, p)),
            _ => self.nodes[level - below..][children].iter().for_each(|p| see(self.ranks[*p as usize], *p)),
        }
        self.nodes[level + i] = at;
    }

    /// Takes the next position out.
    fn take(&mut self) -> Option<usize> {
        let first = *self.nodes.last()? as usize;
        if self.ranks[first] == 0 {
            return None;
        }
        self.ranks[first] = 0;
        let (mut level, mut below, mut i) = (0, self.ranks.len(), first);
        while level < self.nodes.len() {
            i /= CHILDREN;
            self.update(level, below, i);
            below = below.div_ceil(CHILDREN);
            level += below;
        }
        Some(first)
    }
}

/// Greedy non-maximum suppression: rows (image, class, box) of the boxes selected in each class, by descending score.
pub(super) fn suppressed<'a>(
    boxes: FindOperand<'_>,
    scores: FindOperand<'_>,
    limits: Limits,
    words: &'a mut [u64],
) -> Result<&'a [u64], FindError> {
    let [images, classes, count] = *scores.dims else { return Err(FindError::Operand(1)) };
    if boxes.dims != [images, count, 4] {
        return Err(FindError::Operand(0));
    }
    let (most, overlap) = (limits.most.unwrap_or(0.0).max(0.0) as usize, limits.overlap.unwrap_or(0.0));
    let count = count as usize;
    let (ranks, rest) = words.split_at_mut_checked(count).ok_or(FindError::Words)?;
    let (nodes, rest) = rest.split_at_mut_checked(count).ok_or(FindError::Words)?;
    let room = count.next_multiple_of(GROUP) * Extremes::NUMBERS;
    let (groups, rows) = rest.split_at_mut_checked(room).ok_or(FindError::Words)?;
    let groups = groups.as_chunks_mut::<GROUP>().0.as_chunks_mut::<{ Extremes::NUMBERS }>().0;
    let (isa, mut noted) = (crate::isa(), 0);
    for n in 0..images as usize {
        for c in 0..classes as usize {
            numbers(scores, (n * classes as usize + c) * count, count, |i, score| {
                ranks[i] = if limits.least.is_none_or(|least| score > least) { rank(score) } else { 0 };
            });
            let mut ranking = Ranking::of(ranks, nodes);
            let mut kept = Kept { groups, count: 0, plain: true };
            while kept.count < most
                && let Some(i) = ranking.take()
            {
                let mut corners = [0.0; 4];
                numbers(boxes, (n * count + i) * 4, 4, |at, x| corners[at] = x);
                let candidate = Extremes::of(corners, limits.centered);
                if kept.all_apart(&candidate, overlap, isa) {
                    kept.push(&candidate);
                    let row = rows.get_mut(noted..noted + 3).ok_or(FindError::Words)?;
                    row.copy_from_slice(&[n as u64, c as u64, i as u64]);
                    noted += 3;
                }
            }
        }
    }
    Ok(&rows[..noted])
}
