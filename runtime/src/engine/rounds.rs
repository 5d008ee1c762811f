//! Waiting for everything that was pushed before.
//!
//! One round at a time: it ends when all operations older than its mark are finished. Who begins to
//! wait during a round belongs to the next one, so that threads which go on pushing cannot keep
//! others waiting for ever.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::wait::Ticket;

/// Age of an operation: the number of its admission, or that of the operation that pushed it.
pub type Age = NonZeroU64;

#[derive(Default)]
pub struct Rounds {
    /// Operations admitted so far.
    admitted: u64,
    /// Operations admitted and not finished.
    live: u64,
    /// Operations up to this age belong to the current round.
    mark: u64,
    /// Those of them that are not finished.
    left: u64,
    current: Vec<Arc<Ticket>>,
    next: Vec<Arc<Ticket>>,
}

impl Rounds {
    /// Operations admitted and not finished.
    #[inline]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Counts an operation in; one that was pushed by another is as old as that.
    #[inline]
    pub fn admit(&mut self, parent: Option<Age>) -> Age {
        self.admitted += 1;
        self.live += 1;
        let age = parent.unwrap_or(NonZeroU64::MIN.saturating_add(self.admitted - 1));
        self.left += u64::from(age.get() <= self.mark);
        age
    }

    #[inline]
    pub fn finish(&mut self, age: Age) {
        self.live -= 1;
        self.left -= u64::from(age.get() <= self.mark);
    }

    pub fn wait(&mut self, ticket: Arc<Ticket>) {
        self.next.push(ticket);
    }

    /// Whether somebody may have waited long enough.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.left == 0 && !(self.current.is_empty() && self.next.is_empty())
    }

    /// Ends the round if nothing is left of it, and begins the next one.
    ///
    /// What operations of the round pushed must have been admitted.
    pub fn turn(&mut self, mut signal: impl FnMut(Arc<Ticket>)) {
        while self.is_due() {
            self.current.drain(..).for_each(&mut signal);
            std::mem::swap(&mut self.current, &mut self.next);
            (self.mark, self.left) = (self.admitted, self.live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_waits_for_what_is_older_and_what_that_pushed() {
        let mut rounds = Rounds::default();
        let [first, second] = std::array::from_fn(|_| Arc::new(Ticket::default()));
        let turn = |rounds: &mut Rounds| rounds.turn(|ticket| ticket.signal(Ok(())));
        let old = rounds.admit(None);
        rounds.wait(first.clone());
        turn(&mut rounds);
        let young = rounds.admit(None);
        let child = rounds.admit(Some(old));
        rounds.wait(second.clone());
        rounds.finish(old);
        turn(&mut rounds);
        assert!(!first.is_signalled());
        rounds.finish(child);
        turn(&mut rounds);
        assert!(first.is_signalled() && !second.is_signalled());
        rounds.admit(None);
        rounds.finish(young);
        turn(&mut rounds);
        assert!(second.is_signalled());
        assert_eq!(rounds.live(), 1);
    }
}
