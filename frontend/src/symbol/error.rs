//! Everything that can be wrong with a symbol, its attributes or its file, as typed errors.

use tensorc_ir::diag::Diagnostic;

use super::text::{Expected, ParamProblem};
use crate::mxnet::FileError;

/// Why a symbol could not be made, read, written or lowered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text is not JSON, or not that of a symbol.
    #[error("not a symbol file: {0}")]
    Json(#[from] serde_json::Error),
    /// The file names things that are not in it.
    #[error("{place}: {problem}")]
    Structure {
        /// Where in the file.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// An operator that is not registered.
    #[error("node `{node}`: operator `{op}` is not known")]
    UnknownOperator {
        /// The operator.
        op: String,
        /// The node.
        node: String,
    },
    /// Subgraphs of an operator that takes none.
    #[error("node `{node}`: unsupported operator with subgraphs: `{op}`")]
    Subgraphs {
        /// The operator.
        op: String,
        /// The node.
        node: String,
    },
    /// A body of control flow cannot become a graph of the node.
    #[error("operator `{op}`, node `{node}`: {problem}")]
    ControlFlow {
        /// The operator.
        op: &'static str,
        /// The node.
        node: String,
        /// What is wrong.
        problem: String,
    },
    /// A parameter that the operator cannot have.
    #[error("operator `{op}`, node `{node}`: {problem}")]
    Param {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// What is wrong with the parameter.
        problem: Box<ParamProblem>,
    },
    /// A node with more results than graphs can have.
    #[error("operator `{op}`, node `{node}` has {results} results, at most {most} are supported")]
    TooManyResults {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// Number of results.
        results: usize,
        /// The largest number of results.
        most: usize,
    },
    /// More operands than the operator takes.
    #[error("operator `{op}`, node `{node}` takes at most {most} operands, {given} are given")]
    TooManyOperands {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// The largest number of operands.
        most: usize,
        /// Operands given.
        given: usize,
    },
    /// Fewer operands than the operator takes.
    #[error("operator `{op}`, node `{node}` has {given} operands, needs {needed}: {names}")]
    MissingOperands {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// Operands that are needed.
        needed: usize,
        /// Operands given.
        given: usize,
        /// The missing operands, separated by commas.
        names: String,
    },
    /// An operand given by position and by name.
    #[error("operator `{op}`, node `{node}`: operand `{operand}` is given twice")]
    OperandTwice {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// The operand.
        operand: String,
    },
    /// A name that is no argument of the symbol.
    #[error("`{symbol}` has no argument `{name}`; its arguments are: {candidates}")]
    UnknownArgument {
        /// The symbol.
        symbol: String,
        /// The name given.
        name: String,
        /// The arguments that there are, separated by commas.
        candidates: String,
    },
    /// An argument must be one value.
    #[error("`{symbol}`: argument `{name}` has {outputs} outputs, one is expected; choose one by name or number")]
    NotSingle {
        /// The symbol.
        symbol: String,
        /// The operand it was given for.
        name: String,
        /// Number of outputs.
        outputs: usize,
    },
    /// An auxiliary state that is not a variable.
    #[error("operator `{op}`, node `{node}`: operand `{operand}` is written by the operator and must be a variable")]
    StateNotVariable {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// The operand that is written.
        operand: String,
    },
    /// An attribute for an operand that is given.
    #[error("operator `{op}`, node `{node}`: set `{key}` on the variable that is given as `{operand}`")]
    AttributeOfGiven {
        /// The operator.
        op: String,
        /// The node.
        node: String,
        /// The operand.
        operand: String,
        /// The key of the attribute.
        key: String,
    },
    /// An attribute that variables do not have.
    #[error("variable `{variable}`: attribute `{key}` is not known; attributes of your own are written `__{key}__`")]
    VariableAttribute {
        /// The variable.
        variable: String,
        /// The key of the attribute.
        key: String,
    },
    /// An attribute with a text that cannot be read.
    #[error("variable `{variable}`: attribute `{key}` is `{value}`, expected {expected}")]
    BadVariableAttribute {
        /// The variable.
        variable: String,
        /// The key of the attribute.
        key: &'static str,
        /// Its text.
        value: String,
        /// What the attribute may be.
        expected: Expected,
    },
    /// A name that is no output of the symbol.
    #[error("`{symbol}` has no output `{name}`; its outputs are: {candidates}")]
    UnknownOutput {
        /// The symbol.
        symbol: String,
        /// The name given.
        name: String,
        /// The outputs that there are, separated by commas.
        candidates: String,
    },
    /// A name that several outputs have.
    #[error("`{symbol}` has several outputs `{name}`")]
    AmbiguousOutput {
        /// The symbol.
        symbol: String,
        /// The name.
        name: String,
    },
    /// A position beyond the last output.
    #[error("output {index} is out of range: `{symbol}` has {outputs}")]
    OutputRange {
        /// The symbol.
        symbol: String,
        /// The position given, from 0.
        index: usize,
        /// Number of outputs.
        outputs: usize,
    },
    /// Two variables of one name.
    #[error("two variables have the name `{0}`")]
    DuplicateVariable(String),
    /// The operators of this library contradict each other: a fault of it.
    #[error("internal error: {0}")]
    Operators(String),
    /// The compiler's verdict on the graph.
    #[error(transparent)]
    Diagnostic(#[from] Diagnostic),
}

impl SymbolError {
    pub(super) fn param(op: &str, node: &str, problem: ParamProblem) -> SymbolError {
        SymbolError::Param { op: op.to_owned(), node: node.to_owned(), problem: Box::new(problem) }
    }
}
