//! Kernels for GPUs that take their sizes: compiled once, launched for many shapes, with the bits of kernels for one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorc::ir::kir::Kernel;
use tensorc::passes::infer::{bind, infer_graph};
use tensorc::runtime::Device as Place;
use tensorc::{Backend, Compiler, Options, Specialize};
use tensorc_simulator::CountingDriver;
use tensorc_tests::cache::visible;
use tensorc_tests::corpus::open::programs;
use tensorc_tests::corpus::{Case, compiler, inputs};
use tensorc_tests::launches::{Recorder, Repeated};

use crate::open_shapes::types;
use crate::support::agrees;

/// Bytes of a launch beyond which it is not repeated as PTX.
const MAX_REPEATED: usize = 20_000;

/// A further shape loads no code. Kernels are executed in KIR against the reference, and with LLVM also in PTX, which has the same bits:
/// one text for all shapes.
#[test]
fn kernels_compute_for_many_shapes() {
    let driver = CountingDriver::new(tensorc_simulator::interpreted(Place::accelerator(0)));
    let counts = driver.counts.clone();
    let recorder = Recorder::new(Arc::new(driver));
    let compiler = compiler(Some(recorder.clone()), false).unwrap();
    let alone = Options { gpus: vec![tensorc_simulator::interpreted(Place::accelerator(0))], ..Options::default() };
    let alone = Compiler::new(Options { specialize: Specialize::Always, ..alone }).unwrap();
    let (mut texts, mut repeated): (HashMap<Kernel, Repeated>, u64) = Default::default();
    let (mut found, mut expected) = (vec![], vec![]);
    for program in programs(compiler.registry()) {
        let model = compiler.model(program.graph.clone());
        let mut compiled = 0;
        for (seed, extents) in program.extents.iter().enumerate() {
            let mut graph = program.graph.clone();
            bind(&mut graph, &types(&program.graph, extents)).unwrap();
            infer_graph(&mut graph, compiler.registry(), compiler.options().passes.static_bytes).unwrap();
            let (name, inputs) = (format!("{} {extents:?}", program.name), inputs(&graph, seed as u64));
            let case = Case { name, graph, tf32: false, inputs };
            let loads = counts.loads.load(Ordering::Relaxed);
            let outputs = case.run_as(&model).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            compiled += usize::from(counts.loads.load(Ordering::Relaxed) > loads);
            agrees(&case, compiler.registry(), &outputs);
            let for_one = case.run_as(&alone.model(program.graph.clone())).unwrap();
            assert_eq!(outputs, for_one, "{}: other bits than those of kernels for one shape", case.name);
            for launch in recorder.take() {
                let (Some(kernel), true) = (launch.kernel.clone(), Backend::has_llvm()) else { continue };
                if launch.before.iter().map(Vec::len).sum::<usize>() > MAX_REPEATED {
                    continue;
                }
                let text = texts.entry(kernel.canonical()).or_insert_with(|| Repeated::alone(&kernel).unwrap());
                text.check_alone(&case.name, &kernel, &launch, repeated);
                repeated += 1;
            }
        }
        found.push((program.name.clone(), compiled));
        expected.push((program.name, program.compiled));
    }
    assert_eq!(found, expected);
    visible(&format!("gpu: {repeated} launches of {} kernels for many shapes have the same bits as PTX", texts.len()));
}
