//! Why a run could not go on.

use std::io;
use std::path::{Path, PathBuf};

/// An error of the runner itself. Failures of steps are results, not errors.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("there is no step `{name}`; the steps are {known}")]
    UnknownStep { name: String, known: String },
    #[error("another run writes to {}: wait for it or give another --out", path.display())]
    Busy { path: PathBuf },
    #[error("{} has results of {what} `{found}`, and this run is of {what} `{wanted}`: give another --out", path.display())]
    OtherRun { path: PathBuf, what: &'static str, found: String, wanted: String },
    #[error("{}, line {line}: {reason}; move the file away or give another --out", path.display())]
    Damaged { path: PathBuf, line: usize, reason: String },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot start {}: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("cannot tell how a step ended: {0}")]
    Wait(io::Error),
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
}

impl RunnerError {
    /// An error of a file or folder, for `map_err`.
    pub(super) fn file(path: &Path) -> impl Fn(io::Error) -> RunnerError + '_ {
        move |source| RunnerError::File { path: path.to_owned(), source }
    }
}
