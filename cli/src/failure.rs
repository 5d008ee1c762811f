//! Why a command fails.

/// Whatever ends a command.
pub type CliFailure = Box<dyn std::error::Error>;

/// The command line asks for something impossible.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
