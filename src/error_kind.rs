//! Kinds of errors, for programs that react to them or say what to do next.

use std::io;

use tensorc_frontend::mxnet::ParamsError;
use tensorc_frontend::onnx::OnnxError;
use tensorc_frontend::symbol::SymbolError;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_runtime::plan::RunError;

use crate::aot::link::LinkError;
use crate::error::Error;
use crate::quantize::QuantizeError;

/// What sort of mistake an [`Error`] is: what a user can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file does not exist.
    NotFound,
    /// A file cannot be read or written for another reason.
    File,
    /// A file is damaged or of another format.
    Format,
    /// The model breaks a rule of its format.
    Model,
    /// Which branches or loops the model takes follows from values or shapes of inputs that are not known.
    Undecided,
    /// The model asks for an operator, type or form that is not supported.
    Unsupported,
    /// An input is missing, or not one of the model's, or its tensor is not as the model takes it.
    Input,
    /// Parameters of a symbol are missing or do not fit.
    Parameters,
    /// Shapes must be known and are not, or contradict each other.
    Shape,
    /// A value of an input is one that an operator does not take.
    Value,
    /// The model takes more than a limit allows.
    Limit,
    /// Memory is short.
    Memory,
    /// A GPU is not there or failed.
    Gpu,
    /// The linker or the run-time library is missing, or linking failed.
    Link,
    /// A fault of tensorc.
    Internal,
    /// Anything else.
    Other,
}

impl Error {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Read { source, .. } | Error::Write { source, .. } => of_file(source),
            Error::Onnx { source, .. } => of_onnx(source),
            Error::Diagnostic(diagnostic) => of_diagnostic(diagnostic),
            Error::Binding(_) => ErrorKind::Shape,
            Error::Symbol(source) => of_symbol(source),
            Error::SymbolFile { source, .. } => of_symbol(source),
            Error::Params(source) | Error::ParamsFile { source, .. } => of_parameters(source),
            Error::NoSymbol { .. }
            | Error::MissingParameter { .. }
            | Error::UnknownVariable { .. }
            | Error::ParameterType { .. } => ErrorKind::Parameters,
            Error::MissingInput { .. }
            | Error::UnknownInput { .. }
            | Error::UnknownLengths { .. }
            | Error::TextInput { .. }
            | Error::TensorSize { .. }
            | Error::TensorType { .. } => ErrorKind::Input,
            Error::Shape(_) => ErrorKind::Shape,
            Error::TextOperator { .. } => ErrorKind::Value,
            Error::TextOperators { .. } | Error::TextBranches { .. } => ErrorKind::Unsupported,
            Error::Quantize(error) => of_quantisation(error),
            Error::Run(run) => of_run(run),
            Error::Memory(_) | Error::InputSize { .. } => ErrorKind::Memory,
            Error::Constants(_) => ErrorKind::File,
            Error::NoDriver { .. } | Error::Driver(_) => ErrorKind::Gpu,
            Error::Link(LinkError::File { source, .. }) => of_file(source),
            Error::Link(_) => ErrorKind::Link,
            Error::Plan(_) | Error::Internal(_) => ErrorKind::Internal,
            Error::UnknownOutput { .. }
            | Error::State { .. }
            | Error::StateValue { .. }
            | Error::StateFull { .. }
            | Error::Operator(_)
            | Error::Compare(_)
            | Error::Artifact(_)
            | Error::Parts { .. }
            | Error::Threads(_)
            | Error::Weight { .. } => ErrorKind::Other,
        }
    }
}

fn of_file(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::InvalidData => ErrorKind::Format,
        _ => ErrorKind::File,
    }
}

