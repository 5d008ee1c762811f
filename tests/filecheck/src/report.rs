//! What a reader needs to see when a directive does not match.

use std::fmt;

use crate::directive::{Directive, DirectiveKind};
use crate::input::{Input, Pos};

/// Lines of the input that a message shows.
const MAX_SHOWN_LINES: usize = 12;

/// One directive that the input does not satisfy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The pattern file.
    pub file: String,
    /// Line of the directive in the pattern file, from 1.
    pub line: usize,
    /// The directive as written, such as `CHECK-NEXT`.
    pub directive: String,
    /// The pattern as written.
    pub pattern: String,
    /// What was expected.
    pub message: String,
    /// The variables that the pattern uses, with the text they hold.
    pub values: Vec<(String, String)>,
    /// The searched part of the input, and hints, line by line.
    pub context: Vec<String>,
    /// Whether the pattern uses a variable that nothing has captured.
    pub undefined: bool,
}

impl Mismatch {
    pub(crate) fn new(file: &str, directive: &Directive, message: &str) -> Mismatch {
        Mismatch {
            file: file.to_owned(),
            line: directive.line,
            directive: directive.name.clone(),
            pattern: directive.pattern.source().to_owned(),
            message: message.to_owned(),
            values: Vec::new(),
            context: Vec::new(),
            undefined: false,
        }
    }

    /// Shows the searched input: `>` marks searched lines. `elsewhere` is a line of the input that would match.
    pub(crate) fn describe(
        &mut self,
        input: &Input,
        directive: &Directive,
        (from, to): (Pos, Pos),
        last: Option<(usize, Pos)>,
        elsewhere: Option<usize>,
    ) {
        if input.lines().is_empty() {
            self.context.push("the input is empty".to_owned());
            return;
        }
        let first = last.map_or(from.line, |(_, pos)| pos.line.min(from.line));
        let stop = to.line.min(input.lines().len() - 1);
        for (index, text) in input.lines().iter().enumerate().take(stop + 1).skip(first).take(MAX_SHOWN_LINES) {
            let mark = if index >= from.line { '>' } else { ' ' };
            let note = match last {
                Some((line, pos)) if pos.line == index => format!("    <- matched by line {line}"),
                _ => String::new(),
            };
            self.context.push(format!("{mark} {:>4} | {text}{note}", index + 1));
        }
        let hidden = (stop + 1).saturating_sub(first + MAX_SHOWN_LINES);
        if hidden > 0 {
            self.context.push(format!("  ... and {hidden} more lines searched"));
        }
        if directive.kind == DirectiveKind::Not {
            return;
        }
        if let Some(line) = elsewhere {
            self.context.push(format!("  input line {} matches, but is not where a match may be", line + 1));
        } else if let Some(line) = nearest(input, &directive.pattern.literal()) {
            let text = input.line(line).unwrap_or("");
            self.context.push(format!("  nearest is input line {}: {text}", line + 1));
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}: {}: {}", self.file, self.line, self.directive, self.message)?;
        if !self.pattern.is_empty() {
            writeln!(f, "  pattern: {}", self.pattern)?;
        }
        for (name, value) in &self.values {
            writeln!(f, "  with {name} = '{value}'")?;
        }
        for line in &self.context {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// The first of the input lines that share the most pairs of neighbouring characters with the text, provided that they
/// share more than half of the text's.
fn nearest(input: &Input, text: &str) -> Option<usize> {
    let mut best = None;
    let mut most = pairs(text).len() / 2;
    for (index, line) in input.lines().iter().enumerate() {
        let mut left = pairs(line);
        let mut shared = 0;
        for pair in pairs(text) {
            if let Some(at) = left.iter().position(|other| *other == pair) {
                left.swap_remove(at);
                shared += 1;
            }
        }
        if shared > most {
            (best, most) = (Some(index), shared);
        }
    }
    best
}

fn pairs(text: &str) -> Vec<(char, char)> {
    text.chars().zip(text.chars().skip(1)).collect()
}
