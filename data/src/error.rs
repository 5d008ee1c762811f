//! What can be wrong with data: where it lies, and why it cannot be used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where an example comes from: a file, a record of it and the byte at which that begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExamplePlace {
    /// The file.
    pub file: PathBuf,
    /// Number of the record, line or row, from 0.
    pub record: Option<u64>,
    /// Offset in the file, in bytes.
    pub offset: Option<u64>,
}

impl ExamplePlace {
    /// A whole file.
    pub fn file(path: impl AsRef<Path>) -> ExamplePlace {
        ExamplePlace { file: path.as_ref().to_owned(), record: None, offset: None }
    }

    /// Adds the number of a record, from 0.
    #[must_use]
    pub fn record(self, record: u64) -> ExamplePlace {
        ExamplePlace { record: Some(record), ..self }
    }

    /// Adds a position in bytes.
    #[must_use]
    pub fn offset(self, offset: u64) -> ExamplePlace {
        ExamplePlace { offset: Some(offset), ..self }
    }
}

impl fmt::Display for ExamplePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(record) = self.record {
            write!(f, ", record {record}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset}")?;
        }
        Ok(())
    }
}

/// Why an example or a file cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The operating system refused.
    #[error("{0}")]
    Io(Arc<std::io::Error>),
    /// The file ends inside of a record, header or row.
    #[error("the file ends inside of {what}")]
    Truncated {
        /// What is incomplete.
        what: &'static str,
    },
    /// Bytes that are not what the format demands.
    #[error("{0}")]
    Format(String),
    /// An image that cannot be decoded.
    #[error("image: {0}")]
    Image(String),
    /// Another shape, number of channels or number of values than was declared.
    #[error("expected {expected}, found {found}")]
    Shape {
        /// The shape or size that is needed.
        expected: String,
        /// The shape or size that was given.
        found: String,
    },
    /// What an index says is not what the file holds.
    #[error("index: {0}")]
    Index(String),
}

impl From<std::io::Error> for Cause {
    fn from(error: std::io::Error) -> Cause {
        Cause::Io(Arc::new(error))
    }
}

/// Data that cannot be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file, or an example of it, is at fault.
    #[error("{place}: {cause}")]
    At {
        /// Where the data are.
        place: ExamplePlace,
        /// Why the data are unusable.
        cause: Cause,
    },
    /// Settings that contradict each other or the data.
    #[error("{name}: {why}")]
    Options {
        /// The option.
        name: String,
        /// What is wrong with its value.
        why: String,
    },
    /// A source of the user's own failed.
    #[error("{name}: {source}")]
    Source {
        /// The name of the source.
        name: String,
        /// The error of the source.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Memory for a batch is short.
    #[error(transparent)]
    Memory(#[from] tensorc_runtime::AllocError),
    /// Code that reads an example panicked.
    #[error("{name}: panic while reading an example: {message}")]
    Panic {
        /// The name of the source.
        name: String,
        /// The message of the panic.
        message: String,
    },
}

impl DataError {
    /// An error of the data at a place.
    pub fn at(place: ExamplePlace, cause: impl Into<Cause>) -> DataError {
        DataError::At { place, cause: cause.into() }
    }

    /// A file that cannot be opened, read or written.
    pub fn io(path: impl AsRef<Path>, error: std::io::Error) -> DataError {
        DataError::at(ExamplePlace::file(path), error)
    }

    /// An error of the value of an option.
    pub fn options(name: impl Into<String>, why: impl Into<String>) -> DataError {
        DataError::Options { name: name.into(), why: why.into() }
    }

    /// An error of a source of the user's own.
    pub fn source(name: impl Into<String>, error: impl std::error::Error + Send + Sync + 'static) -> DataError {
        DataError::Source { name: name.into(), source: Arc::new(error) }
    }
}
