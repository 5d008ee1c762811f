//! The scheduler: the state machine, the lanes, and the lock around both.
//!
//! Whoever holds the lock takes operations out of the inbox, reports finished ones and distributes
//! what became ready. What calls foreign code or wakes threads is collected in [`Effects`] and done
//! after the lock is released. The scheduler's lock is taken before the inbox's, never after.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use super::error::{Failures, OpError};
use super::inbox::{Batch, Inbox, OpBody, SubmittedOp};
use super::lane::{Activity, Doorbell, WorkQueue};
use super::op::{EngineConfig, EngineKind};
use super::rounds::{Age, Rounds};
use super::state::{OpId, Ready, State, VarId};
use super::var::Var;
use super::wait::{Ticket, Waited};

/// Keeps what different threads write in different cache lines (and prefetched pairs of them).
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// What can be known about the inbox without locking it.
#[derive(Default)]
pub struct Mail {
    /// Something is there.
    pub any: AtomicBool,
    /// Something of a priority other than 0 is there.
    pub urgent: AtomicBool,
}

/// What all handles of one engine and its workers share.
pub struct Shared {
    pub config: EngineConfig,
    sched: Padded<Mutex<Sched>>,
    inbox: Padded<Mutex<Inbox>>,
    /// What the inbox holds.
    pub mail: Padded<Mail>,
    /// Something became ready or finished, for threads that run operations while they wait.
    pub progress: Condvar,
    /// Held while workers are started or stopped.
    pub control: Mutex<()>,
}

/// Result of an operation as its dependants see it.
pub type Outcome = Result<(), Arc<OpError>>;

/// An operation in the state machine. Small, since the machine moves it.
#[derive(Clone, Copy)]
pub struct Admitted {
    /// In this slot of [`Jobs`].
    job: u32,
    /// None for what nobody waits for.
    age: Option<Age>,
}

/// The jobs of operations that were admitted and do not run yet.
#[derive(Default)]
struct Jobs {
    slots: Vec<Option<SubmittedOp>>,
    free: Vec<u32>,
}

impl Jobs {
    #[inline]
    fn add(&mut self, job: SubmittedOp) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(job);
            return slot;
        }
        self.slots.push(Some(job));
        (self.slots.len() - 1) as u32
    }

    fn take(&mut self, slot: u32) -> Option<SubmittedOp> {
        self.free.push(slot);
        self.slots[slot as usize].take()
    }
}

/// What must be accounted when an operation finishes.
#[derive(Clone, Copy)]
pub struct Receipt {
    pub op: OpId,
    pub age: Option<Age>,
    counts: bool,
    elsewhere: bool,
    staged_bytes: u64,
}

impl Receipt {
    #[inline]
    fn of_job(op: OpId, age: Option<Age>, job: &SubmittedOp) -> Receipt {
        let elsewhere = matches!(job.body, OpBody::Async(_));
        Receipt { op, age, counts: job.body.counts(), elsewhere, staged_bytes: job.staged_bytes }
    }

    /// Whether a completion finishes the operation.
    #[inline]
    pub fn completes_elsewhere(&self) -> bool {
        self.elsewhere
    }
}

/// A pushing thread that waits for room.
pub struct RoomWaiter {
    pub ticket: Arc<Ticket>,
    pub finished: u64,
    pub unstaged: u64,
}

pub struct Sched {
    pub state: State<Admitted, Arc<OpError>>,
    ready: Ready<Admitted, Arc<OpError>>,
    incoming: Batch,
    pub lanes: Vec<WorkQueue>,
    pub doorbells: Vec<Arc<Doorbell>>,
    jobs: Jobs,
    /// Of operations that finished before what they had run ahead of, by their numbers.
    late: Vec<Option<Receipt>>,
    pub failures: Failures,
    /// Counting operations that finished, and bytes that they no longer stage.
    pub finished: u64,
    pub unstaged: u64,
    pub rounds: Rounds,
    pub room_waiters: Vec<RoomWaiter>,
    /// Threads that sleep on [`Shared::progress`].
    pub helpers: usize,
    /// Nothing is taken out of the inbox.
    pub halted: bool,
    /// Workers end when nothing is ready.
    pub exiting: bool,
    pub threads: Vec<JoinHandle<()>>,
    /// Workers started so far.
    pub streams: u32,
    /// Push number of the operation admitted last.
    pub last_admitted: Option<(OpId, u64)>,
}

