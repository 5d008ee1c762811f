//! Which steps run side by side.
//!
//! Consecutive steps of a plan that touch no common memory, or only read it, form a region. Its
//! steps are executed by one fork and join of the threads, which saves the joins between them and
//! lets steps that are too small to be split run next to each other.

use std::ops::Range;

use tensorc_abi::{BufferId, Plan, StepOp, StorageClass};
use tensorc_exec::{MAX_STEPS, SERIAL_NS};

use super::executable::Prepared;

/// Memory that a step touches.
struct StepAccess {
    buffer: BufferId,
    place: WrittenMemory,
    writes: bool,
}

/// Memory that is written by plans: weights and inputs never are.
enum WrittenMemory {
    Output(u32),
    State(u32),
    /// Bytes of the arena.
    Arena(Range<u64>),
}

impl StepAccess {
    fn of(plan: &Plan, id: BufferId, writes: bool) -> Option<StepAccess> {
        let buffer = plan.buffer(id);
        let first = plan.byte_offset(id);
        let place = match buffer.storage {
            StorageClass::Input(_) | StorageClass::Weight(_) => return None,
            StorageClass::Output(index) => WrittenMemory::Output(index),
            StorageClass::State(index) => WrittenMemory::State(index),
            StorageClass::Arena(offset) => {
                WrittenMemory::Arena(offset + first..offset + first + buffer.span() * buffer.dtype.size() as u64)
            }
        };
        Some(StepAccess { buffer: id, place, writes })
    }

    /// Whether the order of the two accesses matters.
    fn conflicts(&self, plan: &Plan, other: &StepAccess) -> bool {
        let apart = plan.whole(self.buffer) == plan.whole(other.buffer) && !plan.overlap(self.buffer, other.buffer);
        let overlap = match (&self.place, &other.place) {
            (WrittenMemory::Output(a), WrittenMemory::Output(b))
            | (WrittenMemory::State(a), WrittenMemory::State(b)) => a == b,
            (WrittenMemory::Arena(a), WrittenMemory::Arena(b)) => a.start < b.end && b.start < a.end,
            _ => false,
        };
        overlap && !apart && (self.writes || other.writes)
    }
}

/// The regions, in order, with enough work to be worth it.
pub(super) fn regions(plan: &Plan, steps: &[Prepared]) -> Vec<Range<usize>> {
    independent(plan, steps).into_iter().filter(|region| pays(&steps[region.clone()])).collect()
}

/// Maximal ranges of steps that do not depend on each other, within a limit.
fn independent(plan: &Plan, steps: &[Prepared]) -> Vec<Range<usize>> {
    let mut regions: Vec<Range<usize>> = Vec::new();
    let mut open: Vec<StepAccess> = Vec::new();
    let second = |index: usize| plan.in_second_phase(steps[index].step);
    let opens_phase = |index: usize| index > 0 && second(index) != second(index - 1);
    for (index, prepared) in steps.iter().enumerate() {
        let args = plan.steps[prepared.step].op.args();
        let own: Vec<StepAccess> = args.iter().filter_map(|arg| StepAccess::of(plan, arg.buffer, arg.writes)).collect();
        // What a function of the host does besides is unknown.
        let opaque = |at: usize| matches!(plan.steps[steps[at].step].op, StepOp::Extern { .. });
        let independent = !(opaque(index) || index > 0 && opaque(index - 1))
            && own.iter().all(|access| !open.iter().any(|other| access.conflicts(plan, other)));
        match regions.last_mut() {
            Some(region) if independent && !opens_phase(index) && region.len() < MAX_STEPS => region.end += 1,
            _ => {
                regions.push(index..index + 1);
                open.clear();
            }
        }
        open.extend(own);
    }
    regions
}

/// Whether several steps have enough work together to be spread over threads.
fn pays(steps: &[Prepared]) -> bool {
    let ns = steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.call.ns));
    steps.len() > 1 && ns >= SERIAL_NS
}

#[cfg(test)]
mod tests {
    use tensorc_abi::{Arg, Buffer, DType, KernelId, Step};

    use super::*;
    use tensorc_exec::{self as exec, Work};

    unsafe extern "C" fn nothing(_: *const *mut u8, _: *const i64) {}

