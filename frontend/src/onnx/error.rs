//! Everything that can be wrong with an ONNX model, as typed errors.

use std::fmt;
use std::path::PathBuf;

use tensorc_abi::content::ReadError;
use tensorc_ir::diag::Diagnostic;
use thiserror::Error;

use super::limits::OverLimit;
use super::unsupported::Unsupported;

/// Why a model could not be read or imported.
#[derive(Debug, Error)]
pub enum OnnxError {
    /// The file of the model cannot be opened.
    #[error("cannot open the model {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The bytes are no ONNX model.
    #[error("not an ONNX model: {0}")]
    NotOnnx(NotOnnx),
    /// A version of the format that is too new.
    #[error("ONNX IR version {found} is not supported (supported: 3 to {newest})")]
    IrVersion {
        /// The version in the file.
        found: i64,
        /// The newest version that is read.
        newest: i64,
    },
    /// No version of operators that are used is stated.
    #[error("the {holder} does not say which version of the operator set `{domain}` it uses")]
    NoOpset {
        /// The model or function.
        holder: String,
        /// The domain of the operators.
        domain: String,
    },
    /// A version of the operators that is not read.
    #[error("operator set {domain} version {found} is not supported (supported: {oldest} to {newest})")]
    Opset {
        /// The domain of the operators.
        domain: String,
        /// The version in the file.
        found: i64,
        /// The oldest version that is read.
        oldest: i64,
        /// The newest version that is read.
        newest: i64,
    },
    /// A tensor that cannot be read.
    #[error("{tensor}: {problem}")]
    Tensor {
        /// The tensor.
        tensor: Box<TensorSite>,
        /// What is wrong with the tensor.
        problem: TensorProblem,
    },
    /// A function that cannot be expanded.
    #[error("function {function}: {problem}")]
    Function {
        /// The name of the function.
        function: String,
        /// What is wrong with the function.
        problem: FunctionProblem,
    },
    /// Operators, or uses of them, that are not supported.
    #[error("unsupported operators or values: {0}")]
    Unsupported(Unsupported),
    /// A value that nothing defines.
    #[error("the value `{value}`, used by {user}, is not computed by any node")]
    Undefined {
        /// The name of the value.
        value: String,
        /// The node or output that reads it.
        user: String,
    },
    /// A value that is defined twice.
    #[error("the value `{value}` is defined a second time by {by}")]
    DefinedTwice {
        /// The name of the value.
        value: String,
        /// The node that defines it again.
        by: String,
    },
    /// A shape or value for an input that the model does not have.
    #[error("the model has no input `{name}`; inputs: {}", known.join(", "))]
    NoSuchInput {
        /// The name given.
        name: String,
        /// The names of the inputs.
        known: Vec<String>,
    },
    /// An input whose type, shape or value does not fit.
    #[error("input `{name}`: {problem}")]
    Input {
        /// The name of the input.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Subgraphs that nest deeper than this.
    #[error("nested graphs, with the functions they call, are more than {0} deep")]
    TooDeep(usize),
    /// The model takes more than it may.
    #[error("the model is too large: {0}")]
    Limit(OverLimit),
    /// A message of the file has a field that it must not have.
    #[error("{message} {problem}")]
    Wire {
        /// The message.
        message: String,
        /// What is wrong with its fields.
        problem: WireProblem,
    },
    /// An attribute that is not one value of one type.
    #[error("attribute `{attribute}` of {node} {problem}")]
    Attribute {
        /// The node.
        node: String,
        /// The name of the attribute.
        attribute: String,
        /// What is wrong with the attribute.
        problem: AttributeProblem,
    },
    /// The model returns nothing.
    #[error("the model has no outputs")]
    NoOutputs,
    /// Something that must have a name has none.
    #[error("{0} has no name")]
    NoName(String),
    /// A value of a nested graph that has the name of one around it.
    #[error("{by} of a nested graph hides the value `{value}` of a graph around it")]
    Hides {
        /// The name of both values.
        value: String,
        /// What defines the inner one.
        by: String,
    },
    /// A type that the model states of a value, and that it cannot have.
    #[error("the model declares {what} `{value}` as {declared}, but {by} makes it {found}")]
    Declared {
        /// What the model says the value is: an input, an output or a value in between.
        what: &'static str,
        /// The name of the value.
        value: String,
        /// The type stated.
        declared: String,
        /// The node or the initializer.
        by: String,
        /// The type that follows.
        found: String,
    },
    /// Nodes that depend on each other in a circle.
    #[error("{0} depends on its own result")]
    Cycle(String),
    /// An operator rejects what the model gives it.
    #[error("{0}")]
    Invalid(Diagnostic),
}

impl OnnxError {
    /// Whether more knowledge of inputs might help.
    pub fn is_undecided(&self) -> bool {
        matches!(self, OnnxError::Unsupported(list) if list.only_undecided())
    }
}

/// Why a file is no ONNX model at all.
#[derive(Debug, Error)]
pub enum NotOnnx {
    /// An empty file.
    #[error("the file is empty")]
    Empty,
    /// A file of another format.
    #[error("it is {0}")]
    OtherFormat(&'static str),
    /// The file ends early.
    #[error("the file is incomplete: at least {missing} bytes are missing at its end")]
    Incomplete {
        /// How many bytes of its last field are missing.
        missing: u64,
    },
    /// The bytes are no message, or not one of a model.
    #[error("it is damaged, or of another format")]
    Damaged,
    /// Messages that nest deeper than any decoder reads.
    #[error("its messages are nested more than {0} deep")]
    TooDeep(usize),
    /// The field `ir_version` is missing.
    #[error("it has no IR version")]
    NoIrVersion,
    /// The field `graph` is missing.
    #[error("it has no graph")]
    NoGraph,
}

/// Why the fields of a message cannot stand.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireProblem {
    /// A field that programs of another version might read.
    #[error("has field {0}, which ONNX does not define")]
    Undefined(u32),
    /// A field of one value, with two.
    #[error("gives field {0} twice")]
    Twice(u32),
    /// A form of protobuf that ONNX does not use.
    #[error("has a group as field {0}, which ONNX does not use")]
    Group(u32),
}

/// Why an attribute has no value, or not one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AttributeProblem {
    /// Two attributes of one name.
    #[error("is given twice")]
    Twice,
    /// A number that is no attribute type of ONNX.
    #[error("has the type {0}, which ONNX does not define")]
    UnknownType(i32),
    /// Fields of several types are set.
    #[error("has values of several types: {0}")]
    SeveralValues(String),
    /// The value is of another type than stated.
    #[error("is declared as {declared} and holds {found}")]
    WrongType {
        /// The type stated.
        declared: &'static str,
        /// The type of the field that is set.
        found: &'static str,
    },
    /// A reference to an attribute of the call, where there is no call.
    #[error("refers to the attribute `{0}` of a function, but is not in a function")]
    NotInFunction(String),
    /// A reference with a value besides.
    #[error("refers to the attribute `{0}` and has a value of its own")]
    ReferenceAndValue(String),
}

