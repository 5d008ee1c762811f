//! What can go wrong in a training run.

use tensorc_data::DataError;
use tensorc_frontend::mxnet::ParamsError;
use tensorc_frontend::symbol::SymbolError;
use tensorc_ir::diag::Diagnostic;
use tensorc_kvstore::{GroupError, KvError};
use tensorc_runtime::array::{LaunchError, ViewError};
use tensorc_runtime::engine::{EngineError, WaitError};
use tensorc_runtime::resource::EntropyError;

/// Why a training run could not be set up or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on arrays, or an executor's.
    #[error(transparent)]
    Arrays(#[from] tensorc_nd::Error),
    /// A setting or data that training cannot work with.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Data that cannot be loaded.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Parameters cannot be shared.
    #[error(transparent)]
    KvStore(#[from] KvError),
    /// A broken invariant of this library, with what was found.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Errors that arrays report as their own.
macro_rules! of_arrays {
    ($($source:ty),* $(,)?) => { $(
        impl From<$source> for Error {
            fn from(source: $source) -> Error {
                Error::Arrays(source.into())
            }
        }
    )* };
}

of_arrays!(
    tensorc::Error,
    Diagnostic,
    EngineError,
    EntropyError,
    LaunchError,
    ParamsError,
    SymbolError,
    ViewError,
    WaitError
);

impl From<GroupError> for Error {
    fn from(error: GroupError) -> Error {
        Error::KvStore(error.into())
    }
}

/// A setting or data that training cannot work with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A variable cannot be given an initial value.
    #[error("variable `{variable}`: {why}")]
    Initial {
        /// Name of the variable.
        variable: String,
        /// The reason, for the message.
        why: String,
    },
    /// A text or value is not an initialiser in MXNet's form.
    #[error("`{text}` names no initialiser: {why}")]
    Initializer {
        /// The text, or the debug form of an initialiser that has no text.
        text: String,
        /// The reason, for the message.
        why: String,
    },
    /// A learning rate schedule contradicts itself.
    #[error("learning rate schedule: {why}")]
    Schedule {
        /// The reason, for the message.
        why: String,
    },
    /// A parameter cannot be set or updated.
    #[error("parameter `{parameter}`: {why}")]
    Update {
        /// Name of the parameter.
        parameter: String,
        /// The reason, for the message.
        why: String,
    },
    /// An optimizer is unknown, has a wrong setting, or is not set.
    #[error("optimizer: {why}")]
    Optimizer {
        /// The reason, for the message.
        why: String,
    },
    /// Labels and outputs do not fit a metric.
    #[error("metric `{metric}`: {why}")]
    Metric {
        /// Name of the metric.
        metric: String,
        /// The reason, for the message.
        why: String,
    },
    /// No metric has the name that was asked for.
    #[error("unknown metric `{name}`; there are: {known}")]
    UnknownMetric {
        /// The name.
        name: String,
        /// The names that there are, separated by commas.
        known: String,
    },
    /// Batches do not have the arrays that a module takes.
    #[error("the batches have {found}, the module takes {expected}")]
    Inputs {
        /// Names, element types and shapes that the module takes.
        expected: String,
        /// Names, element types and shapes that the batches have.
        found: String,
    },
}
