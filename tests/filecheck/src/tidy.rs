//! The rules that every text test keeps, so that none passes without testing something and each says what it tests.

use crate::directive::spelled;
use crate::stage::{RunLine, TextTest};

/// A rule that a test breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Line of the test, from 1.
    pub line: usize,
    pub rule: String,
}

/// Fewest words of the statement that says what is tested.
const STATEMENT_WORDS: usize = 3;

/// All rules that the test breaks, by line.
pub fn violations(test: &TextTest) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut report = |line: usize, rule: String| found.push(Violation { line, rule });
    let lines: Vec<&str> = test.text.lines().collect();
    if lines.first().is_none_or(|line| !line.starts_with("// RUN:")) {
        report(1, "the first line is no '// RUN:' line".to_owned());
    }
    let head = lines.iter().take_while(|line| is_head(line)).count();
    if let Some(run) = test.runs.iter().find(|run| run.line > head) {
        report(run.line, "RUN lines stand together at the top".to_owned());
    }
    let statement = lines.iter().skip(head).take_while(|line| line.starts_with("//")).next();
    if !statement.is_some_and(|line| is_statement(line)) {
        let rule = "the RUN lines are followed by one line '// ...' that states in English what is tested";
        report(head + 1, rule.to_owned());
    }
    for run in &test.runs {
        if let Some(rule) = unchecked_values(test, run) {
            report(run.line, rule);
        }
    }
    let prefixes = prefixes(&test.runs);
    let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(word) = capitals(line) else { continue };
        let known = matches!(word, "RUN" | "REQUIRES") || spelled(line, &prefixes).is_some();
        if word == "XFAIL" {
            report(index + 1, "a test is not expected to fail: state what the output is, or use 'not'".to_owned());
        } else if !known {
            report(index + 1, format!("'{word}:' is no directive of any filecheck command of this test"));
        }
    }
    found.sort_by_key(|violation| violation.line);
    found
}

fn is_head(line: &str) -> bool {
    line.starts_with("// RUN:") || line.starts_with("// REQUIRES:")
}

fn is_statement(line: &str) -> bool {
    let Some(text) = line.strip_prefix("// ") else { return false };
    let words = text.split_whitespace().filter(|word| word.starts_with(char::is_alphabetic)).count();
    capitals(line).is_none() && words >= STATEMENT_WORDS
}

/// The word in capitals that begins a comment and ends at a colon.
fn capitals(line: &str) -> Option<&str> {
    let (word, _) = line.trim_start().strip_prefix("//")?.trim_start().split_once(':')?;
    let directive = word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-' || c == '_');
    directive.then_some(word)
}

/// The prefixes that the test's filecheck commands look for.
fn prefixes(runs: &[RunLine]) -> Vec<String> {
    let mut prefixes = Vec::new();
    for command in runs.iter().flat_map(|run| run.command.split(['|', ';', '&'])) {
        let mut words = command.split_whitespace().skip_while(|word| *word != "filecheck").skip(1).peekable();
        if words.peek().is_none() {
            continue;
        }
        let mut named = Vec::new();
        while let Some(word) = words.next() {
            let flag = word.trim_start_matches('-');
            let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            if word.starts_with('-') && matches!(name, "check-prefix" | "check-prefixes") {
                let value = value.or_else(|| words.next()).unwrap_or_default();
                named.extend(value.split(',').map(str::to_owned));
            }
        }
        if named.is_empty() {
            named.push("CHECK".to_owned());
        }
        prefixes.extend(named);
    }
    prefixes
}

/// A transformation whose result no RUN line compares in the interpreter. Runs under `not` transform nothing.
fn unchecked_values(test: &TextTest, run: &RunLine) -> Option<String> {
    let passes = run.command.split_whitespace().find(|word| word.starts_with("--passes="))?;
    if run.command.split_whitespace().next() == Some("not") {
        return None;
    }
    let checks = |run: &RunLine| {
        let words: Vec<&str> = run.command.split_whitespace().collect();
        words.starts_with(&["tensorc", "opt", "%s"]) && words.contains(&passes) && words.contains(&"--check-values")
    };
    let checked = test.runs.iter().any(checks);
    (!checked).then(|| format!("no RUN line 'tensorc opt %s {passes} --check-values' compares the values"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn rules(text: &str) -> Vec<usize> {
        let test = TextTest::parse(PathBuf::new(), String::new(), text.to_owned());
        violations(&test).into_iter().map(|violation| violation.line).collect()
    }

    const RUN: &str = "// RUN: tensorc opt %s --passes=fuse | filecheck %s\n";
    const VALUES: &str = "// RUN: tensorc opt %s --passes=fuse --check-values\n";
    const STATEMENT: &str = "// Two additions become one kernel.\n";

    #[test]
    fn accepts_a_tidy_test() {
        assert!(rules(&format!("{RUN}{VALUES}{STATEMENT}x\n// CHECK: y\n// CHECK-COUNT-2: y\n")).is_empty());
        assert!(rules("// RUN: not tensorc opt %s --passes=none\n// An unknown pass is an error.\n").is_empty());
    }

    #[test]
    fn wants_run_lines_first() {
        assert_eq!(rules("// A test of something.\n// RUN: true\n"), [1, 2]);
        assert_eq!(rules("// RUN: true\n// A test of something.\n// RUN: true\n"), [3]);
        assert_eq!(rules(""), [1, 1]);
    }

    #[test]
    fn wants_a_statement() {
        assert_eq!(rules("// RUN: true\n"), [2]);
        assert_eq!(rules("// RUN: true\n// fuse\n"), [2]);
        assert_eq!(rules("// RUN: true | filecheck %s\n// CHECK: a b c d\n"), [2]);
        assert_eq!(rules("// RUN: true\nfunc f of x\n"), [2]);
    }

    #[test]
    fn wants_values_compared() {
        assert_eq!(rules(&format!("{RUN}{STATEMENT}")), [1]);
        let other = "// RUN: tensorc opt %s --passes=other --check-values\n";
        assert_eq!(rules(&format!("{RUN}{other}{STATEMENT}")), [1]);
        let not_checked = "// RUN: not tensorc opt %s --passes=fuse --check-values\n";
        assert_eq!(rules(&format!("{RUN}{not_checked}{STATEMENT}")), [1]);
    }

    #[test]
    fn refuses_dead_directives() {
        let dead = |line: &str| rules(&format!("{RUN}{VALUES}{STATEMENT}{line}\n"));
        assert_eq!(dead("// CHECK-NXT: a"), [4]);
        assert_eq!(dead("// CHEKC: a"), [4]);
        assert_eq!(dead("// GPU: a"), [4]);
        assert_eq!(dead("// XFAIL: *"), [4]);
        assert!(dead("// Note: a").is_empty());
        let gpu = "// RUN: true | filecheck %s --check-prefixes=GPU,CHECK\n// One prefix for each target.\n";
        assert!(rules(&format!("{gpu}// GPU-NEXT: a\n// CHECK: b\n")).is_empty());
        assert_eq!(rules("// RUN: true\n// Nothing looks for this.\n// CHECK: a\n"), [3]);
    }
}
