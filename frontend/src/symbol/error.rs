//! Everything that can be wrong with a symbol, its attributes or its file, as typed errors.

use std::path::PathBuf;

use tensorc_ir::diag::Diagnostic;

use super::text::{Expected, ParamProblem};
use crate::mxnet::file::ReplaceError;

/// Why a symbol could not be made, read, written or lowered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    /// The text is not JSON, or not that of a symbol.
    #[error("not a symbol file: {0}")]
    Json(#[from] serde_json::Error),
    /// The file names things that are not in it.
    #[error("{place}: {problem}")]
    Structure { place: String, problem: String },
    #[error("node `{node}`: operator `{op}` is not known")]
    UnknownOperator { op: String, node: String },
    #[error("node `{node}`: operator `{op}` runs graphs of its own, which is not supported")]
    Subgraphs { op: String, node: String },
    /// A body of control flow cannot become a graph of the node.
    #[error("operator `{op}`, node `{node}`: {problem}")]
    ControlFlow { op: &'static str, node: String, problem: String },
    #[error("operator `{op}`, node `{node}`: {problem}")]
    Param { op: String, node: String, problem: Box<ParamProblem> },
    #[error("operator `{op}`, node `{node}` has {results} results, at most {most} are supported")]
    TooManyResults { op: String, node: String, results: usize, most: usize },
    #[error("operator `{op}`, node `{node}` takes at most {most} operands, {given} are given")]
    TooManyOperands { op: String, node: String, most: usize, given: usize },
    #[error("operator `{op}`, node `{node}` has {given} operands, needs {needed}: {names}")]
    MissingOperands { op: String, node: String, needed: usize, given: usize, names: String },
    #[error("operator `{op}`, node `{node}`: operand `{operand}` is given twice")]
    OperandTwice { op: String, node: String, operand: String },
    #[error("`{symbol}` has no argument `{name}`; its arguments are: {candidates}")]
    UnknownArgument { symbol: String, name: String, candidates: String },
    /// An argument must be one value.
    #[error("`{symbol}`: argument `{name}` has {outputs} outputs, one is expected; choose one by name or number")]
    NotSingle { symbol: String, name: String, outputs: usize },
    #[error("operator `{op}`, node `{node}`: operand `{operand}` is written by the operator and must be a variable")]
    StateNotVariable { op: String, node: String, operand: String },
    #[error("operator `{op}`, node `{node}`: set `{key}` on the variable that is given as `{operand}`")]
    AttributeOfGiven { op: String, node: String, operand: String, key: String },
    #[error("variable `{variable}`: attribute `{key}` is not known; attributes of your own are written `__{key}__`")]
    VariableAttribute { variable: String, key: String },
    #[error("variable `{variable}`: attribute `{key}` is `{value}`, expected {expected}")]
    BadVariableAttribute { variable: String, key: &'static str, value: String, expected: Expected },
    #[error("`{symbol}` has no output `{name}`; its outputs are: {candidates}")]
    UnknownOutput { symbol: String, name: String, candidates: String },
    #[error("`{symbol}` has several outputs `{name}`")]
    AmbiguousOutput { symbol: String, name: String },
    #[error("`{symbol}` has {outputs} outputs, there is no output {index}")]
    OutputRange { symbol: String, index: usize, outputs: usize },
    #[error("two variables have the name `{0}`")]
    DuplicateVariable(String),
    /// The operators of this library contradict each other: a fault of it.
    #[error("internal error: {0}")]
    Operators(String),
    #[error(transparent)]
    Diagnostic(#[from] Diagnostic),
}

impl From<ReplaceError> for SymbolError {
    fn from(error: ReplaceError) -> SymbolError {
        SymbolError::File { action: error.action, path: error.path, source: error.source }
    }
}