fn of_onnx(error: &OnnxError) -> ErrorKind {
    match error {
        OnnxError::Open { source, .. } => of_file(source),
        OnnxError::NotOnnx(_) | OnnxError::Wire { .. } => ErrorKind::Format,
        OnnxError::Unsupported(list) if list.any_undecided() => ErrorKind::Undecided,
        OnnxError::Unsupported(_) | OnnxError::IrVersion { .. } | OnnxError::Opset { .. } => ErrorKind::Unsupported,
        OnnxError::NoSuchInput { .. } | OnnxError::Input { .. } => ErrorKind::Input,
        OnnxError::Limit(_) => ErrorKind::Limit,
        OnnxError::Invalid(diagnostic) => of_diagnostic(diagnostic),
        _ => ErrorKind::Model,
    }
}

fn of_symbol(error: &SymbolError) -> ErrorKind {
    match error {
        SymbolError::File(file) => of_file(&file.source),
        SymbolError::Json(_) => ErrorKind::Format,
        SymbolError::UnknownOperator { .. } | SymbolError::Subgraphs { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Model,
    }
}

fn of_parameters(error: &ParamsError) -> ErrorKind {
    match error {
        ParamsError::File(file) => of_file(&file.source),
        ParamsError::Format { .. } => ErrorKind::Format,
        _ => ErrorKind::Parameters,
    }
}

fn of_diagnostic(diagnostic: &Diagnostic) -> ErrorKind {
    match diagnostic.code {
        DiagnosticCode::Unsupported | DiagnosticCode::UnknownOperator => ErrorKind::Unsupported,
        DiagnosticCode::Unresolved => ErrorKind::Shape,
        DiagnosticCode::Limit => ErrorKind::Limit,
        DiagnosticCode::Value => ErrorKind::Value,
        DiagnosticCode::File => ErrorKind::File,
        DiagnosticCode::Internal => ErrorKind::Internal,
        DiagnosticCode::Syntax | DiagnosticCode::Verify | DiagnosticCode::Operands | DiagnosticCode::TypeConflict => {
            ErrorKind::Model
        }
        DiagnosticCode::Pipeline | DiagnosticCode::Extern => ErrorKind::Other,
    }
}

fn of_quantisation(error: &QuantizeError) -> ErrorKind {
    match error {
        QuantizeError::NotOnnx { .. } | QuantizeError::Opset { .. } => ErrorKind::Unsupported,
        QuantizeError::InputNotFinite { .. } | QuantizeError::ValueNotFinite { .. } => ErrorKind::Value,
        QuantizeError::Batch { .. } => ErrorKind::Shape,
        _ => ErrorKind::Other,
    }
}

fn of_run(error: &RunError) -> ErrorKind {
    match error {
        RunError::Count { .. } | RunError::DType { .. } | RunError::Shape { .. } | RunError::Bytes { .. } => {
            ErrorKind::Input
        }
        RunError::Value(_) => ErrorKind::Value,
        RunError::Alloc(_) => ErrorKind::Memory,
        RunError::Time { .. } => ErrorKind::Limit,
        RunError::Device { .. } | RunError::Driver(_) => ErrorKind::Gpu,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::{Compiler, Options};

    fn kind_of(path: &str, bytes: &[u8]) -> ErrorKind {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(path);
        std::fs::write(&file, bytes).unwrap();
        Compiler::new(Options::default()).unwrap().load(file).err().unwrap().kind()
    }

    #[test]
    fn kinds_of_files_that_are_no_models() {
        let compiler = Compiler::new(Options::default()).unwrap();
        for missing in ["missing.onnx", "missing.json", "missing.tc"] {
            assert_eq!(compiler.load(missing).err().unwrap().kind(), ErrorKind::NotFound, "{missing}");
        }
        assert_eq!(kind_of("a.onnx", b""), ErrorKind::Format);
        assert_eq!(kind_of("a.txt", b"hello"), ErrorKind::Format);
        assert_eq!(kind_of("a.json", b"{"), ErrorKind::Format);
        assert_eq!(kind_of("a.tc", b"\xff"), ErrorKind::Format);
        assert_eq!(kind_of("a.tc", b"graph"), ErrorKind::Model);
        assert_eq!(kind_of("a.tc", b"graph @f(%x: f32[2]) { %y = nothing(%x) return %y }"), ErrorKind::Unsupported);
    }
}
