//! Matches an input against the directives of a pattern file.
//!
//! The rules are those of LLVM's FileCheck, but for these:
//! - a match lies within one line;
//! - in a DAG group a directive that uses a variable matches after the directive of the group that defines it;
//! - NEXT, SAME and EMPTY may follow a DAG group, and NEXT searches the next line only, whatever else matches before;
//! - EMPTY needs a line: the end of the input is none;
//! - the part before a LABEL ends where the label's match begins, and is not matched into it;
//! - a NOT cannot define variables.

use std::collections::BTreeMap;

use crate::directive::{self, Directive, DirectiveError, DirectiveKind};
use crate::input::{Input, Pos};
use crate::pattern::PatternError;
use crate::report::Mismatch;
use crate::search::{Finder, Found, Variables};

/// A file that holds directives.
#[derive(Clone, Debug)]
pub struct PatternFile {
    /// The name that messages give.
    pub name: String,
    /// The text of the file.
    pub text: String,
}

/// Why an input does not pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckFailure {
    /// A directive that cannot be used; nothing was matched.
    #[error("{file}:{line}: {error}")]
    Directive {
        /// The file of the patterns.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with the directive.
        error: DirectiveError,
    },
    /// A prefix without any directive, which would let a misspelt prefix pass.
    #[error("{file}: no directive with the prefix '{prefix}'")]
    NoDirectives {
        /// The file of the patterns.
        file: String,
        /// The prefix that no line has.
        prefix: String,
    },
    /// The directives that the input does not satisfy: the first one of each part that a LABEL begins.
    #[error("{}", .0.iter().map(Mismatch::to_string).collect::<Vec<_>>().join("\n"))]
    Mismatches(Vec<Mismatch>),
}

/// Checks the input against the directives of the file that have one of the prefixes; no prefix means `CHECK`.
pub fn check_text(file: &PatternFile, input: &str, prefixes: &[&str]) -> Result<(), CheckFailure> {
    let prefixes = if prefixes.is_empty() { &["CHECK"] } else { prefixes };
    for prefix in prefixes {
        let used = |line: &str| {
            let other = directive::spelled(line, &["RUN"]).is_some();
            !other && directive::spelled(line, &[prefix]).is_some()
        };
        if !file.text.lines().any(used) {
            return Err(CheckFailure::NoDirectives { file: file.name.clone(), prefix: (*prefix).to_owned() });
        }
    }
    let fail = |(line, error)| CheckFailure::Directive { file: file.name.clone(), line, error };
    let directives = directive::parse(&file.text, prefixes).map_err(fail)?;
    let mut steps = Vec::new();
    for directive in &directives {
        let finder = Finder::new(&directive.pattern).map_err(|error| fail((directive.line, error.into())))?;
        steps.push(CheckStep { directive, finder });
    }
    let input = Input::new(input);
    let mut matcher = Matcher::new(&file.name, &input);
    let mismatches = matcher.run(&steps).map_err(|(line, error)| fail((line, error.into())))?;
    if mismatches.is_empty() { Ok(()) } else { Err(CheckFailure::Mismatches(mismatches)) }
}

/// A directive, ready to search.
struct CheckStep<'a> {
    directive: &'a Directive,
    finder: Finder,
}

/// Why a part stops: the input does not match, or the crate refuses the resolved pattern of the line.
enum CheckStop {
    Mismatch(Box<Mismatch>),
    Pattern(usize, PatternError),
}

struct Matcher<'a> {
    file: &'a str,
    input: &'a Input,
    vars: Variables,
    /// The end of the match that last defined the variable.
    defined_at: BTreeMap<String, Pos>,
    /// Where the last positive directive matched, and its line in the pattern file.
    last: Option<(usize, Pos)>,
}

