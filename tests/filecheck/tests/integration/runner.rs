//! The runner on small corpora, with `printf`, `cat` and `sh` for tools: what passes, and that each way to fail fails.

use std::path::{Path, PathBuf};

use tensorc_filecheck::run::{RunError, Summary, TestFailure, run_corpus};

fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn run(name: &str) -> Result<Summary, RunError> {
    let tools = [("filecheck", Path::new(env!("CARGO_BIN_EXE_filecheck"))), ("given", Path::new("/bin/echo"))];
    run_corpus(&fixtures(name), &tools, &["given"])
}

fn failure<'a>(summary: &'a Summary, test: &str) -> &'a TestFailure {
    let found: Vec<_> = summary.failures.iter().filter(|failure| failure.test == test).collect();
    assert_eq!(found.len(), 1, "{test}: {found:?}");
    found[0]
}

#[test]
fn good_tests_pass() {
    let summary = run("pass").unwrap();
    assert!(summary.is_success(), "{summary}");
    assert_eq!((summary.tests, summary.passed, summary.commands), (6, 5, 9));
    assert_eq!(summary.skipped, [("tools/skipped.tc".to_owned(), "absent".to_owned())]);
    let last = summary.to_string();
    assert!(last.ends_with("text tests: 5 passed, 0 failed, 1 skipped of 6 (9 commands)"), "{last}");
}

#[test]
fn bad_tests_fail() {
    let summary = run("fail").unwrap();
    assert_eq!((summary.tests, summary.passed), (12, 0), "{summary}");
    let names: Vec<&str> = summary.failures.iter().map(|failure| failure.test.as_str()).collect();
    let mut once = names.clone();
    once.dedup();
    assert_eq!(once.len(), 12, "{names:?}");

    let wrong = failure(&summary, "mismatch/wrong.tc");
    assert_eq!((wrong.line, wrong.reason.as_str()), (1, "exit status 1"));
    assert_eq!(wrong.command.as_deref(), Some(r"printf 'a\nc\n' | filecheck %s"));
    assert!(wrong.stderr.contains("wrong.tc:5: CHECK-NEXT: no match on the next line"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("2 | c"), "{}", wrong.stderr);
    assert_eq!(failure(&summary, "mismatch/second-run.tc").line, 2);
    assert_eq!(failure(&summary, "mismatch/prefix.tc").reason, "exit status 2");

    assert_eq!(failure(&summary, "crash/pipe.tc").reason, "exit status 3");
    for (test, said) in [("panic", "status 101 is a crash"), ("signal", "status 139"), ("succeeds", "was to fail")] {
        let stderr = &failure(&summary, &format!("crash/{test}.tc")).stderr;
        assert!(stderr.contains(said), "{test}: {stderr}");
    }
    assert!(failure(&summary, "crash/missing.tc").stderr.contains("status 127"));

    for (test, rule) in [
        ("values", "no RUN line 'tensorc opt %s --passes=fuse --check-values'"),
        ("typo", "'CHECK-NXT:' is no directive"),
    ] {
        let reason = &failure(&summary, &format!("untidy/{test}.tc")).reason;
        assert!(reason.starts_with(rule), "{test}: {reason}");
    }
}

#[test]
fn a_failure_names_a_script_that_repeats_it() {
    let summary = run("fail-again").unwrap();
    let script = failure(&summary, "again.tc").script.clone().unwrap();
    let output = std::process::Command::new("bash").arg(script).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CHECK: no match"));
}

#[test]
fn an_empty_corpus_is_an_error() {
    assert!(matches!(run("empty"), Err(RunError::EmptyCorpus(_))));
}

#[test]
fn tools_must_exist() {
    let filecheck = Path::new(env!("CARGO_BIN_EXE_filecheck"));
    let missing = run_corpus(&fixtures("pass"), &[("filecheck", filecheck), ("opt", Path::new("/none/opt"))], &[]);
    assert!(matches!(missing, Err(RunError::MissingTool { name, .. }) if name == "opt"));
    assert!(matches!(run_corpus(&fixtures("pass"), &[], &[]), Err(RunError::NoFilecheck)));
}
