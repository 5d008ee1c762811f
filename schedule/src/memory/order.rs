//! The memory plan of many shapes: which ranges lie above which others.
//!
//! A plan for one shape orders every two ranges that are live at the same time: one lies above the other. Ranges of other sizes in
//! the same order overlap as little: each begins where the highest of those below it ends. So the order is found once, for a large
//! shape, and offsets of other shapes follow by sums and maxima. They do not decrease with any size.

use std::collections::BTreeSet;

use tensorc_abi::{BufferId, Plan, StepOp, StorageClass};
use tensorc_ir::diag::Result;

use super::{Empty, LiveRange, PlacedLife, PlacementRoom, Placer, enough, greedy, intervals, lower_bound, settle};
use crate::lowered::{InPlaceOptions, Lowered};

/// Ranges of memory from the lowest to the highest.
#[derive(Clone, Debug, Default)]
pub struct PlacementOrder {
    /// Each behind those that it lies above.
    pub ranges: Vec<PlacedRange>,
    /// Of each step, the ranges behind which its working memory lies: of all that are live, those that have none above them.
    pub tops: Vec<Vec<usize>>,
    /// Of each step with nested plans: its position, and the orders of these.
    pub nested: Vec<(usize, Vec<PlacementOrder>)>,
}

/// A range of memory.
#[derive(Clone, Debug)]
pub struct PlacedRange {
    /// What lies there, one after the other, all of one size.
    pub buffers: Vec<BufferId>,
    /// The ranges that it begins behind. Others below it lie below these.
    pub above: Vec<usize>,
    first: usize,
    last: usize,
}

impl PlacementOrder {
    /// The order of a plan for one shape whose memory is planned ([`super::plan_memory`]). Its in-place options are to hold for every
    /// shape.
    ///
    /// # Errors
    /// As [`super::plan_memory`].
    pub fn of(lowered: &Lowered) -> Result<PlacementOrder> {
        let offset = |range: &LiveRange| match lowered.plan.buffer(range.buffers[0]).storage {
            StorageClass::Arena(offset) => offset,
            _ => 0,
        };
        let Lowered { plan, in_place, .. } = lowered;
        let live = intervals(plan, &in_place.steps, Empty::In)?;
        let offsets = live.iter().map(offset).collect();
        let nested = PlacementOrder::all_nested(plan, in_place)?;
        Ok(PlacementOrder { nested, ..PlacementOrder::by(live, offsets, plan.steps.len()) })
    }

    /// The order of the best greedy placement for one shape: for plans that are made between requests, of which the searches of
    /// [`super::plan_memory`] would take most of the time.
    ///
    /// # Errors
    /// As [`super::plan_memory`].
    pub fn greedy(lowered: &Lowered) -> Result<PlacementOrder> {
        PlacementOrder::greedily(&lowered.plan, &lowered.in_place)
    }

    fn greedily(plan: &Plan, in_place: &InPlaceOptions) -> Result<PlacementOrder> {
        let (live, steps) = (intervals(plan, &in_place.steps, Empty::In)?, plan.steps.len());
        let wanted = enough(lower_bound(&live, steps));
        let found = greedy(&mut Placer::new(&live, steps), wanted);
        let offsets = found.map(|found| found.offsets).unwrap_or_default();
        let nested = PlacementOrder::all_nested(plan, in_place)?;
        Ok(PlacementOrder { nested, ..PlacementOrder::by(live, offsets, steps) })
    }

    /// Greedy orders of the nested plans.
    fn all_nested(plan: &Plan, in_place: &InPlaceOptions) -> Result<Vec<(usize, Vec<PlacementOrder>)>> {
        let of = |(step, options): &(usize, Vec<InPlaceOptions>)| {
            let bodies = plan.steps[*step].op.flow().map_or(&[][..], |flow| &flow.bodies);
            let orders = bodies.iter().zip(options).map(|(body, options)| PlacementOrder::greedily(body, options));
            Ok((*step, orders.collect::<Result<_>>()?))
        };
        in_place.nested.iter().map(of).collect()
    }

