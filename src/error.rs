//! Everything that can go wrong between a model file and its results.

use std::path::PathBuf;

use tensorc_frontend::mxnet::ParamsError;
use tensorc_frontend::onnx::OnnxError;
use tensorc_frontend::symbol::SymbolError;
use tensorc_ir::diag::Diagnostic;
use tensorc_runtime::array::{LaunchError, LendError, ReadError, ViewError};
use tensorc_runtime::engine::{EngineError, WaitError};
use tensorc_runtime::gpu::{CollectiveError, DriverError};
use tensorc_runtime::plan::{LoadError, RunError};
use tensorc_runtime::resource::EntropyError;
use tensorc_runtime::storage::AllocError as StorageError;
use tensorc_runtime::{AllocError, Device, PoolError, WeightError};

use crate::train::TrainError;

/// Why a model could not be loaded, compiled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}", onnx_message(path, source))]
    Onnx { path: PathBuf, source: Box<OnnxError> },
    /// The program or the model is wrong, or asks for what is not supported.
    #[error("{0}")]
    Diagnostic(#[from] Diagnostic),
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    #[error("{}", symbol_message(path, source))]
    SymbolFile { path: PathBuf, source: Box<SymbolError> },
    #[error("{}", params_message(path, source))]
    ParamsFile { path: PathBuf, source: ParamsError },
    #[error("parameters go with a symbol file (.json), not with {}", path.display())]
    NoSymbol { path: PathBuf },
    #[error("variable `{name}` has no value in the parameters")]
    MissingParameter { name: String },
    #[error("the parameters hold `{name}`, which is no variable of the symbol")]
    UnknownVariable { name: String },
    #[error("parameter `{name}` is {found}, the symbol states {expected}")]
    ParameterType { name: String, expected: String, found: String },
    #[error("input `{name}` is missing; the model takes: {expected}")]
    MissingInput { name: String, expected: String },
    #[error("the model has no input `{name}`; it takes: {expected}")]
    UnknownInput { name: String, expected: String },
    #[error("{elements} elements do not fill the shape {dims:?}")]
    TensorSize { elements: usize, dims: Vec<u64> },
    #[error("the tensor holds {found}, not {expected}")]
    TensorType { found: tensorc_abi::DType, expected: tensorc_abi::DType },
    /// An operator of the caller's cannot be registered.
    #[error("{0}")]
    Operator(String),
    #[error("there is no operator `{name}`")]
    UnknownOperator { name: String },
    #[error("`{op}` has no parameter `{name}`; it takes: {known}")]
    UnknownParameter { op: String, name: String, known: String },
    #[error("`{op}` is given `{name}` twice: as an operand and by name")]
    TwoScalars { op: String, name: String },
    #[error("`{op}` uses arrays of {first} and {second}; copy one to the other's device")]
    Devices { op: String, first: Device, second: Device },
    #[error("`{op}` uses arrays of different runtimes")]
    Runtimes { op: String },
    #[error("`{op}` gives {expected}, the array to write is {found}")]
    Target { op: String, expected: String, found: String },
    #[error("`{op}` takes {expected} as {name}, {found} was given")]
    Operand { op: String, name: String, expected: String, found: String },
    /// A model cannot be compiled ahead of time as asked, or the result cannot be used.
    #[error("{0}")]
    Artifact(String),
    /// An extent is asked for that an input or dimension cannot have.
    #[error("{0}")]
    Shape(String),
    /// A symbol and what it is to be bound to do not fit.
    #[error("cannot bind: {0}")]
    Bind(String),
    #[error("backward pass: {0}")]
    Backward(String),
    #[error("model `{model}`: shapes in it depend on values, so it has no single plan; run it with `Model::run`")]
    Staged { model: String },
    #[error("`{op}`: the shape of its result depends on elements, so it cannot be written to an array")]
    DynamicTarget { op: String },
    #[error("{what} does not fit an array of shape {dims:?}")]
    Index { what: String, dims: Vec<u64> },
    #[error(transparent)]
    Autograd(#[from] crate::ndarray::autograd::AutogradError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// GPUs that cannot be joined.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// What computes an array failed, or could not be waited for.
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Lend(#[from] LendError),
    #[error(transparent)]
    Params(#[from] ParamsError),
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Data that cannot be loaded.
    #[error(transparent)]
    Data(#[from] tensorc_data::DataError),
    /// Parameters cannot be shared.
    #[error(transparent)]
    KvStore(#[from] tensorc_kvstore::KvError),
    #[error(transparent)]
    Random(#[from] EntropyError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Memory(#[from] AllocError),
    #[error(transparent)]
    Threads(#[from] PoolError),
    #[error("weight `{name}`: {source}")]
    Weight { name: String, source: WeightError },
    /// A compiled plan did not pass the run time's checks: a fault of the compiler.
    #[error("internal error: {0}")]
    Plan(LoadError),
    /// A GPU is not there, or refuses code or memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Error {
        match error {
            LoadError::Driver(error) => Error::Driver(error),
            other => Error::Plan(other),
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        match error {
            ReadError::Launch(error) => Error::Launch(error),
            ReadError::Failed(error) => Error::Wait(error),
        }
    }
}

fn symbol_message(path: &std::path::Path, source: &SymbolError) -> String {
    match source {
        SymbolError::File { .. } => source.to_string(),
        _ => format!("{}: {source}", path.display()),
    }
}

fn params_message(path: &std::path::Path, source: &ParamsError) -> String {
    match source {
        ParamsError::File { .. } => source.to_string(),
        _ => format!("{}: {source}", path.display()),
    }
}

/// Names the file once: an error of opening it does so itself.
fn onnx_message(path: &std::path::Path, source: &OnnxError) -> String {
    match source {
        OnnxError::Open { .. } => source.to_string(),
        _ => format!("{}: {source}", path.display()),
    }
}

impl From<tensorc_kvstore::GroupError> for Error {
    fn from(error: tensorc_kvstore::GroupError) -> Error {
        Error::KvStore(error.into())
    }
}
