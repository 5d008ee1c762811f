//! Which steps run side by side.
//!
//! Consecutive steps of a plan that touch no common memory, or only read it, form a region. Its
//! steps are executed by one fork and join of the threads, which saves the joins between them and
//! lets steps that are too small to be split run next to each other.

use std::ops::Range;

use tensorc_abi::{BufferId, Home, Plan, StepOp};

use super::executable::{Prepared, SERIAL_NS};

/// Most steps of a region: what a thread looks through to find its next chunk.
const MAX_STEPS: usize = 16;

/// Memory that a step touches.
struct Access {
    buffer: BufferId,
    place: Place,
    writes: bool,
}

/// Memory that is written by plans: weights and inputs never are.
enum Place {
    Output(u32),
    State(u32),
    /// Bytes of the arena.
    Arena(Range<u64>),
}

impl Access {
    fn of(plan: &Plan, id: BufferId, writes: bool) -> Option<Access> {
        let buffer = plan.buffer(id);
        let first = plan.byte_offset(id);
        let place = match buffer.home {
            Home::Input(_) | Home::Weight(_) => return None,
            Home::Output(index) => Place::Output(index),
            Home::State(index) => Place::State(index),
            Home::Arena(offset) => {
                Place::Arena(offset + first..offset + first + buffer.span() * buffer.dtype.size() as u64)
            }
        };
        Some(Access { buffer: id, place, writes })
    }

    /// Whether the order of the two accesses matters.
    fn conflicts(&self, plan: &Plan, other: &Access) -> bool {
        let apart = plan.whole(self.buffer) == plan.whole(other.buffer) && !plan.overlap(self.buffer, other.buffer);
        let overlap = match (&self.place, &other.place) {
            (Place::Output(a), Place::Output(b)) | (Place::State(a), Place::State(b)) => a == b,
            (Place::Arena(a), Place::Arena(b)) => a.start < b.end && b.start < a.end,
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
    let mut open: Vec<Access> = Vec::new();
    let second = |index: usize| plan.in_second_phase(steps[index].step);
    let opens_phase = |index: usize| index > 0 && second(index) != second(index - 1);
    for (index, prepared) in steps.iter().enumerate() {
        let args = plan.steps[prepared.step].op.args();
        let own: Vec<Access> = args.iter().filter_map(|arg| Access::of(plan, arg.buffer, arg.writes)).collect();
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
    let ns = steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.ns));
    steps.len() > 1 && ns >= SERIAL_NS
}

/// The chunks of a region's steps, numbered through.
pub(super) struct Chunks {
    /// One after the last chunk of each step.
    ends: [u64; MAX_STEPS],
    /// Tasks of a chunk of each step.
    grains: [u64; MAX_STEPS],
    /// Tasks of each step.
    tasks: [u64; MAX_STEPS],
    steps: usize,
}

impl Chunks {
    /// Cuts at most [`MAX_STEPS`] steps into about `wanted` chunks of similar time.
    pub fn new(steps: &[Prepared], wanted: u64) -> Chunks {
        let mut chunks =
            Chunks { ends: [0; MAX_STEPS], grains: [1; MAX_STEPS], tasks: [0; MAX_STEPS], steps: steps.len() };
        let total = steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.ns)).max(1);
        let mut end = 0;
        for (i, step) in steps.iter().enumerate() {
            let share = wanted.saturating_mul(step.ns).div_ceil(total).max(1);
            let grain = step.grain(share);
            end += step.tasks.div_ceil(grain);
            (chunks.ends[i], chunks.grains[i], chunks.tasks[i]) = (end, grain, step.tasks);
        }
        chunks
    }

    pub fn count(&self) -> u64 {
        self.steps.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Step and tasks of a chunk below [`Chunks::count`].
    pub fn get(&self, chunk: u64) -> (usize, Range<u64>) {
        let step = self.ends[..self.steps].partition_point(|end| *end <= chunk);
        let first = if step == 0 { 0 } else { self.ends[step - 1] };
        let begin = (chunk - first) * self.grains[step];
        (step, begin..self.tasks[step].min(begin + self.grains[step]))
    }
}

