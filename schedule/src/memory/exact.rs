//! Exact placement by branch and bound, for few intervals.
//!
//! A packing can be pushed down until every interval rests on another or on the bottom, and built up in the
//! order of offsets. So the search looks at the lowest place that is still needed: one of the intervals that fit
//! there is placed, or the place stays empty up to where another could rest. What is placed plus what is left
//! at any step must stay below the limit. Search is bounded by nodes, never by time.

use std::collections::BTreeSet;

use super::LiveRange;

/// Intervals beyond which a search would not get far.
const MAX_INTERVALS: usize = 400;
/// Nodes of a search.
const MAX_SEARCH_NODES: usize = 20_000;

/// What a search has found.
pub(super) enum Found {
    /// Offsets and size of a packing that is no larger than what is enough, or as small as any.
    Best(Vec<u64>, u64),
    /// No packing is smaller than the given one.
    Given,
    Unknown,
}

/// Looks for a packing of at most `enough` bytes and, where there is none, for the smallest below `total`.
pub(super) fn search(intervals: &[LiveRange], enough: u64, total: u64) -> Found {
    if intervals.len() > MAX_INTERVALS {
        return Found::Unknown;
    }
    // A tight limit leaves little to look at.
    let tight = PlacementSearch::new(intervals, enough.min(total - 1), enough).run();
    match tight {
        Found::Given if enough + 1 < total => PlacementSearch::new(intervals, total - 1, enough + 1).run(),
        other => other,
    }
}

struct PlacementSearch<'i> {
    intervals: &'i [LiveRange],
    /// First and last point of each interval. Points are the steps at which intervals begin.
    spans: Vec<(usize, usize)>,
    /// Intervals that cover each point.
    covering: Vec<Vec<usize>>,
    /// How high each point is filled, and the bytes not placed yet.
    height: Vec<u64>,
    rest: Vec<u64>,
    offsets: Vec<Option<u64>>,
    limit: u64,
    enough: u64,
    nodes: usize,
    best: Option<(Vec<u64>, u64)>,
}

/// A node of the search, and what of it is left to try.
struct Branch {
    point: usize,
    /// The height of the point.
    base: u64,
    fitting: std::vec::IntoIter<usize>,
    /// The interval that is placed at the point while the nodes below are searched.
    placed: Option<usize>,
    /// The nodes below are searched with the point left empty up to another height.
    raised: bool,
}