/// Which tensor of the model an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorSite {
    /// An initializer, by name.
    Initializer(String),
    /// A tensor in an attribute.
    Attribute {
        /// The name of the node.
        node: String,
        /// The name of the attribute.
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
    /// An element type that is not supported.
    #[error("element type {0} is not supported")]
    UnsupportedType(&'static str),
    /// A number that is no element type of ONNX.
    #[error("element type {0} is not defined")]
    UnknownType(i32),
    /// A negative extent.
    #[error("dimension {index} is {value}")]
    BadDimension {
        /// The axis.
        index: usize,
        /// The extent in the file.
        value: i64,
    },
    /// A tensor whose size in bytes overflows.
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<i64>),
    /// Another tensor in its place does not fit.
    #[error("it is {declared}, {given} cannot take its place")]
    Replaced {
        /// The type and shape in the file.
        declared: String,
        /// The type and shape given.
        given: String,
    },
    /// Data of another size than the shape needs.
    #[error("the shape {dims:?} of {dtype} needs {expected} {unit}, the data has {found}")]
    SizeMismatch {
        /// The shape.
        dims: Vec<u64>,
        /// The element type.
        dtype: &'static str,
        /// The unit of both sizes.
        unit: &'static str,
        /// The size that the shape needs.
        expected: u64,
        /// The size found.
        found: u64,
    },
    /// More dimensions than any tensor has.
    #[error("it has {found} dimensions; at most {most} are supported")]
    TooManyDimensions {
        /// The number of dimensions.
        found: usize,
        /// The most that there may be.
        most: usize,
    },
    /// Data in more than one place: programs would differ on which counts.
    #[error("its data is given more than once: {0}")]
    SeveralFields(String),
    /// Data in a field of another element type.
    #[error("its data is in {field}, which does not hold {dtype}")]
    WrongField {
        /// The field.
        field: &'static str,
        /// The element type.
        dtype: &'static str,
    },
    /// Memory that may not, or cannot, be had.
    #[error("{0}")]
    Limit(#[from] OverLimit),
    /// A value that the element type does not hold.
    #[error("the value {value} does not fit {dtype}")]
    OutOfRange {
        /// The value.
        value: i128,
        /// The element type.
        dtype: &'static str,
    },
    /// A tensor stored in segments.
    #[error("tensors in several segments are not supported")]
    Segmented,
    /// A malformed sparse tensor.
    #[error("sparse tensor: {0}")]
    Sparse(&'static str),
    /// A number that is no data location of ONNX.
    #[error("data location {0} is not defined")]
    UnknownLocation(i32),
    /// External data that cannot be read.
    #[error("external data: {0}")]
    External(#[from] ExternalProblem),
    /// The file of the model cannot be read any more, or was changed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl TensorProblem {
    /// Whether the tensor is right but tensorc lacks what it needs.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, TensorProblem::UnsupportedType(_) | TensorProblem::Segmented)
    }
}

/// Why external data cannot be used.
#[derive(Debug, Error)]
pub enum ExternalProblem {
    /// External data without the key `location`.
    #[error("no location is given")]
    NoLocation,
    /// External data of a model that was not read from a file.
    #[error("the model was not read from a file, so its external data cannot be found")]
    NoFolder,
    /// A location that is an absolute path.
    #[error("the path `{0}` is absolute; it must be inside the model's folder")]
    Absolute(String),
    /// A location with a character that has a meaning of its own on some systems.
    #[error("the path `{0}` has a backslash or a NUL")]
    BadPath(String),
    /// A location outside of the folder of the model.
    #[error("the path `{0}` leaves the model's folder")]
    Outside(String),
    /// A location that is no regular file.
    #[error("`{0}` is not a regular file")]
    NotAFile(String),
    /// A location that is reached by a symbolic link.
    #[error(
        "`{0}` is a symbolic link or lies behind one; links are followed only in folders that the user says to trust"
    )]
    Link(String),
    /// A file that has other names, which may be outside of the folder.
    #[error(
        "`{path}` is one of {names} names (hard links) of a file; such files are read only in folders that the user says to trust"
    )]
    HardLink {
        /// The file.
        path: String,
        /// How many names the file has.
        names: u64,
    },
    /// The file of external data cannot be opened.
    #[error("cannot open `{path}`: {source}")]
    Open {
        /// The file.
        path: String,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// A key that is given twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// Data of another length than the shape needs.
    #[error("{found} bytes of `{path}` are meant, the type and shape need {needed}")]
    WrongLength {
        /// The file.
        path: String,
        /// Bytes that the entries describe.
        found: u64,
        /// Bytes that the tensor has.
        needed: u64,
    },
    /// More data than may be read.
    #[error("{0}")]
    Limit(#[from] OverLimit),
    /// An offset or length that is no number.
    #[error("{key} `{value}` is not a number of bytes")]
    BadNumber {
        /// The key of the entry.
        key: &'static str,
        /// The text of the entry.
        value: String,
    },
    /// A range of bytes beyond the end of the file.
    #[error("bytes {offset} to {end} of `{path}` are wanted, but the file has {size}")]
    OutOfBounds {
        /// The file.
        path: String,
        /// The first byte that is needed.
        offset: u64,
        /// The last byte that is needed, exclusive.
        end: u64,
        /// The size of the file in bytes.
        size: u64,
    },
}

/// Why a model-local function cannot be expanded.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FunctionProblem {
    /// Two functions of one name and domain.
    #[error("it is defined twice")]
    Duplicate,
    /// A function that calls itself, by name.
    #[error("it calls itself (through {0})")]
    Recursive(String),
    /// Calls that nest deeper than this.
    #[error("calls are nested more than {0} deep")]
    TooDeep(usize),
    /// A call with more inputs than the function takes.
    #[error("{node}: {given} inputs for a function of {taken}")]
    TooManyInputs {
        /// The node that calls the function.
        node: String,
        /// Inputs of the call.
        given: usize,
        /// Inputs that the function takes.
        taken: usize,
    },
    /// A call with more outputs than the function returns.
    #[error("{node} takes {given} outputs, the function has {returned}")]
    TooManyOutputs {
        /// The node that calls the function.
        node: String,
        /// Outputs of the call.
        given: usize,
        /// Outputs that the function returns.
        returned: usize,
    },
    /// A function that assigns to its input.
    #[error("its body assigns its own input `{0}`")]
    AssignsInput(String),
}

/// How messages name a node: operator, and the node's name or else its first output.
pub(crate) fn describe_node(node: &super::proto::NodeProto) -> String {
    let op = node.op_type();
    match (node.name(), node.output.iter().find(|o| !o.is_empty())) {
        ("", Some(output)) => format!("{op} node computing `{output}`"),
        ("", None) => format!("{op} node without a name"),
        (name, _) => format!("{op} node `{name}`"),
    }
}
