//! Filling memory that nothing lives in, so that a lifetime which is too short shows as wrong results.
//!
//! For tests. The arena starts as a pattern that is NaN in every floating-point type, and after each step
//! the buffers that died with it become that pattern again, and where its working memory may have been.

use std::ops::Range;

use tensorc_abi::{Plan, StorageClass};

/// Every byte of dead memory: a NaN of any width, and the integer -1.
const PATTERN: u8 = 0xff;

/// The arena ranges that die with each step.
pub(super) struct Deaths {
    arena: usize,
    by_step: Vec<Vec<Range<usize>>>,
}

impl Deaths {
    pub(super) fn of(plan: &Plan) -> Deaths {
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
        for (i, step) in plan.steps.iter().enumerate() {
            for arg in step.op.args() {
                lives[plan.whole(arg.buffer).0 as usize].get_or_insert((i, i)).1 = i;
            }
        }
        // The host reads what is checked after the last step.
        for check in &plan.checks {
            lives[plan.whole(check.buffer).0 as usize] = None;
        }
        let live = plan.buffers.iter().zip(&lives).filter_map(|(buffer, life)| match (buffer.storage, life) {
            (StorageClass::Arena(offset), Some((first, last))) => {
                Some((*first, *last, offset as usize..(offset + buffer.bytes()) as usize))
            }
            _ => None,
        });
        let live: Vec<(usize, usize, Range<usize>)> = live.collect();
        let mut by_step = vec![vec![]; plan.steps.len()];
        for (_, last, range) in &live {
            // Where another buffer took the place of this one, it lives on.
            let taken = live.iter().any(|(first, end, other)| {
                first <= last && last < end && other.start < range.end && range.start < other.end
            });
            if !taken {
                by_step[*last].push(range.clone());
            }
        }
        // Whatever lies behind the start of working memory is dead then.
        for scratch in plan.scratch.iter().filter(|scratch| scratch.offset < plan.arena_bytes) {
            by_step[scratch.step as usize].push(scratch.offset as usize..plan.arena_bytes as usize);
        }
        Deaths { arena: plan.arena_bytes as usize, by_step }
    }

    /// Fills the whole arena.
    ///
    /// # Safety
    /// `base` is the start of the plan's arena, and nothing uses it.
    pub(super) unsafe fn fill_all(&self, base: *mut u8) {
        // SAFETY: the arena has that many bytes.
        unsafe { base.write_bytes(PATTERN, self.arena) };
    }

    /// Fills what died with a step.
    ///
    /// # Safety
    /// As for [`Deaths::fill_all`]; all steps up to this one, and none that depends on it, have run.
    pub(super) unsafe fn fill(&self, base: *mut u8, step: usize) {
        for range in &self.by_step[step] {
            // SAFETY: the verifier proved buffers to lie inside the arena.
            unsafe { base.add(range.start).write_bytes(PATTERN, range.len()) };
        }
    }
}
