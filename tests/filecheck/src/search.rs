//! One pattern against a range of the input, by the `filecheck` crate.
//!
//! That crate resolves variables, builds the regex and matches. It tells where it matched and what it captured only in
//! its explanation, so this file is where the explanation is read. A match lies within one line.

use std::borrow::Cow;
use std::collections::BTreeMap;

use filecheck::{Checker, CheckerBuilder, Value, VariableMap};

use crate::input::{Input, Pos};
use crate::pattern::{Pattern, PatternError};

/// Captures everything on the line before the match.
const HEAD: &str = "HeadOfLine__";
/// Captures everything on the line after the match.
const REST: &str = "RestOfLine__";

/// Captured texts by name.
#[derive(Clone, Debug, Default)]
pub struct Variables(pub BTreeMap<String, String>);

impl VariableMap for Variables {
    fn lookup(&self, name: &str) -> Option<Value<'_>> {
        self.0.get(name).map(|text| Value::Text(Cow::Borrowed(text)))
    }
}

/// A match, and the text it captured for each variable that the pattern defines.
#[derive(Clone, Debug)]
pub struct Found {
    pub start: Pos,
    pub end: Pos,
    pub captures: Vec<(String, String)>,
}

/// A pattern made ready to search with.
pub struct Finder {
    anywhere: Checker,
    in_line: Checker,
}

impl Finder {
    /// Translates the pattern; a bad regex is an error here already.
    pub fn new(pattern: &Pattern) -> Result<Finder, PatternError> {
        let body = pattern.translate();
        // `$()` at both ends keeps the crate from asking for word boundaries there.
        let finder = Finder {
            anywhere: checker(&format!("check: $(){body}$()"))?,
            in_line: checker(&format!(r"check: $({HEAD}=\A.*?){body}$({REST}=.*)"))?,
        };
        let any = Variables(pattern.uses().map(|name| (name.to_owned(), String::new())).collect());
        finder.in_line.check("\n", &any).map_err(regex_error)?;
        Ok(finder)
    }

    /// The first match that begins at or after `from` and ends at or before `to`.
    pub fn find(&self, vars: &Variables, input: &Input, from: Pos, to: Pos) -> Result<Option<Found>, PatternError> {
        let mut from = from;
        while from <= to && from.line < input.lines().len() {
            let text = input.slice(from, to);
            let (matched, explained) = self.anywhere.explain(&text, vars).map_err(regex_error)?;
            if !matched {
                break;
            }
            let line = (from.line + matched_line(&explained)).min(to.line);
            if let Some(found) = self.find_in_line(vars, input, line, from, to)? {
                return Ok(Some(found));
            }
            from = Pos { line: line + 1, col: 0 };
        }
        Ok(None)
    }

    /// The first match on the part of one line that lies between the two places.
    pub fn find_in_line(
        &self,
        vars: &Variables,
        input: &Input,
        line: usize,
        from: Pos,
        to: Pos,
    ) -> Result<Option<Found>, PatternError> {
        let text = input.part(line, from, to);
        let (matched, explained) = self.in_line.explain(&format!("{text}\n"), vars).map_err(regex_error)?;
        if !matched {
            return Ok(None);
        }
        let mut captures = definitions(&explained);
        let mut take = |name: &str| {
            let at = captures.iter().position(|(n, _)| n == name);
            at.map_or(0, |at| captures.remove(at).1.len())
        };
        let (head, rest) = (take(HEAD), take(REST));
        let begin = if line == from.line { from.col } else { 0 };
        Ok(Some(Found {
            start: Pos { line, col: begin + head },
            end: Pos { line, col: begin + text.len() - rest },
            captures,
        }))
    }
}

fn checker(directive: &str) -> Result<Checker, PatternError> {
    let mut builder = CheckerBuilder::new();
    builder.directive(directive).map_err(regex_error)?;
    Ok(builder.finish())
}

fn regex_error(error: filecheck::Error) -> PatternError {
    PatternError::Regex(error.to_string())
}

/// The index of the line that the only directive matched on: the explanation repeats the input, each line after `> `,
/// up to that line.
fn matched_line(explained: &str) -> usize {
    let before = explained.split('\n').take_while(|line| !line.starts_with("Matched #"));
    before.filter(|line| line.starts_with("> ")).count().saturating_sub(1)
}

/// The captured texts, in the order of the pattern.
fn definitions(explained: &str) -> Vec<(String, String)> {
    let defined = explained.split('\n').filter_map(|line| line.strip_prefix("Define ")?.split_once('='));
    defined.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, text: &str) -> Option<Found> {
        let input = Input::new(text);
        let finder = Finder::new(&Pattern::parse(pattern).unwrap()).unwrap();
        finder.find(&Variables::default(), &input, Pos { line: 0, col: 0 }, input.end()).unwrap()
    }

    fn at(line: usize, start: usize, end: usize) -> (Pos, Pos) {
        (Pos { line, col: start }, Pos { line, col: end })
    }

    #[test]
    fn tells_where_it_matched() {
        let Found { start, end, .. } = find("b", "> x\nabc\n").unwrap();
        assert_eq!((start, end), at(1, 1, 2));
        let Found { start, end, .. } = find("é{{$}}", "Matched #0\nxé\n").unwrap();
        assert_eq!((start, end), at(1, 1, 3));
        assert!(find("d", "abc").is_none());
        assert!(find("a", "").is_none());
    }

    #[test]
    fn captures_stay_within_the_line() {
        let Found { start, end, captures } = find("x[[A:[^,]*]]", "1\nx y\nz").unwrap();
        assert_eq!((start, end), at(1, 0, 3));
        assert_eq!(captures, [("A".to_owned(), " y".to_owned())]);
    }

    #[test]
    fn names_a_bad_regex() {
        let Err(PatternError::Regex(message)) = Finder::new(&Pattern::parse("{{a(}}").unwrap()) else {
            panic!("a bad regex was taken");
        };
        assert!(!message.is_empty());
        assert!(Finder::new(&Pattern::parse("{{*a}}").unwrap()).is_err());
    }
}
