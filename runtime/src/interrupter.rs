//! How the caller of a run ends it early.

use std::sync::Arc;

/// A question to the caller, asked by every thread that works on a run or a compilation, between steps and parts of steps.
/// When an answer is true, the run or compilation ends with an error. The answer decides whether there is a result, never which.
#[derive(Clone, derive_more::Debug)]
pub struct Interrupter(#[debug(skip)] Arc<dyn Fn() -> bool + Send + Sync>);

impl Interrupter {
    /// Asks `wants_end`, which is called often and must not take long.
    pub fn new(wants_end: impl Fn() -> bool + Send + Sync + 'static) -> Interrupter {
        Interrupter(Arc::new(wants_end))
    }

    /// Whether the caller wants the work to end.
    pub fn wants_end(&self) -> bool {
        (self.0)()
    }
}
