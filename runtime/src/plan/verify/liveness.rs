//! Buffers of the arena, and those in the memory of one output, that are live at the same time lie apart, and working
//! memory of a step behind all that are live then.
//!
//! A buffer is live from the first to the last step that uses it. One that is born at the very
//! step where another dies may take its place if a generated kernel reads the one and writes the
//! other, at the same offset and with elements of the same size and number, so that an iteration
//! overwrites only what it has read itself. Library calls store partial sums before they have read
//! all operands, so they never work in place. A buffer that has parts is live while one of them is.

use tensorc_abi::{BufferId, Plan, Scratch, StepOp, StorageClass};

use super::super::error::PlanError;
use super::{Uses, byte_size};

/// A buffer of non-zero size that some step uses, in the arena or in the memory of an output.
#[derive(Clone, Copy)]
struct LiveBuffer {
    id: BufferId,
    output: Option<u32>,
    first: usize,
    last: usize,
    begin: u64,
    end: u64,
}

impl LiveBuffer {
    /// Bytes of the arena.
    fn arena_bytes(&self) -> u64 {
        if self.output.is_none() { self.end - self.begin } else { 0 }
    }
}

/// Buffers by their lives.
#[derive(Default)]
pub(super) struct LiveRoom {
    /// Positions in `born`, by [`BufferId`].
    positions: Vec<Option<u32>>,
    /// By the step in which they are born.
    born: Vec<LiveBuffer>,
    live: Vec<LiveBuffer>,
}

impl LiveRoom {
    /// Checks all pairs and returns the lower bound of the arena in bytes; `used` is what each step uses.
    pub(super) fn check(&mut self, plan: &Plan, used: &Uses) -> Result<u64, PlanError> {
        self.find(plan, used);
        let (mut born, live) = (&self.born[..], &mut self.live);
        let mut scratch = plan.scratch_of_steps();
        live.clear();
        let mut bound = 0;
        for step in 0..plan.steps.len() {
            live.retain(|interval| interval.last >= step);
            let (newborn, later) = born.split_at(born.iter().take_while(|interval| interval.first <= step).count());
            born = later;
            let mut shared = 0;
            for new in newborn {
                for old in &*live {
                    if new.output != old.output || new.begin >= old.end || old.begin >= new.end {
                        continue;
                    }
                    if !in_place(plan, old, new) {
                        let name = |interval: &LiveBuffer| plan.buffer(interval.id).name.clone();
                        let step = plan.steps[step].name.clone();
                        return Err(PlanError::Overlap { step, first: name(old), second: name(new) });
                    }
                    shared += new.arena_bytes();
                }
                live.push(*new);
            }
            if let Some(scratch) = scratch.of(step) {
                check_scratch(plan, scratch, live)?;
            }
            let bytes: u64 = live.iter().map(LiveBuffer::arena_bytes).sum();
            bound = bound.max(bytes - shared);
        }
        Ok(bound)
    }

    fn find(&mut self, plan: &Plan, used: &Uses) {
        let LiveRoom { positions, born, .. } = self;
        positions.clear();
        positions.resize(plan.buffers.len(), None);
        born.clear();
        for (step, used) in used.each().enumerate() {
            for use_ in used {
                let id = plan.whole(use_.buffer);
                let buffer = plan.buffer(id);
                let (output, begin) = match buffer.storage {
                    StorageClass::Arena(begin) => (None, begin),
                    StorageClass::Output(index) => (Some(index), 0),
                    StorageClass::Input(_) | StorageClass::State(_) | StorageClass::Weight(_) => continue,
                };
                let Some(bytes) = byte_size(buffer).filter(|bytes| *bytes > 0) else { continue };
                let position = *positions[id.0 as usize].get_or_insert_with(|| {
                    born.push(LiveBuffer { id, output, first: step, last: step, begin, end: begin + bytes });
                    born.len() as u32 - 1
                });
                // An output is read by the caller after the run, and what is checked by the host.
                let delivered = output.is_some_and(|index| plan.outputs[index as usize] == id) || plan.is_checked(id);
                born[position as usize].last = if delivered { usize::MAX } else { step };
            }
        }
    }
}

/// What is live during a step ends before its working memory.
fn check_scratch(plan: &Plan, scratch: &Scratch, live: &[LiveBuffer]) -> Result<(), PlanError> {
    match live.iter().find(|interval| interval.output.is_none() && interval.end > scratch.offset) {
        None => Ok(()),
        Some(interval) => Err(PlanError::ScratchOverlap {
            step: plan.steps[scratch.step as usize].name.clone(),
            offset: scratch.offset,
            buffer: plan.buffer(interval.id).name.clone(),
        }),
    }
}

fn in_place(plan: &Plan, old: &LiveBuffer, new: &LiveBuffer) -> bool {
    if old.last != new.first || old.begin != new.begin || old.end != new.end {
        return false;
    }
    let StepOp::Launch { args, .. } = &plan.steps[new.first].op else { return false };
    let written = |id: BufferId| args.iter().any(|arg| arg.buffer == id && arg.writes);
    let in_parts = |id: BufferId| args.iter().any(|arg| arg.buffer != id && plan.whole(arg.buffer) == id);
    !in_parts(old.id)
        && !in_parts(new.id)
        && plan.buffer(old.id).dtype.size() == plan.buffer(new.id).dtype.size()
        && !written(old.id)
        && written(new.id)
}
