//! Which steps run side by side.
//!
//! Consecutive steps of a plan that touch no common memory, or only read it, form a region. Its
//! steps are executed by one fork and join of the threads, which saves the joins between them and
//! lets steps that are too small to be split run next to each other.

use core::ops::Range;

use tensorc_abi::{Buffer, BufferId, Plan, Scratch, StepOp, StorageClass};

use crate::records::estimated_ns;
use crate::run::MAX_STEPS;
use crate::sizes::SERIAL_NS;

/// Memory that a step touches.
enum StepAccess {
    Buffer {
        buffer: BufferId,
        place: WrittenMemory,
        writes: bool,
    },
    /// Working memory, which ends where the last worker's does: nobody knows here.
    Scratch(Scratch),
}

/// Memory that is written by plans: weights and inputs never are.
enum WrittenMemory {
    Output(u32),
    State(u32),
    /// Bytes of the arena.
    Arena(Range<u64>),
}

impl StepAccess {
    /// Appends all that a step, by its position, touches.
    fn list(plan: &Plan, step: usize, all: &mut Vec<StepAccess>) {
        let args = plan.steps[step].op.args();
        all.extend(args.iter().filter_map(|arg| StepAccess::of(plan, arg.buffer, arg.writes)));
        all.extend(plan.scratch_of(step).copied().map(StepAccess::Scratch));
    }

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
        Some(StepAccess::Buffer { buffer: id, place, writes })
    }

    /// Whether the order of the two accesses matters.
    fn conflicts(&self, plan: &Plan, other: &StepAccess) -> bool {
        match (self, other) {
            (StepAccess::Scratch(a), StepAccess::Scratch(b)) => (a.offset, a.working()) != (b.offset, b.working()),
            (StepAccess::Scratch(scratch), StepAccess::Buffer { place, .. })
            | (StepAccess::Buffer { place, .. }, StepAccess::Scratch(scratch)) => {
                matches!(place, WrittenMemory::Arena(bytes) if bytes.end > scratch.offset)
            }
            (
                StepAccess::Buffer { buffer: x, place: a, writes: write_x },
                StepAccess::Buffer { buffer: y, place: b, writes: write_y },
            ) => {
                let apart = plan.whole(*x) == plan.whole(*y) && !plan.overlap(*x, *y);
                (*write_x || *write_y) && !apart && a.overlaps(b)
            }
        }
    }
}

impl WrittenMemory {
    fn overlaps(&self, other: &WrittenMemory) -> bool {
        match (self, other) {
            (WrittenMemory::Output(a), WrittenMemory::Output(b))
            | (WrittenMemory::State(a), WrittenMemory::State(b)) => a == b,
            (WrittenMemory::Arena(a), WrittenMemory::Arena(b)) => a.start < b.end && b.start < a.end,
            _ => false,
        }
    }
}

/// The regions with enough work to be worth it, in order, among the steps at some positions of a plan: those that do
/// something. Steps whose working memory differs, or lies where another has a buffer, are in none together.
pub fn regions<'p>(plan: &'p Plan, steps: &'p [usize]) -> impl Iterator<Item = Range<usize>> + 'p {
    Independent { plan, steps, next: 0, open: Vec::new(), listed: 0 }
        .filter(move |region| pays(plan, &steps[region.clone()]))
}

/// Maximal ranges of steps that do not depend on each other, within a limit.
struct Independent<'p> {
    plan: &'p Plan,
    steps: &'p [usize],
    /// Where the next range begins.
    next: usize,
    /// Accesses of the first steps of the current range, up to `listed`.
    open: Vec<StepAccess>,
    listed: usize,
}

impl Independent<'_> {
    /// What a function of the host does besides is unknown; nested plans use the threads themselves.
    fn is_opaque(&self, index: usize) -> bool {
        matches!(self.plan.steps[self.steps[index]].op, StepOp::Extern { .. } | StepOp::Flow { .. })
    }

    /// Whether a step may run beside the steps of the current range, the last of which is the step before. Adds its accesses.
    fn admits(&mut self, index: usize) -> bool {
        let (plan, [last, step]) = (self.plan, [index - 1, index].map(|index| self.steps[index]));
        if self.is_opaque(index)
            || self.is_opaque(index - 1)
            || plan.in_second_phase(step) != plan.in_second_phase(last)
        {
            return false;
        }
        // Most steps read what the step before wrote.
        if takes_result(plan, last, step) {
            return false;
        }
        let before = self.list(index);
        self.list(index + 1);
        let (open, own) = self.open.split_at(before);
        let admitted = own.iter().all(|access| !open.iter().any(|other| access.conflicts(plan, other)));
        if !admitted {
            // What the step touches is what the next range begins with.
            self.open.drain(..before);
        }
        admitted
    }

    /// Lists what steps before one touch; how much that is.
    fn list(&mut self, end: usize) -> usize {
        for step in &self.steps[self.listed..end] {
            StepAccess::list(self.plan, *step, &mut self.open);
        }
        self.listed = end;
        self.open.len()
    }
}

