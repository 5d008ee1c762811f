//! What commands write: results on standard output, warnings on standard error.

use std::io::{self, ErrorKind, Write};

use tensorc::Compiler;

use super::failure::CliFailure;
use super::progress;

/// Writes to standard output; a closed pipe ends the program quietly.
pub fn print(text: &str) -> Result<(), CliFailure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Says on standard error what did not stop the command.
pub fn warn(compiler: &Compiler) {
    if let Some(failure) = compiler.code_cache_failure() {
        progress::clear();
        eprintln!("tensorc: warning: {failure}");
    }
}