impl<'i> PlacementSearch<'i> {
    fn new(intervals: &'i [LiveRange], limit: u64, enough: u64) -> PlacementSearch<'i> {
        let points: Vec<usize> = intervals.iter().map(|i| i.first).collect::<BTreeSet<_>>().into_iter().collect();
        let below = |step: usize| points.partition_point(|p| *p < step);
        let spans: Vec<(usize, usize)> = intervals.iter().map(|i| (below(i.first), below(i.last + 1) - 1)).collect();
        let mut search = PlacementSearch {
            intervals,
            covering: vec![vec![]; points.len()],
            height: vec![0; points.len()],
            rest: vec![0; points.len()],
            offsets: vec![None; intervals.len()],
            limit,
            enough,
            nodes: 0,
            best: None,
            spans,
        };
        for (i, interval) in intervals.iter().enumerate() {
            for point in search.spans[i].0..=search.spans[i].1 {
                search.covering[point].push(i);
                search.rest[point] += interval.bytes;
            }
        }
        search
    }

    fn run(mut self) -> Found {
        if self.rest.iter().any(|bytes| *bytes > self.limit) {
            return Found::Given;
        }
        self.search();
        match self.best.take() {
            Some((offsets, total)) if self.nodes <= MAX_SEARCH_NODES || total <= self.enough => {
                Found::Best(offsets, total)
            }
            None if self.nodes <= MAX_SEARCH_NODES => Found::Given,
            _ => Found::Unknown,
        }
    }

    /// Whether the search is over.
    fn done(&self) -> bool {
        self.nodes > MAX_SEARCH_NODES || self.best.as_ref().is_some_and(|(_, total)| *total <= self.enough)
    }

    /// Searches depth-first; the stack is on the heap, since it may be as deep as nodes are allowed.
    fn search(&mut self) {
        let mut stack: Vec<Branch> = self.enter().into_iter().collect();
        while let Some(branch) = stack.last_mut() {
            if let Some(i) = branch.placed.take() {
                self.take(i, branch.base);
                if self.done() {
                    stack.pop();
                    continue;
                }
            }
            let (point, base) = (branch.point, branch.base);
            if let Some(i) = branch.fitting.next() {
                self.put(i, base);
                branch.placed = Some(i);
            } else if !branch.raised
                && let Some(level) = self.next_level(point)
                && level + self.rest[point] <= self.limit
            {
                self.height[point] = level;
                branch.raised = true;
            } else {
                self.height[point] = base;
                stack.pop();
                continue;
            }
            stack.extend(self.enter());
        }
    }

    /// Counts a node; where the search goes on from it.
    fn enter(&mut self) -> Option<Branch> {
        self.nodes += 1;
        if self.done() {
            return None;
        }
        let needed = (0..self.height.len()).filter(|p| self.rest[*p] > 0);
        if let Some(point) = needed.min_by_key(|p| (self.height[*p], *p)) {
            let (base, fitting) = (self.height[point], self.fitting(point).into_iter());
            return Some(Branch { point, base, fitting, placed: None, raised: false });
        }
        let total = self.height.iter().copied().max().unwrap_or(0);
        // What takes no bytes is never needed, and may lie anywhere.
        let offset = |(interval, offset): (&LiveRange, &Option<u64>)| offset.or((interval.bytes == 0).then_some(0));
        if let Some(offsets) = self.intervals.iter().zip(&self.offsets).map(offset).collect() {
            self.best = Some((offsets, total));
            self.limit = total.saturating_sub(1);
        }
        None
    }

    /// What covers a point and is not placed.
    fn open(&self, point: usize) -> impl Iterator<Item = usize> {
        self.covering[point].iter().copied().filter(|i| self.offsets[*i].is_none())
    }

    /// Where an interval would rest.
    fn resting(&self, i: usize) -> u64 {
        let (first, last) = self.spans[i];
        self.height[first..=last].iter().copied().max().unwrap_or(0)
    }

    /// Intervals that fit at the height of a point, long and large ones first, of equal ones one.
    fn fitting(&self, point: usize) -> Vec<usize> {
        let base = self.height[point];
        let mut all: Vec<usize> = self.open(point).filter(|i| self.resting(*i) == base).collect();
        let key = |i: &usize| {
            let (first, last) = self.spans[*i];
            (std::cmp::Reverse(last - first), std::cmp::Reverse(self.intervals[*i].bytes), first)
        };
        all.sort_by_key(|i| (key(i), *i));
        all.dedup_by_key(|i| key(i));
        all
    }

    /// The lowest height above a point's at which something could come to rest there.
    fn next_level(&self, point: usize) -> Option<u64> {
        let base = self.height[point];
        let on_others = self.open(point).map(|i| self.resting(i)).filter(|height| *height > base);
        let beside = (0..self.intervals.len()).filter(|i| {
            let (first, last) = self.spans[*i];
            self.offsets[*i].is_none() && !(first..=last).contains(&point) && self.intervals[*i].bytes > 0
        });
        let on_next = beside.map(|i| self.resting(i).max(base) + self.intervals[i].bytes).filter(|top| *top > base);
        on_others.chain(on_next).min()
    }

    fn put(&mut self, i: usize, base: u64) {
        let ((first, last), bytes) = (self.spans[i], self.intervals[i].bytes);
        for point in first..=last {
            self.height[point] = base + bytes;
            self.rest[point] -= bytes;
        }
        self.offsets[i] = Some(base);
    }

    fn take(&mut self, i: usize, base: u64) {
        let ((first, last), bytes) = (self.spans[i], self.intervals[i].bytes);
        for point in first..=last {
            self.height[point] = base;
            self.rest[point] += bytes;
        }
        self.offsets[i] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_random::Rng;

    /// The smallest packing: of all that place one interval after another as low as it goes, in every order.
    fn smallest(intervals: &[LiveRange], placed: &mut Vec<(usize, u64)>, top: u64, best: &mut u64) {
        if top >= *best {
            return;
        }
        if placed.len() == intervals.len() {
            *best = top;
            return;
        }
        for i in (0..intervals.len()).filter(|i| placed.iter().all(|(p, _)| p != i)).collect::<Vec<_>>() {
            let mut taken: Vec<(u64, u64)> = placed
                .iter()
                .filter(|(p, _)| meet(&intervals[*p], &intervals[i]))
                .map(|(p, at)| (*at, at + intervals[*p].bytes))
                .collect();
            taken.sort_unstable();
            let bytes = intervals[i].bytes;
            let at = taken.iter().fold(0, |at, (start, end)| if at + bytes <= *start { at } else { at.max(*end) });
            placed.push((i, at));
            smallest(intervals, placed, top.max(at + bytes), best);
            placed.pop();
        }
    }

    fn meet(a: &LiveRange, b: &LiveRange) -> bool {
        a.first <= b.last && b.first <= a.last
    }

    #[test]
    fn a_deep_search_needs_no_stack() {
        let interval = |i: usize| LiveRange { first: i / 2, last: i / 2 + 1, bytes: 1 + i as u64 % 3, buffers: vec![] };
        let deep = std::thread::Builder::new().stack_size(32 << 10).spawn(move || {
            let intervals: Vec<LiveRange> = (0..MAX_INTERVALS).map(interval).collect();
            search(&intervals, 1, intervals.iter().map(|i| i.bytes).sum())
        });
        let found = deep.map_err(|e| e.to_string()).and_then(|t| t.join().map_err(|_| "panicked".to_owned()));
        assert!(matches!(found, Ok(Found::Best(..) | Found::Unknown)));
    }

    #[test]
    fn what_is_found_is_smallest_and_what_is_not_found_is_not_there() {
        let mut rng = Rng::new(5);
        for round in 0..300 {
            let steps = 2 + rng.below(5);
            let mut interval = || {
                let first = rng.below(steps);
                let last = (steps - 1).min(first + rng.below(4));
                LiveRange { first: first as usize, last: last as usize, bytes: 1 + rng.below(9), buffers: vec![] }
            };
            let intervals: Vec<LiveRange> = (0..6).map(|_| interval()).collect();
            let sum: u64 = intervals.iter().map(|i| i.bytes).sum();
            let mut least = sum + 1;
            smallest(&intervals, &mut vec![], 0, &mut least);
            let Found::Best(offsets, total) = search(&intervals, 0, sum + 1) else { panic!("round {round}") };
            assert_eq!(total, least, "round {round}: {intervals:?}");
            for (i, j) in (0..6).flat_map(|i| (0..i).map(move |j| (i, j))) {
                let (a, b) = (&intervals[i], &intervals[j]);
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(apart || !meet(a, b), "round {round}: {intervals:?} {offsets:?}");
            }
            assert!(matches!(search(&intervals, 0, least), Found::Given), "round {round}: {intervals:?}");
        }
    }
}