    /// The order of ranges with these offsets.
    fn by(live: Vec<LiveRange>, offsets: Vec<u64>, steps: usize) -> PlacementOrder {
        let mut live: Vec<(u64, LiveRange)> = offsets.into_iter().zip(live).collect();
        // What is empty here keeps nothing else from the bottom.
        live.sort_by_key(|(offset, range)| (range.bytes > 0, *offset, range.first, range.buffers[0]));
        let mut reached: Vec<BTreeSet<usize>> = vec![];
        let mut ranges: Vec<PlacedRange> = vec![];
        for (_, LiveRange { first, last, buffers, .. }) in live {
            let meets = |other: &PlacedRange| other.first <= last && first <= other.last;
            let below: Vec<usize> = (0..ranges.len()).filter(|i| meets(&ranges[*i])).collect();
            let above = highest(&below, &reached);
            reached.push(above.iter().flat_map(|i| reached[*i].iter().copied().chain([*i])).collect());
            ranges.push(PlacedRange { buffers, above, first, last });
        }
        let tops = |step: usize| {
            let live = |i: &usize| (ranges[*i].first..=ranges[*i].last).contains(&step);
            highest(&(0..ranges.len()).filter(live).collect::<Vec<_>>(), &reached)
        };
        PlacementOrder { tops: (0..steps).map(tops).collect(), ranges, nested: vec![] }
    }

    /// Where ranges of some sizes begin, in bytes, and where the last ends.
    pub fn offsets(&self, bytes: impl Fn(&PlacedRange) -> u64) -> (Vec<u64>, u64) {
        let (mut offsets, mut ends): (Vec<u64>, Vec<u64>) = (vec![], vec![]);
        for range in &self.ranges {
            let offset = range.above.iter().map(|below| ends[*below]).max().unwrap_or(0);
            offsets.push(offset);
            ends.push(offset.saturating_add(bytes(range)));
        }
        (offsets, ends.into_iter().max().unwrap_or(0))
    }

    /// Plans the memory of the nested plans of a step.
    pub fn apply_nested(&self, step: usize, op: &mut StepOp, room: &mut PlacementRoom) {
        if let Some((_, orders)) = self.nested.iter().find(|(at, _)| *at == step) {
            apply_all(orders, op, room);
        }
    }

    /// Plans the memory of a shape in this order. Allocates nothing if the room and the plan have been used for a shape.
    pub fn apply(&self, plan: &mut Plan, room: &mut PlacementRoom) {
        for (step, orders) in &self.nested {
            apply_all(orders, &mut plan.steps[*step].op, room);
        }
        room.placed.clear();
        let mut total = 0;
        for PlacedRange { buffers, above, first, last } in &self.ranges {
            let end = |below: &usize| room.placed[*below].offset.saturating_add(room.placed[*below].bytes);
            let offset = above.iter().map(end).max().unwrap_or(0);
            let bytes = plan.buffer(buffers[0]).bytes().next_multiple_of(Plan::ALIGN);
            total = offset.saturating_add(bytes).max(total);
            room.placed.push(PlacedLife { first: *first, last: *last, bytes, offset });
        }
        settle(plan, self.ranges.iter().map(|range| &range.buffers[..]), total, room);
    }
}

/// Plans the memory of the nested plans of a step in these orders.
fn apply_all(orders: &[PlacementOrder], op: &mut StepOp, room: &mut PlacementRoom) {
    if let StepOp::Flow { flow, .. } = op {
        flow.bodies.iter_mut().zip(orders).for_each(|(body, order)| order.apply(body, room));
    }
}

/// Of ranges in ascending order, those that lie below no other of them.
fn highest(ranges: &[usize], reached: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut found: Vec<usize> = vec![];
    for range in ranges.iter().rev() {
        if !found.iter().any(|above| reached[*above].contains(range)) {
            found.push(*range);
        }
    }
    found
}
