//! Profiles of compiling and running a model.

use std::collections::BTreeMap;

use serde_json::Value;
use tensorc::runtime::Profiler;
use tensorc::runtime::profiler::EventKind;
use tensorc::{Compiler, Error, Options, Tensor};

use crate::support::backend::options;

/// Two branches, large enough to be spread over threads.
const BRANCHES: &str = "graph @main(%x: f32[256, 256], %a: f32[256, 256], %b: f32[256, 256]) {
  %left = matmul(%x, %a)
  %right = matmul(%x, %b)
  %sum = add(%left, %right)
  %y = reduce_sum(%sum)
  return %y
}";

fn run(threads: usize, profiler: &Profiler) -> Result<(Vec<u8>, Vec<String>), Error> {
    let options = Options { threads: Some(threads), profiler: Some(profiler.clone()), ..options() };
    let compiler = Compiler::new(options)?;
    let module = tensorc::ir::text::parse_module(BRANCHES, compiler.registry())?;
    let model = compiler.model(module.graphs.into_iter().next().unwrap());
    let matrix = |scale: f32| {
        let values: Vec<f32> = (0..256 * 256).map(|i| (i as f32 * scale).sin()).collect();
        Tensor::from_f32(&[256, 256], &values)
    };
    let inputs = [matrix(0.1)?, matrix(0.2)?, matrix(0.3)?];
    let types: Vec<_> = inputs.iter().map(|t| tensorc::ir::DenseType::new(t.dtype(), t.dims())).collect();
    let mut session = model.compile(&types)?;
    let steps = session.plan().steps.iter().map(|step| step.name.clone()).collect();
    Ok((session.run(&inputs)?[0].bytes().to_vec(), steps))
}

#[test]
fn profiles_hold_every_phase_and_step_and_change_no_result() {
    let off = Profiler::default();
    let (expected, steps) = run(1, &off).unwrap();
    assert_eq!(off.recording().events(), []);
    for threads in [1, 2] {
        let profiler = Profiler::default();
        profiler.start();
        assert_eq!(run(threads, &profiler).unwrap().0, expected);
        let recording = profiler.recording();
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut recorded = vec![];
        for (_, event) in recording.events() {
            assert!(matches!(event.kind, EventKind::Span { .. }));
            *counts.entry(&event.category).or_default() += 1;
            if event.category == "step" {
                recorded.extend(event.name.split(" + ").map(str::to_owned));
            }
        }
        assert_eq!(recorded, steps, "{threads} threads");
        assert_eq!(counts["run"], 1);
        let summary = recording.summary();
        for phase in ["infer", "decompose", "simplify", "fuse", "lower", "plan-memory", "codegen", "load"] {
            assert!(summary.rows.iter().any(|row| row.category == "compile" && row.name == *phase), "{phase}");
        }
        let mut text = vec![];
        recording.write_trace(&mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        for (category, count) in counts {
            let lines = trace["traceEvents"].as_array().unwrap().iter().filter(|line| line["cat"] == category);
            assert_eq!(lines.count() as u64, count, "{category}");
        }
    }
}
