//! When work of the compiler has to end.

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::diag::{Diagnostic, DiagnosticCode, Result};

/// A point in time at which the compilation of one program has to be done, if there is one. It decides whether there is a
/// result, never which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// There is no such point.
    pub const NEVER: Deadline = Deadline(None);

    /// So much time from now on; never, if that is `None` or more than clocks count.
    pub fn after(time: Option<Duration>) -> Deadline {
        Deadline(time.and_then(|time| Instant::now().checked_add(time)))
    }

    /// Whether there is time left behind what was done last.
    ///
    /// # Errors
    /// [`DiagnosticCode::Limit`] if there is none.
    pub fn check(self, done: impl Display) -> Result<()> {
        match self.0 {
            Some(end) if Instant::now() > end => {
                let why = format!("compiling takes longer than is allowed; the time was over behind {done}");
                Err(Diagnostic::new(DiagnosticCode::Limit, why))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_over_is_an_error() {
        assert_eq!(Deadline::NEVER.check("all"), Ok(()));
        assert_eq!(Deadline::after(Some(Duration::MAX)), Deadline::NEVER);
        assert_eq!(Deadline::after(Some(Duration::from_secs(3600))).check("all"), Ok(()));
        let over = Deadline(Instant::now().checked_sub(Duration::from_nanos(1)));
        let message = over.check("pass `fuse`").map_err(|d| (d.code, d.message));
        let expected = "compiling takes longer than is allowed; the time was over behind pass `fuse`";
        assert_eq!(message, Err((DiagnosticCode::Limit, expected.to_owned())));
    }
}
