//! Random graphs of operators: whatever the options and the number of threads, compiled code
//! computes what the reference interpreter does, and compiling is reproducible.
//!
//! A graph is grown from a list of numbers, one for each node, of which every prefix is a graph
//! too; so a failing list shrinks to few nodes. Seeds are fixed.

mod attention;
mod growth;
mod parts;
mod prologues;
mod states;

use std::cell::Cell;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tensorc::runtime::{Bindings, Context, Pool, TensorMut, TensorRef};
use tensorc::{Compiler, Options, Program, Tensor};
use tensorc_codegen::lower::lower;
use tensorc_ir::TensorData;
use tensorc_ir::graph::Graph;
use tensorc_ir::interp::{eval_graph, eval_step};
use tensorc_ir::op::Registry;
use tensorc_ir::text::{PrintOptions, print_graph, print_kernel, print_plan};
use tensorc_ir::verify::{Stage, verify_graph};
use tensorc_passes::Budget;
use tensorc_passes::FusionStrategy;
use tensorc_passes::manager::{Pass, PassCx};
use tensorc_passes::pipeline::{CompilePhase, Pipeline};
use tensorc_passes::recompute::Recompute;
use tensorc_random::Rng;
use tensorc_schedule::lowered::Lowered;
use tensorc_schedule::plan_memory;
use tensorc_tests::compare::{Tolerance, compare, data, tensor};

use crate::support::backend::options;
use growth::{grow, inputs_for};

/// Graphs of the first test; the others grow fractions of it. `TENSORC_GRAPHS` gives another number.
static GRAPHS: LazyLock<u32> = LazyLock::new(|| match std::env::var("TENSORC_GRAPHS") {
    Ok(number) => number.parse().unwrap_or_else(|_| panic!("TENSORC_GRAPHS={number} is no number")),
    Err(_) => 1500,
});
const SEED: [u8; 32] = *b"tensorc differential random test";

fn compiler(threads: usize, fuse: FusionStrategy) -> Compiler {
    let mut options = Options { threads: Some(threads), poison: true, ..options() };
    options.passes.fuse = fuse;
    Compiler::new(options).unwrap()
}

/// One thread, two threads, and with less fusion.
static COMPILERS: LazyLock<[(&str, Compiler); 4]> = LazyLock::new(|| {
    [
        ("one thread", compiler(1, FusionStrategy::Alternatives)),
        ("two threads", compiler(2, FusionStrategy::Alternatives)),
        ("greedy fusion", compiler(2, FusionStrategy::Greedy)),
        ("no fusion", compiler(2, FusionStrategy::Off)),
    ]
});

/// The two ways to fuse, where nothing may change the order of additions.
static EXACT: LazyLock<[Compiler; 2]> = LazyLock::new(|| {
    [FusionStrategy::Greedy, FusionStrategy::Alternatives].map(|by| {
        let mut options = Options { threads: Some(2), ..options() };
        options.passes.fuse = by;
        options.passes.reassociate = false;
        Compiler::new(options).unwrap()
    })
});

/// Bits of values, all NaNs alike.
fn bits(tensor: &TensorData) -> Vec<u64> {
    tensor.to_f64s().into_iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect()
}

