//! Runs that end in the middle: killed, interrupted, torn files, full disks.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Instant;

use crate::support::{Bench, runner_once, step_of, told, wait_for, wait_gone};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const STEPS: [&str; 3] = ["slow-a", "segv", "slow-b"];

/// Every case exactly once, as in a run that was not disturbed.
#[track_caller]
fn assert_complete(out: &Path, at: &str) {
    let slow: Vec<String> = (0..10).map(|i| format!("c{i} passed")).collect();
    let expected = [
        ("slow-a", "passed", slow.join(", ")),
        ("segv", "failed", "c0 passed, c1 failed (crashed: signal 11 (SIGSEGV)), c2 passed, c3 passed".to_owned()),
        ("slow-b", "passed", slow.join(", ")),
    ];
    for (name, outcome, cases) in expected {
        let step = step_of(out, name);
        let told = told(&step);
        assert!(told.starts_with(outcome) && told.ends_with(&format!("| {cases}")), "{at}: {told}");
    }
}

#[test]
fn a_runner_killed_at_any_moment_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    assert_eq!(runner_once(&folder.path().join("whole"), "60", &STEPS).status().unwrap().code(), Some(1));
    let mut whole = began.elapsed();
    assert_complete(&folder.path().join("whole"), "not killed");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut cut = 0;
    for attempt in 0..30 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let moment = whole.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64);
        let out = folder.path().join(attempt.to_string());
        let mut runner = runner_once(&out, "60", &STEPS).spawn().unwrap();
        sleep(moment);
        runner.kill().unwrap();
        match runner.wait().unwrap().code() {
            None => cut += 1,
            // The first run took longer, on a machine that was busier: a run ends before this moment.
            Some(_) => whole = whole.min(moment),
        }
        let second = runner_once(&out, "60", &STEPS).stderr(Stdio::piped()).output().unwrap();
        let at = format!("killed after {moment:?}: {}", String::from_utf8_lossy(&second.stderr));
        assert_eq!(second.status.code(), Some(1), "{at}");
        assert_complete(&out, &at);
    }
    assert!(cut > 20, "{cut}");
}

#[test]
fn a_step_dies_with_its_runner() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let mut runner = runner_once(out, "60", &["hangs-alone"]).spawn().unwrap();
    wait_for(&out.join("ran.hangs-alone"), "c1");
    wait_for(&out.join("pid"), "\n");
    runner.kill().unwrap();
    runner.wait().unwrap();
    wait_gone(out);
}

#[test]
fn a_repetition_that_was_cut_off_goes_on() {
    let mut bench = Bench::new(&["fails"]);
    bench.run();
    // As a runner leaves it that is killed behind its first record.
    let begun = "{\"record\":\"started\",\"step\":\"fails\"}\n";
    fs::write(bench.path("results.jsonl"), bench.text("results.jsonl") + begun).unwrap();
    fs::write(bench.path("fixed"), "").unwrap();
    bench.run();
    assert_eq!(bench.ran("fails"), "c0 c1 c2 c3");
    assert!(bench.told("fails").starts_with("failed |"));
    fs::write(bench.path("results.jsonl"), bench.text("results.jsonl") + begun).unwrap();
    bench.job.again = true;
    bench.run();
    assert_eq!(bench.ran("fails"), "c0 c1 c2 c3 c1");
    assert!(bench.told("fails").starts_with("passed |"));
}

#[test]
fn signals_end_the_run_in_order() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        let mut runner = runner_once(out, "60", &["tiny", "hangs", "passes"]).spawn().unwrap();
        wait_for(&out.join("ran.hangs"), "c1");
        kill_process(Pid::from_child(&runner), signal).unwrap();
        assert_eq!(runner.wait().unwrap().code(), Some(130));
        assert_eq!(told(&step_of(out, "tiny")), "passed |  | c0 passed, c1 passed");
        assert_eq!(told(&step_of(out, "hangs")), "interrupted | interrupted | c0 passed");
        assert_eq!(told(&step_of(out, "passes")), "not_run |  | ");
        assert!(fs::read_to_string(out.join("table.md")).unwrap().contains("| interrupted |"));
    }
}

#[test]
fn a_record_torn_at_any_byte_is_made_again() {
    let mut bench = Bench::new(&["tiny"]);
    bench.run();
    let whole = bench.text("results.jsonl");
    let told = bench.told("tiny");
    for offset in (0..whole.len()).rev() {
        for tail in ["", "\0\0\0", "{\"rec\n"] {
            // Whole lines and zeros are what a disk leaves behind a crash of the machine; once for each line is enough.
            if !tail.is_empty() && (offset == 0 || whole.as_bytes()[offset - 1] != b'\n') {
                continue;
            }
            fs::write(bench.path("results.jsonl"), [&whole[..offset], tail].concat()).unwrap();
            let summary = bench.run();
            assert!(summary.complete && !summary.failed, "{offset}");
            assert_eq!(bench.told("tiny"), told, "{offset}");
            let text = bench.text("results.jsonl");
            let kept = whole[..offset].rfind('\n').map_or(0, |end| end + 1);
            assert!(text.starts_with(&whole[..kept]), "{offset}");
            assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{offset}");
        }
    }
}

/// Every line of a file is a record, and the error names a file of the folder.
#[track_caller]
fn assert_whole(records: &Path, output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("/results.") || error.contains("/done") || error.contains("/table.md"), "{error}");
    assert_eq!(error.trim().lines().count(), 1, "{error}");
    let text = fs::read_to_string(records).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() > 3, "{text}");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
}

#[test]
fn where_no_more_can_be_written_records_stay_whole() {
    for kibibytes in 1..=4 {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        let script = format!("trap '' XFSZ; ulimit -f {kibibytes}; exec \"$@\"");
        let mut limited = Command::new("bash");
        let once = runner_once(out, "60", &STEPS);
        limited.args(["-c", &script, "bash"]).arg(once.get_program()).args(once.get_args());
        let output = limited.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{kibibytes}");
        assert_whole(&out.join("results.jsonl"), &output);
        assert_eq!(runner_once(out, "60", &STEPS).status().unwrap().code(), Some(1));
        assert_complete(out, "limited");
    }
}

/// On a disk of its own, which not every machine lets a test have.
#[test]
fn on_a_full_disk_records_stay_whole() {
    let user = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "bash", "-c", script, "bash"]);
        command
    };
    if !user("mount -t tmpfs none /mnt").status().is_ok_and(|status| status.success()) {
        eprintln!("not tested: a file system cannot be mounted here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "
        disk=$1; shift; mkdir $disk/d
        mount -t tmpfs -o size=16k none $disk/d
        \"$@\"; first=$?
        cp $disk/d/results.jsonl $disk/records
        mount -o remount,size=4m $disk/d
        \"$@\"; second=$?
        mkdir $disk/out; cp -r $disk/d/results.json $disk/out
        exit $((first * 10 + second))";
    let once = runner_once(&folder.path().join("d"), "60", &STEPS);
    let output = user(script).arg(folder.path()).arg(once.get_program()).args(once.get_args()).output().unwrap();
    assert_whole(&folder.path().join("records"), &output);
    assert_eq!(output.status.code(), Some(21));
    assert_complete(&folder.path().join("out"), "full");
}
