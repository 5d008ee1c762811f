//! The backend test cases of the ONNX project, run in process through the public interface.
//!
//! `tests/onnx/cases.txt` and `cases_old.txt` name the cases; `tests/onnx/expected_errors.txt` names
//! those that are refused, with the reason. Environment variables for work on operators:
//! `TENSORC_ONNX_ONLY` runs the cases whose name contains it, `TENSORC_ONNX_FAILURES` names a file
//! that receives one line for each case that does not pass.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tensorc::{Compiler, Options, Tensor};
use tensorc_frontend::onnx::tensor::decode_tensor;
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};
use tensorc_ir::TensorData;
use zip::ZipArchive;

use crate::support::backend::options;
use crate::support::cache::{Package, fetch, visible};
use crate::support::compare::{Tolerance, compare, data, tensor};

const CASES: &str = include_str!("../onnx/cases.txt");
const OLD_CASES: &str = include_str!("../onnx/cases_old.txt");
const EXPECTED_ERRORS: &str = include_str!("../onnx/expected_errors.txt");

const CURRENT: Package = Package {
    spec: "onnx==1.22.0",
    options: &["--only-binary=:all:", "--python-version=311", "--platform=manylinux_2_28_x86_64"],
    sha256: "1d0a2bdb15eb2b3cb65c438f3423d9620d14fdce32f92380e6bb1b2e09568ef5",
};

/// Releases whose cases [`OLD_CASES`] names.
const OLD: [Package; 5] = [
    Package {
        spec: "onnx==1.16.2",
        options: &["--only-binary=:all:", "--python-version=311", "--platform=manylinux_2_17_x86_64"],
        sha256: "7b98aa9733bd4b781eb931d33b4078ff2837e7d68062460726d6dd011f332bd4",
    },
    Package {
        spec: "onnx==1.12.0",
        options: &["--only-binary=:all:", "--python-version=310", "--platform=manylinux_2_17_x86_64"],
        sha256: "9fd2f4e23078df197bb76a59b9cd8f5a43a6ad2edc035edb3ecfb9042093e05a",
    },
    Package {
        spec: "onnx==1.8.1",
        options: &["--only-binary=:all:", "--python-version=38", "--platform=manylinux2010_x86_64"],
        sha256: "cd18c7499162dd2c8c7e45669f2e7096012b9054b59670c26c5f1239b5c50ce4",
    },
    Package {
        spec: "onnx==1.5.0",
        options: &["--only-binary=:all:", "--python-version=36", "--abi=cp36m", "--platform=manylinux1_x86_64"],
        sha256: "f6202b2b5e353f98cba793cc52d449e578cc242968e89a4c6cfc73fa2591e926",
    },
    Package {
        spec: "onnx==1.2.3",
        options: &["--only-binary=:all:", "--python-version=36", "--abi=cp36m", "--platform=manylinux1_x86_64"],
        sha256: "fc00c794889c473706e15294c1ff25163a4a407bbc71dc5eed426aaa24e390d6",
    },
];

/// How a case ended.
enum Outcome {
    Passed,
    /// A typed error, at import or later.
    Refused(&'static str, String),
    Wrong(String),
    Panicked(String),
}

/// Names in a list, without comments.
fn lines(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty())
}

type Archive = ZipArchive<File>;

fn read(archive: &mut Archive, name: &str) -> Option<Bytes> {
    let mut bytes = vec![];
    archive.by_name(name).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes.into())
}

/// The tensors `PREFIX_0.pb`, `PREFIX_1.pb`, … of a folder.
fn tensors(archive: &mut Archive, prefix: &str) -> Vec<TensorData> {
    let one = |i: usize| {
        let bytes = read(archive, &format!("{prefix}_{i}.pb"))?;
        Some(decode_tensor(bytes).expect("a stored tensor can be read").1)
    };
    (0..).map_while(one).collect()
}

/// Names of the inputs that stored tensors stand for, in order: the inputs without a default value
/// if that is how many there are, else the first of all inputs.
fn input_names(model: &OnnxModel, count: usize) -> (Vec<String>, Vec<String>) {
    let all: Vec<String> = model.graph.input.iter().map(|i| i.name().to_owned()).collect();
    let has_default = |name: &String| model.graph.initializer.iter().any(|t| t.name() == name);
    let required: Vec<String> = all.iter().filter(|n| !has_default(n)).cloned().collect();
    let names = if required.len() == count { required } else { all[..count].to_vec() };
    let overridden = names.iter().filter(|n| has_default(n)).cloned().collect();
    (names, overridden)
}

fn run_set(compiler: &Compiler, model: Bytes, inputs: &[TensorData], outputs: &[TensorData]) -> Outcome {
    let refused = |stage, e: &dyn std::fmt::Display| Outcome::Refused(stage, e.to_string());
    let model = match OnnxModel::decode(model, None) {
        Ok(model) => model,
        Err(e) => return refused("decode", &e),
    };
    let (names, overridden) = input_names(&model, inputs.len());
    let overridden: Vec<&str> = overridden.iter().map(String::as_str).collect();
    let options = ImportOptions { overridden: &overridden, ..ImportOptions::default() };
    let graph = match import(model, compiler.registry(), &options) {
        Ok(imported) => imported.graph,
        Err(e) => return refused("import", &e),
    };
    let named: Vec<(&str, Tensor)> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
    let got = match compiler.model(graph).run(&named) {
        Ok(got) => got,
        Err(e) => return refused("run", &e),
    };
    if got.len() != outputs.len() {
        return Outcome::Wrong(format!("{} outputs, expected {}", got.len(), outputs.len()));
    }
    let differences = got.iter().zip(outputs).filter_map(|((name, got), want)| {
        let difference = compare(&data(got), want, Tolerance::onnx(want.dtype())).err()?;
        Some(format!("output `{name}`: {difference}"))
    });
    match differences.collect::<Vec<_>>() {
        none if none.is_empty() => Outcome::Passed,
        some => Outcome::Wrong(some.join("; ")),
    }
}

/// Runs every data set of a case; the first that does not pass decides.
fn run_case(compiler: &Compiler, archive: &mut Archive, case: &str) -> Outcome {
    let folder = format!("onnx/backend/test/data/{case}");
    let Some(model) = read(archive, &format!("{folder}/model.onnx")) else {
        return Outcome::Wrong("the release has no such case".into());
    };
    for set in 0.. {
        let outputs = tensors(archive, &format!("{folder}/test_data_set_{set}/output"));
        if outputs.is_empty() {
            let nothing = || Outcome::Wrong("the case has no data".into());
            return if set == 0 { nothing() } else { Outcome::Passed };
        }
        let inputs = tensors(archive, &format!("{folder}/test_data_set_{set}/input"));
        let run = || run_set(compiler, model.clone(), &inputs, &outputs);
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Outcome::Panicked(text.unwrap_or_default())
        });
        if !matches!(outcome, Outcome::Passed) {
            return outcome;
        }
    }
    Outcome::Passed
}

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
