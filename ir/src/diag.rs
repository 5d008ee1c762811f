//! Diagnostics: what is wrong with a program, at which node, and why.

use std::sync::Arc;

use tensorc_abi::BrokenRequirement;
use tensorc_abi::content::ReadError;

/// Stable identifiers of diagnostics; each has a test that provokes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiagnosticCode {
    /// The text does not parse.
    Syntax,
    /// A structural rule of the IR is broken.
    Verify,
    /// An operator is not registered.
    UnknownOperator,
    /// An operator got parameters or a number of operands that it does not take.
    Operands,
    /// Types or shapes contradict each other.
    TypeConflict,
    /// A type or shape is still unknown where it must be known.
    Unresolved,
    /// The operator, type or form is not supported by this stage or target.
    Unsupported,
    /// A pass, phase or option name is unknown.
    Pipeline,
    /// More is asked for than a limit allows.
    Limit,
    /// A function of the user's failed.
    Extern,
    /// An operand holds a value that its operator does not take.
    Value,
    /// A file that holds constants cannot be read any more, or was changed.
    File,
    /// The program is right, but the compiler broke its own rule.
    Internal,
}

impl DiagnosticCode {
    /// The name of the code, as in `error[NAME]`.
    pub const fn name(self) -> &'static str {
        match self {
            DiagnosticCode::Syntax => "syntax",
            DiagnosticCode::Verify => "verify",
            DiagnosticCode::UnknownOperator => "unknown-operator",
            DiagnosticCode::Operands => "operands",
            DiagnosticCode::TypeConflict => "type-conflict",
            DiagnosticCode::Unresolved => "unresolved",
            DiagnosticCode::Unsupported => "unsupported",
            DiagnosticCode::Pipeline => "pipeline",
            DiagnosticCode::Limit => "limit",
            DiagnosticCode::Extern => "extern",
            DiagnosticCode::Value => "value",
            DiagnosticCode::File => "file",
            DiagnosticCode::Internal => "internal",
        }
    }
}

/// One error with its place in the user's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What kind of mistake it is.
    pub code: DiagnosticCode,
    /// What is wrong.
    pub message: String,
    /// Name of the node (as in the imported model) the error is about.
    pub node: Option<Arc<str>>,
    /// What explains it further.
    pub notes: Vec<String>,
}

/// The result of what may fail with a [`Diagnostic`].
pub type Result<T, E = Diagnostic> = std::result::Result<T, E>;

impl Diagnostic {
    /// A diagnostic without a place.
    pub fn new(code: DiagnosticCode, message: impl Into<String>) -> Diagnostic {
        Diagnostic { code, message: message.into(), node: None, notes: vec![] }
    }

    /// A file that holds constants cannot be read.
    pub fn unreadable(error: ReadError) -> Diagnostic {
        Diagnostic::new(DiagnosticCode::File, error.to_string())
    }

    /// A value breaks a requirement.
    pub fn broken(by: &BrokenRequirement) -> Diagnostic {
        let BrokenRequirement { requirement, value } = by;
        let what = format!("operand `{}` holds {value}{}", requirement.operand, requirement.behind());
        Diagnostic::new(DiagnosticCode::Value, what).at(&requirement.node.as_str().into())
    }

    /// Names the node, unless a more precise one is already named.
    pub fn at(mut self, node: &Arc<str>) -> Diagnostic {
        self.node.get_or_insert_with(|| node.clone());
        self
    }

    /// Adds an explanation.
    pub fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}] ", self.code.name())?;
        if let Some(node) = &self.node {
            write!(f, "node `{node}`: ")?;
        }
        f.write_str(&self.message)?;
        self.notes.iter().try_for_each(|n| write!(f, "; {n}"))
    }
}

impl std::error::Error for Diagnostic {}
