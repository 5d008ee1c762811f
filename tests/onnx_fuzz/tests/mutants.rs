//! Damaged models: what is not valid is refused, in processes of their own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use tensorc::{Compiler, Options};
use tensorc_frontend::onnx::proto::ModelProto;
use tensorc_onnx_fuzz::model::Stated;
use tensorc_onnx_fuzz::operators::standard_names;
use tensorc_onnx_fuzz::workers::{Campaign, Failure, corpus, mutant, run};
use tensorc_onnx_fuzz::{generate, mutate};

const MUTANTS: u64 = 400;

fn models(folder: &Path) -> Vec<&'static str> {
    let compiler = Compiler::new(Options { threads: Some(1), ..Options::default() }).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    for seed in 0..200 {
        if let (Some(model), _) = generate(seed, compiler.registry()) {
            std::fs::write(folder.join(format!("{seed:03}.onnx")), model.proto(false, Stated::Numbers).encode_to_vec())
                .unwrap();
        }
    }
    standard_names(compiler.registry())
}

fn campaign(folder: &Path) -> Campaign {
    Campaign {
        program: PathBuf::from(env!("CARGO_BIN_EXE_onnx_fuzz")),
        corpus: folder.join("models"),
        folder: folder.to_owned(),
        time: Duration::from_secs(120),
        memory: 1 << 30,
        address_space: 6 << 30,
    }
}

#[test]
fn mutants_run_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    models(&folder.path().join("models"));
    let tally = run(&campaign(folder.path()), 0, MUTANTS, |_: &Failure| {}).unwrap();
    assert!(tally.failures.is_empty(), "{:#?}", tally.failures);
    assert_eq!(tally.done + tally.refused, MUTANTS);
    assert!(tally.done > MUTANTS / 10 && tally.refused > MUTANTS / 10, "{tally:?}");
}

/// A worker that dies costs one mutant: here each dies at its first, because it may have no memory.
#[test]
fn a_worker_that_dies_is_followed_by_another() {
    let folder = tempfile::tempdir().unwrap();
    models(&folder.path().join("models"));
    let mut heard = vec![];
    // Enough to start in, too little to compile in.
    let starved = Campaign { address_space: 96 << 20, ..campaign(folder.path()) };
    let tally = run(&starved, 7, 10, |f: &Failure| heard.push(f.seed));
    // If it dies before its first mutant there is nobody to blame.
    match tally {
        Ok(tally) => {
            assert_eq!(tally.failures.len() as u64 + tally.done + tally.refused, 3);
            assert_eq!(heard.len(), tally.failures.len());
        }
        Err(error) => assert!(error.to_string().contains("worker"), "{error}"),
    }
}

#[test]
fn mutations_change_models_and_are_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let operators = models(folder.path());
    let models = corpus(folder.path()).unwrap();
    let mut changed = 0;
    for seed in 0..100 {
        let (bytes, about) = mutant(&models, seed, &operators).unwrap();
        assert_eq!((bytes.clone(), about), mutant(&models, seed, &operators).unwrap());
        changed += u64::from(models.iter().all(|m| std::fs::read(m).unwrap() != bytes));
    }
    assert!(changed > 90, "{changed}");
    // Nothing to change is no reason to panic.
    let mut empty = ModelProto::default();
    (0..50).for_each(|seed| drop(mutate(&mut empty, seed, &operators)));
}