#[cfg(test)]
mod tests {
    use tensorc_abi::{Arg, Buffer, DType, KernelId, Step};

    use super::*;
    use crate::plan::executable::Call;

    unsafe extern "C" fn nothing(_: *const *mut u8, _: *const i64) {}

    /// A plan of 64-byte buffers at the given homes.
    fn plan(homes: &[Home]) -> Plan {
        let buffer =
            |home: &Home| Buffer { name: "b".into(), dtype: DType::F32, dims: vec![16], home: *home, part: None };
        Plan { buffers: homes.iter().map(buffer).collect(), ..Plan::default() }
    }

    /// Appends a step that reads some buffers and writes one.
    fn step(plan: &mut Plan, reads: &[u32], write: u32) {
        let arg = |buffer, writes| Arg { buffer: BufferId(buffer), writes };
        let args = reads.iter().map(|read| arg(*read, false)).chain([arg(write, true)]).collect();
        let op = StepOp::Launch { kernel: KernelId(0), args, extent: 1 };
        plan.steps.push(Step { name: "s".into(), op, flops: 0, bytes: 0 });
    }

    fn prepared(step: usize, tasks: u64, least_grain: u64, ns: u64) -> Prepared {
        Prepared { call: Call::Kernel(nothing), first_slot: 0, tasks, least_grain, together: 1, ns, region: 1, step }
    }

    fn divided(plan: &Plan, ns: u64) -> Vec<Range<usize>> {
        let steps: Vec<Prepared> = (0..plan.steps.len()).map(|step| prepared(step, 1, 1, ns)).collect();
        regions(plan, &steps)
    }

    #[test]
    fn steps_that_only_read_in_common_are_joined() {
        let mut plan = plan(&[Home::Input(0), Home::Arena(0), Home::Arena(64), Home::Output(0), Home::Output(1)]);
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
        let homes =
            [Home::Input(0), Home::Arena(0), Home::Arena(64), Home::Arena(32), Home::Output(0), Home::Output(0)];
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
        let homes = [Home::Input(0), Home::Arena(0), Home::Arena(64), Home::State(0), Home::State(0), Home::State(1)];
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
        let mut plan = plan(&(0..=count as u64).map(|i| Home::Arena(64 * i)).collect::<Vec<_>>());
        (1..=count as u32).for_each(|write| step(&mut plan, &[0], write));
        assert_eq!(divided(&plan, SERIAL_NS), [0..MAX_STEPS, MAX_STEPS..2 * MAX_STEPS]);
    }

    #[test]
    fn chunks_cover_every_task_once() {
        let sizes = [(1, 1, 5), (1000, 10, 1 << 40), (7, 7, SERIAL_NS), (64, 1, u64::MAX), (3, 1, 0)];
        for count in 1..=sizes.len() {
            let steps: Vec<Prepared> = sizes[..count]
                .iter()
                .enumerate()
                .map(|(i, (tasks, grain, ns))| prepared(i, *tasks, *grain, *ns))
                .collect();
            for wanted in [1, 2, 8, 1000] {
                let chunks = Chunks::new(&steps, wanted);
                let mut next = vec![0; count];
                for chunk in 0..chunks.count() {
                    let (step, tasks) = chunks.get(chunk);
                    assert!(tasks.start == next[step] && tasks.start < tasks.end);
                    assert!(tasks.end - tasks.start >= sizes[step].1 || tasks.end == sizes[step].0);
                    next[step] = tasks.end;
                }
                assert!(next.iter().zip(sizes).all(|(end, size)| *end == size.0), "{wanted}: {next:?}");
            }
        }
    }

    #[test]
    fn large_steps_get_more_chunks() {
        let steps = [prepared(0, 100, 1, 3 * SERIAL_NS), prepared(1, 100, 1, SERIAL_NS)];
        let chunks = Chunks::new(&steps, 8);
        let of_first = (0..chunks.count()).filter(|chunk| chunks.get(*chunk).0 == 0).count();
        assert_eq!((of_first, chunks.count()), (7, 9));
    }
}
