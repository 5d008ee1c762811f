//! Errors as exceptions of the module `tensorc.errors`.

use std::io::ErrorKind;

use pyo3::prelude::*;
use tensorc::Error;
use tensorc::ir::diag::{Diagnostic, DiagnosticCode};
use tensorc::runtime::RunError;
use tensorc_frontend::onnx::OnnxError;

/// The classes that errors become.
#[derive(Clone, Copy)]
pub enum Class {
    Fail,
    InvalidArgument,
    NoSuchFile,
    RuntimeException,
    InvalidProtobuf,
    NotImplemented,
    InvalidGraph,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Class::Fail => "Fail",
            Class::InvalidArgument => "InvalidArgument",
            Class::NoSuchFile => "NoSuchFile",
            Class::RuntimeException => "RuntimeException",
            Class::InvalidProtobuf => "InvalidProtobuf",
            Class::NotImplemented => "NotImplemented",
            Class::InvalidGraph => "InvalidGraph",
        }
    }

    /// An exception with a message, and the node of the model that it is about.
    pub fn error(self, py: Python<'_>, message: &str, node: Option<&str>) -> PyErr {
        let made = || py.import("tensorc.errors")?.getattr(self.name())?.call1((message, node));
        made().map_or_else(|error| error, PyErr::from_value)
    }
}

/// An error of arrays, symbols or training as `tensorc.base.MXNetError`.
pub fn mxnet(py: Python<'_>, error: &dyn std::fmt::Display) -> PyErr {
    let made = || py.import("tensorc.base")?.getattr("MXNetError")?.call1((error.to_string(),));
    made().map_or_else(|error| error, PyErr::from_value)
}

/// An error as an exception.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    class_of(error).error(py, &error.to_string(), node_of(error))
}

fn class_of(error: &Error) -> Class {
    match error {
        Error::Read { source, .. } if source.kind() == ErrorKind::NotFound => Class::NoSuchFile,
        Error::Onnx { source, .. } => class_of_import(source),
        Error::Diagnostic(diagnostic) | Error::Binding(diagnostic) => class_of_diagnostic(diagnostic),
        Error::MissingInput { .. }
        | Error::UnknownInput { .. }
        | Error::UnknownOutput { .. }
        | Error::UnknownLengths { .. }
        | Error::TextInput { .. }
        | Error::TextOperator { .. }
        | Error::TensorSize { .. }
        | Error::TensorType { .. }
        | Error::Shape(_) => Class::InvalidArgument,
        Error::Run(run) => match run {
            RunError::Count { .. }
            | RunError::DType { .. }
            | RunError::Shape { .. }
            | RunError::Bytes { .. }
            | RunError::Value(_) => Class::InvalidArgument,
            _ => Class::RuntimeException,
        },
        Error::TextOperators { .. } | Error::TextBranches { .. } => Class::NotImplemented,
        Error::Memory(_) | Error::Internal(_) | Error::Plan(_) => Class::RuntimeException,
        _ => Class::Fail,
    }
}

fn class_of_import(error: &OnnxError) -> Class {
    match error {
        OnnxError::Open { source, .. } if source.kind() == ErrorKind::NotFound => Class::NoSuchFile,
        OnnxError::Open { .. } | OnnxError::Limit(_) => Class::Fail,
        OnnxError::NotOnnx(_) | OnnxError::Wire { .. } => Class::InvalidProtobuf,
        OnnxError::Unsupported(_) | OnnxError::IrVersion { .. } | OnnxError::Opset { .. } => Class::NotImplemented,
        OnnxError::NoSuchInput { .. } | OnnxError::Input { .. } => Class::InvalidArgument,
        OnnxError::Invalid(diagnostic) => class_of_diagnostic(diagnostic),
        _ => Class::InvalidGraph,
    }
}

fn class_of_diagnostic(diagnostic: &Diagnostic) -> Class {
    match diagnostic.code {
        DiagnosticCode::Unsupported | DiagnosticCode::UnknownOperator => Class::NotImplemented,
        DiagnosticCode::Value => Class::InvalidArgument,
        DiagnosticCode::Syntax
        | DiagnosticCode::Verify
        | DiagnosticCode::Operands
        | DiagnosticCode::TypeConflict
        | DiagnosticCode::Unresolved => Class::InvalidGraph,
        DiagnosticCode::Internal => Class::RuntimeException,
        _ => Class::Fail,
    }
}

fn node_of(error: &Error) -> Option<&str> {
    match error {
        Error::Diagnostic(diagnostic) | Error::Binding(diagnostic) => diagnostic.node.as_deref(),
        Error::Onnx { source, .. } => match &**source {
            OnnxError::Invalid(diagnostic) => diagnostic.node.as_deref(),
            OnnxError::Attribute { node, .. } => Some(node),
            _ => None,
        },
        Error::TextOperator { node, .. } => Some(node),
        Error::Run(RunError::Value(broken)) => Some(&broken.requirement.node),
        Error::Run(
            RunError::Panic { step, .. }
            | RunError::Time { step, .. }
            | RunError::Interrupted { step }
            | RunError::Extern { step, .. },
        ) => Some(step),
        _ => None,
    }
}
