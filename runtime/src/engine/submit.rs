//! The way of an operation from a pushing thread into the inbox.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::complete::{current_age, is_inside};
use super::error::EngineError;
use super::inbox::{Inbox, OpBody, Route, SubmittedOp};
use super::lane::{Activity, Doorbell, LaneId, WorkQueue};
use super::op::{EngineKind, Op, OpName};
use super::run::Seat;
use super::sched::{Effects, Mail, RoomWaiter, Sched, Shared};
use super::state::{AccessKind, VarAccess};
use super::wait::Ticket;
use super::worker::{help, work};
use crate::device::Device;

/// Deletions that may lie in the inbox of an engine that has nothing else to do.
const LEFT_LYING: usize = 256;

impl Shared {
    /// Puts something into the inbox that no worker is needed for, and that never waits.
    pub fn post(self: &Arc<Shared>, body: OpBody, accesses: &[VarAccess]) {
        let mut inbox = self.lock_inbox();
        self.put(&mut inbox, body, accesses);
        let (many, closed) = (inbox.batch.len() >= LEFT_LYING, inbox.closed);
        drop(inbox);
        if closed {
            help(self, |_| true);
        } else if many {
            let mut effects = Effects::default();
            // Whoever has the lock will look into the inbox.
            let Some(mut sched) = self.try_lock() else { return };
            self.take_in_all(&mut sched, &mut effects);
            self.leave(sched, &mut effects);
        }
    }

    /// Appends what the engine pushes for itself.
    pub fn put(&self, inbox: &mut Inbox, body: OpBody, accesses: &[VarAccess]) {
        let mut job = SubmittedOp::internal(body);
        job.accesses = accesses.len() as u32;
        inbox.batch.accesses.extend_from_slice(accesses);
        inbox.append(job, None);
        self.announce_mail(inbox);
    }