#[test]
fn both_ways_to_fuse_give_the_same_bits_under_the_exact_label() {
    let registry = tensorc_ops::registry().unwrap();
    let different = Cell::new(0);
    let result = runner(*GRAPHS / 2).run(&graphs(), |choices| {
        let graph = grow(&choices, &registry);
        let inputs = inputs_for(&graph, 5);
        let fused = |compiler| counted(compiler, &graph, &inputs).map_err(TestCaseError::fail);
        let ((greedy, steps), (best, fewer)) = (fused(&EXACT[0])?, fused(&EXACT[1])?);
        prop_assert!(greedy.iter().zip(&best).all(|(g, b)| bits(g) == bits(b)), "{}", shown(&graph));
        different.set(different.get() + u32::from(steps != fewer));
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    assert!(different.get() > 0, "all plans were equally long");
}

/// Outputs of a compiled graph, and the number of steps of its plan.
fn counted(compiler: &Compiler, graph: &Graph, inputs: &[TensorData]) -> Result<(Vec<TensorData>, usize), String> {
    let types: Vec<_> = inputs.iter().map(|t| t.ty.clone()).collect();
    let tensors: Vec<Tensor> = inputs.iter().map(tensor).collect();
    let mut session = compiler.model(graph.clone()).compile(&types).map_err(|e| e.to_string())?;
    let outputs = session.run(&tensors).map_err(|e| e.to_string())?;
    Ok((outputs.iter().map(data).collect(), session.plan().steps.len()))
}

fn run(compiler: &Compiler, graph: &Graph, inputs: &[TensorData]) -> Result<Vec<TensorData>, String> {
    let model = compiler.model(graph.clone());
    let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    let named: Vec<(&str, Tensor)> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
    let outputs = model.run(&named).map_err(|e| e.to_string())?;
    Ok(outputs.iter().map(|(_, t)| data(t)).collect())
}

/// Sums in another order, over values near 1: relative to the greatest magnitude.
fn tolerance(want: &TensorData) -> Tolerance {
    let greatest = want.to_f64s().into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(1.0, f64::max);
    let relative = if want.dtype().is_float() { 2e-5 } else { 0.0 };
    Tolerance { absolute: relative * greatest, relative }
}

fn agree(graph: &Graph, seed: u64) -> Result<(), String> {
    let inputs = inputs_for(graph, seed);
    let want = eval_graph(graph, COMPILERS[0].1.registry(), &inputs).map_err(|e| format!("interpreter: {e}"))?;
    let mut one_thread = None;
    for (what, compiler) in COMPILERS.iter() {
        let got = run(compiler, graph, &inputs).map_err(|e| format!("{what}: {e}"))?;
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            compare(got, want, tolerance(want)).map_err(|e| format!("{what}: output {i}: {e}"))?;
        }
        match (*what, &one_thread) {
            ("one thread", _) => one_thread = Some(got),
            ("two threads", Some(first)) if *first != got => return Err("two threads: other bits than one".into()),
            _ => {}
        }
    }
    Ok(())
}

/// The graph after all passes, and what it is lowered to.
fn lowered(graph: &Graph) -> Result<(Graph, Lowered), String> {
    let registry = tensorc_ops::registry()?;
    let mut graph = graph.clone();
    let mut cx = PassCx::new(&registry);
    Pipeline::to(CompilePhase::Fuse).run(&mut graph, &mut cx).map_err(|e| e.to_string())?;
    let mut lowered = lower(&graph, registry.math()).map_err(|e| e.to_string())?;
    plan_memory(&mut lowered).map_err(|e| e.to_string())?;
    Ok((graph, lowered))
}

/// Everything that is decided when a graph is compiled, as text.
fn compiled_text(graph: &Graph) -> Result<String, String> {
    let (graph, lowered) = lowered(graph)?;
    let kernels: Vec<String> = lowered.kernels.iter().map(print_kernel).collect();
    Ok(format!("{}{}{}", print_graph(&graph, &PrintOptions::default()), print_plan(&lowered.plan), kernels.concat()))
}

static POOLS: LazyLock<[Pool; 3]> = LazyLock::new(|| [1, 2, 3].map(|threads| Pool::new(threads).unwrap()));

/// Runs the graph with every step cut into as many parts as it can be, and whatever can run side by
/// side doing so, on pools of several sizes.
fn agree_in_parts(graph: &Graph) -> Result<(), String> {
    let (_, mut lowered) = lowered(graph)?;
    // Steps are cut by the work they claim to have.
    lowered.plan.steps.iter_mut().for_each(|step| step.flops = 1 << 40);
    let program = Program::from_lowered(&COMPILERS[0].1, lowered).map_err(|e| e.to_string())?;
    let executable = program.executable();
    let inputs = inputs_for(graph, 7);
    let inputs: Vec<_> = inputs.iter().map(|t| TensorRef::new(t.ty.dtype, &t.ty.dims, t.bytes())).collect();
    let run = |pool: &Pool| {
        let plan = executable.plan();
        let buffers: Vec<_> = plan.outputs.iter().map(|id| plan.buffer(*id)).collect();
        let mut data: Vec<Vec<u8>> = buffers.iter().map(|buffer| vec![0; buffer.bytes() as usize]).collect();
        let pairs = buffers.iter().zip(&mut data);
        let mut outputs: Vec<_> = pairs.map(|(b, data)| TensorMut::new(b.dtype, &b.dims, data)).collect();
        let mut context = Context::new(executable.clone(), pool).map_err(|e| e.to_string())?;
        context.run(pool, Bindings::new(&inputs, &mut outputs)).map_err(|e| e.to_string())?;
        Ok::<_, String>(data)
    };
    let first = run(&POOLS[0])?;
    for pool in &POOLS[1..] {
        if run(pool)? != first {
            return Err(format!("{} threads: other bits than one", pool.threads()));
        }
    }
    Ok(())
}

/// A graph with updates gives what the interpreter does, on one thread and in parts on two, at once
/// and phase by phase.
fn agree_with_updates(graph: &Graph, registry: &Registry) -> Result<(), String> {
    let inputs = inputs_for(graph, 7);
    let (outputs, next) = eval_step(graph, registry, &inputs).map_err(|e| format!("interpreter: {e}"))?;
    let (_, mut lowered) = lowered(graph)?;
    lowered.plan.steps.iter_mut().for_each(|step| step.flops = 1 << 40);
    let two_phases = lowered.plan.boundary.is_some();
    let program = Program::from_lowered(&COMPILERS[0].1, lowered).map_err(|e| e.to_string())?;
    let executable = program.executable();
    let first = states::run(executable, graph, &POOLS[0], &inputs, false)?;
    for (i, (got, want)) in first.iter().zip(outputs.iter().chain(&next)).enumerate() {
        let got = TensorData::new(want.ty.clone(), got.clone().into()).ok_or("a result of another size")?;
        compare(&got, want, tolerance(want)).map_err(|e| format!("result {i} of {}: {e}", outputs.len()))?;
    }
    for pool in &POOLS[..2] {
        for by_phase in [false, true] {
            if (two_phases || !by_phase) && states::run(executable, graph, pool, &inputs, by_phase)? != first {
                return Err(format!("{} threads, phase by phase: {by_phase}: other bits", pool.threads()));
            }
        }
    }
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &SEED))
}

