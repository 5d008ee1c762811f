//! What the runner makes of steps that behave well or badly.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{Bench, wait_gone};

const ALL: &str = "c0 passed, c1 passed, c2 passed, c3 passed";

/// Runs one step and compares what is told of it.
#[track_caller]
fn check(step: &'static str, outcome: &str, note: &str, cases: &str) -> Bench {
    let mut bench = Bench::new(&[step]);
    let summary = bench.run();
    assert_eq!(bench.told(step), format!("{outcome} | {note} | {cases}"));
    assert_eq!(summary.failed, outcome == "failed");
    assert_eq!(summary.exit_status(), u8::from(summary.failed));
    assert!(summary.complete && !summary.interrupted);
    // What is finished is not run again, and the same records make the same reports.
    let (ran, json, table) = (bench.ran(step), bench.text("results.json"), bench.text("table.md"));
    assert_eq!(bench.run(), summary);
    assert_eq!((bench.ran(step), bench.text("results.json"), bench.text("table.md")), (ran, json, table));
    bench
}

/// All cases pass but the second.
fn but_second(note: &str) -> String {
    format!("c0 passed, c1 failed ({note}), c2 passed, c3 passed")
}

#[test]
fn a_step_that_passes() {
    let bench = check("passes", "passed", "", ALL);
    assert_eq!(bench.ran("passes"), "c0 c1 c2 c3");
}

#[test]
fn steps_with_nothing_to_do() {
    check(
        "skips",
        "skipped",
        "",
        "c0 skipped (no tensor cores), c1 skipped (no tensor cores), c2 skipped (no tensor cores), c3 skipped (no tensor cores)",
    );
    check("zero", "skipped", "no cases", "");
}

#[test]
fn a_case_that_fails_is_repeated_on_request_only() {
    let mut bench = check("fails", "failed", "", &but_second("off by 3e-2"));
    let table = bench.text("table.md");
    assert!(table.contains("- fails, `c1`: off by 3e-2 (see failures/fails/c1)\n"), "{table}");
    bench.job.again = true;
    assert!(bench.run().failed);
    assert_eq!(bench.ran("fails"), "c0 c1 c2 c3 c1");
    fs::write(bench.path("fixed"), "").unwrap();
    assert!(!bench.run().failed);
    assert_eq!(bench.told("fails"), format!("passed |  | {ALL}"));
    bench.run();
    assert_eq!(bench.ran("fails"), "c0 c1 c2 c3 c1 c1");
}

#[test]
fn a_crash_fails_the_case_and_the_rest_runs() {
    let bench = check("segv", "failed", "restarts: 1", &but_second("crashed: signal 11 (SIGSEGV)"));
    assert_eq!(bench.ran("segv"), "c0 c1 c2 c3");
    // The step as a whole did its work.
    assert!(bench.text("table.md").ends_with("## Failures\n\n- segv, `c1`: crashed: signal 11 (SIGSEGV)\n"));
}

#[test]
fn a_panic_is_told_by_its_last_line() {
    let bench = check("panics", "failed", "restarts: 1", &but_second("exit status 101: index 7 out of range"));
    assert!(bench.text("failures/panics/stderr.txt").contains("fake_step.rs"));
    assert!(bench.text("table.md").contains("(see failures/panics)"));
}

#[test]
fn a_step_that_dies_before_its_first_case_is_not_started_again() {
    let mut bench = check("dies", "failed", "exit status 101: cannot load libfake.so", "");
    bench.job.again = true;
    bench.run();
    assert_eq!(bench.text("failures/dies/stderr.txt").matches("== ").count(), 2);
}

#[test]
fn a_case_that_hangs_is_killed() {
    let note = "did not end within 0.8 s, killed";
    check("hangs", "failed", "restarts: 1", &but_second(note));
    check("hangs-flooding", "failed", "it printed: spinning; restarts: 1", &but_second(note));
}

#[test]
fn a_step_that_hangs_outside_of_cases_is_killed() {
    let note = "no case began or ended within 0.8 s, killed";
    check("hangs-first", "failed", note, "");
    check("hangs-at-exit", "failed", note, ALL);
}

#[test]
fn a_lost_context_is_made_anew_where_that_makes_progress() {
    check("lost", "failed", "restarts: 1", &but_second("context lost"));
    check("lost-always", "failed", "the device's context was lost (exit status 3)", "");
}

#[test]
fn crashes_outside_of_cases_fail_the_step() {
    check("crashes-between", "failed", "crashed: signal 7 (SIGBUS); restarts: 1", ALL);
    check("crashes-at-exit", "failed", "crashed: signal 6 (SIGABRT)", ALL);
}

#[test]
fn a_step_is_started_again_fifty_times() {
    let mut bench = Bench::new(&["crashes-each"]);
    bench.run();
    let step = bench.step("crashes-each");
    assert_eq!(step["note"], "started again 50 times and not through");
    assert_eq!((step["counts"]["failed"].as_u64(), step["counts"]["not_run"].as_u64()), (Some(51), Some(9)));
    // A repetition has its own restarts.
    bench.job.again = true;
    bench.run();
    assert_eq!(bench.ran("crashes-each").split(' ').count(), 102);
}

#[test]
fn what_breaks_the_contract_is_told() {
    check("silent", "failed", "it ended without saying how many cases it has", "");
    check("short", "failed", "it ended with 3 of 4 cases", "c0 passed, c1 passed, c2 passed");
    check("leaves", "failed", "restarts: 1", &but_second("exit status 0 before the case ended"));
    let cases = "c0 passed, c1 passed, c2 failed (the next case began before it ended), c3 passed";
    check("two-begins", "failed", "", cases);
    check("long-line", "failed", "a line of output is longer than 1 MiB, killed", "c0 passed");
}

#[test]
fn output_that_is_no_protocol_does_no_harm() {
    check("garbage", "passed", "it printed: hello \u{fffd}", ALL);
    let line = "0123456789abcdef".repeat(63);
    check("floods", "passed", &format!("it printed: {}…", &line[..299]), ALL);
}

#[test]
fn notes_of_any_length_are_kept_whole_and_shown_as_a_line() {
    let mut bench = Bench::new(&["long-notes"]);
    bench.run();
    let note = bench.step("long-notes")["cases"][0]["note"].as_str().unwrap().to_owned();
    assert_eq!(note, "long |\nnote ".repeat(20_000));
    let table = bench.text("table.md");
    let line = table.lines().find(|line| line.starts_with("- long-notes")).unwrap();
    assert!(line.starts_with("- long-notes, `c0`: long | note long |") && line.chars().count() < 450, "{line}");
}

#[test]
fn what_a_step_leaves_running_is_killed_or_left_alone() {
    let began = Instant::now();
    let bench = check("grandchild", "passed", "", ALL);
    wait_gone(&bench.job.out);
    check("escaped", "passed", "", ALL);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
