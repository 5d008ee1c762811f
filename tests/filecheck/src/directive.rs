//! The directives of a pattern file: which lines they are on and what they ask for.

use crate::pattern::{Pattern, PatternError};

/// What a directive asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectiveKind {
    /// `CHECK`: a match after the previous one.
    Plain,
    /// `CHECK-NEXT`: a match on the line after the previous match.
    Next,
    /// `CHECK-SAME`: a match on the rest of the line of the previous match.
    Same,
    /// `CHECK-NOT`: no match between the previous and the next one.
    Not,
    /// `CHECK-DAG`: matches in any order within the group of adjacent ones, not overlapping.
    Dag,
    /// `CHECK-LABEL`: divides the input into parts that are checked one by one.
    Label,
    /// `CHECK-EMPTY`: the line after the previous match is empty.
    Empty,
    /// `CHECK-COUNT-n`: n matches, one after the other.
    Count(u32),
}

/// A directive with its place in the pattern file.
#[derive(Clone, Debug)]
pub struct Directive {
    pub kind: DirectiveKind,
    /// The directive as written, such as `CHECK-NEXT`.
    pub name: String,
    /// Line number in the pattern file, from 1.
    pub line: usize,
    pub pattern: Pattern,
}

/// A directive that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectiveError {
    /// The pattern is malformed.
    #[error("{0}")]
    Pattern(#[from] PatternError),
    /// A directive without a pattern.
    #[error("no pattern")]
    NoPattern,
    /// `EMPTY` takes no pattern.
    #[error("CHECK-EMPTY takes no pattern")]
    EmptyWithPattern,
    /// `LABEL` must not use variables.
    #[error("a LABEL can neither define nor use variables")]
    LabelWithVariable,
    /// `NOT` must not define variables.
    #[error("a NOT cannot define a variable")]
    NotWithDefinition,
    /// A count of 0.
    #[error("the count must be at least 1")]
    ZeroCount,
    /// The directive has no line before it to refer to.
    #[error("needs a directive that matches before it")]
    NothingBefore,
}

/// The spelling of one directive on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spelled<'a> {
    pub kind: DirectiveKind,
    /// The directive as written, without its colon.
    pub name: &'a str,
    /// What follows the colon.
    pub pattern: &'a str,
}

/// Finds the first directive with one of the prefixes on a line.
pub(crate) fn spelled<'a>(line: &'a str, prefixes: &[&str]) -> Option<Spelled<'a>> {
    let mut best: Option<(usize, Spelled<'a>)> = None;
    for prefix in prefixes {
        for (at, _) in line.match_indices(prefix) {
            let joined = line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_');
            let Some((kind, suffix_len)) = suffix(&line[at + prefix.len()..]) else { continue };
            if joined || best.is_some_and(|(first, _)| first <= at) {
                continue;
            }
            let end = at + prefix.len() + suffix_len;
            best = Some((at, Spelled { kind, name: &line[at..end], pattern: &line[end + 1..] }));
        }
    }
    best.map(|(_, spelled)| spelled)
}

/// The kind named between a prefix and its colon, and the length of that name.
fn suffix(text: &str) -> Option<(DirectiveKind, usize)> {
    let colon = text.find(':')?;
    let kind = match &text[..colon] {
        "" => DirectiveKind::Plain,
        "-NEXT" => DirectiveKind::Next,
        "-SAME" => DirectiveKind::Same,
        "-NOT" => DirectiveKind::Not,
        "-DAG" => DirectiveKind::Dag,
        "-LABEL" => DirectiveKind::Label,
        "-EMPTY" => DirectiveKind::Empty,
        other => DirectiveKind::Count(other.strip_prefix("-COUNT-")?.parse().ok()?),
    };
    Some((kind, colon))
}

/// Reads the directives with the given prefixes, in order; RUN lines are passed over.
///
/// The error carries the line number in the pattern file.
pub fn parse(text: &str, prefixes: &[&str]) -> Result<Vec<Directive>, (usize, DirectiveError)> {
    let mut directives = Vec::new();
    let mut can_follow = false;
    for (index, line) in text.lines().enumerate() {
        if spelled(line, &["RUN"]).is_some() {
            continue;
        }
        let Some(found) = spelled(line, prefixes) else { continue };
        let fail = |error: DirectiveError| (index + 1, error);
        let pattern = Pattern::parse(found.pattern).map_err(|error| fail(error.into()))?;
        verify(found.kind, &pattern, can_follow).map_err(fail)?;
        can_follow |= found.kind != DirectiveKind::Not;
        directives.push(Directive { kind: found.kind, name: found.name.to_owned(), line: index + 1, pattern });
    }
    Ok(directives)
}

fn verify(kind: DirectiveKind, pattern: &Pattern, can_follow: bool) -> Result<(), DirectiveError> {
    let empty = pattern.source().is_empty();
    match kind {
        DirectiveKind::Next | DirectiveKind::Same | DirectiveKind::Empty if !can_follow => {
            Err(DirectiveError::NothingBefore)
        }
        DirectiveKind::Empty if !empty => Err(DirectiveError::EmptyWithPattern),
        DirectiveKind::Empty => Ok(()),
        _ if empty => Err(DirectiveError::NoPattern),
        DirectiveKind::Label if pattern.uses().chain(pattern.defines()).next().is_some() => {
            Err(DirectiveError::LabelWithVariable)
        }
        DirectiveKind::Not if pattern.defines().next().is_some() => Err(DirectiveError::NotWithDefinition),
        DirectiveKind::Count(0) => Err(DirectiveError::ZeroCount),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_directives_at_word_starts() {
        let found = spelled("  // CHECK-COUNT-3: x", &["CHECK"]).unwrap();
        assert_eq!((found.kind, found.name, found.pattern), (DirectiveKind::Count(3), "CHECK-COUNT-3", " x"));
        assert_eq!(spelled("// XCHECK: x", &["CHECK"]), None);
        assert_eq!(spelled("// CHECK-CPU: x", &["CHECK"]), None);
        assert_eq!(spelled("// CHECK-CPU: x", &["CHECK", "CHECK-CPU"]).unwrap().name, "CHECK-CPU");
        assert_eq!(spelled("// CHECK-NXT: x", &["CHECK"]), None);
        assert_eq!(spelled("// CHECK: a CHECK-NEXT: b", &["CHECK"]).unwrap().pattern, " a CHECK-NEXT: b");
    }

    #[test]
    fn refuses_what_cannot_match() {
        let error = |text: &str| parse(text, &["CHECK"]).unwrap_err();
        assert_eq!(error("CHECK-NEXT: a"), (1, DirectiveError::NothingBefore));
        assert_eq!(error("CHECK-NOT: a\nCHECK-SAME: a"), (2, DirectiveError::NothingBefore));
        assert_eq!(error("CHECK:"), (1, DirectiveError::NoPattern));
        assert_eq!(error("CHECK: a\nCHECK-EMPTY: b"), (2, DirectiveError::EmptyWithPattern));
        assert_eq!(error("CHECK-LABEL: [[X:a]]"), (1, DirectiveError::LabelWithVariable));
        assert_eq!(error("CHECK-NOT: [[X:a]]"), (1, DirectiveError::NotWithDefinition));
        assert_eq!(error("CHECK-COUNT-0: a"), (1, DirectiveError::ZeroCount));
    }

    #[test]
    fn passes_over_run_lines() {
        let found = parse("// RUN: echo CHECK: a | filecheck %s\n// CHECK: b", &["CHECK"]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].pattern.source()), (2, "b"));
    }
}
