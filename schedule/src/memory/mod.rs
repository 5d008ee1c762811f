//! Memory planning: offsets of all intermediate buffers in one arena.
//!
//! Buffers are intervals over the steps of the plan. In-place options merge intervals; what is left
//! is two-dimensional packing, solved by several greedy placements. Where these miss the lower bound by more
//! than 1 % follow an exact search (`exact`) and, where that does not end, changes of the greedy order; both
//! bounded by nodes. Working memory of calls lies behind what is live during its step: how many workers there
//! will be is not known, and must not decide where buffers are. Plans for many shapes keep the order of one (`order`).

mod exact;
mod order;

use std::collections::BTreeMap;

use tensorc_abi::{BufferId, Plan, Scratch, StorageClass, WorkingBytes};
use tensorc_exec::{does_something, regions, working_bytes};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};

use crate::lowered::{InPlace, Lowered};

pub use order::{PlacedRange, PlacementOrder};

/// Offset and size of a free range.
struct Gap {
    offset: u64,
    /// `None`: unlimited.
    size: Option<u64>,
}

/// A memory range needed from the end of one step's predecessor through another's end.
#[derive(Clone, Debug)]
struct LiveRange {
    first: usize,
    last: usize,
    /// A multiple of [`Plan::ALIGN`].
    bytes: u64,
    buffers: Vec<BufferId>,
}

impl LiveRange {
    fn at(&self, offset: u64) -> PlacedLife {
        PlacedLife { first: self.first, last: self.last, bytes: self.bytes, offset }
    }
}

/// A range that has a place.
#[derive(Clone, Copy, Debug)]
struct PlacedLife {
    first: usize,
    last: usize,
    /// A multiple of [`Plan::ALIGN`].
    bytes: u64,
    offset: u64,
}

/// What one step needs of the arena.
#[derive(Clone, Copy, Debug, Default)]
struct StepMemory {
    needed: WorkingBytes,
    /// What steps that run side by side with it need, too.
    given: WorkingBytes,
    /// Where what is live during the step ends, and where working memory may begin.
    top: u64,
    /// Bytes that are live during the step.
    live: u64,
}

/// Memory in which offsets are found, which is used again for the next shape of a plan.
#[derive(Clone, Debug, Default)]
pub struct PlacementRoom {
    placed: Vec<PlacedLife>,
    steps: Vec<StepMemory>,
    /// Positions of the steps that do something.
    active: Vec<usize>,
}

/// Pairs of overlapping intervals to look at before the best placement so far is taken.
const MAX_OVERLAP_PAIRS: usize = 20_000_000;

/// Placements tried beyond the greedy ones.
const MAX_SEARCH_ROUNDS: usize = 2000;

/// Assigns every arena buffer its offset, and sets `arena_bytes`, `lower_bound_bytes` and `scratch` of the plan, whose nested plans
/// have theirs. In-place options are taken whenever the input dies at that step.
///
/// # Errors
/// [`DiagnosticCode::Internal`]: a step reads what none has written.
pub fn plan_memory(lowered: &mut Lowered) -> Result<()> {
    let intervals = intervals(&lowered.plan, &lowered.in_place.steps, Empty::Out)?;
    let steps = lowered.plan.steps.len();
    let (offsets, total) = pack(&intervals, steps, lower_bound(&intervals, steps));
    let placed = intervals.iter().zip(offsets).map(|(interval, offset)| interval.at(offset)).collect();
    let mut room = PlacementRoom { placed, ..PlacementRoom::default() };
    settle(&mut lowered.plan, intervals.iter().map(|interval| &interval.buffers[..]), total, &mut room);
    Ok(())
}

/// Enters the offsets of ranges into a plan, with the bytes of the arena and their lower bound; `buffers` lie in each range.
fn settle<'b>(plan: &mut Plan, buffers: impl Iterator<Item = &'b [BufferId]>, total: u64, room: &mut PlacementRoom) {
    for (placed, buffers) in room.placed.iter().zip(buffers) {
        for b in buffers {
            plan.buffers[b.0 as usize].storage = StorageClass::Arena(placed.offset);
        }
    }
    plan.settle_parts();
    place_scratch(plan, room);
    plan.arena_bytes = total;
    plan.lower_bound_bytes = room.steps.iter().map(|step| step.live).max().unwrap_or(0);
}