    /// A plan of 64-byte buffers at the given homes.
    fn plan(homes: &[StorageClass]) -> Plan {
        let buffer = |storage: &StorageClass| Buffer {
            name: "b".into(),
            dtype: DType::F32,
            dims: vec![16],
            storage: *storage,
            part: None,
        };
        Plan { buffers: homes.iter().map(buffer).collect(), ..Plan::default() }
    }

    /// Appends a step that reads some buffers and writes one.
    fn step(plan: &mut Plan, reads: &[u32], write: u32) {
        let arg = |buffer, writes| Arg { buffer: BufferId(buffer), writes };
        let args = reads.iter().map(|read| arg(*read, false)).chain([arg(write, true)]).collect();
        let op = StepOp::Launch { kernel: KernelId(0), args, extent: 1 };
        plan.steps.push(Step { name: "s".into(), op, flops: 0, bytes: 0 });
    }

    fn prepared(step: usize, ns: u64) -> Prepared {
        let work = Work::Kernel(nothing);
        Prepared { call: exec::Step { work, first_slot: 0, tasks: 1, grain: 1, affinity: 1, ns }, region: 1, step }
    }

    fn divided(plan: &Plan, ns: u64) -> Vec<Range<usize>> {
        let steps: Vec<Prepared> = (0..plan.steps.len()).map(|step| prepared(step, ns)).collect();
        regions(plan, &steps)
    }

    #[test]
    fn steps_that_only_read_in_common_are_joined() {
        let mut plan = plan(&[
            StorageClass::Input(0),
            StorageClass::Arena(0),
            StorageClass::Arena(64),
            StorageClass::Output(0),
            StorageClass::Output(1),
        ]);
        step(&mut plan, &[0], 1);
        step(&mut plan, &[0], 2);
        step(&mut plan, &[1, 2], 3);
        step(&mut plan, &[1, 2], 4);
        assert_eq!(divided(&plan, SERIAL_NS), [0..2, 2..4]);
        assert_eq!(divided(&plan, SERIAL_NS / 2), [0..2, 2..4]);
        assert_eq!(divided(&plan, SERIAL_NS / 2 - 1), [0..0; 0], "too little work");
    }

    #[test]
    fn every_order_of_a_write_and_another_access_is_kept() {
        let (x, a, b, over) = (0, 1, 2, 3);
        let homes = [
            StorageClass::Input(0),
            StorageClass::Arena(0),
            StorageClass::Arena(64),
            StorageClass::Arena(32),
            StorageClass::Output(0),
            StorageClass::Output(0),
        ];
        let kept: [[(&[u32], u32); 2]; 5] = [
            [(&[x], a), (&[a], b)],
            [(&[a], b), (&[x], a)],
            [(&[x], a), (&[x], a)],
            [(&[x], a), (&[x], over)],
            [(&[x], 4), (&[x], 5)],
        ];
        for [first, second] in kept {
            let mut plan = plan(&homes);
            step(&mut plan, first.0, first.1);
            step(&mut plan, second.0, second.1);
            assert_eq!(divided(&plan, SERIAL_NS), [0..0; 0], "{first:?} {second:?}");
        }
    }

    #[test]
    fn regions_end_with_their_phase_and_keep_the_order_around_states() {
        let homes = [
            StorageClass::Input(0),
            StorageClass::Arena(0),
            StorageClass::Arena(64),
            StorageClass::State(0),
            StorageClass::State(0),
            StorageClass::State(1),
        ];
        let mut plan = plan(&homes);
        step(&mut plan, &[3], 1);
        step(&mut plan, &[3], 2);
        step(&mut plan, &[1], 4);
        step(&mut plan, &[2], 5);
        assert_eq!(divided(&plan, SERIAL_NS), [0..2, 2..4], "the old value is read before the new is written");
        plan.boundary = Some(1);
        assert_eq!(divided(&plan, SERIAL_NS), std::slice::from_ref(&(2..4)));
    }

    #[test]
    fn regions_end_at_the_limit() {
        let count = 2 * MAX_STEPS + 1;
        let mut plan = plan(&(0..=count as u64).map(|i| StorageClass::Arena(64 * i)).collect::<Vec<_>>());
        (1..=count as u32).for_each(|write| step(&mut plan, &[0], write));
        assert_eq!(divided(&plan, SERIAL_NS), [0..MAX_STEPS, MAX_STEPS..2 * MAX_STEPS]);
    }
}