/// What is to be done without the lock.
#[derive(Default)]
pub struct Effects {
    tickets: Vec<(Arc<Ticket>, Waited)>,
    discarded: Vec<SubmittedOp>,
    pub rings: Vec<Arc<Doorbell>>,
}

impl Effects {
    #[inline]
    pub fn any(&self) -> bool {
        !(self.tickets.is_empty() && self.discarded.is_empty() && self.rings.is_empty())
    }

    /// Does everything. Must be called without a lock.
    #[inline]
    pub fn flush(&mut self) {
        if !self.any() {
            return;
        }
        self.rings.drain(..).for_each(|doorbell| doorbell.ring());
        self.discarded.drain(..).for_each(drop_quietly);
        self.tickets.drain(..).for_each(|(ticket, result)| ticket.signal(result));
    }
}

/// Drops what may hold values of the user, whose destructors may panic.
pub fn drop_quietly<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(payload);
    }
}

/// Operations admitted at once. Few, so that the state stays small and in its cache.
const ADMISSION_BATCH: usize = 8;
/// Ready operations below which a worker takes in more, if several workers run, as long as no more
/// than the second number are admitted.
const SPREAD: (usize, usize) = (32, 1024);
/// Attempts to lock the inbox before sleeping, and pauses between them.
const TRIES: u32 = 50;
const PAUSES: u32 = 10;

impl Shared {
    pub fn new(config: EngineConfig) -> Shared {
        let sched = Sched {
            state: State::new(),
            ready: Ready::new(),
            incoming: Batch::default(),
            lanes: Vec::new(),
            doorbells: Vec::new(),
            jobs: Jobs::default(),
            late: Vec::new(),
            failures: Failures::default(),
            finished: 0,
            unstaged: 0,
            rounds: Rounds::default(),
            room_waiters: Vec::new(),
            helpers: 0,
            halted: false,
            exiting: false,
            threads: Vec::new(),
            streams: 0,
            last_admitted: None,
        };
        Shared {
            config,
            sched: Padded(Mutex::new(sched)),
            inbox: Padded(Mutex::new(Inbox::default())),
            mail: Padded(Mail::default()),
            progress: Condvar::new(),
            control: Mutex::new(()),
        }
    }