/// Gives every step that needs working memory a place behind what is live during the step, or during all steps that are
/// to run side by side with it.
fn place_scratch(plan: &mut Plan, room: &mut PlacementRoom) {
    let PlacementRoom { placed, steps, active } = room;
    steps.clear();
    let needs = plan.steps.iter().map(|step| working_bytes(&step.op));
    steps.extend(needs.map(|needed| StepMemory { needed, given: needed, ..StepMemory::default() }));
    for range in placed {
        for step in &mut steps[range.first..=range.last] {
            step.top = (range.offset + range.bytes).max(step.top);
            step.live += range.bytes;
        }
    }
    plan.scratch.clear();
    if steps.iter().all(|step| step.needed.is_none()) {
        return;
    }
    steps.iter_mut().for_each(|step| step.top = step.top.next_multiple_of(Scratch::ALIGN));
    active.clear();
    active.extend((0..steps.len()).filter(|step| does_something(plan, &plan.steps[*step].op)));
    for region in regions(plan, active) {
        let members = &active[region];
        let top = members.iter().map(|step| steps[*step].top).max().unwrap_or(0);
        let given = members.iter().map(|step| steps[*step].needed).fold(WorkingBytes::default(), WorkingBytes::max);
        members.iter().for_each(|step| (steps[*step].top, steps[*step].given) = (top, given));
    }
    let of = |(step, memory): (usize, &StepMemory)| {
        let StepMemory { given: WorkingBytes { shared, each: bytes }, top: offset, live, .. } = *memory;
        (!memory.needed.is_none()).then_some(Scratch { step: step as u32, offset, shared, bytes, live })
    };
    plan.scratch.extend(steps.iter().enumerate().filter_map(of));
}

/// Whether buffers without elements are among intervals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Empty {
    /// They take no room, and no step need have written them.
    Out,
    /// They have elements in other shapes.
    In,
}

/// Live intervals of the arena buffers that are no parts, in-place chains merged, by first step.
fn intervals(plan: &Plan, options: &[InPlace], empty: Empty) -> Result<Vec<LiveRange>> {
    let arena = |b: BufferId| {
        let buffer = plan.buffer(b);
        matches!(buffer.storage, StorageClass::Arena(_)) && (empty == Empty::In || !buffer.is_empty())
    };
    let mut lives: BTreeMap<BufferId, (usize, usize)> = BTreeMap::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let args = step.op.args();
        for whole in args.iter().map(|a| plan.whole(a.buffer)).filter(|id| arena(*id)) {
            let written_here = || args.iter().any(|a| a.writes && plan.whole(a.buffer) == whole);
            match lives.get_mut(&whole) {
                Some((_, last)) => *last = i,
                None if written_here() => drop(lives.insert(whole, (i, i))),
                None => {
                    let name = &plan.buffer(whole).name;
                    let why = format!("step {i} (`{}`) reads buffer `{name}` before it is written", step.name);
                    return Err(Diagnostic::new(DiagnosticCode::Internal, why));
                }
            }
        }
    }
    for check in &plan.checks {
        // It is looked at after the run.
        if let Some((_, last)) = lives.get_mut(&check.buffer) {
            *last = plan.steps.len() - 1;
        }
    }
    let mut group: BTreeMap<BufferId, usize> = BTreeMap::new();
    let mut groups: Vec<Option<LiveRange>> = vec![];
    for (b, (first, last)) in lives {
        group.insert(b, groups.len());
        let bytes = plan.buffer(b).bytes().next_multiple_of(Plan::ALIGN);
        groups.push(Some(LiveRange { first, last, bytes, buffers: vec![b] }));
    }
    let mut options = options.to_vec();
    options.sort_by_key(|o| (o.step, o.output, o.input));
    for option in options {
        let (Some(&from), Some(&to)) = (group.get(&option.input), group.get(&option.output)) else { continue };
        let fits = match (&groups[from], &groups[to]) {
            _ if plan.is_checked(option.input) => false,
            (Some(a), Some(b)) => {
                // The group ends with this very input: no other output has taken its place.
                let tail = a.buffers.last() == Some(&option.input);
                from != to && tail && a.last == option.step && b.first == option.step && a.bytes == b.bytes
            }
            _ => false,
        };
        if let (true, Some(b)) = (fits, if fits { groups[to].take() } else { None })
            && let Some(a) = &mut groups[from]
        {
            a.last = b.last;
            group.extend(b.buffers.iter().map(|buffer| (*buffer, from)));
            a.buffers.extend(b.buffers);
        }
    }
    let mut out: Vec<LiveRange> = groups.into_iter().flatten().collect();
    out.sort_by_key(|i| (i.first, i.buffers[0]));
    Ok(out)
}

fn lower_bound(intervals: &[LiveRange], steps: usize) -> u64 {
    let mut change = vec![0i128; steps + 1];
    for i in intervals {
        change[i.first] += i128::from(i.bytes);
        change[i.last + 1] -= i128::from(i.bytes);
    }
    let mut live = 0;
    change.iter().fold(0, |most, c| {
        live += c;
        most.max(live)
    }) as u64
}

/// The best offsets found and the arena size they need.
fn pack(intervals: &[LiveRange], steps: usize, bound: u64) -> (Vec<u64>, u64) {
    let mut placer = Placer::new(intervals, steps);
    let Some(Greedy { offsets, total, order }) = greedy(&mut placer, bound) else { return (vec![], 0) };
    let enough = enough(bound);
    if total <= enough {
        return (offsets, total);
    }
    match exact::search(intervals, enough, total) {
        exact::Found::Best(offsets, total) => (offsets, total),
        exact::Found::Given => (offsets, total),
        exact::Found::Unknown => search(&mut placer, offsets, total, order, bound),
    }
}

/// A placement, and the order in which it was made.
struct Greedy {
    offsets: Vec<u64>,
    total: u64,
    order: Vec<usize>,
}

