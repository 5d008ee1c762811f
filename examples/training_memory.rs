//! What training a symbol takes: planned bytes of intermediate tensors, with values kept and with values
//! recomputed, and the time of a step.
//!
//!     cargo run --release --example training_memory -- SYMBOL.json data=8,3,224,224 60 40 --run 3
//!
//! Numbers are budgets in percent of the memory without recomputing; `--run N` times N steps of each, `--top N` shows
//! the largest buffers where most is live.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use tensorc::abi::{Plan, StorageClass};
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DType, DenseType, TensorData};
use tensorc::passes::differentiate::differentiate;
use tensorc::passes::infer::infer_graph;
use tensorc::passes::pipeline::{CompilePhase, Pipeline};
use tensorc::passes::{Budget, PassCx};
use tensorc::schedule::plan_memory;
use tensorc::{Compiler, Options, Tensor};
use tensorc_codegen::lower::lower;
use tensorc_frontend::symbol::{InputType, Lowering, Symbol};

type Failure = Box<dyn Error>;

/// Forward and backward, as an executor that writes all gradients joins them.
fn training_graph(compiler: &Compiler, path: &str, shapes: &BTreeMap<String, Vec<u64>>) -> Result<Graph, Failure> {
    let input =
        |dims: &Vec<u64>| InputType { dtype: Some(DType::F32), dims: Some(dims.iter().map(|d| Some(*d)).collect()) };
    let types = shapes.iter().map(|(name, dims)| (name.clone(), input(dims))).collect();
    let lowering = Lowering { training: true, types, ..Lowering::default() };
    let symbol = Symbol::load(path)?;
    let mut lowered = symbol.to_graph(compiler.registry(), &lowering)?;
    let graph = &mut lowered.graph;
    let bytes = compiler.options().passes.static_bytes;
    infer_graph(graph, compiler.registry(), bytes)?;
    for node in graph.inputs().to_vec() {
        let ty = &mut graph.node_mut(node).types[0];
        ty.dtype = ty.dtype.or(Some(DType::F32));
    }
    infer_graph(graph, compiler.registry(), bytes)?;
    let inputs = graph.inputs().to_vec();
    let wanted = lowered.arguments.iter().zip(inputs);
    let wanted = wanted.filter(|(name, _)| !shapes.contains_key(*name) && !name.ends_with("label"));
    let wanted: Vec<(String, Value)> = wanted.map(|(name, node)| (name.clone(), Value { node, port: 0 })).collect();
    let mut heads = vec![];
    for (_, v) in graph.outputs().to_vec() {
        let ty = graph.dense(v)?;
        heads.push((
            v,
            Some(graph.add_const("head", TensorData::from_fn(ty.clone(), |_| Scalar::from_i64(ty.dtype, 1)))),
        ));
    }
    let first = graph.outputs().len();
    let values: Vec<Value> = wanted.iter().map(|(_, v)| *v).collect();
    let gradients = differentiate(graph, compiler.registry(), &heads, &values)?;
    for ((name, _), gradient) in wanted.into_iter().zip(gradients) {
        if let Some(v) = gradient {
            graph.add_output(format!("{name}_grad"), v);
        }
    }
    graph.set_boundary(Some(first));
    graph.remove_dead();
    Ok(lowered.graph)
}

fn compiler(recompute: Option<Budget>) -> Result<Compiler, Failure> {
    let mut options = Options::default();
    options.passes.recompute = recompute;
    Ok(Compiler::new(options)?)
}

/// The plan of a graph.
fn planned(compiler: &Compiler, graph: &Graph) -> Result<Plan, Failure> {
    let mut graph = graph.clone();
    let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
    Pipeline::to(CompilePhase::Fuse).run(&mut graph, &mut cx)?;
    let mut lowered = lower(&graph, compiler.registry().math())?;
    plan_memory(&mut lowered)?;
    Ok(lowered.plan)
}