fn graphs() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 1..16)
}

fn shown(graph: &Graph) -> String {
    print_graph(graph, &PrintOptions::default())
}

#[test]
fn compiled_graphs_agree_with_the_interpreter() {
    let registry = tensorc_ops::registry().unwrap();
    let result = runner(*GRAPHS).run(&graphs(), |choices| {
        let graph = grow(&choices, &registry);
        agree(&graph, 7).map_err(|why| TestCaseError::fail(format!("{why}\n{}", shown(&graph))))
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}

#[test]
fn parts_of_steps_on_several_threads_give_the_same_bits() {
    let registry = tensorc_ops::registry().unwrap();
    let result = runner(*GRAPHS / 4).run(&graphs(), |choices| {
        let graph = grow(&choices, &registry);
        agree_in_parts(&graph).map_err(|why| TestCaseError::fail(format!("{why}\n{}", shown(&graph))))
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}

#[test]
fn graphs_with_updates_and_phases_agree_with_the_interpreter() {
    let registry = tensorc_ops::registry().unwrap();
    let changing = Cell::new(0);
    let result = runner(*GRAPHS / 4).run(&(graphs(), any::<u64>()), |(choices, seed)| {
        let mut graph = grow(&choices, &registry);
        states::add_updates(&mut graph, &registry, &mut Rng::new(seed));
        changing.set(changing.get() + u32::from(states::changes_states(&graph)));
        agree_with_updates(&graph, &registry).map_err(|why| TestCaseError::fail(format!("{why}\n{}", shown(&graph))))
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    assert!(changing.get() > *GRAPHS / 8, "{} graphs changed states", changing.get());
}

/// Recomputing keeps every bit of what a graph means, and saves memory or does nothing.
fn agree_when_recomputing(graph: &Graph, registry: &Registry) -> Result<bool, String> {
    let inputs = inputs_for(graph, 7);
    let passes = |recompute: Option<Budget>| {
        let mut graph = graph.clone();
        let mut cx = PassCx::new(registry).with_options(tensorc_passes::Options { recompute, ..Default::default() });
        Pipeline::to(CompilePhase::Simplify).run(&mut graph, &mut cx).map_err(|e| e.to_string())?;
        let changed = Recompute::default().run(&mut graph, &mut cx).map_err(|e| e.to_string())?;
        verify_graph(&graph, Stage::Primitive).map_err(|e| e.to_string())?;
        let values = eval_step(&graph, registry, &inputs).map_err(|e| e.to_string())?;
        Ok::<_, String>((values, changed))
    };
    let (kept, again) = (passes(None)?, passes(Some(Budget::Percent(0)))?);
    if kept.0 != again.0 || kept.1 {
        return Err("recomputing changes the values".into());
    }
    let want = eval_step(graph, registry, &inputs).map_err(|e| e.to_string())?.0;
    let mut bytes = vec![];
    for compiler in [&COMPILERS[0].1, &*RECOMPUTING] {
        let types: Vec<_> = inputs.iter().map(|t| t.ty.clone()).collect();
        let mut session = compiler.model(graph.clone()).compile(&types).map_err(|e| e.to_string())?;
        bytes.push(session.plan().run_lower_bound_bytes(1));
        let tensors: Vec<Tensor> = inputs.iter().map(tensor).collect();
        for (i, (got, want)) in session.run(&tensors).map_err(|e| e.to_string())?.iter().zip(&want).enumerate() {
            let want = want.clone();
            compare(&data(got), &want, tolerance(&want)).map_err(|e| format!("output {i}: {e}"))?;
        }
    }
    match bytes[1] <= bytes[0] {
        true => Ok(bytes[1] < bytes[0]),
        false => Err(format!("{} bytes, {} with recomputing", bytes[0], bytes[1])),
    }
}

static RECOMPUTING: LazyLock<Compiler> = LazyLock::new(|| {
    let mut options = Options { threads: Some(1), ..options() };
    options.passes.recompute = Some(Budget::Percent(0));
    Compiler::new(options).unwrap()
});

#[test]
fn recomputing_keeps_values_and_never_takes_more_memory() {
    let registry = tensorc_ops::registry().unwrap();
    let saved = Cell::new(0);
    let choices = prop::collection::vec(any::<u32>(), 6..24);
    let result = runner(*GRAPHS / 10).run(&choices, |choices| {
        let mut graph = grow(&choices, &registry);
        if !states::add_backward(&mut graph, &registry) {
            return Ok(());
        }
        let less = agree_when_recomputing(&graph, &registry)
            .map_err(|why| TestCaseError::fail(format!("{why}\n{}", shown(&graph))))?;
        saved.set(saved.get() + u32::from(less));
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    assert!(saved.get() > *GRAPHS / 100, "{} plans became smaller", saved.get());
}

#[test]
fn compiling_twice_gives_the_same_plan_and_kernels() {
    let registry = tensorc_ops::registry().unwrap();
    let result = runner(*GRAPHS / 4).run(&graphs(), |choices| {
        let graph = grow(&choices, &registry);
        let text = || compiled_text(&graph).map_err(TestCaseError::fail);
        let first = text()?;
        prop_assert!(first.contains("plan"), "nothing was printed");
        prop_assert!(first == text()?, "{}", shown(&graph));
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}

/// The generator reaches every kind of node, so that agreement says something.
#[test]
fn random_graphs_hold_every_kind_of_node() {
    let registry = tensorc_ops::registry().unwrap();
    let mut rng = Rng::new(1);
    let graphs: Vec<String> = (0..200)
        .map(|_| {
            let choices: Vec<u32> = (0..16).map(|_| rng.next_u64() as u32).collect();
            shown(&grow(&choices, &registry))
        })
        .collect();
    for kind in growth::KINDS {
        assert!(
            graphs.iter().any(|g| ["(", "{", " unchecked("].iter().any(|end| g.contains(&format!(" {kind}{end}")))),
            "{kind}"
        );
    }
}