    /// No foreign code runs under the locks, so a poisoned one guards consistent data.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Sched> {
        self.sched.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Sched>> {
        match self.sched.0.try_lock() {
            Ok(sched) => Some(sched),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    pub fn lock_inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the inbox without making a pushing thread wake this one, if that can be helped.
    fn lock_inbox_patiently(&self) -> MutexGuard<'_, Inbox> {
        for _ in 0..TRIES {
            if let Ok(inbox) = self.inbox.0.try_lock() {
                return inbox;
            }
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        self.lock_inbox()
    }

    /// Exchanges the inbox for the empty `incoming`.
    pub fn collect(&self, sched: &mut Sched, inbox: &mut Inbox) {
        if sched.halted || sched.has_incoming() {
            return;
        }
        sched.incoming.rewind();
        std::mem::swap(&mut sched.incoming, &mut inbox.batch);
        self.mail.0.any.store(false, Ordering::Relaxed);
        self.mail.0.urgent.store(false, Ordering::Relaxed);
        inbox.free_vars.append(&mut sched.ready.freed);
        (inbox.finished, inbox.unstaged) = (sched.finished, sched.unstaged);
    }

    /// Admits everything pushed before.
    pub fn take_in_all(&self, sched: &mut Sched, effects: &mut Effects) {
        if sched.halted {
            return;
        }
        loop {
            sched.admit_collected(effects);
            let mut inbox = self.lock_inbox();
            if inbox.batch.is_empty() {
                inbox.free_vars.append(&mut sched.ready.freed);
                return;
            }
            self.collect(sched, &mut inbox);
        }
    }

    /// Admits some of what was pushed, if the lane is about to run out of work.
    #[inline]
    pub fn take_in(&self, sched: &mut Sched, lane: usize, effects: &mut Effects) {
        if (sched.incoming.prioritized && sched.has_incoming()) || self.mail.0.urgent.load(Ordering::Relaxed) {
            // Any of it may have to start before what is ready.
            return self.take_in_all(sched, effects);
        }
        let ready = sched.lanes[lane].ready.len();
        let wide = sched.lanes[lane].spreads() && sched.state.live() < SPREAD.1;
        let enough = if wide { SPREAD.0 } else { 1 };
        if ready >= enough {
            return;
        }
        if !sched.has_incoming() {
            if sched.halted || !self.mail.0.any.load(Ordering::Relaxed) {
                return;
            }
            self.collect(sched, &mut self.lock_inbox_patiently());
        }
        while sched.admit(ADMISSION_BATCH, effects) && sched.lanes[lane].ready.is_empty() {}
    }

    /// Finishes an operation from a thread that holds no lock.
    pub fn finish(&self, receipt: Receipt, outcome: Outcome) {
        self.with(|sched, effects| sched.complete(receipt, outcome, effects));
    }

    /// Issues an operation from a thread that holds no lock.
    pub fn issue(&self, op: OpId) {
        self.with(|sched, effects| sched.issue(op, effects));
    }

    /// Gives up a variable that a running operation has overwritten; false if it is none that it may give up.
    pub fn release(self: &Arc<Shared>, op: OpId, var: &Var) -> bool {
        Arc::ptr_eq(self, &var.shared) && self.with(|sched, effects| sched.release(op, var.id, effects))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Sched, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let mut sched = self.lock();
        let result = f(&mut sched, &mut effects);
        self.leave(sched, &mut effects);
        result
    }

    /// Releases the lock and does what has become necessary under it.
    #[inline]
    pub fn leave(&self, mut sched: MutexGuard<'_, Sched>, effects: &mut Effects) {
        if sched.rounds.is_due() {
            self.take_in_all(&mut sched, effects);
            sched.rounds.turn(|ticket| effects.tickets.push((ticket, Ok(()))));
        }
        sched.call_workers(effects);
        if sched.helpers > 0 {
            self.progress.notify_all();
        }
        drop(sched);
        // A helper may have looked at its ticket between the two, and must look again.
        let tickets = !effects.tickets.is_empty() && self.config.kind == EngineKind::Naive;
        super::complete::aside(self, || effects.flush());
        if tickets {
            drop(self.lock());
            self.progress.notify_all();
        }
    }
}

impl Sched {
    /// Admits up to `limit` operations; false if there was none.
    #[inline]
    fn admit(&mut self, limit: usize, effects: &mut Effects) -> bool {
        for count in 0..limit {
            match self.incoming.pop() {
                None => return count > 0,
                Some(job) => self.admit_job(job),
            }
            self.settle(effects);
        }
        true
    }

    #[inline]
    fn admit_job(&mut self, job: SubmittedOp) {
        let begin = self.incoming.consumed;
        self.incoming.consumed += job.accesses as usize;
        if let OpBody::WaitAll(ticket) = job.body {
            return self.rounds.wait(ticket);
        }
        let parent = if job.nested { self.incoming.parents.pop_front() } else { None };
        let age = job.body.is_work().then(|| self.rounds.admit(parent));
        let serial = self.state.pushed();
        let accesses = &self.incoming.accesses[begin..self.incoming.consumed];
        let op = self.state.push(accesses, Admitted { job: self.jobs.add(job), age }, &mut self.ready);
        self.last_admitted = Some((op, serial));
    }

    /// Admits everything that was collected.
    pub fn admit_collected(&mut self, effects: &mut Effects) {
        while self.admit(usize::MAX, effects) {}
    }

    /// Whether something was collected and not admitted.
    #[inline]
    pub fn has_incoming(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Adds an operation directly, after everything that was admitted.
    pub fn push(&mut self, accesses: &[super::state::VarAccess], job: SubmittedOp, effects: &mut Effects) {
        let admitted = Admitted { job: self.jobs.add(job), age: None };
        self.state.push(accesses, admitted, &mut self.ready);
        self.settle(effects);
    }

    /// Takes out a ready operation to be run; none if it meets an error after all.
    #[inline]
    pub fn take(&mut self, op: OpId, effects: &mut Effects) -> Option<(Receipt, SubmittedOp)> {
        if self.state.recall(op, &mut self.ready) {
            self.settle(effects);
            return None;
        }
        let Admitted { job, age } = self.state.take(op)?;
        let job = self.jobs.take(job)?;
        Some((Receipt::of_job(op, age, &job), job))
    }

    /// Ends an operation that was run, unless its completion will.
    #[inline]
    pub fn done(&mut self, receipt: Receipt, outcome: Option<Outcome>, effects: &mut Effects) {
        if let Some(outcome) = outcome {
            self.complete(receipt, outcome, effects);
        }
    }

    /// An operation has enqueued its work on a stream.
    pub fn issue(&mut self, op: OpId, effects: &mut Effects) {
        self.state.issue(op, &mut self.ready);
        self.settle(effects);
    }

    /// See [`State::release_early`].
    fn release(&mut self, op: OpId, var: VarId, effects: &mut Effects) -> bool {
        let released = self.state.release_early(op, var, &mut self.ready);
        self.settle(effects);
        released
    }

    /// Ends an operation.
    #[inline]
    pub fn complete(&mut self, receipt: Receipt, outcome: Outcome, effects: &mut Effects) {
        if self.state.finish(receipt.op, outcome, &mut self.ready) {
            self.account(receipt, effects);
        } else {
            let at = receipt.op.0 as usize;
            if at >= self.late.len() {
                self.late.resize(at + 1, None);
            }
            self.late[at] = Some(receipt);
        }
        self.settle(effects);
    }

    #[inline]
    fn account(&mut self, receipt: Receipt, effects: &mut Effects) {
        if let Some(age) = receipt.age {
            self.rounds.finish(age);
        }
        if !receipt.counts {
            return;
        }
        self.finished += 1;
        self.unstaged += receipt.staged_bytes;
        if !self.room_waiters.is_empty() {
            let (finished, unstaged) = (self.finished, self.unstaged);
            self.room_waiters.retain(|waiter| {
                let room = finished >= waiter.finished && unstaged >= waiter.unstaged;
                if room {
                    effects.tickets.push((waiter.ticket.clone(), Ok(())));
                }
                !room
            });
        }
    }

    /// Distributes what became ready.
    #[inline]
    fn settle(&mut self, effects: &mut Effects) {
        let mut next = 0;
        while next < self.ready.run.len() || !self.ready.skipped.is_empty() {
            if let Some((skipped, error)) = self.ready.skipped.pop() {
                self.skip(skipped, error, effects);
                continue;
            }
            let op = self.ready.run[next];
            next += 1;
            let Some(slot) = self.state.payload(op).map(|admitted| admitted.job) else { continue };
            match &self.jobs.slots[slot as usize] {
                Some(SubmittedOp { body: OpBody::Wait(_) | OpBody::Delete(None), .. }) => {
                    if let Some(OpBody::Wait(ticket)) = self.jobs.take(slot).map(|job| job.body) {
                        effects.tickets.push((ticket, Ok(())));
                    }
                    self.state.finish(op, Ok(()), &mut self.ready);
                }
                Some(job) => self.lanes[job.lane as usize].ready.push(op, job.priority),
                None => {}
            }
        }
        self.ready.run.clear();
        self.ready.failed.drain(..).for_each(|error| self.failures.record(error));
        while let Some(op) = self.ready.ended.pop() {
            if let Some(receipt) = self.late.get_mut(op.0 as usize).and_then(Option::take) {
                self.account(receipt, effects);
            }
        }
    }

    /// Accounts an operation that is over already: only its number in the receipt is void.
    fn skip(&mut self, Admitted { job, age }: Admitted, error: Arc<OpError>, effects: &mut Effects) {
        let Some(job) = self.jobs.take(job) else { return };
        self.account(Receipt::of_job(OpId(u32::MAX), age, &job), effects);
        match job.body {
            OpBody::Wait(ticket) => effects.tickets.push((ticket, Err(error))),
            _ => effects.discarded.push(job),
        }
    }

    /// Calls workers of lanes that have more ready than is being worked on.
    #[inline]
    fn call_workers(&mut self, effects: &mut Effects) {
        for (lane, doorbell) in self.lanes.iter_mut().zip(&self.doorbells) {
            if lane.ready.is_empty() {
                continue;
            }
            if lane.count(Activity::Spinning) > 0 {
                doorbell.call_spinner();
            } else if lane.wants_help() {
                lane.called = true;
                effects.rings.push(doorbell.clone());
            }
        }
    }
}
