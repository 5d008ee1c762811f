//! The pattern after a directive's colon: its syntax, and its translation to the `filecheck` crate's syntax.

use std::fmt::Write;

/// One piece of a pattern; pieces match one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternPart {
    /// Text that matches itself.
    Text(String),
    /// `{{regex}}`.
    Regex(String),
    /// `[[NAME]]`: the text captured by an earlier directive.
    Use(String),
    /// `[[NAME:regex]]`: matches the regex and captures the text.
    Define { name: String, regex: String },
}

/// A parsed pattern, with runs of spaces and tabs made one space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    source: String,
    parts: Vec<PatternPart>,
}

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// `{{` without `}}`.
    #[error("'{{{{' without '}}}}'")]
    UnterminatedRegex,
    /// `[[` without `]]`.
    #[error("'[[' without ']]'; literal brackets are written {{{{\\[\\[}}}}")]
    UnterminatedVariable,
    /// A name that a variable cannot have.
    #[error("'{0}' is no variable name; literal brackets are written {{{{\\[\\[}}}}")]
    BadName(String),
    /// A variable used in the pattern that defines it.
    #[error("[[{0}]] is used in the directive that defines it; use it in a CHECK-SAME that follows")]
    UsedWhereDefined(String),
    /// A variable defined twice in a pattern.
    #[error("[[{0}:...]] is defined twice in one directive")]
    DefinedTwice(String),
    /// A regular expression that does not compile.
    #[error("{0}")]
    Regex(String),
}

/// Replaces every run of spaces and tabs by one space.
pub(crate) fn one_space(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let c = if c == '\t' { ' ' } else { c };
        if c != ' ' || !out.ends_with(' ') {
            out.push(c);
        }
    }
    out
}

impl Pattern {
    /// Parses the text after a directive's colon; surrounding white space does not count.
    pub fn parse(source: &str) -> Result<Pattern, PatternError> {
        let source = one_space(source.trim());
        let mut parts = Vec::new();
        let mut rest = source.as_str();
        while !rest.is_empty() {
            let len = if let Some(body) = rest.strip_prefix("{{") {
                let len = regex_len(body).ok_or(PatternError::UnterminatedRegex)?;
                parts.push(PatternPart::Regex(body[..len].to_owned()));
                len + 4
            } else if let Some(body) = rest.strip_prefix("[[") {
                let len = variable_len(body).ok_or(PatternError::UnterminatedVariable)?;
                parts.push(variable(&body[..len])?);
                len + 4
            } else {
                let len = [rest.find("{{"), rest.find("[[")].into_iter().flatten().min().unwrap_or(rest.len());
                parts.push(PatternPart::Text(rest[..len].to_owned()));
                len
            };
            rest = &rest[len..];
        }
        let pattern = Pattern { source, parts };
        pattern.check_names()?;
        Ok(pattern)
    }

    /// The pattern as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names of the variables whose captured text the pattern contains, in order.
    pub fn uses(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| if let PatternPart::Use(name) = part { Some(name.as_str()) } else { None })
    }

    /// The names of the variables that a match captures, in order.
    pub fn defines(&self) -> impl Iterator<Item = &str> {
        self.parts
            .iter()
            .filter_map(|part| if let PatternPart::Define { name, .. } = part { Some(name.as_str()) } else { None })
    }

    /// The literal text of the pattern, without its regexes and variables.
    pub fn literal(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let PatternPart::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }

    /// The pattern in the `filecheck` crate's syntax.
    ///
    /// Each regex gets a group of its own, because that crate reads `$(=$` as the beginning of a variable's name.
    pub fn translate(&self) -> String {
        let mut out = String::new();
        for part in &self.parts {
            // Writing to a String cannot fail.
            let _ = match part {
                PatternPart::Text(text) => write!(out, "{}", text.replace('$', "$$")),
                PatternPart::Regex(regex) => write!(out, "$(=(?:{regex}))"),
                PatternPart::Use(name) => write!(out, "$({name})"),
                PatternPart::Define { name, regex } => write!(out, "$({name}=(?:{regex}))"),
            };
        }
        out
    }

    fn check_names(&self) -> Result<(), PatternError> {
        let mut defined = Vec::new();
        for name in self.defines() {
            if defined.contains(&name) {
                return Err(PatternError::DefinedTwice(name.to_owned()));
            }
            defined.push(name);
        }
        match self.uses().find(|name| defined.contains(name)) {
            Some(name) => Err(PatternError::UsedWhereDefined(name.to_owned())),
            None => Ok(()),
        }
    }
}

/// Length of the regex before its `}}`; of three closing braces the first belongs to the regex, as in `{{a{2}}}`.
fn regex_len(body: &str) -> Option<usize> {
    let mut end = body.find("}}")?;
    while body[end + 2..].starts_with('}') {
        end += 1;
    }
    Some(end)
}

/// Length of the text before the `]]` that is in no bracket of the regex.
fn variable_len(body: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => depth += 1,
            ']' if depth > 0 => depth -= 1,
            ']' if body[at + 1..].starts_with(']') => return Some(at),
            _ => {}
        }
    }
    None
}

fn variable(body: &str) -> Result<PatternPart, PatternError> {
    let (name, regex) = match body.split_once(':') {
        Some((name, regex)) => (name, Some(regex)),
        None => (body, None),
    };
    let head = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !head || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(PatternError::BadName(name.to_owned()));
    }
    let name = name.to_owned();
    Ok(match regex {
        Some(regex) => PatternPart::Define { name, regex: regex.to_owned() },
        None => PatternPart::Use(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(source: &str) -> String {
        Pattern::parse(source).unwrap().translate()
    }

    #[test]
    fn translates_each_part() {
        assert_eq!(translated("cost $5"), "cost $$5");
        assert_eq!(translated("x{{$}}"), "x$(=(?:$))");
        assert_eq!(translated("[[X:[a-z]+]] = [[Y]]"), "$(X=(?:[a-z]+)) = $(Y)");
        assert_eq!(translated("{{a{2}}}b"), "$(=(?:a{2}))b");
        assert_eq!(translated("a \t  b"), "a b");
        assert_eq!(translated(r"[[X:\[[0-9]\]]]!"), r"$(X=(?:\[[0-9]\]))!");
    }

    #[test]
    fn refuses_bad_patterns() {
        let error = |source: &str| Pattern::parse(source).unwrap_err();
        assert_eq!(error("{{a"), PatternError::UnterminatedRegex);
        assert_eq!(error("[[X"), PatternError::UnterminatedVariable);
        assert_eq!(error("[[1, 2]]"), PatternError::BadName("1, 2".into()));
        assert_eq!(error("[[X:a]] [[X]]"), PatternError::UsedWhereDefined("X".into()));
        assert_eq!(error("[[X:a]] [[X:b]]"), PatternError::DefinedTwice("X".into()));
        assert_eq!(error("{{a").to_string(), "'{{' without '}}'");
    }
}
