//! Everything that can go wrong between a model file and its results.

use std::path::{Path, PathBuf};

use tensorc_abi::content::ReadError;
use tensorc_frontend::mxnet::ParamsError;
use tensorc_frontend::onnx::OnnxError;
use tensorc_frontend::symbol::SymbolError;
use tensorc_ir::diag::Diagnostic;
use tensorc_runtime::gpu::DriverError;
use tensorc_runtime::plan::{LoadError, RunError};
use tensorc_runtime::{AllocError, Device, PoolError, WeightError};

use crate::aot::link::LinkError;
use crate::quantize::QuantizeError;

/// Why a model could not be loaded, compiled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A file cannot be written.
    #[error("{path}: {source}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// An ONNX model that cannot be imported.
    #[error("{}", in_file(path, source, matches!(**source, OnnxError::Open { .. })))]
    Onnx { path: PathBuf, source: Box<OnnxError> },
    /// The program or the model is wrong, or asks for what is not supported.
    #[error("{0}")]
    Diagnostic(#[from] Diagnostic),
    /// A symbol that is not valid.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// A symbol file that cannot be read.
    #[error("{}", in_file(path, source, matches!(**source, SymbolError::File { .. })))]
    SymbolFile { path: PathBuf, source: Box<SymbolError> },
    /// A file of parameters that cannot be read.
    #[error("{}", in_file(path, source, matches!(source, ParamsError::File { .. })))]
    ParamsFile { path: PathBuf, source: ParamsError },
    /// Parameters are given with a model that has its own.
    #[error("parameters go with a symbol file (.json), not with {}", path.display())]
    NoSymbol { path: PathBuf },
    /// A variable has no value.
    #[error("variable `{name}` has no value in the parameters")]
    MissingParameter { name: String },
    /// A value is given for no variable.
    #[error("parameter `{name}` is not a variable of the symbol")]
    UnknownVariable { name: String },
    /// A value of another type than its variable.
    #[error("parameter `{name}` is {found}, the symbol states {expected}")]
    ParameterType { name: String, expected: String, found: String },
    /// An input is not given.
    #[error("input `{name}` is missing; the model takes: {expected}")]
    MissingInput { name: String, expected: String },
    /// An input that the model does not have.
    #[error("the model has no input `{name}`; it takes: {expected}")]
    UnknownInput { name: String, expected: String },
    /// An output that the model does not have.
    #[error("the model has no output `{name}`; it gives: {expected}")]
    UnknownOutput { name: String, expected: String },
    /// An input and an output that cannot be a state.
    #[error("the state from `{input}` to `{output}` {why}")]
    State { input: String, output: String, why: String },
    /// A state cannot be read or set.
    #[error("state `{name}` {why}")]
    StateValue { name: String, why: String },
    /// A state has no room for what a run adds.
    #[error("state `{name}` has room for {capacity} positions, {wanted} are needed")]
    StateFull { name: String, capacity: u64, wanted: u64 },
    /// It is not known which tensors there are in a sequence or an optional value.
    #[error(
        "the model takes sequences or optional values ({inputs}): it must be known which tensors of them there are"
    )]
    UnknownLengths { inputs: String },
    /// Texts are given for numbers, or numbers for texts.
    #[error("input `{name}` holds {expected}, {found} are given")]
    TextInput { name: String, expected: &'static str, found: &'static str },
    /// An operator on texts does not take its operands.
    #[error("{op} of node `{node}`: {why}")]
    TextOperator { node: String, op: String, why: String },
    /// A model with operators on texts is asked for a plan, an artifact, or a run on numbers.
    #[error(
        "the host computes operators on texts ({operators}): the model runs on arrays of texts, and has no plan or artifact \
         of its own"
    )]
    TextOperators { operators: String },
    /// Texts in a model that is imported for the inputs of each run.
    #[error("`{value}` holds texts, which are not supported in a model whose inputs decide its branches or loops")]
    TextBranches { value: String },
    /// Another number of elements than the shape has.
    #[error("{elements} elements do not fill the shape {dims:?}")]
    TensorSize { elements: usize, dims: Vec<u64> },
    /// Elements of another type.
    #[error("the tensor holds {found}, not {expected}")]
    TensorType { found: tensorc_abi::DType, expected: tensorc_abi::DType },
    /// An operator of the caller's cannot be registered.
    #[error("{0}")]
    Operator(String),
    /// A model cannot be compiled ahead of time as asked, or the result cannot be used.
    #[error("{0}")]
    Artifact(String),
    /// A library or program could not be made of a compiled model.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An extent is asked for that an input or dimension cannot have.
    #[error("{0}")]
    Shape(String),
    /// An input does not have the type that the model states of it.
    #[error("{0}")]
    Binding(Diagnostic),
    /// An input that no memory holds.
    #[error("input `{name}`: there is no memory for {dims:?} of {dtype}")]
    InputSize { name: String, dims: Vec<u64>, dtype: tensorc_abi::DType },
    /// Models of which nothing can be compared.
    #[error("{0}")]
    Compare(String),
    /// A model that cannot be quantised as asked.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// A model whose shapes depend on values is asked for its plan.
    #[error("model `{model}`: shapes in it depend on values, so it has no single plan; run it with `Model::run`")]
    Parts { model: String },
    /// Parameters that are not valid.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// Tensors do not fit the plan, or a run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Memory could not be allocated.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] PoolError),
    /// A weight could not be loaded.
    #[error("weight `{name}`: {source}")]
    Weight { name: String, source: WeightError },
    /// A file that holds weights cannot be read any more, or was changed.
    #[error(transparent)]
    Constants(#[from] ReadError),
    /// A compiled plan did not pass the run time's checks: a fault of the compiler.
    #[error("internal error: {0}")]
    Plan(LoadError),
    /// What is to run on an accelerator cannot be compiled for it.
    #[error("{device}: there is no driver for it among the GPUs of the compiler")]
    NoDriver { device: Device },
    /// A GPU is not there, or refuses code or memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A fault of tensorc.
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

/// Names the file once: an error of opening it does so itself.
fn in_file(path: &Path, source: &dyn std::error::Error, names_it: bool) -> String {
    match names_it {
        true => source.to_string(),
        false => format!("{}: {source}", path.display()),
    }
}