    fn announce_mail(&self, inbox: &Inbox) {
        let Mail { any, urgent } = &self.mail.0;
        // Workers look all the time; a needless write would take the cache line from them.
        for (flag, value) in [(any, true), (urgent, inbox.batch.prioritized)] {
            if value && !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Refuses variables of other engines.
    pub fn check(self: &Arc<Shared>, op: &Op<'_>) -> Result<(), EngineError> {
        let own = |vars: &[&super::Var]| vars.iter().all(|var| Arc::ptr_eq(&var.shared, self));
        match own(op.reads) && own(op.writes) {
            true => Ok(()),
            false => Err(EngineError::ForeignVariable { op: op.name.clone(), device: op.device }),
        }
    }

    /// Pushes an operation, which may order itself on streams.
    pub fn submit(self: &Arc<Shared>, op: &Op<'_>, body: OpBody, on_streams: bool) -> Result<(), EngineError> {
        self.check(op)?;
        let queue = LaneId::of(self.config.kind, op.device, op.property);
        let (mut inbox, lane) = self.lane(queue)?;
        let job = SubmittedOp {
            body,
            name: op.name.clone(),
            bytes: op.bytes,
            staged_bytes: op.staged_bytes,
            priority: op.priority,
            accesses: (op.reads.len() + op.writes.len()) as u32,
            device: op.device,
            lane,
            nested: false,
        };
        inbox = self.room(inbox, job.staged_bytes, || (op.name.clone(), op.device))?;
        let parent = current_age(self);
        let append = |inbox: &mut Inbox| {
            let access =
                |kind| move |var: &&super::Var| VarAccess { var: var.id, kind, ahead: on_streams && var.on_streams };
            let writes = op.writes.iter().map(access(AccessKind::Write));
            let accesses = writes.chain(op.reads.iter().map(access(AccessKind::Read)));
            inbox.batch.accesses.extend(accesses);
            inbox.append(job, parent);
        };
        self.deliver(inbox, lane, append);
        Ok(())
    }

    /// Puts a job into the inbox through `append`, and gets it run.
    pub fn deliver(self: &Arc<Shared>, mut inbox: MutexGuard<'_, Inbox>, lane: u16, append: impl FnOnce(&mut Inbox)) {
        if self.config.kind == EngineKind::Naive && !inbox.halted && !is_inside(self) {
            drop(inbox);
            return self.run_now(append);
        }
        append(&mut inbox);
        self.announce_mail(&inbox);
        let route = &mut inbox.routes[lane as usize];
        if route.wake {
            route.wake = false;
            let doorbell = route.doorbell.clone();
            drop(inbox);
            doorbell.ring();
        }
    }

    /// Runs operations on this thread until the one that `append` adds is done.
    fn run_now(self: &Arc<Shared>, append: impl FnOnce(&mut Inbox)) {
        let mut effects = Effects::default();
        let mut sched = self.lock();
        self.take_in_all(&mut sched, &mut effects);
        let mut inbox = self.lock_inbox();
        append(&mut inbox);
        self.collect(&mut sched, &mut inbox);
        drop(inbox);
        sched.admit_collected(&mut effects);
        let own = sched.last_admitted;
        self.leave(sched, &mut effects);
        help(self, |sched| own.is_none_or(|(op, push)| !sched.state.is_live(op, push)));
    }

    /// The lane of a queue, made and staffed if this is its first use.
    pub fn lane(self: &Arc<Shared>, queue: LaneId) -> Result<(MutexGuard<'_, Inbox>, u16), EngineError> {
        loop {
            let inbox = self.lock_inbox();
            if let Some(lane) = inbox.routes.iter().position(|route| route.queue == queue) {
                return Ok((inbox, lane as u16));
            }
            drop(inbox);
            self.open_lane(queue)?;
        }
    }

    fn open_lane(self: &Arc<Shared>, queue: LaneId) -> Result<(), EngineError> {
        let mut sched = self.lock();
        if sched.lanes.iter().any(|lane| lane.queue == queue) {
            return Ok(());
        }
        let doorbell = Arc::new(Doorbell::default());
        sched.lanes.push(WorkQueue::new(queue, queue.workers(&self.config)));
        sched.doorbells.push(doorbell.clone());
        let lane = sched.lanes.len() - 1;
        if !sched.halted
            && let Err(error) = self.staff(&mut sched, lane)
        {
            sched.lanes.pop();
            sched.doorbells.pop();
            return Err(error);
        }
        self.lock_inbox().routes.push(Route { queue, wake: false, doorbell });
        Ok(())
    }

    /// Starts the workers of a lane. Fewer than configured are no error if there is one.
    pub fn staff(self: &Arc<Shared>, sched: &mut Sched, lane: usize) -> Result<(), EngineError> {
        for worker in 0..sched.lanes[lane].workers() {
            sched.streams += 1;
            let (shared, seat) = (self.clone(), Seat { worker, stream: sched.streams });
            let queue = sched.lanes[lane].queue;
            let builder = std::thread::Builder::new().name(queue.thread_name(worker));
            match builder.spawn(move || work(&shared, lane, seat)) {
                Ok(thread) => {
                    sched.threads.push(thread);
                    sched.lanes[lane].set(worker, Activity::Looking);
                }
                Err(source) if worker == 0 => {
                    return Err(EngineError::Spawn { worker, device: queue.device, source });
                }
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Waits until the bounds of run-ahead allow one more operation that stages `more_bytes`.
    pub fn room<'a>(
        self: &'a Arc<Shared>,
        mut inbox: MutexGuard<'a, Inbox>,
        more_bytes: u64,
        who: impl Fn() -> (OpName, Device),
    ) -> Result<MutexGuard<'a, Inbox>, EngineError> {
        loop {
            let (pending, staged) = inbox.pending();
            let limit = self.config.max_staged_bytes;
            let fits = staged == 0 || staged.saturating_add(more_bytes) <= limit || more_bytes == 0;
            let few = pending < self.config.max_pending as u64;
            if (few && fits) || self.config.kind == EngineKind::Naive || is_inside(self) {
                return Ok(inbox);
            }
            let seen = inbox.pending();
            drop(inbox);
            let mut sched = self.lock();
            inbox = self.lock_inbox();
            (inbox.finished, inbox.unstaged) = (sched.finished, sched.unstaged);
            if inbox.pending() != seen {
                // Somebody else may have looked meanwhile; nobody must wait for what is done already.
                continue;
            }
            if inbox.halted {
                let (op, device) = who();
                return Err(EngineError::Stopped { op, device, pending });
            }
            let ticket = Arc::new(Ticket::default());
            let room_for = limit.saturating_sub(more_bytes) / 2;
            let waiter = RoomWaiter {
                ticket: ticket.clone(),
                finished: if few { 0 } else { inbox.pushed - self.config.max_pending as u64 / 2 },
                unstaged: if fits { 0 } else { inbox.staged.saturating_sub(room_for) },
            };
            sched.room_waiters.push(waiter);
            drop(inbox);
            drop(sched);
            while ticket.wait(Duration::MAX).is_none() {}
            inbox = self.lock_inbox();
        }
    }

    /// Stops taking from the inbox, finishes what was begun, and ends the workers.
    pub fn halt(self: &Arc<Shared>) {
        let _control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut effects = Effects::default();
        let mut sched = self.lock();
        self.take_in_all(&mut sched, &mut effects);
        sched.halted = true;
        self.lock_inbox().halted = true;
        let ticket = Arc::new(Ticket::default());
        sched.rounds.wait(ticket.clone());
        let blocked: Vec<_> = sched.room_waiters.drain(..).map(|waiter| waiter.ticket).collect();
        self.leave(sched, &mut effects);
        blocked.iter().for_each(|ticket| ticket.signal(Ok(())));
        // Nothing but a signal comes of it.
        let _ = self.wait_on(&ticket);
        let mut sched = self.lock();
        sched.exiting = true;
        let (doorbells, threads) = (sched.doorbells.clone(), std::mem::take(&mut sched.threads));
        drop(sched);
        doorbells.iter().for_each(|doorbell| doorbell.dismiss());
        for thread in threads {
            // Workers catch the panics of operations; there is nothing to report here.
            let _ = thread.join();
        }
        doorbells.iter().for_each(|doorbell| doorbell.reset());
        self.lock().exiting = false;
    }

    /// Takes from the inbox again, with new workers.
    pub fn resume(self: &Arc<Shared>) -> Result<(), EngineError> {
        let _control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sched = self.lock();
        if !sched.halted {
            return Ok(());
        }
        for lane in 0..sched.lanes.len() {
            if sched.lanes[lane].count(Activity::Gone) == sched.lanes[lane].workers() {
                self.staff(&mut sched, lane)?;
            }
        }
        sched.halted = false;
        self.lock_inbox().halted = false;
        drop(sched);
        if self.config.kind == EngineKind::Naive {
            help(self, |_| true);
        }
        Ok(())
    }

    /// Ends the engine when its last handle is dropped.
    pub fn close(self: &Arc<Shared>) {
        if is_inside(self) {
            // A worker cannot wait for itself. Without a thread, the workers sleep for ever.
            let shared = self.clone();
            let _ = std::thread::Builder::new().name("engine-close".to_owned()).spawn(move || shared.close());
            return;
        }
        self.halt();
        let mut sched = self.lock();
        let mut inbox = self.lock_inbox();
        sched.halted = false;
        (inbox.halted, inbox.closed) = (false, true);
        drop(inbox);
        drop(sched);
        help(self, |sched| sched.rounds.live() == 0);
    }
}