/// Whether a step reads or writes elements that another has written, as the result of that and not through a part of it.
fn takes_result(plan: &Plan, writer: usize, step: usize) -> bool {
    // (No array of both: moving what was just written is slow.)
    let written = plan.steps[writer].op.args();
    let used = plan.steps[step].op.args();
    let is_used = |id: BufferId| used.iter().any(|arg| arg.buffer == id);
    let is_whole = |buffer: &Buffer| buffer.part.is_none() && !buffer.is_empty();
    written.iter().any(|arg| arg.writes && is_used(arg.buffer) && is_whole(plan.buffer(arg.buffer)))
}

impl Iterator for Independent<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let first = self.next;
        self.steps.get(first)?;
        if self.listed <= first {
            self.open.clear();
            self.listed = first;
        }
        self.next += 1;
        while self.next < self.steps.len() && self.next - first < MAX_STEPS && self.admits(self.next) {
            self.next += 1;
        }
        Some(first..self.next)
    }
}

/// Whether several steps have enough work together to be spread over threads.
fn pays(plan: &Plan, steps: &[usize]) -> bool {
    let ns = steps.iter().fold(0u64, |sum, step| sum.saturating_add(estimated_ns(&plan.steps[*step])));
    steps.len() > 1 && ns >= SERIAL_NS
}

#[cfg(test)]
mod tests {
    use tensorc_abi::{Arg, Buffer, DType, KernelId, Step};

    use std::vec::Vec;

    use super::*;

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

    /// The regions if every step takes so long.
    fn divided(plan: &Plan, ns: u64) -> Vec<Range<usize>> {
        const FLOPS_PER_NS: u64 = 4;
        let mut plan = plan.clone();
        plan.steps.iter_mut().for_each(|step| step.flops = FLOPS_PER_NS * ns);
        regions(&plan, &(0..plan.steps.len()).collect::<Vec<_>>()).collect()
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
    fn steps_side_by_side_have_the_same_working_memory_apart_from_what_they_use() {
        let mut plan =
            plan(&[StorageClass::Input(0), StorageClass::Arena(0), StorageClass::Arena(64), StorageClass::Arena(128)]);
        step(&mut plan, &[0], 1);
        step(&mut plan, &[0], 2);
        step(&mut plan, &[0], 3);
        let at = |step, offset, bytes| Scratch { step, offset, shared: 0, bytes, live: 0 };
        let with = |scratch: &[Scratch]| divided(&Plan { scratch: scratch.to_vec(), ..plan.clone() }, SERIAL_NS);
        assert_eq!(with(&[at(0, 256, 128), at(2, 256, 128)]), std::slice::from_ref(&(0..3)));
        assert_eq!(with(&[at(0, 256, 128), at(2, 256, 256)]), std::slice::from_ref(&(0..2)), "of other sizes");
        assert_eq!(with(&[at(0, 256, 128), at(1, 384, 128)]), std::slice::from_ref(&(1..3)), "in other places");
        assert_eq!(with(&[at(0, 128, 128)]), std::slice::from_ref(&(0..2)), "over the third buffer");
        assert_eq!(with(&[at(2, 64, 128)]), std::slice::from_ref(&(0..2)), "over the second buffer");
    }

    #[test]
    fn regions_end_at_the_limit() {
        let count = 2 * MAX_STEPS + 1;
        let mut plan = plan(&(0..=count as u64).map(|i| StorageClass::Arena(64 * i)).collect::<Vec<_>>());
        (1..=count as u32).for_each(|write| step(&mut plan, &[0], write));
        assert_eq!(divided(&plan, SERIAL_NS), [0..MAX_STEPS, MAX_STEPS..2 * MAX_STEPS]);
    }
}
