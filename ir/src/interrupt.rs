//! How a caller stops the compiler. Nothing here reads a clock: the caller decides when the time is over.

use std::fmt::{self, Display};

use crate::diag::{Diagnostic, DiagnosticCode, Result};

/// Why a compilation is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It takes longer than is allowed.
    Time,
    /// Its caller does not want the result any more.
    Caller,
}

/// A question to the caller, asked between parts of a compilation. The answer decides whether there is a result, never which.
#[derive(Clone, Copy, Default)]
pub struct Interrupt<'a>(Option<&'a (dyn Fn() -> Option<StopReason> + Sync)>);

impl<'a> Interrupt<'a> {
    /// The compilation is never stopped.
    pub const NEVER: Interrupt<'static> = Interrupt(None);

    /// The compilation is stopped when `reason` returns one.
    pub fn new(reason: &'a (dyn Fn() -> Option<StopReason> + Sync)) -> Interrupt<'a> {
        Interrupt(Some(reason))
    }

    /// Asks the caller; `done` is the part that ended last.
    ///
    /// # Errors
    /// [`DiagnosticCode::Limit`]: the compilation is stopped.
    pub fn check(self, done: impl Display) -> Result<()> {
        let why = match self.0.and_then(|reason| reason()) {
            None => return Ok(()),
            Some(StopReason::Time) => format!("compiling takes longer than is allowed; it was stopped after {done}"),
            Some(StopReason::Caller) => format!("compiling was interrupted after {done}"),
        };
        Err(Diagnostic::new(DiagnosticCode::Limit, why))
    }
}

/// Where passes stop: what is `None` is not bounded.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassLimits<'a> {
    /// Most nodes of a graph.
    pub nodes: Option<u64>,
    /// Whether the compilation goes on.
    pub interrupt: Interrupt<'a>,
}

impl PassLimits<'_> {
    /// Whether the compilation of a graph of so many nodes goes on; `done` is the part that ended last.
    ///
    /// # Errors
    /// [`DiagnosticCode::Limit`].
    pub fn admit(self, nodes: usize, done: impl Display) -> Result<()> {
        let found = nodes as u64;
        if let Some(most) = self.nodes.filter(|most| found > *most) {
            let why = format!("the graph has {found} nodes after {done}, {most} are allowed");
            return Err(Diagnostic::new(DiagnosticCode::Limit, why));
        }
        self.interrupt.check(done)
    }
}

impl fmt::Debug for Interrupt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Interrupt" } else { "Interrupt::NEVER" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_stops_the_compiler() {
        assert_eq!(Interrupt::NEVER.check("all"), Ok(()));
        assert_eq!(Interrupt::new(&|| None).check("all"), Ok(()));
        let stopped = |reason| {
            let error = Interrupt::new(&|| Some(reason)).check("pass `fuse`");
            error.map_err(|d| (d.code, d.message))
        };
        let expected = "compiling takes longer than is allowed; it was stopped after pass `fuse`";
        assert_eq!(stopped(StopReason::Time), Err((DiagnosticCode::Limit, expected.to_owned())));
        let expected = "compiling was interrupted after pass `fuse`";
        assert_eq!(stopped(StopReason::Caller), Err((DiagnosticCode::Limit, expected.to_owned())));
    }
}
