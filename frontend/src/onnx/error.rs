//! Everything that can be wrong with an ONNX model, as typed errors.

use std::fmt;
use std::path::PathBuf;

use tensorc_ir::diag::Diagnostic;
use thiserror::Error;

use super::unsupported::Unsupported;

/// Why a model could not be read or imported.
#[derive(Debug, Error)]
pub enum OnnxError {
    #[error("cannot open the model {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("not an ONNX model: {0}")]
    NotOnnx(NotOnnx),
    #[error("ONNX IR version {found} is not supported (supported: 3 to {newest})")]
    IrVersion { found: i64, newest: i64 },
    #[error("the {holder} does not say which version of the operator set `ai.onnx` it uses")]
    NoOpset { holder: String },
    #[error("operator set {domain} version {found} is not supported (supported: {oldest} to {newest})")]
    Opset { domain: String, found: i64, oldest: i64, newest: i64 },
    #[error("{tensor}: {problem}")]
    Tensor { tensor: TensorSite, problem: TensorProblem },
    #[error("function {function}: {problem}")]
    Function { function: String, problem: FunctionProblem },
    #[error("the model uses what is not supported: {0}")]
    Unsupported(Unsupported),
    #[error("the value `{value}`, used by {user}, is not computed by any node")]
    Undefined { value: String, user: String },
    #[error("the value `{value}` is defined a second time by {by}")]
    DefinedTwice { value: String, by: String },
    #[error("the model has no input `{name}`; inputs: {}", known.join(", "))]
    NoSuchInput { name: String, known: Vec<String> },
    #[error("input `{name}`: {problem}")]
    Input { name: String, problem: String },
    #[error("nested graphs, with the functions they call, are more than {0} deep")]
    TooDeep(usize),
    #[error("with nested graphs and functions the model has more than {0} nodes")]
    TooManyNodes(usize),
    #[error("{0} depends on its own result")]
    Cycle(String),
    /// An operator rejects what the model gives it.
    #[error("{0}")]
    Invalid(Diagnostic),
}

/// Why a file is no ONNX model at all.
#[derive(Debug, Error)]
pub enum NotOnnx {
    #[error("the file is empty")]
    Empty,
    #[error("it is {0}")]
    OtherFormat(&'static str),
    #[error("broken or truncated protobuf: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("it has no IR version")]
    NoIrVersion,
    #[error("it has no graph")]
    NoGraph,
}

/// Which tensor of the model an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorSite {
    Initializer(String),
    Attribute {
        node: String,
        name: String,
    },
    /// A tensor in a file of its own.
    File,
}

impl fmt::Display for TensorSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorSite::Initializer(name) => write!(f, "initializer `{name}`"),
            TensorSite::Attribute { node, name } => write!(f, "attribute `{name}` of {node}"),
            TensorSite::File => f.write_str("tensor"),
        }
    }
}

/// Why the content of a tensor cannot be used.
#[derive(Debug, Error)]
pub enum TensorProblem {
    #[error("element type {0} is not supported")]
    UnsupportedType(&'static str),
    #[error("element type {0} is not defined")]
    UnknownType(i32),
    #[error("dimension {index} is {value}")]
    BadDimension { index: usize, value: i64 },
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<i64>),
    #[error("the shape {dims:?} of {dtype} needs {expected} {unit}, the data has {found}")]
    SizeMismatch { dims: Vec<u64>, dtype: &'static str, unit: &'static str, expected: u64, found: u64 },
    #[error("the value {value} in int32_data does not fit {dtype}")]
    OutOfRange { value: i32, dtype: &'static str },
    #[error("tensors in several segments are not supported")]
    Segmented,
    #[error("sparse tensor: {0}")]
    Sparse(&'static str),
    #[error("data location {0} is not defined")]
    UnknownLocation(i32),
    #[error("external data: {0}")]
    External(#[from] ExternalProblem),
}

impl TensorProblem {
    /// Whether the tensor is right but tensorc lacks what it needs.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, TensorProblem::UnsupportedType(_) | TensorProblem::Segmented)
    }
}

/// Why external data cannot be used.
#[derive(Debug, Error)]
pub enum ExternalProblem {
    #[error("no location is given")]
    NoLocation,
    #[error("the model was not read from a file, so its external data cannot be found")]
    NoFolder,
    #[error("the path `{0}` is absolute; it must be inside the model's folder")]
    Absolute(String),
    #[error("the path `{0}` leaves the model's folder")]
    Outside(String),
    #[error("`{0}` is not a regular file")]
    NotAFile(String),
    #[error("cannot open `{path}`: {source}")]
    Open { path: String, source: std::io::Error },
    #[error("{key} `{value}` is not a number of bytes")]
    BadNumber { key: &'static str, value: String },
    #[error("bytes {offset} to {end} of `{path}` are wanted, but the file has {size}")]
    OutOfBounds { path: String, offset: u64, end: u64, size: u64 },
}

/// Why a model-local function cannot be expanded.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FunctionProblem {
    #[error("it is defined twice")]
    Duplicate,
    #[error("it calls itself (through {0})")]
    Recursive(String),
    #[error("calls are nested more than {0} deep")]
    TooDeep(usize),
    #[error("the expanded model has more than {0} nodes and calls")]
    TooManyNodes(usize),
    #[error("{node} passes {given} inputs, the function takes {taken}")]
    TooManyInputs { node: String, given: usize, taken: usize },
    #[error("{node} takes {given} outputs, the function has {returned}")]
    TooManyOutputs { node: String, given: usize, returned: usize },
    #[error("its body assigns its own input `{0}`")]
    AssignsInput(String),
}

/// How messages name a node: operator, and the node's name or else its first output.
pub fn describe_node(node: &super::proto::NodeProto) -> String {
    let op = node.op_type();
    match (node.name(), node.output.iter().find(|o| !o.is_empty())) {
        ("", Some(output)) => format!("{op} node computing `{output}`"),
        ("", None) => format!("{op} node without a name"),
        (name, _) => format!("{op} node `{name}`"),
    }
}