impl<'a> Matcher<'a> {
    fn new(file: &'a str, input: &'a Input) -> Matcher<'a> {
        Matcher { file, input, vars: Variables::default(), defined_at: BTreeMap::new(), last: None }
    }

    /// Divides the input at the LABELs, then checks part by part.
    fn run(&mut self, steps: &[CheckStep<'_>]) -> Result<Vec<Mismatch>, (usize, PatternError)> {
        let end = self.input.end();
        let mut pos = Pos { line: 0, col: 0 };
        let mut labels = Vec::new();
        for (index, step) in steps.iter().enumerate().filter(|(_, step)| step.directive.kind == DirectiveKind::Label) {
            match self.find(step, pos, end) {
                Ok(found) => {
                    pos = found.end;
                    self.last = Some((step.directive.line, found.start));
                    labels.push((index, found));
                }
                Err(CheckStop::Mismatch(mismatch)) => return Ok(vec![*mismatch]),
                Err(CheckStop::Pattern(line, error)) => return Err((line, error)),
            }
        }
        self.last = None;
        let mut mismatches = Vec::new();
        let mut from = Pos { line: 0, col: 0 };
        let mut first = 0;
        for part in 0..=labels.len() {
            let (last, to) = labels.get(part).map_or((steps.len(), end), |(index, found)| (*index, found.start));
            match self.part(&steps[first..last], from, to) {
                Ok(()) => {}
                // A part that failed leaves variables undefined; that says nothing about the parts after it.
                Err(CheckStop::Mismatch(mismatch)) if mismatch.undefined && !mismatches.is_empty() => {}
                Err(CheckStop::Mismatch(mismatch)) => mismatches.push(*mismatch),
                Err(CheckStop::Pattern(line, error)) => return Err((line, error)),
            }
            if let Some((index, found)) = labels.get(part) {
                from = found.end;
                first = index + 1;
                self.last = Some((steps[*index].directive.line, found.start));
            }
        }
        Ok(mismatches)
    }

    /// Checks the directives between two LABELs against the input between their matches.
    fn part(&mut self, steps: &[CheckStep<'_>], from: Pos, to: Pos) -> Result<(), CheckStop> {
        let mut pos = from;
        let mut nots: Vec<&CheckStep<'_>> = Vec::new();
        let mut rest = steps;
        while let Some((step, after)) = rest.split_first() {
            let (begin, end) = match step.directive.kind {
                DirectiveKind::Not => {
                    nots.push(step);
                    rest = after;
                    continue;
                }
                DirectiveKind::Dag => {
                    let len = rest.iter().take_while(|step| step.directive.kind == DirectiveKind::Dag).count();
                    let range = self.dag_group(&rest[..len], pos, to)?;
                    rest = &rest[len..];
                    range
                }
                _ => {
                    rest = after;
                    self.ordered(step, pos, to)?
                }
            };
            for not in nots.drain(..) {
                self.absent(not, pos, begin)?;
            }
            pos = end;
        }
        nots.into_iter().try_for_each(|not| self.absent(not, pos, to))
    }

    /// Matches one directive that keeps the order; gives where its first match begins and its last one ends.
    fn ordered(&mut self, step: &CheckStep<'_>, pos: Pos, to: Pos) -> Result<(Pos, Pos), CheckStop> {
        let next = Pos { line: pos.line + 1, col: 0 };
        let found = match step.directive.kind {
            DirectiveKind::Next if next > to => return Err(self.mismatch(step, "there is no next line", pos, to)),
            DirectiveKind::Next => self.find_on_line(step, next, to, "no match on the next line")?,
            DirectiveKind::Same => self.find_on_line(step, pos, to, "no match on the rest of the line")?,
            DirectiveKind::Empty => {
                let empty = next <= to && next.line < self.input.lines().len();
                if !empty || self.input.line(next.line) != Some("") {
                    let message = if empty { "the next line is not empty" } else { "there is no next line" };
                    let to = if empty { self.input.line_end(next.line, to) } else { to };
                    return Err(self.mismatch(step, message, next.min(to), to));
                }
                Found { start: next, end: next, captures: Vec::new() }
            }
            DirectiveKind::Count(n) => return self.count(step, n, pos, to),
            DirectiveKind::Plain | DirectiveKind::Not | DirectiveKind::Dag | DirectiveKind::Label => {
                self.find(step, pos, to)?
            }
        };
        Ok(self.accept(step, found))
    }

    fn count(&mut self, step: &CheckStep<'_>, n: u32, pos: Pos, to: Pos) -> Result<(Pos, Pos), CheckStop> {
        let mut begin = None;
        let mut end = pos;
        for done in 0..n {
            let Some(found) = self.search(step, end, to)? else {
                return Err(self.mismatch(step, &format!("{done} of {n} matches found"), end, to));
            };
            begin.get_or_insert(found.start);
            (_, end) = self.accept(step, found);
        }
        Ok((begin.unwrap_or(pos), end))
    }

    /// Matches adjacent DAG directives anywhere after `pos`, none over another's match.
    fn dag_group(&mut self, steps: &[CheckStep<'_>], pos: Pos, to: Pos) -> Result<(Pos, Pos), CheckStop> {
        let mut taken: Vec<(Pos, Pos)> = Vec::new();
        for step in steps {
            let defined = step.directive.pattern.uses().filter_map(|name| self.defined_at.get(name));
            let mut from = defined.copied().fold(pos, Pos::max);
            let found = loop {
                let Some(found) = self.search(step, from, to)? else {
                    let message = if taken.is_empty() { "no match" } else { "no match apart from those of its group" };
                    return Err(self.mismatch(step, message, from, to));
                };
                match taken.iter().find(|(start, end)| found.start < *end && *start < found.end) {
                    Some((_, end)) => from = *end,
                    None => break found,
                }
            };
            taken.push(self.accept(step, found));
        }
        let begin = taken.iter().map(|(start, _)| *start).min().unwrap_or(pos);
        let end = taken.iter().map(|(_, end)| *end).max().unwrap_or(pos);
        Ok((begin, end))
    }

    /// Verifies that a NOT has no match between two places.
    fn absent(&self, step: &CheckStep<'_>, from: Pos, to: Pos) -> Result<(), CheckStop> {
        // `{{^$}}` is to match neither what a match at its line's end leaves of that line, nor what comes before one at
        // its line's beginning.
        let to = if to.col == 0 && to.line > from.line { self.input.line_end(to.line - 1, to) } else { to };
        let at_line_end = from.col > 0 && from.col == self.input.line(from.line).map_or(0, str::len);
        let from = if at_line_end { Pos { line: from.line + 1, col: 0 } } else { from };
        match self.search(step, from, to)? {
            Some(found) => {
                let message = format!("matches input line {}", found.start.line + 1);
                Err(self.mismatch(step, &message, found.start, found.end))
            }
            None => Ok(()),
        }
    }

    /// Takes over what a match captured.
    fn accept(&mut self, step: &CheckStep<'_>, found: Found) -> (Pos, Pos) {
        for (name, text) in found.captures {
            self.defined_at.insert(name.clone(), found.end);
            self.vars.0.insert(name, text);
        }
        self.last = Some((step.directive.line, found.start));
        (found.start, found.end)
    }

    fn find(&self, step: &CheckStep<'_>, from: Pos, to: Pos) -> Result<Found, CheckStop> {
        self.search(step, from, to)?.ok_or_else(|| self.mismatch(step, "no match", from, to))
    }

    fn find_on_line(&self, step: &CheckStep<'_>, from: Pos, to: Pos, message: &str) -> Result<Found, CheckStop> {
        self.defined(step, from, to)?;
        let to = self.input.line_end(from.line, to);
        let found = step.finder.find_in_line(&self.vars, self.input, from.line, from, to);
        let found = found.map_err(|error| CheckStop::Pattern(step.directive.line, error))?;
        found.ok_or_else(|| self.mismatch(step, message, from, to))
    }

    fn search(&self, step: &CheckStep<'_>, from: Pos, to: Pos) -> Result<Option<Found>, CheckStop> {
        self.defined(step, from, to)?;
        let found = step.finder.find(&self.vars, self.input, from, to);
        found.map_err(|error| CheckStop::Pattern(step.directive.line, error))
    }

    /// Verifies that every variable of the pattern has been captured.
    fn defined(&self, step: &CheckStep<'_>, from: Pos, to: Pos) -> Result<(), CheckStop> {
        let Some(name) = step.directive.pattern.uses().find(|name| !self.vars.0.contains_key(*name)) else {
            return Ok(());
        };
        let name = name.to_owned();
        match self.mismatch(step, &format!("[[{name}]] is not defined before"), from, to) {
            CheckStop::Mismatch(mut mismatch) => {
                mismatch.undefined = true;
                Err(CheckStop::Mismatch(mismatch))
            }
            stop => Err(stop),
        }
    }

    fn mismatch(&self, step: &CheckStep<'_>, message: &str, from: Pos, to: Pos) -> CheckStop {
        let pattern = &step.directive.pattern;
        let uses = pattern.uses().filter_map(|name| Some((name.to_owned(), self.vars.0.get(name)?.clone())));
        let uses: Vec<_> = uses.collect();
        let defined = pattern.uses().all(|name| self.vars.0.contains_key(name));
        let elsewhere_helps = !matches!(step.directive.kind, DirectiveKind::Not | DirectiveKind::Empty);
        let mut elsewhere = None;
        if defined && elsewhere_helps {
            let begin = Pos { line: 0, col: 0 };
            let found = step.finder.find(&self.vars, self.input, begin, self.input.end());
            // A failed search here only leaves out a hint.
            elsewhere = found.ok().flatten().map(|found| found.start.line);
        }
        let mut mismatch = Mismatch::new(self.file, step.directive, message);
        mismatch.values = uses;
        mismatch.describe(self.input, step.directive, (from, to), self.last, elsewhere);
        CheckStop::Mismatch(Box::new(mismatch))
    }
}
