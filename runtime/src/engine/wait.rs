//! What a waiting thread sleeps on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::complete::is_inside;
use super::error::{OpError, WaitError};
use super::inbox::{Body, Job};
use super::op::EngineKind;
use super::sched::{Effects, Sched, Shared};
use super::state::{Access, AccessKind};
use super::var::Var;
use super::worker::help;
use crate::pool::sync::Backoff;

/// The result of waiting for a variable.
pub type Waited = Result<(), Arc<OpError>>;

/// A result that comes once, from another thread.
#[derive(Default)]
pub struct Ticket {
    done: AtomicBool,
    result: Mutex<Option<Waited>>,
    signalled: Condvar,
}

impl Ticket {
    pub fn signal(&self, result: Waited) {
        let mut slot = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(result);
        self.done.store(true, Ordering::Release);
        drop(slot);
        self.signalled.notify_all();
    }

    pub fn is_signalled(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub fn wait(&self) -> Waited {
        let mut backoff = Backoff::new();
        while !self.is_signalled() && backoff.spin() {}
        let mut slot = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match slot.take() {
                Some(result) => return result,
                None => slot = self.signalled.wait(slot).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Shared {
    /// Waits until everything earlier that writes the variable (or, for a barrier, uses it) is done.
    pub fn wait_for(self: &Arc<Shared>, var: &Var, kind: AccessKind) -> Result<(), WaitError> {
        if !Arc::ptr_eq(self, &var.shared) {
            return Err(WaitError::ForeignVariable);
        }
        if is_inside(self) {
            return Err(WaitError::InsideOperation);
        }
        let mut effects = Effects::default();
        let mut sched = self.lock();
        self.take_in_all(&mut sched, &mut effects);
        let left = self.left_in_inbox(&sched);
        let busy = match kind {
            AccessKind::Read => sched.state.write_pending(var.id),
            _ => sched.state.in_use(var.id),
        };
        let ticket = Arc::new(Ticket::default());
        if left == 0 && !busy {
            ticket.signal(sched.state.error(var.id).map_or(Ok(()), |error| Err(error.clone())));
        } else if left == 0 {
            let mut job = Job::internal(Body::Wait(ticket.clone()));
            job.accesses = 1;
            sched.push(&[Access { var: var.id, kind }], job, &mut effects);
        }
        let pending = left + sched.rounds.live();
        self.leave(sched, &mut effects);
        if left > 0 {
            return Err(WaitError::Stopped { pending });
        }
        self.help_with(&ticket);
        ticket.wait().map_err(WaitError::Failed)
    }

    /// Waits until nothing is pending, and takes the failures since it was last called.
    pub fn wait_for_all(self: &Arc<Shared>) -> Result<(), WaitError> {
        if is_inside(self) {
            return Err(WaitError::InsideOperation);
        }
        self.wait_until_idle()?;
        let failures = std::mem::take(&mut self.lock().failures);
        match failures.listed.is_empty() {
            true => Ok(()),
            false => Err(WaitError::Failures(failures)),
        }
    }

    /// Waits until nothing is pending. A stopped engine finishes what it has begun.
    pub fn wait_until_idle(self: &Arc<Shared>) -> Result<(), WaitError> {
        let mut effects = Effects::default();
        let mut sched = self.lock();
        self.take_in_all(&mut sched, &mut effects);
        let left = self.left_in_inbox(&sched);
        let ticket = Arc::new(Ticket::default());
        let pending = left + sched.rounds.live();
        sched.rounds.wait(ticket.clone());
        self.leave(sched, &mut effects);
        if left > 0 {
            return Err(WaitError::Stopped { pending });
        }
        self.help_with(&ticket);
        ticket.wait().map_err(WaitError::Failed)
    }

    /// Operations that nobody will take out of the inbox.
    fn left_in_inbox(&self, sched: &Sched) -> u64 {
        match sched.halted {
            true => self.lock_inbox().batch.jobs.len() as u64,
            false => 0,
        }
    }

    /// Where there are no workers, the waiting thread works.
    fn help_with(self: &Arc<Shared>, ticket: &Ticket) {
        if self.config.kind == EngineKind::Naive && !ticket.is_signalled() {
            help(self, |_| ticket.is_signalled());
        }
    }
}
