//! What commands write: results on standard output, warnings on standard error.

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;

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

/// A word on standard error that stands out where that is a terminal, unless `NO_COLOR` is set or the terminal has no colours.
pub fn emphasised(word: &str) -> String {
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let plain = set("NO_COLOR") || env::var_os("TERM").is_some_and(|term| term == "dumb");
    match io::stderr().is_terminal() && !plain {
        true => format!("\u{1b}[1;36m{word}\u{1b}[0m"),
        false => word.to_owned(),
    }
}

/// Writes a text to a file, as a whole or not at all.
///
/// # Errors
/// It cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), CliFailure> {
    Ok(tensorc::write_file(path, text.as_bytes()).map_err(|error| format!("{}: {}", path.display(), error.source))?)
}
