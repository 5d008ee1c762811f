//! A folder of machine code that several processes fill, of which some are killed.
//!
//! The other processes are this program, asked for the test `process` alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tensorc::{Compiler, Options, Tensor};

use crate::support::backend::options;
use crate::support::examples;

/// Of the environment of the other processes: the folder of code, and the file for the results.
const FOLDER: &str = "TENSORC_TEST_CODE_FOLDER";
const RESULTS: &str = "TENSORC_TEST_RESULTS";

/// The bits of the results of some models, which have some dozens of kernels.
fn results(folder: Option<PathBuf>) -> Vec<u8> {
    let compiler = Compiler::new(Options { code_cache: folder, threads: Some(2), ..options() }).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let mut bits = vec![];
    for batch in 1..=12u64 {
        let pixels: Vec<f32> = (0..batch * 64).map(|i| ((i * 37) % 17) as f32).collect();
        let image = Tensor::from_f32(&[batch, 1, 8, 8], &pixels).unwrap();
        model.run(&[("image", image)]).unwrap().iter().for_each(|(_, tensor)| bits.extend(tensor.bytes()));
    }
    assert_eq!(compiler.code_cache_failure(), None);
    bits
}

#[test]
fn process() {
    if let (Some(folder), Some(file)) = (std::env::var_os(FOLDER), std::env::var_os(RESULTS)) {
        std::fs::write(file, results(Some(folder.into()))).unwrap();
    }
}

fn start(folder: &Path, results: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["code_cache::process", "--exact"]).env(FOLDER, folder).env(RESULTS, results);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The records of a folder, by name; what else is there must be of processes that were killed.
fn records(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut records = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".tccode") {
            records.insert(name.clone(), std::fs::read(folder.join(name)).unwrap());
        } else {
            assert!(name.ends_with(".tcpart"), "{name}");
        }
    }
    records
}

#[test]
fn processes_fill_one_folder_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("code");
    let expected = results(None);
    let files: Vec<PathBuf> = (0..4).map(|i| dir.path().join(i.to_string())).collect();
    let processes: Vec<Child> = files.iter().map(|file| start(&folder, file)).collect();
    for (mut process, file) in processes.into_iter().zip(&files) {
        assert!(process.wait().unwrap().success());
        assert!(std::fs::read(file).unwrap() == expected, "other bits");
    }
    let filled = records(&folder);
    assert!(filled.len() > 10, "{} records", filled.len());
    // The same kernels give the same records, whoever was last; and nothing is new to another process.
    assert!(results(Some(folder.clone())) == expected);
    assert!(records(&folder) == filled);
    let alone = dir.path().join("alone");
    assert!(results(Some(alone.clone())) == expected);
    assert!(records(&alone) == filled);
}

#[test]
fn processes_that_are_killed_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("code"), dir.path().join("results"));
    let expected = results(None);
    for pause in 0..20 {
        let mut process = start(&folder, &file);
        std::thread::sleep(Duration::from_millis(5 + 7 * pause));
        // It may have ended.
        let _ = process.kill();
        process.wait().unwrap();
    }
    assert!(results(Some(folder.clone())) == expected, "other bits");
    let whole = records(&folder);
    // What a crash of the system leaves: records that are cut, empty or full of zeros.
    for (i, (name, record)) in whole.iter().enumerate() {
        let left = match i % 3 {
            0 => record[..record.len() / 2].to_vec(),
            1 => vec![],
            _ => vec![0; record.len()],
        };
        std::fs::write(folder.join(name), left).unwrap();
    }
    assert!(results(Some(folder.clone())) == expected, "other bits from damaged records");
    assert!(records(&folder) == whole, "damaged records are made anew");
}

#[test]
fn a_folder_that_cannot_be_made_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let compiler = Compiler::new(Options { code_cache: Some(file.join("code")), ..options() }).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let image = Tensor::from_f32(&[1, 1, 8, 8], &[0.5; 64]).unwrap();
    model.run(&[("image", image)]).unwrap();
    let failure = compiler.code_cache_failure().unwrap();
    assert!(failure.contains("no more code is stored in ") && failure.contains("file/code: "), "{failure}");
}
