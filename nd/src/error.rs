//! Everything that can go wrong between a call on arrays and its results.

use tensorc_frontend::mxnet::ParamsError;
use tensorc_frontend::symbol::SymbolError;
use tensorc_ir::diag::Diagnostic;
use tensorc_runtime::array::{LaunchError, LendError, ReadError, ViewError};
use tensorc_runtime::engine::{EngineError, WaitError};
use tensorc_runtime::gpu::{CollectiveError, DriverError};
use tensorc_runtime::plan::{LoadError, RunError};
use tensorc_runtime::resource::EntropyError;
use tensorc_runtime::storage::AllocError as StorageError;
use tensorc_runtime::{AllocError, Device, PoolError};

/// Why a call could not be made, or its result could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// What a call asks for cannot be compiled.
    #[error(transparent)]
    Compile(#[from] tensorc::Error),
    /// No operator has this name.
    #[error("there is no operator `{name}`")]
    UnknownOperator { name: String },
    /// The operator has no such parameter.
    #[error("`{op}` has no parameter `{name}`; it takes: {known}")]
    UnknownParameter { op: String, name: String, known: String },
    /// A number is given twice.
    #[error("`{op}` is given `{name}` twice: as an operand and by name")]
    TwoScalars { op: String, name: String },
    /// Operands are on different devices.
    #[error("`{op}` uses arrays of {first} and {second}; copy one to the other's device")]
    Devices { op: String, first: Device, second: Device },
    /// Operands belong to different runtimes.
    #[error("`{op}` uses arrays of different runtimes")]
    Runtimes { op: String },
    /// The array to write does not fit the result.
    #[error("`{op}` gives {expected}, the array to write is {found}")]
    Target { op: String, expected: String, found: String },
    /// An operand does not fit the operator.
    #[error("`{op}` takes {expected} as {name}, {found} was given")]
    Operand { op: String, name: String, expected: String, found: String },
    /// A symbol and what it is to be bound to do not fit.
    #[error("cannot bind: {0}")]
    Bind(String),
    /// A backward pass cannot be run.
    #[error("backward pass: {0}")]
    Backward(String),
    /// The result of a data-dependent shape cannot be written to an array.
    #[error("`{op}`: the shape of its result depends on elements, so it cannot be written to an array")]
    DynamicTarget { op: String },
    /// An index or range outside of the array.
    #[error("{what} does not fit an array of shape {dims:?}")]
    Index { what: String, dims: Vec<u64> },
    /// Gradients cannot be taken.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// A view that the array does not have.
    #[error(transparent)]
    View(#[from] ViewError),
    /// An operation could not be pushed to the engine.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// GPUs that cannot be joined.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// What computes an array failed, or could not be waited for.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The engine could not be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Memory could not be allocated.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Memory of the array cannot be lent.
    #[error(transparent)]
    Lend(#[from] LendError),
    /// The operating system gave no random seed.
    #[error(transparent)]
    Random(#[from] EntropyError),
    /// A fault of tensorc.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Why gradients cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum AutogradError {
    /// A head does not depend on recorded calls.
    #[error(
        "array {position} was not made by a recorded call: make it inside `autograd::record()`, from arrays with \
         `attach_grad`"
    )]
    NotRecorded { position: usize },
    /// The kept results were freed by an earlier backward pass.
    #[error("`{op}` was differentiated before, and what was kept for that is gone; ask to retain the graph")]
    Freed { op: String },
    /// An array is written in place inside of a recording.
    #[error("`{op}` writes an array in place while calls are recorded; make a new array, or pause recording")]
    InPlace { op: String },
    /// A recorded operand has changed since.
    #[error("an operand of `{op}` was overwritten after the call was recorded")]
    Overwritten { op: String },
    /// A head gradient of another type or shape.
    #[error("the gradient of array {position} is {found}, the array {expected}")]
    Head { position: usize, expected: String, found: String },
    /// Another number of head gradients than of heads.
    #[error("{heads} arrays are differentiated, {given} gradients are given")]
    Heads { heads: usize, given: usize },
    /// The heads do not depend on a variable.
    #[error("no gradient reaches variable {position}: the result does not depend on it")]
    Unreached { position: usize },
    /// The element type is no float.
    #[error("{dtype} has no gradient, only floats do")]
    Type { dtype: tensorc::DType },
}

/// Errors that the compiler reports as its own.
macro_rules! of_the_compiler {
    ($($source:ty),* $(,)?) => { $(
        impl From<$source> for Error {
            fn from(source: $source) -> Error {
                Error::Compile(source.into())
            }
        }
    )* };
}

of_the_compiler!(AllocError, Diagnostic, DriverError, LoadError, ParamsError, PoolError, RunError, SymbolError);

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        match error {
            ReadError::Launch(error) => Error::Launch(error),
            ReadError::Failed(error) => Error::Wait(error),
        }
    }
}
