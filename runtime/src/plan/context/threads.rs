//! The threads of a pool as workers of steps.

use std::ops::Range;

use tensorc_exec::{self as exec, Work, Workers};

use super::run_end::RunEnd;
use super::{Prepared, Stop, Watch};
use crate::pool::{Pool, TaskPanic};

/// The threads of a pool as workers of some steps, whose parts are recorded.
pub(super) struct Threads<'a, W> {
    pub pool: &'a Pool,
    pub steps: &'a [Prepared],
    pub watch: W,
}

impl<W: Watch> Workers for Threads<'_, W> {
    type Error = TaskPanic;

    fn count(&self) -> u64 {
        self.pool.threads() as u64
    }

    fn each(&self, tasks: u64, grain: u64, piece: &(dyn Fn(usize, Range<u64>) + Sync)) -> Result<(), TaskPanic> {
        self.pool.run(tasks, grain, piece)
    }

    fn chunk(&self, step: usize, part: impl FnOnce()) {
        let start = self.watch.begin();
        part();
        self.watch.chunk(start, &self.steps[step]);
    }
}

/// Threads that begin no part of a step when the run has to end.
pub(super) struct HurriedThreads<'a, W> {
    pub threads: Threads<'a, W>,
    pub end: RunEnd<'a>,
}

/// Whether the clock is not looked at: reading it takes as long as a short copy.
pub(super) fn is_instant(steps: &[Prepared]) -> bool {
    const SHORT: u64 = 1 << 12;
    matches!(steps, [Prepared { call: exec::Step { work: Work::Copy(bytes), .. }, .. }] if *bytes <= SHORT)
}

/// Whether the clock is looked at before a step alone: a library call of less than a millisecond, by an estimate that is
/// right within a factor of three. What a generated kernel takes may depend on its data.
pub(super) fn is_brief(step: &exec::Step) -> bool {
    matches!(step.work, Work::Library(_)) && step.ns < PIECE_NS / 100
}

/// Estimated time of a part of a step between two comparisons with the clock, in nanoseconds. Each part of a product packs
/// operands anew: parts of 10 ms made a product of 1024³ take 5 % longer.
const PIECE_NS: u64 = 100_000_000;

impl<W: Watch> Workers for HurriedThreads<'_, W> {
    type Error = Stop;

    fn count(&self) -> u64 {
        self.threads.count()
    }

    fn pieces(&self, ns: u64) -> u64 {
        self.threads.pieces(ns).max(ns / PIECE_NS)
    }

    fn each(&self, tasks: u64, grain: u64, piece: &(dyn Fn(usize, Range<u64>) + Sync)) -> Result<(), Stop> {
        let grain = grain.max(1);
        let in_time = |worker: usize, range: Range<u64>| {
            let mut start = range.start;
            while start < range.end && self.end.check().is_ok() {
                let end = range.end.min(start.saturating_add(grain));
                piece(worker, start..end);
                start = end;
            }
        };
        self.threads.each(tasks, grain, &in_time)?;
        self.end.check()
    }

    fn chunk(&self, step: usize, part: impl FnOnce()) {
        self.threads.chunk(step, part);
    }
}
