//! What ends a run early: the clock, or its caller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Stop;
use crate::interrupter::Interrupter;

/// What ends the runs of a context early.
#[derive(Default)]
pub(super) struct RunEnds {
    /// Time that a run may take.
    pub limit: Option<Duration>,
    /// The caller.
    pub interrupter: Option<Interrupter>,
}

/// What ends one run early.
#[derive(Clone, Copy)]
pub(super) struct RunEnd<'a> {
    deadline: Option<(Instant, Duration)>,
    interrupter: Option<&'a Interrupter>,
    /// Whether the caller has told one of the threads to end the run.
    interrupted: &'a AtomicBool,
}

impl RunEnds {
    /// Of a run that begins now; `None` if nothing ends it early. `interrupted` is false.
    pub fn begin<'a>(&'a self, interrupted: &'a AtomicBool) -> Option<RunEnd<'a>> {
        let deadline = self.limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        let interrupter = self.interrupter.as_ref();
        (deadline.is_some() || interrupter.is_some()).then_some(RunEnd { deadline, interrupter, interrupted })
    }
}

impl RunEnd<'_> {
    /// Whether the run goes on.
    ///
    /// # Errors
    /// It ends now.
    pub fn check(self) -> Result<(), Stop> {
        if let Some((_, limit)) = self.deadline.filter(|(at, _)| Instant::now() > *at) {
            return Err(Stop::Time(limit));
        }
        match self.interrupter {
            Some(interrupter) if self.interrupted.load(Ordering::Relaxed) || interrupter.wants_end() => {
                self.interrupted.store(true, Ordering::Relaxed);
                Err(Stop::Interrupted)
            }
            _ => Ok(()),
        }
    }
}