/// The best of several greedy placements, or the first that is as small as wanted.
fn greedy(placer: &mut Placer<'_>, wanted: u64) -> Option<Greedy> {
    let intervals = placer.intervals;
    let by = |key: &dyn Fn(&LiveRange) -> (u64, u64, u64)| {
        let mut order: Vec<usize> = (0..intervals.len()).collect();
        order.sort_by_key(|&i| (key(&intervals[i]), i));
        order
    };
    let life = |i: &LiveRange| (i.last - i.first + 1) as u64;
    let orders = [
        by(&|i| (i.first as u64, u64::MAX - i.bytes, 0)),
        by(&|i| (u64::MAX - i.bytes, u64::MAX - life(i), i.first as u64)),
        by(&|i| (u64::MAX - life(i), u64::MAX - i.bytes, i.first as u64)),
        by(&|i| (u64::MAX - i.bytes.saturating_mul(life(i)), i.first as u64, 0)),
        by(&|i| (u64::MAX - i.last as u64, u64::MAX - i.bytes, 0)),
    ];
    let mut best: Option<Greedy> = None;
    for order in orders {
        for best_fit in [true, false] {
            let (offsets, total) = placer.place(&order, best_fit);
            if best.as_ref().is_none_or(|best| total < best.total) {
                best = Some(Greedy { offsets, total, order: order.clone() });
            }
            if total <= wanted || placer.work > MAX_OVERLAP_PAIRS {
                return best;
            }
        }
    }
    best
}

/// What is close enough to the lower bound.
fn enough(bound: u64) -> u64 {
    bound + bound / 100
}

/// Moves intervals that touch the top of the arena earlier in the order, at places drawn from a
/// fixed sequence, and keeps what does not get worse.
fn search(
    placer: &mut Placer<'_>,
    mut offsets: Vec<u64>,
    mut total: u64,
    mut order: Vec<usize>,
    bound: u64,
) -> (Vec<u64>, u64) {
    let n = order.len();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for round in 0..MAX_SEARCH_ROUNDS {
        if placer.work > MAX_OVERLAP_PAIRS {
            break;
        }
        let top: Vec<usize> =
            (0..n).filter(|&at| offsets[order[at]] + placer.intervals[order[at]].bytes == total).collect();
        let Some(&from) = top.get(random(top.len())) else { break };
        let to = if round % 2 == 0 { random(from + 1) } else { random(n) };
        let mut next = order.clone();
        let moved = next.remove(from);
        next.insert(to.min(next.len()), moved);
        let (o, t) = placer.place(&next, round % 3 != 0);
        if t <= total {
            (offsets, total, order) = (o, t, next);
        }
        if total <= enough(bound) {
            break;
        }
    }
    (offsets, total)
}

/// Places intervals one after another into gaps between those already placed.
struct Placer<'i> {
    intervals: &'i [LiveRange],
    /// Placed intervals by the steps they cover.
    live: Vec<Vec<u32>>,
    /// Placed intervals by their first step.
    starting: Vec<Vec<u32>>,
    /// Pairs of overlapping intervals looked at so far.
    work: usize,
}

impl<'i> Placer<'i> {
    fn new(intervals: &'i [LiveRange], steps: usize) -> Placer<'i> {
        Placer { intervals, live: vec![vec![]; steps], starting: vec![vec![]; steps], work: 0 }
    }

    fn place(&mut self, order: &[usize], best_fit: bool) -> (Vec<u64>, u64) {
        self.live.iter_mut().chain(&mut self.starting).for_each(Vec::clear);
        let mut offsets = vec![0u64; self.intervals.len()];
        let mut total = 0;
        let mut taken: Vec<(u64, u64)> = vec![];
        for &id in order {
            let interval = &self.intervals[id];
            if interval.bytes == 0 {
                continue;
            }
            let later = self.starting[interval.first + 1..=interval.last].iter().flatten();
            let overlapping = self.live[interval.first].iter().chain(later);
            taken.clear();
            taken.extend(overlapping.map(|&other| {
                let start = offsets[other as usize];
                (start, start + self.intervals[other as usize].bytes)
            }));
            taken.sort_unstable();
            self.work += taken.len() + interval.last - interval.first + 1;
            self.live[interval.first..=interval.last].iter_mut().for_each(|l| l.push(id as u32));
            self.starting[interval.first].push(id as u32);
            offsets[id] = choose(&taken, interval.bytes, best_fit);
            total = total.max(offsets[id] + interval.bytes);
        }
        (offsets, total)
    }
}

/// The first, or the tightest, gap of at least `bytes` between sorted ranges.
fn choose(taken: &[(u64, u64)], bytes: u64, best_fit: bool) -> u64 {
    let mut best = Gap { offset: u64::MAX, size: None };
    let mut end = 0;
    for &(start, stop) in taken {
        if start >= end + bytes && best.size.is_none_or(|s| best_fit && start - end < s) {
            best = Gap { offset: end, size: Some(start - end) };
        }
        end = end.max(stop);
    }
    if best.size.is_some() { best.offset } else { end }
}
