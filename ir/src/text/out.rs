//! Indented lines of text, and lists in them.

use super::PrintOptions;

/// Indented lines.
pub(super) struct Out<'a> {
    pub(super) options: &'a PrintOptions,
    pub(super) text: String,
    pub(super) depth: usize,
}

impl<'a> Out<'a> {
    pub(super) fn new(options: &'a PrintOptions) -> Out<'a> {
        Out { options, text: String::new(), depth: 0 }
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A line that begins a block.
    pub(super) fn open(&mut self, line: &str) {
        self.line(line);
        self.depth += 1;
    }

    /// A line that ends a block.
    pub(super) fn close(&mut self, line: &str) {
        self.depth -= 1;
        self.line(line);
    }

    /// Goes on with the block that the last line continues.
    pub(super) fn reopen(&mut self) {
        self.depth += 1;
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A bracketed, comma-separated list.
pub(super) fn list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", join(items))
}

pub(super) fn join<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}
