//! Arena buffers that are live at the same time lie apart.
//!
//! A buffer is live from the first to the last step that uses it. One that is born at the very
//! step where another dies may take its place if a generated kernel reads the one and writes the
//! other, at the same offset and with elements of the same size and number, so that an iteration
//! overwrites only what it has read itself. Library calls store partial sums before they have read
//! all operands, so they never work in place.

use tensorc_abi::{BufferId, Home, Plan, StepOp};

use super::super::error::PlanError;
use super::{byte_size, uses};

/// An arena buffer of non-zero size that some step uses.
#[derive(Clone, Copy)]
struct Interval {
    id: BufferId,
    first: usize,
    last: usize,
    begin: u64,
    end: u64,
}

/// Checks all pairs and returns the lower bound of the arena in bytes.
pub(super) fn check(plan: &Plan) -> Result<u64, PlanError> {
    let mut born: Vec<Vec<Interval>> = vec![Vec::new(); plan.steps.len()];
    for interval in intervals(plan) {
        born[interval.first].push(interval);
    }
    let mut live: Vec<Interval> = Vec::new();
    let mut bound = 0;
    for (step, newborn) in born.iter().enumerate() {
        live.retain(|interval| interval.last >= step);
        let mut shared = 0;
        for new in newborn {
            for old in &live {
                if new.begin >= old.end || old.begin >= new.end {
                    continue;
                }
                if !in_place(plan, old, new) {
                    let name = |interval: &Interval| plan.buffer(interval.id).name.clone();
                    let step = plan.steps[step].name.clone();
                    return Err(PlanError::Overlap { step, first: name(old), second: name(new) });
                }
                shared += new.end - new.begin;
            }
            live.push(*new);
        }
        let bytes: u64 = live.iter().map(|interval| interval.end - interval.begin).sum();
        bound = bound.max(bytes - shared);
    }
    Ok(bound)
}

fn intervals(plan: &Plan) -> Vec<Interval> {
    let mut table: Vec<Option<Interval>> = vec![None; plan.buffers.len()];
    for (step, entry) in plan.steps.iter().enumerate() {
        for use_ in uses(&entry.op) {
            let buffer = plan.buffer(use_.buffer);
            let (Home::Arena(begin), Some(bytes)) = (buffer.home, byte_size(buffer)) else { continue };
            if bytes == 0 {
                continue;
            }
            let new = Interval { id: use_.buffer, first: step, last: step, begin, end: begin + bytes };
            table[use_.buffer.0 as usize].get_or_insert(new).last = step;
        }
    }
    table.into_iter().flatten().collect()
}

fn in_place(plan: &Plan, old: &Interval, new: &Interval) -> bool {
    if old.last != new.first || old.begin != new.begin || old.end != new.end {
        return false;
    }
    let StepOp::Launch { args, .. } = &plan.steps[new.first].op else { return false };
    let written = |id: BufferId| args.iter().any(|arg| arg.buffer == id && arg.writes);
    plan.buffer(old.id).dtype.size() == plan.buffer(new.id).dtype.size() && !written(old.id) && written(new.id)
}
