//! The text that is checked, by lines, and positions in it.

use crate::pattern::one_space;

/// A place in the input: line index from 0, and byte offset in that line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pos {
    pub line: usize,
    pub col: usize,
}

/// The input's lines, with runs of spaces and tabs made one space and without line ends.
#[derive(Clone, Debug)]
pub struct Input {
    lines: Vec<String>,
}

impl Input {
    /// Divides the text into lines.
    pub fn new(text: &str) -> Input {
        Input { lines: text.lines().map(one_space).collect() }
    }

    /// The lines, in order.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The line with the index, or nothing past the end.
    pub fn line(&self, index: usize) -> Option<&str> {
        self.lines.get(index).map(String::as_str)
    }

    /// The place after the last byte of the last line.
    pub fn end(&self) -> Pos {
        match self.lines.last() {
            Some(last) => Pos { line: self.lines.len() - 1, col: last.len() },
            None => Pos { line: 0, col: 0 },
        }
    }

    /// The end of the line, or `to` where that comes first.
    pub(crate) fn line_end(&self, line: usize, to: Pos) -> Pos {
        let end = Pos { line, col: self.line(line).map_or(0, str::len) };
        end.min(to)
    }

    /// What of one line lies between two places.
    pub fn part(&self, line: usize, from: Pos, to: Pos) -> &str {
        let text = self.line(line).unwrap_or("");
        let begin = if line == from.line { from.col } else { 0 };
        let end = if line == to.line { to.col } else { text.len() };
        text.get(begin..end).unwrap_or("")
    }

    /// The text between two places, each line ended by `\n`.
    pub fn slice(&self, from: Pos, to: Pos) -> String {
        let mut out = String::new();
        for line in from.line..=to.line {
            out.push_str(self.part(line, from, to));
            out.push('\n');
        }
        out
    }
}
