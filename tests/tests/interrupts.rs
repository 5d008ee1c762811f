//! Compilations and runs that their caller ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorc::ir::diag::DiagnosticCode;
use tensorc::ir::text::parse_module;
use tensorc::runtime::plan::RunError;
use tensorc::runtime::{Interrupter, TensorRef};
use tensorc::{Compiler, Error, Model, Options};

use crate::support::backend::options;

fn model(text: &str, threads: usize, wants_end: impl Fn() -> bool + Send + Sync + 'static) -> Model {
    let interrupter = Some(Interrupter::new(wants_end));
    let compiler = Compiler::new(Options { interrupter, threads: Some(threads), ..options() }).unwrap();
    compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0))
}

/// It takes about a minute: elements of a sum with an exponential for each of 2^36 pairs.
const PAIRS: &str = "graph @pairs(%x: f32[262144, 1], %y: f32[1, 262144]) {\n  %d = sub(%x, %y)\n  %e = exp(%d)\n  %a = const i64[1] [1]\n  %s = reduce_sum(%e, %a)\n  return %s\n}\n";

fn run(model: &Model) -> Result<(), Error> {
    let zeros = vec![0f32; 262_144];
    let x = TensorRef::from_slice(&[262_144, 1], &zeros);
    model.run_on(&[("x", x), ("y", TensorRef::from_slice(&[1, 262_144], &zeros))]).map(|_| ())
}

#[test]
fn a_run_ends_when_its_caller_wants_it() {
    for threads in [1, 2] {
        let (asked, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, begun) = (asked.clone(), running.clone());
        let wants_end = move || begun.load(Ordering::Relaxed) && count.fetch_add(1, Ordering::Relaxed) >= 20;
        let model = model(PAIRS, threads, wants_end);
        model.prepare().unwrap();
        running.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let error = run(&model).unwrap_err();
        assert!(matches!(error, Error::Run(RunError::Interrupted { .. })), "{error}");
        assert!(error.to_string().ends_with("the run was interrupted"), "{error}");
        // Not how long it takes, but that it is not all of it.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert!(asked.load(Ordering::Relaxed) >= 20);
    }
}

#[test]
fn a_compilation_ends_when_its_caller_wants_it() {
    let Err(Error::Diagnostic(error)) = model(PAIRS, 1, || true).prepare() else { panic!("it was compiled") };
    assert_eq!(error.code, DiagnosticCode::Limit);
    assert!(error.message.starts_with("compiling was interrupted after "), "{error}");
}

#[test]
fn results_have_the_same_bits_whether_the_caller_is_asked_or_not() {
    let text = "graph @all(%x: f32[?n, 300], %w: f32[300, 200]) {\n  %y = matmul(%x, %w)\n  %z = softmax(%y)\n  return %z\n}\n";
    let values = |count: usize| (0..count).map(|i| (i % 17) as f32 * 0.1 - 0.7).collect::<Vec<f32>>();
    let (x, w) = (values(64 * 300), values(300 * 200));
    let run = |model: &Model| {
        let inputs = [("x", TensorRef::from_slice(&[64, 300], &x)), ("w", TensorRef::from_slice(&[300, 200], &w))];
        model.run_on(&inputs).unwrap().remove(0).bytes().to_vec()
    };
    let compiler = Compiler::new(options()).unwrap();
    let plain = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    for threads in [1, 3] {
        assert_eq!(run(&model(text, threads, || false)), run(&plain), "{threads} threads");
    }
}
