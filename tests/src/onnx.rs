//! The backend test cases of the ONNX project, run in process through the public interface.
//!
//! `tests/onnx/cases.txt` and `cases_old.txt` name the cases; `tests/onnx/expected_errors.txt` names
//! those that are refused, with the reason.

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use prost::Message;
use tensorc::ir::TensorData;
use tensorc::{Compiler, Tensor};
use tensorc_frontend::onnx::proto::{TypeValue, ValueInfoProto};
use tensorc_frontend::onnx::tensor::decode_tensor;
use tensorc_frontend::onnx::{ImportOptions, OnnxError, OnnxModel, Replacements, import};
use zip::ZipArchive;

use crate::cache::Package;
use crate::compare::{Tolerance, compare, data, tensor};

/// The cases of [`CURRENT`].
pub const CASES: &str = include_str!("../onnx/cases.txt");
/// Cases of [`OLD`] releases that are others now, as `VERSION/CASE`.
pub const OLD_CASES: &str = include_str!("../onnx/cases_old.txt");
/// Cases that are refused, and why.
pub const EXPECTED_ERRORS: &str = include_str!("../onnx/expected_errors.txt");

/// The release whose cases [`CASES`] names.
pub const CURRENT: Package = Package {
    spec: "onnx==1.22.0",
    options: &["--only-binary=:all:", "--python-version=311", "--platform=manylinux_2_28_x86_64"],
    sha256: "1d0a2bdb15eb2b3cb65c438f3423d9620d14fdce32f92380e6bb1b2e09568ef5",
};

/// Releases whose cases [`OLD_CASES`] names.
pub const OLD: [Package; 5] = [
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
#[derive(Debug)]
pub enum Outcome {
    Passed,
    /// A typed error, at import or later.
    Refused(&'static str, String),
    Wrong(String),
    Panicked(String),
}

/// The folder of the cases in a release.
pub const ROOT: &str = "onnx/backend/test/data/";

/// An open release.
pub type Archive = ZipArchive<File>;

fn read(archive: &mut Archive, name: &str) -> Option<Bytes> {
    let mut bytes = vec![];
    archive.by_name(name).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes.into())
}

/// A stored sequence, or with the field of a sequence an optional one.
#[derive(Clone, PartialEq, Message)]
struct StoredList {
    /// Of a sequence its tensors, of an optional tensor that.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    tensors: Vec<Bytes>,
    /// Of an optional sequence.
    #[prost(message, optional, boxed, tag = "5")]
    sequence: Option<Box<StoredList>>,
}

/// The values `PREFIX_0.pb`, `PREFIX_1.pb`, … of a folder.
fn stored(archive: &mut Archive, prefix: &str) -> Vec<Bytes> {
    (0..).map_while(|i| read(archive, &format!("{prefix}_{i}.pb"))).collect()
}

fn decoded(bytes: Bytes) -> TensorData {
    decode_tensor(bytes).expect("a stored tensor can be read").1
}

/// The tensors of an input or output, by the names that the compiler gives them.
fn tensors(info: &ValueInfoProto, bytes: Bytes) -> Vec<(String, TensorData)> {
    let list = || StoredList::decode(bytes.clone()).expect("a stored list can be read");
    let indexed = |list: StoredList| {
        let named = |(i, tensor)| (format!("{}[{i}]", info.name()), decoded(tensor));
        list.tensors.into_iter().enumerate().map(named).collect()
    };
    let single = |list: StoredList| list.tensors.into_iter().map(|t| (info.name().to_owned(), decoded(t))).collect();
    match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Sequence(_)) => indexed(list()),
        Some(TypeValue::Optional(_)) => {
            let list = list();
            match list.sequence {
                Some(sequence) => indexed(*sequence),
                None => single(list),
            }
        }
        _ => vec![(info.name().to_owned(), decoded(bytes))],
    }
}

/// The inputs with stored values, and which of these inputs have a default value in the model. If there are
/// as many stored values as inputs without a default, these are meant, otherwise the first inputs of all.
fn inputs(model: &OnnxModel, count: usize) -> (Vec<ValueInfoProto>, Replacements) {
    let all = model.graph.input.clone();
    let has_default = |info: &ValueInfoProto| model.graph.initializer.iter().any(|t| t.name() == info.name());
    let required: Vec<ValueInfoProto> = all.iter().filter(|i| !has_default(i)).cloned().collect();
    let inputs = if required.len() == count { required } else { all[..count].to_vec() };
    let given = inputs.iter().filter(|i| has_default(i)).map(|i| i.name().to_owned()).collect();
    (inputs, Replacements { inputs: given, ..Replacements::default() })
}

fn run_set(compiler: &Compiler, bytes: Bytes, given: &[Bytes], expected: &[Bytes]) -> Outcome {
    let refused = |stage, e: &dyn std::fmt::Display| Outcome::Refused(stage, e.to_string());
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("model.onnx");
    let mut model = match OnnxModel::decode(bytes.clone(), None) {
        Ok(model) => model,
        Err(e) => return refused("decode", &e),
    };
    let (inputs, replacements) = inputs(&model, given.len());
    let values = |infos: &[ValueInfoProto], stored: &[Bytes]| -> Vec<(String, TensorData)> {
        infos.iter().zip(stored).flat_map(|(info, bytes)| tensors(info, bytes.clone())).collect()
    };
    let (inputs, outputs) = (values(&inputs, given), values(&model.graph.output, expected));
    let replaced = model.replace(&replacements);
    let model = match replaced.and_then(|()| import(model, compiler.registry(), &ImportOptions::default())) {
        Ok(imported) => compiler.model(imported.graph),
        // Inputs decide what the model is, for which the file is read again.
        Err(OnnxError::Unsupported(list)) if list.only_undecided() => {
            std::fs::write(&file, bytes).expect("a file can be written");
            match compiler.load(&file) {
                Ok(model) => model,
                Err(e) => return refused("load", &e),
            }
        }
        Err(e) => return refused("import", &e),
    };
    let named: Vec<(&str, Tensor)> = inputs.iter().map(|(name, data)| (name.as_str(), tensor(data))).collect();
    let got = match model.run(&named) {
        Ok(got) => got,
        Err(e) => return refused("run", &e),
    };
    if got.len() != outputs.len() {
        return Outcome::Wrong(format!("{} outputs, expected {}", got.len(), outputs.len()));
    }
    let differences = got.iter().zip(&outputs).filter_map(|((name, got), (expected, want))| {
        if name != expected {
            return Some(format!("output `{name}` in place of `{expected}`"));
        }
        let difference = compare(&data(got), want, Tolerance::onnx(want.dtype())).err()?;
        Some(format!("output `{name}`: {difference}"))
    });
    match differences.collect::<Vec<_>>() {
        none if none.is_empty() => Outcome::Passed,
        some => Outcome::Wrong(some.join("; ")),
    }
}

/// Runs every data set of a case; the first that does not pass decides.
pub fn run_case(compiler: &Compiler, archive: &mut Archive, case: &str) -> Outcome {
    let folder = format!("{ROOT}{case}");
    let Some(model) = read(archive, &format!("{folder}/model.onnx")) else {
        return Outcome::Wrong("the release has no such case".into());
    };
    for set in 0.. {
        let outputs = stored(archive, &format!("{folder}/test_data_set_{set}/output"));
        if outputs.is_empty() {
            let nothing = || Outcome::Wrong("the case has no data".into());
            return if set == 0 { nothing() } else { Outcome::Passed };
        }
        let inputs = stored(archive, &format!("{folder}/test_data_set_{set}/input"));
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

/// Names in a list, without comments.
pub fn lines(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty())
}
