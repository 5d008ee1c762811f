//! Names in text: quoting, and telling values of equal name apart.

use std::collections::{BTreeMap, BTreeSet};

/// Whether a byte may occur in a name without quotes.
pub(super) fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Whether a name can be written without quotes: letters, digits and `_`, and `.` between them.
pub(super) fn is_bare(name: &str) -> bool {
    !name.is_empty() && name.split('.').all(|part| !part.is_empty() && part.bytes().all(is_name_byte))
}

/// Whether a bare name could also start a number.
pub(super) fn is_word(name: &str) -> bool {
    is_bare(name) && !name.as_bytes()[0].is_ascii_digit()
}

/// A string literal.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The name after a sigil.
pub(super) fn sigiled(sigil: char, name: &str) -> String {
    match is_bare(name) {
        true => format!("{sigil}{name}"),
        false => format!("{sigil}{}", quote(name)),
    }
}

/// A name where a word or a string may stand.
pub(super) fn word(name: &str) -> String {
    match is_word(name) {
        true => name.to_string(),
        false => quote(name),
    }
}

/// Numbers equal names: the first is written as it is, the n-th later one with `#n`.
#[derive(Default)]
pub(super) struct Numbered(BTreeMap<String, u32>);

impl Numbered {
    /// The text of the next value called `name`.
    pub(super) fn next(&mut self, sigil: char, name: &str) -> String {
        let count = self.0.entry(name.to_string()).or_insert(0);
        *count += 1;
        match *count {
            1 => sigiled(sigil, name),
            n => format!("{}#{}", sigiled(sigil, name), n - 1),
        }
    }
}

/// Gives every name visible at one place its own text by appending a counter.
#[derive(Default)]
pub(super) struct Scoped {
    visible: BTreeSet<String>,
    counters: BTreeMap<String, u32>,
}

impl Scoped {
    /// Makes a name visible and returns its unique form.
    pub(super) fn bind(&mut self, name: &str) -> String {
        if self.visible.insert(name.to_string()) {
            return name.to_string();
        }
        let mut n = self.counters.get(name).copied().unwrap_or(0);
        loop {
            n += 1;
            let unique = format!("{name}{n}");
            if self.visible.insert(unique.clone()) {
                self.counters.insert(name.to_string(), n);
                return unique;
            }
        }
    }

    pub(super) fn unbind(&mut self, unique: &str) {
        self.visible.remove(unique);
    }
}
