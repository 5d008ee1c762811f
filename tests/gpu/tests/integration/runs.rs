//! Several steps: order, limits, the device, reports, and folders of other runs.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::Bench;
use tensorc_gpu::runner::{Counts, RunnerError};

const ALL: &str = "c0 passed, c1 passed, c2 passed, c3 passed";

#[test]
fn a_step_over_its_limit_is_incomplete_and_goes_on_later() {
    let mut bench = Bench::new(&["waits", "passes"]);
    bench.steps[0].limit = Duration::from_millis(800);
    let summary = bench.run();
    assert!(summary.failed && !summary.complete);
    assert_eq!(summary.cases, Counts { passed: 6, failed: 0, skipped: 0, not_run: 2 });
    let note = "did not end within 0.8 s, killed in case c2; 2 cases not run";
    assert_eq!(bench.told("waits"), format!("incomplete | {note} | c0 passed, c1 passed"));
    fs::write(bench.path("go"), "").unwrap();
    let summary = bench.run();
    assert!(!summary.failed && summary.complete);
    assert_eq!(bench.told("waits"), format!("passed |  | {ALL}"));
    assert_eq!(bench.ran("waits"), "c0 c1 c2 c2 c3");
    assert_eq!(bench.ran("passes"), "c0 c1 c2 c3");
}

#[test]
fn when_time_is_over_the_next_run_goes_on() {
    let mut bench = Bench::new(&["passes", "waits", "fails"]);
    bench.job.time = Duration::from_millis(1500);
    let began = Instant::now();
    let summary = bench.run();
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(!summary.failed && !summary.complete && summary.exit_status() == 0);
    assert_eq!(bench.told("waits"), "interrupted | time is over | c0 passed, c1 passed");
    assert_eq!(bench.told("fails"), "not_run | time is over | ");
    assert!(bench.shown.contains("the same command goes on"), "{}", bench.shown);
    bench.job.time = Duration::ZERO;
    bench.run();
    assert_eq!(bench.ran("waits"), "c0 c1 c2");
    bench.job.time = Duration::MAX;
    fs::write(bench.path("go"), "").unwrap();
    assert!(bench.run().complete);
    assert_eq!(bench.told("waits"), format!("passed |  | {ALL}"));
    assert_eq!(bench.ran("waits"), "c0 c1 c2 c2 c3");
    assert_eq!(bench.ran("passes"), "c0 c1 c2 c3");
}

#[test]
fn without_a_device_what_needs_one_is_skipped_and_tried_later() {
    let mut bench = Bench::new(&["device", "passes", "tiny"]);
    bench.steps[1].needs_device = true;
    fs::write(bench.path("busy"), "").unwrap();
    let summary = bench.run();
    assert!(summary.failed && !summary.complete);
    assert_eq!(bench.told("passes"), "skipped | no device: the device is busy with another | ");
    assert_eq!(bench.told("tiny"), "passed |  | c0 passed, c1 passed");
    bench.run();
    assert_eq!(bench.ran("device"), "c0 c1 c2 c3 c1");
    fs::remove_file(bench.path("busy")).unwrap();
    let summary = bench.run();
    assert!(!summary.failed && summary.complete);
    assert_eq!(bench.told("passes"), format!("passed |  | {ALL}"));
    assert_eq!((bench.ran("device"), bench.ran("tiny")), ("c0 c1 c2 c3 c1 c1".into(), "c0 c1".into()));
}

#[test]
fn only_the_steps_asked_for_run() {
    let mut bench = Bench::new(&["passes", "fails", "tiny"]);
    bench.job.only = vec!["tiny".into(), "passes".into()];
    assert!(bench.run().complete);
    assert_eq!(bench.told("fails"), "not_run |  | ");
    assert!(bench.shown.starts_with("[1/2] passes  passed, 4/4, "), "{}", bench.shown);
    bench.job.only.push("pases".into());
    let error = bench.try_run().unwrap_err().to_string();
    assert_eq!(error, "there is no step `pases`; the steps are passes, fails, tiny");
}

