//! What goes wrong in and around the engine.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::op::OpName;
use crate::device::Device;
pub use crate::device::stream::Failure;
use crate::pool::TaskPanic;

/// Why an operation failed.
#[derive(Debug, derive_more::Display)]
pub enum Cause {
    /// It said so.
    Failed(Failure),
    /// It panicked.
    Panicked(TaskPanic),
    /// Its [`super::Completion`] was dropped without a result.
    #[display("its completion was dropped without a result")]
    Abandoned,
}

/// A failed operation. Everything that depends on its results shares this error.
#[derive(Debug)]
pub struct OpError {
    /// The operator and, if it has one, the node of a graph.
    pub op: OpName,
    /// The device that it was pushed for.
    pub device: Device,
    /// Why it failed.
    pub cause: Cause,
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operator `{}`", self.op)?;
        if let Some(node) = self.op.node() {
            write!(f, ", node `{node}`")?;
        }
        write!(f, ", on {}: {}", self.device, self.cause)
    }
}

impl Error for OpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Failed(failure) => Some(&**failure),
            Cause::Panicked(panic) => Some(panic),
            Cause::Abandoned => None,
        }
    }
}

/// Operations that failed since this was last asked for; those that only took over an error are
/// not listed.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// In the order of their completion, at most [`Failures::MAX_LISTED_FAILURES`].
    pub listed: Vec<Arc<OpError>>,
    /// Further ones.
    pub omitted: u64,
}

impl Failures {
    /// Most failures that are kept.
    pub const MAX_LISTED_FAILURES: usize = 64;

    pub(super) fn record(&mut self, error: Arc<OpError>) {
        match self.listed.len() < Self::MAX_LISTED_FAILURES {
            true => self.listed.push(error),
            false => self.omitted += 1,
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.listed.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        match self.omitted {
            0 => Ok(()),
            omitted => write!(f, "; and {omitted} more"),
        }
    }
}

impl Error for Failures {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.listed.first().map(|error| &**error as _)
    }
}

/// Why a wait did not end well.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WaitError {
    /// The variable holds this error.
    #[error(transparent)]
    Failed(Arc<OpError>),
    /// Operations failed since the last wait for all.
    #[error(transparent)]
    Failures(Failures),
    /// An operation waited, which would never end.
    #[error("an operation waited for the engine that runs it")]
    InsideOperation,
    /// The engine is stopped, so the wait would not end.
    #[error("waited for an engine that is stopped with {pending} operations pending")]
    Stopped {
        /// Operations that are pushed and not finished.
        pending: u64,
    },
    /// The variable belongs to another engine.
    #[error("the variable belongs to another engine")]
    ForeignVariable,
}

impl WaitError {
    /// The failed operation, or the first of several.
    pub fn failure(&self) -> Option<&Arc<OpError>> {
        match self {
            WaitError::Failed(error) => Some(error),
            WaitError::Failures(failures) => failures.listed.first(),
            _ => None,
        }
    }
}

/// Why an engine cannot be made, or refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No [`super::EngineKind`] has the name.
    #[error("`{name}` is no kind of engine; there are {}", super::op::EngineKind::names())]
    UnknownKind {
        /// The name.
        name: String,
    },
    /// A number of [`super::EngineConfig`] is out of range.
    #[error("{what} is {given}, but must be between 1 and {max}")]
    Config {
        /// Name of the field.
        what: &'static str,
        /// Its value.
        given: u64,
        /// The largest value; the least is 1.
        max: u64,
    },
    /// The system started no thread.
    #[error("cannot start worker {worker} of {device}")]
    Spawn {
        /// Number of the worker in its queue.
        worker: usize,
        /// Device of the queue.
        device: Device,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// An operation uses a variable of another engine.
    #[error("operator `{op}` on {device} uses a variable of another engine")]
    ForeignVariable {
        /// The operator.
        op: OpName,
        /// The device that it was pushed for.
        device: Device,
    },
    /// The engine is stopped and holds as many operations as it may.
    #[error("operator `{op}` on {device} was pushed to a stopped engine that holds {pending} operations")]
    Stopped {
        /// The operator.
        op: OpName,
        /// The device that it was pushed for.
        device: Device,
        /// Operations that are pushed and not finished.
        pending: u64,
    },
    /// An operation tried to stop or start the engine that runs it.
    #[error("an operation tried to stop or start the engine that runs it")]
    InsideOperation,
}
