//! Where pushing threads leave operations.
//!
//! A lock of its own, held for some tens of nanoseconds, so that pushing does not meet the scheduler.
//! The order in the inbox is the order of the program. The scheduler takes the whole content by
//! exchanging buffers, which keep their capacity.

use std::collections::VecDeque;
use std::sync::Arc;

use super::bulk::Bulk;
use super::lane::{Doorbell, Queue};
use super::op::{Name, RunContext};
use super::prefetch;
use super::rounds::Age;
use super::state::{Access, VarId};
use super::task::Task;
use super::var::Operator;
use super::wait::Ticket;
use crate::device::Device;

/// Pushes ahead for which memory is asked for.
const AHEAD: usize = 8;

/// What an operation consists of besides its accesses.
pub enum Body {
    Task(Task),
    /// Finished by its completion.
    Async(Task),
    /// Several operations in one.
    Bulk(Box<Bulk>),
    /// Somebody waits for the variable.
    Wait(Arc<Ticket>),
    /// Not an operation: somebody waits for everything before.
    WaitAll(Arc<Ticket>),
    /// Deletes a variable.
    Delete(Option<Box<Then>>),
    /// Not an operation: the handle of a reusable operator was dropped.
    Retire(u32),
}

/// What is called after a variable is deleted.
pub type Then = dyn FnOnce(&RunContext<'_>) + Send;

impl Body {
    /// Whether it is work, and not just bookkeeping of the engine's.
    pub fn is_work(&self) -> bool {
        self.counts() || matches!(self, Body::Delete(Some(_)))
    }

    /// Whether it counts as pending for the bound of run-ahead.
    pub fn counts(&self) -> bool {
        matches!(self, Body::Task(_) | Body::Async(_) | Body::Bulk(_))
    }
}

pub struct Job {
    pub body: Body,
    pub name: Name,
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

impl Job {
    /// What the engine pushes for itself.
    pub fn internal(body: Body) -> Job {
        Job {
            body,
            name: Name::from_static("engine"),
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

/// A push of a reusable operator.
pub struct Repeat {
    /// Jobs of the batch that were pushed before.
    after: u32,
    pub operator: u32,
    /// Pushed by an operation, whose age is in [`Batch::parents`].
    pub nested: bool,
}

#[derive(Default)]
pub struct Batch {
    pub jobs: VecDeque<Job>,
    /// Between the jobs.
    repeats: VecDeque<Repeat>,
    /// Jobs that were taken out.
    taken: u32,
    /// Of all jobs, one after the other.
    pub accesses: Vec<Access>,
    /// Ages of the operations that pushed nested jobs and repeats, one after the other.
    pub parents: VecDeque<Age>,
    /// Accesses of jobs that were taken out.
    pub consumed: usize,
    /// Some operation has a priority other than 0.
    pub prioritized: bool,
}

/// What lies in an inbox.
pub enum Item {
    Job(Job),
    Repeat(Repeat),
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.repeats.is_empty()
    }

    pub fn len(&self) -> usize {
        self.jobs.len() + self.repeats.len()
    }

    /// Takes out what was pushed first.
    #[inline]
    pub fn pop(&mut self) -> Option<Item> {
        if self.repeats.front().is_some_and(|repeat| repeat.after == self.taken) {
            return self.repeats.pop_front().map(Item::Repeat);
        }
        let job = self.jobs.pop_front()?;
        self.taken += 1;
        Some(Item::Job(job))
    }

    /// Makes an empty batch begin at the front of its memory again, which is in use.
    pub fn rewind(&mut self) {
        self.jobs.clear();
        self.repeats.clear();
        self.accesses.clear();
        (self.taken, self.consumed, self.prioritized) = (0, 0, false);
    }
}

/// The way from a device and a kind of work to a lane.
pub struct Route {
    pub queue: Queue,
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
    /// Most operations that are joined into one; 0 and 1 join none.
    pub bulk_size: usize,
    /// The thread whose next operation may join the last one.
    pub open: Option<usize>,
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
    pub fn append(&mut self, mut job: Job, parent: Option<Age>) {
        job.nested = parent.is_some();
        self.batch.parents.extend(parent);
        if job.body.counts() {
            self.pushed += 1;
            self.staged += job.staged_bytes;
        }
        self.open = None;
        self.batch.prioritized |= job.priority != 0 && job.body.counts();
        self.batch.jobs.push_back(job);
        let (front, back) = self.batch.jobs.as_slices();
        let end = if back.is_empty() { front.as_ptr_range().end } else { back.as_ptr_range().end };
        prefetch::for_writing(end.wrapping_add(AHEAD));
        prefetch::for_writing(self.batch.accesses.as_ptr_range().end.wrapping_add(4 * AHEAD));
    }

    /// Appends a push of a reusable operator.
    #[inline]
    pub fn append_operator(&mut self, operator: &Operator, parent: Option<Age>) {
        self.pushed += 1;
        self.staged += operator.staged_bytes;
        self.open = None;
        self.batch.prioritized |= operator.priority != 0;
        let after = self.batch.jobs.len() as u32;
        self.batch.repeats.push_back(Repeat { after, operator: operator.number, nested: parent.is_some() });
        if parent.is_some() {
            self.batch.parents.extend(parent);
        }
    }
}

const _: () = assert!(size_of::<Job>() <= 128, "larger values are copied by a function");