#[test]
fn the_reports_say_all_in_a_readable_way() {
    let mut bench = Bench::new(&["passes", "fails", "silent"]);
    bench.run();
    let table = bench.text("table.md");
    let seconds = |step: &str| format!("{:.1}", bench.step(step)["seconds"].as_f64().unwrap());
    let expected = format!(
        "# Results

Bundle b1, device fake.

| step   | outcome | passed/failed/skipped |  of | seconds | note                                          |
|--------|---------|----------------------:|----:|--------:|-----------------------------------------------|
| passes | passed  |                 4/0/0 |   4 | {:>7} |                                               |
| fails  | failed  |                 3/1/0 |   4 | {:>7} |                                               |
| silent | failed  |                 0/0/0 |   0 | {:>7} | it ended without saying how many cases it has |

## passes

A step of the tests.

| case | rate [GB/s] | bytes |
|------|------------:|------:|
| c0   |        1235 | 65536 |
",
        seconds("passes"),
        seconds("fails"),
        seconds("silent")
    );
    assert!(table.starts_with(&expected), "{table}");
    let failures = "\n## Failures\n\n- fails, `c1`: off by 3e-2 (see failures/fails/c1)\n\
                    - silent: it ended without saying how many cases it has\n";
    assert!(table.ends_with(failures), "{table}");
    assert_eq!(bench.step("passes")["cases"][0]["figures"][0]["value"], 1234.567);
    assert!(bench.shown.contains("7 cases passed, 1 failed, 0 skipped, 0 not run\ntable: "), "{}", bench.shown);
}

#[test]
fn a_terminal_sees_progress_in_one_line() {
    let mut bench = Bench::new(&["sleepy"]);
    bench.job.terminal = true;
    bench.run();
    let lines: Vec<&str> = bench.shown.split('\r').collect();
    assert!(
        lines.iter().any(|line| line.starts_with("[1/1] sleepy  2/4, ") && line.ends_with(" s\x1b[K")),
        "{lines:?}"
    );
    let ended = |line: &&str| line.starts_with("\x1b[K[1/1] sleepy  passed, 4/4, ") && line.ends_with(" s\n");
    assert!(lines.iter().any(ended), "{lines:?}");
}

#[test]
fn results_of_another_bundle_or_device_are_not_mixed() {
    let mut bench = Bench::new(&["tiny"]);
    bench.run();
    let before = bench.text("results.jsonl");
    bench.job.device = "1".into();
    let error = bench.try_run().unwrap_err().to_string();
    assert!(error.ends_with("has results of device `fake`, and this run is of device `1`: give another --out"));
    bench.job.bundle = "b2".into();
    let error = bench.try_run().unwrap_err().to_string();
    assert!(error.ends_with("has results of bundle `b1`, and this run is of bundle `b2`: give another --out"));
    assert_eq!(bench.text("results.jsonl"), before);
}

#[test]
fn files_that_are_no_results_are_left_alone() {
    let mut bench = Bench::new(&["tiny"]);
    for text in ["my notes", "{\"a\":1}\n", "{\"record\":\"header\",\"format\":1}\n", "\n"] {
        fs::write(bench.path("results.jsonl"), text).unwrap();
        assert!(matches!(bench.try_run(), Err(RunnerError::Damaged { line: 1, .. })), "{text}");
        assert_eq!(bench.text("results.jsonl"), text);
    }
    fs::remove_file(bench.path("results.jsonl")).unwrap();
    bench.run();
    let whole = bench.text("results.jsonl");
    fs::write(bench.path("results.jsonl"), whole.replacen("\"counted\"", "\"conted\"", 1)).unwrap();
    assert!(matches!(bench.try_run(), Err(RunnerError::Damaged { line: 3, .. })));
}

#[test]
fn two_runs_at_once_are_an_error() {
    let mut bench = Bench::new(&["tiny"]);
    let file = fs::File::create(bench.path("results.jsonl")).unwrap();
    file.lock().unwrap();
    assert!(matches!(bench.try_run(), Err(RunnerError::Busy { .. })));
    drop(file);
    bench.run();
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let mut bench = Bench::new(&["tiny"]);
    bench.job.program = bench.path("nothing");
    assert!(matches!(bench.try_run(), Err(RunnerError::Start { .. })));
}
