//! What a waiting thread sleeps on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::complete::is_inside;
use super::error::{OpError, WaitError};
use super::inbox::{OpBody, SubmittedOp};
use super::op::EngineKind;
use super::sched::{Effects, Sched, Shared};
use super::state::{AccessKind, VarAccess};
use super::var::Var;
use super::worker::help;
use crate::pool::sync::Backoff;

/// The result of waiting for a variable.
pub type Waited = Result<(), Arc<OpError>>;

/// Time after which a waiting thread looks whether what it waits for will be looked at.
const WAIT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

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

    /// Looks for the result without sleeping.
    pub fn spin(&self) {
        let mut backoff = Backoff::new();
        while !self.is_signalled() && backoff.spin() {}
    }

    /// The result, if it comes in time.
    pub fn wait(&self, patience: Duration) -> Option<Waited> {
        let slot = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.signalled.wait_timeout_while(slot, patience, |slot| slot.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
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
        let ticket = Arc::new(Ticket::default());
        let access = [VarAccess::new(var.id, kind)];
        self.announce(OpBody::Wait(ticket.clone()), &access, |sched, effects| {
            let busy = match kind {
                AccessKind::Read => sched.state.write_pending(var.id),
                _ => sched.state.in_use(var.id),
            };
            if busy {
                let mut job = SubmittedOp::internal(OpBody::Wait(ticket.clone()));
                job.accesses = 1;
                sched.push(&access, job, effects);
            } else {
                ticket.signal(sched.state.error(var.id).map_or(Ok(()), |error| Err(error.clone())));
            }
        })?;
        self.wait_on(&ticket).map_err(WaitError::Failed)
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
        let ticket = Arc::new(Ticket::default());
        let body = OpBody::WaitAll(ticket.clone());
        self.announce(body, &[], |sched, _| sched.rounds.wait(ticket.clone()))?;
        self.wait_on(&ticket).map_err(WaitError::Failed)
    }

    /// Puts a wait behind everything pushed before: through the inbox, unless that is empty.
    ///
    /// Admitting what lies there is left to the workers, which do it when they need it.
    fn announce(
        self: &Arc<Shared>,
        body: OpBody,
        accesses: &[VarAccess],
        direct: impl FnOnce(&mut Sched, &mut Effects),
    ) -> Result<(), WaitError> {
        let mut effects = Effects::default();
        let mut sched = self.lock();
        let mut inbox = self.lock_inbox();
        let left = inbox.batch.len() as u64;
        if inbox.halted && left > 0 {
            return Err(WaitError::Stopped { pending: left + sched.rounds.live() });
        }
        if left > 0 || sched.has_incoming() {
            self.put(&mut inbox, body, accesses);
        } else {
            drop(inbox);
            direct(&mut sched, &mut effects);
        }
        self.leave(sched, &mut effects);
        Ok(())
    }

    /// Waits for a ticket that lies in the inbox or the state.
    pub fn wait_on(self: &Arc<Shared>, ticket: &Ticket) -> Waited {
        if self.config.kind == EngineKind::Naive && !ticket.is_signalled() {
            help(self, |_| ticket.is_signalled());
        }
        ticket.spin();
        let mut admitted = None;
        loop {
            if let Some(result) = ticket.wait(WAIT_CHECK_INTERVAL) {
                return result;
            }
            let mut sched = self.lock();
            let now = sched.state.pushed();
            if admitted.replace(now) == Some(now) {
                // All workers may be in long operations.
                let mut effects = Effects::default();
                self.take_in_all(&mut sched, &mut effects);
                self.leave(sched, &mut effects);
            }
        }
    }
}
