//! Why a command fails.

use std::path::PathBuf;

/// Whatever ends a command.
pub type CliFailure = Box<dyn std::error::Error>;

/// The command line asks for something impossible.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// An error about the contents of a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct InFile {
    pub path: PathBuf,
    pub source: tensorc::Error,
}

/// What was compared differs: a result, not a fault.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Differs(pub String);

/// Characters of a message at most: it may quote names of any length.
const LONGEST: usize = 10_000;

/// The message for the terminal. What it quotes from a model cannot begin a line or send the terminal a command.
pub fn line(failure: &CliFailure) -> String {
    // What a linker prints has lines of its own.
    let quotes =
        failure.is::<InFile>() || failure.downcast_ref().is_some_and(|error| !matches!(error, tensorc::Error::Link(_)));
    let message = failure.to_string();
    let mut line = String::new();
    for c in message.chars().take(LONGEST) {
        match c {
            '\n' | '\t' if !quotes => line.push(c),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    if message.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_models_are_one_line() {
        let error = |text: String| -> CliFailure { tensorc::Error::Internal(text).into() };
        assert_eq!(line(&error("`a\nb\u{1b}[2J`".to_owned())), "internal error: `a\\nb\\u{1b}[2J`");
        assert_eq!(line(&Usage("two\nlines".to_owned()).into()), "two\nlines");
        assert_eq!(line(&error("é".repeat(20_000))).chars().count(), LONGEST + 1);
    }
}