/// The largest buffers of the arena that are live where most is: size, first and last use.
fn largest(plan: &Plan, count: usize) -> String {
    let mut lives = vec![None; plan.buffers.len()];
    for (i, step) in plan.steps.iter().enumerate() {
        for arg in step.op.args() {
            let life: &mut Option<(usize, usize)> = &mut lives[arg.buffer.0 as usize];
            *life = Some((life.map_or(i, |(first, _)| first), i));
        }
    }
    let arena = |b: &usize| matches!(plan.buffers[*b].storage, StorageClass::Arena(_));
    let live = |step: usize| -> Vec<usize> {
        let at = |b: &usize| lives[*b].is_some_and(|(first, last)| (first..=last).contains(&step));
        (0..lives.len()).filter(arena).filter(at).collect()
    };
    let bytes = |step: &usize| live(*step).iter().map(|b| plan.buffers[*b].bytes()).sum::<u64>();
    let Some(most) = (0..plan.steps.len()).max_by_key(bytes) else { return String::new() };
    let mut found = live(most);
    found.sort_by_key(|b| std::cmp::Reverse(plan.buffers[*b].bytes()));
    let mut text = format!("at step {most}, {}, of {}:\n", plan.steps[most].name, plan.steps.len());
    for b in found.into_iter().take(count) {
        let buffer = &plan.buffers[b];
        let (first, last) = lives[b].unwrap_or_default();
        let (made, used) = (&plan.steps[first].name, &plan.steps[last].name);
        text += &format!(
            "  {:>8.1} MiB {} {:?}: steps {first} ({made}) to {last} ({used})\n",
            buffer.bytes() as f64 / f64::from(1 << 20),
            buffer.name,
            buffer.dims
        );
    }
    text
}

/// The median time of a step in milliseconds.
fn timed(compiler: &Compiler, graph: &Graph, runs: usize) -> Result<f64, Failure> {
    let types = graph.inputs().iter().map(|node| graph.dense(Value { node: *node, port: 0 }));
    let types: Vec<DenseType> = types.collect::<Result<_, _>>()?;
    let element = |ty: &DenseType, i: u64| match ty.dtype {
        DType::F32 => Scalar::f32(((i * 2_654_435_761) % 1000) as f32 / 5000.0),
        dtype => Scalar::from_i64(dtype, (i % 7) as i64),
    };
    let tensor = |ty: &DenseType| {
        let data = TensorData::from_fn(ty.clone(), |i| element(ty, i));
        Tensor::from_bytes(ty.dtype, &ty.dims, data.bytes().to_vec())
    };
    let inputs: Vec<Tensor> = types.iter().map(tensor).collect::<Result<_, _>>()?;
    let mut session = compiler.model(graph.clone()).compile(&types)?;
    session.run(&inputs)?;
    let mut times = vec![];
    for _ in 0..runs {
        let start = Instant::now();
        session.run(&inputs)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: training_memory SYMBOL.json NAME=N,… [PERCENT…] [--run N] [--top N]")?;
    let (mut shapes, mut budgets, mut runs, mut top) = (BTreeMap::new(), vec![None], 0, 0);
    while let Some(arg) = args.next() {
        match arg.split_once('=') {
            Some((name, dims)) => {
                let dims: Vec<u64> = dims.split(',').map(str::parse).collect::<Result<_, _>>()?;
                shapes.insert(name.to_owned(), dims);
            }
            None if arg == "--top" => top = args.next().ok_or("--top takes a number")?.parse()?,
            None if arg == "--run" => runs = args.next().ok_or("--run takes a number")?.parse()?,
            None => budgets.push(Some(Budget::Percent(arg.parse()?))),
        }
    }
    for budget in budgets {
        let compiler = compiler(budget)?;
        let graph = training_graph(&compiler, &path, &shapes)?;
        let start = Instant::now();
        let plan = planned(&compiler, &graph)?;
        let (arena, bound, steps) = (plan.run_bytes(1), plan.run_lower_bound_bytes(1), plan.steps.len());
        let what = budget.map_or("kept".to_owned(), |budget| format!("{budget:?}"));
        let mb = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        print!("{what:<12} {:>9.1} MiB planned, lower bound {:>9.1}, {steps} steps", mb(arena), mb(bound));
        print!(", compiled in {:.1} s", start.elapsed().as_secs_f64());
        match runs {
            0 => println!(),
            _ => println!(", {:.1} ms a step", timed(&compiler, &graph, runs)?),
        }
        if top > 0 {
            print!("{}", largest(&plan, top));
        }
    }
    Ok(())
}
