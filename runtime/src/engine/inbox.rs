//! Where pushing threads leave operations.
//!
//! A lock of its own, held for some tens of nanoseconds, so that pushing does not meet the scheduler.
//! The order in the inbox is the order of the program. The scheduler takes the whole content by
//! exchanging buffers, which keep their capacity.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lane::{Doorbell, LaneId};
use super::op::{OpName, RunContext};
use super::prefetch;
use super::rounds::Age;
use super::state::{VarAccess, VarId};
use super::task::ErasedFn;
use super::wait::Ticket;
use crate::device::Device;

/// Pushes ahead for which memory is asked for.
const AHEAD: usize = 8;

/// What an operation consists of besides its accesses.
pub enum OpBody {
    Task(ErasedFn),
    /// Finished by its completion.
    Async(ErasedFn),
    /// Somebody waits for the variable.
    Wait(Arc<Ticket>),
    /// Not an operation: somebody waits for everything before.
    WaitAll(Arc<Ticket>),
    /// Deletes a variable.
    Delete(Option<Box<Then>>),
}

/// What is called after a variable is deleted.
pub type Then = dyn FnOnce(&RunContext<'_>) + Send;

impl OpBody {
    /// Whether it is work, and not just bookkeeping of the engine's.
    pub fn is_work(&self) -> bool {
        self.counts() || matches!(self, OpBody::Delete(Some(_)))
    }

    /// Whether it counts as pending for the bound of run-ahead.
    pub fn counts(&self) -> bool {
        matches!(self, OpBody::Task(_) | OpBody::Async(_))
    }
}

pub struct SubmittedOp {
    pub body: OpBody,
    pub name: OpName,
    pub bytes: u64,
    pub staged_bytes: u64,
    pub priority: i32,
    /// Number of its accesses, which stand in [`Batch::accesses`].
    pub accesses: u32,
    pub device: Device,
    pub lane: u16,
    /// An operation pushed it, whose age stands in [`Batch::parents`].
    pub nested: bool,
}

impl SubmittedOp {
    /// What the engine pushes for itself.
    pub fn internal(body: OpBody) -> SubmittedOp {
        SubmittedOp {
            body,
            name: OpName::from_static("engine"),
            bytes: 0,
            staged_bytes: 0,
            priority: 0,
            accesses: 0,
            device: Device::default(),
            lane: 0,
            nested: false,
        }
    }
}

#[derive(Default)]
pub struct Batch {
    pub jobs: VecDeque<SubmittedOp>,
    /// Of all jobs, one after the other.
    pub accesses: Vec<VarAccess>,
    /// Ages of the operations that pushed nested jobs, one after the other.
    pub parents: VecDeque<Age>,
    /// Accesses of jobs that were taken out.
    pub consumed: usize,
    /// Some operation has a priority other than 0.
    pub prioritized: bool,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Takes out what was pushed first.
    #[inline]
    pub fn pop(&mut self) -> Option<SubmittedOp> {
        self.jobs.pop_front()
    }

    /// Makes an empty batch begin at the front of its memory again, which is in use.
    pub fn rewind(&mut self) {
        self.jobs.clear();
        self.accesses.clear();
        (self.consumed, self.prioritized) = (0, false);
    }
}

/// The way from a device and a kind of work to a lane.
pub struct Route {
    pub queue: LaneId,
    /// A push must wake a worker: all of them sleep, or none is on the watch for new work.
    pub wake: bool,
    pub doorbell: Arc<Doorbell>,
}

#[derive(Default)]
pub struct Inbox {
    pub batch: Batch,
    /// One for each lane, in the same order.
    pub routes: Vec<Route>,
    pub free_vars: Vec<VarId>,
    pub next_var: u32,
    /// Counting operations pushed so far, and bytes that they staged.
    pub pushed: u64,
    pub staged: u64,
    /// Those of them that are done, as last told by the scheduler.
    pub finished: u64,
    pub unstaged: u64,
    /// Nothing is taken out.
    pub halted: bool,
    /// No handle of the engine is left: whoever deletes a variable does the work.
    pub closed: bool,
}

impl Inbox {
    pub fn new_var(&mut self) -> VarId {
        self.free_vars.pop().unwrap_or_else(|| {
            self.next_var += 1;
            VarId(self.next_var - 1)
        })
    }

    /// Counting operations that are not done, and bytes that they stage, as far as is known here.
    pub fn pending(&self) -> (u64, u64) {
        (self.pushed - self.finished, self.staged - self.unstaged)
    }

    /// Appends a job whose accesses the caller has appended to [`Batch::accesses`].
    pub fn append(&mut self, mut job: SubmittedOp, parent: Option<Age>) {
        job.nested = parent.is_some();
        self.batch.parents.extend(parent);
        if job.body.counts() {
            self.pushed += 1;
            self.staged += job.staged_bytes;
        }
        self.batch.prioritized |= job.priority != 0 && job.body.counts();
        self.batch.jobs.push_back(job);
        let (front, back) = self.batch.jobs.as_slices();
        let end = if back.is_empty() { front.as_ptr_range().end } else { back.as_ptr_range().end };
        prefetch::for_writing(end.wrapping_add(AHEAD));
        prefetch::for_writing(self.batch.accesses.as_ptr_range().end.wrapping_add(4 * AHEAD));
    }
}

const _: () = assert!(size_of::<SubmittedOp>() <= 128, "larger values are copied by a function");
