//! A part of a model, compiled pass by pass: its steps, its memory, and times if they are wanted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::Serialize;
use tensorc_abi::{Arg, Plan};
use tensorc_ir::graph::{Graph, NodeId, NodeKind};
use tensorc_ir::prim::Prim;
use tensorc_passes::{CompilePhase, Pipeline};
use tensorc_runtime::roofline::Roofline;
use tensorc_runtime::{TensorMut, TensorRef};
use tensorc_schedule::lowered::Lowered;

use super::nodes::UserGraph;
use super::passes::{self, PassRecord};
use super::strings::{Names, Strings};
use crate::compile::{Report, lower, pass_context};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::inspect::lives::lives;
use crate::inspect::step_text;
use crate::outputs::OutputMemory;
use crate::program::Program;
use crate::session::{RunMemory, SessionCode, Signature};
use crate::tensor::Tensor;

/// Runs before times are taken.
const WARM_UP: u32 = 2;

/// A part of the model as the page shows it.
#[derive(Serialize)]
pub(super) struct PartRecord {
    pub steps: Steps,
    pub memory: Memory,
    pub passes: Vec<PassRecord>,
    /// Phases of compiling behind the passes, in milliseconds, and the median time of a run.
    pub phases: Vec<(String, f64)>,
    pub run_ms: Option<f64>,
    /// Nodes that the host computes after it.
    pub hosts: Vec<u32>,
}

/// Steps of a plan, in columns.
#[derive(Default, Serialize)]
pub(super) struct Steps {
    names: Names,
    /// What it does, by position in the table of texts.
    pub kinds: Vec<u32>,
    pub flops: Vec<u64>,
    pub bytes: Vec<u64>,
    /// Median time in nanoseconds.
    pub ns: Vec<u64>,
    /// The share of what the roofline allows, in thousandths.
    pub shares: Vec<Option<u32>>,
    /// Nodes of the user's model that it computes.
    pub nodes: Vec<Vec<u32>>,
    /// Types of what it reads and writes.
    reads: Vec<Vec<u32>>,
    writes: Vec<Vec<u32>>,
    #[serde(skip)]
    pub labels: Vec<String>,
}

/// The memory plan: buffers in columns, in the order of addresses.
#[derive(Default, Serialize)]
pub(super) struct Memory {
    /// Bytes for a run, and the least that they could be in this order of steps.
    pub bytes: u64,
    pub bound: u64,
    /// Bytes of weights as the kernels read them.
    pub weights: u64,
    names: Names,
    pub sizes: Vec<u64>,
    pub offsets: Vec<u64>,
    pub first: Vec<usize>,
    pub last: Vec<usize>,
    #[serde(skip)]
    pub labels: Vec<String>,
}

impl Memory {
    fn of(plan: &Plan, workers: usize) -> Memory {
        let all = lives(plan, workers);
        Memory {
            bytes: plan.run_bytes(workers),
            bound: plan.run_lower_bound_bytes(workers),
            weights: plan.weight_bytes(),
            names: all.iter().map(|life| life.name).collect(),
            sizes: all.iter().map(|life| life.bytes).collect(),
            offsets: all.iter().map(|life| life.offset).collect(),
            first: all.iter().map(|life| life.first).collect(),
            last: all.iter().map(|life| life.last).collect(),
            labels: all.iter().map(|life| life.name.to_owned()).collect(),
        }
    }
}

impl Steps {
    fn of(plan: &Plan, computes: Vec<Vec<u32>>, strings: &mut Strings) -> Steps {
        let labels: Vec<String> = plan.steps.iter().map(|step| step.name.clone()).collect();
        let mut steps = Steps { names: labels.iter().collect(), labels, nodes: computes, ..Steps::default() };
        for step in &plan.steps {
            steps.kinds.push(strings.of(&step_text(plan, &step.op)));
            steps.flops.push(step.flops);
            steps.bytes.push(step.bytes);
            let args = step.op.args();
            let mut types = |writes: bool| {
                let of = args.iter().filter(|arg| arg.writes == writes);
                of.map(|arg| strings.of(&buffer_type(plan, arg))).collect::<Vec<u32>>()
            };
            let (reads, writes) = (types(false), types(true));
            steps.reads.push(reads);
            steps.writes.push(writes);
        }
        steps
    }
}

fn buffer_type(plan: &Plan, arg: &Arg) -> String {
    let buffer = plan.buffer(arg.buffer);
    let dims: Vec<String> = buffer.dims.iter().map(u64::to_string).collect();
    format!("{}[{}]", buffer.dtype.name(), dims.join(", "))
}

impl Steps {
    /// Sets the shares of what a machine allows.
    pub fn compare_with(&mut self, roofline: &Roofline) {
        let of = |i: usize| share(roofline, self.flops[i], self.bytes[i], self.ns[i]);
        self.shares = (0..self.ns.len()).map(|i| of(i).map(|share| (share * 1e3).round() as u32)).collect();
    }
}

/// The share of what the roofline allows that a step of so many operations and bytes reaches.
fn share(roofline: &Roofline, flops: u64, bytes: u64, ns: u64) -> Option<f64> {
    let seconds = ns as f64 / 1e9;
    let (flops, bytes) = (flops as f64, bytes as f64);
    let least = (bytes / roofline.memory).max(roofline.flops.map_or(0.0, |most| flops / most));
    (seconds > 0.0 && least > 0.0).then_some(least / seconds)
}

/// What is measured: the inputs of the part, and how often it runs.
pub(super) struct Measured {
    pub inputs: Vec<Tensor>,
    pub repeat: u32,
}

/// Compiles a part whose types are known.
///
/// # Errors
/// As [`Program::compile`] and [`crate::Session::run`].
pub(super) fn compile(
    compiler: &Compiler,
    typed: Graph,
    measured: Option<Measured>,
    user: &UserGraph,
    strings: &mut Strings,
) -> Result<PartRecord, Error> {
    let deadline = compiler.deadline();
    let (signature, mut graph, pipeline) = (Signature::of(&typed), typed, Pipeline::to(CompilePhase::Plan));
    let stop = || deadline.passed();
    let mut cx = pass_context(compiler, &stop);
    let passes = passes::run(&pipeline, &mut graph, &mut cx, user, measured.is_some())?;
    let mut phases = vec![];
    let lowered = lower(compiler, &graph, compiler.choices(), pipeline.end, &mut |step, time, _| {
        phases.push((step.to_owned(), milliseconds(time)));
        Ok(())
    })?;
    let (workers, on_gpu) = (compiler.pool().threads(), compiler.gpu().is_some());
    compiler.options().limits.admit_plan(&lowered.plan, workers, on_gpu)?;
    let computes = lowered.nodes.iter().map(|node| members(&graph, *node, user)).collect();
    let mut steps = Steps::of(&lowered.plan, computes, strings);
    let memory = Memory::of(&lowered.plan, workers);
    let run_ms = match measured {
        None => {
            phases.clear();
            None
        }
        Some(measured) => {
            let (ns, run, report) = measure(compiler, lowered, signature, &measured)?;
            steps.ns = ns;
            phases.extend(report.timings.iter().map(|(name, time)| (name.clone(), milliseconds(*time))));
            Some(milliseconds(run))
        }
    };
    Ok(PartRecord { steps, memory, passes, phases, run_ms, hosts: vec![] })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The nodes of the user's model that a node of the fused graph computes, by the names of what it holds.
fn members(graph: &Graph, node: NodeId, user: &UserGraph) -> Vec<u32> {
    let mut found = BTreeSet::new();
    collect(graph, node, user, &mut found);
    found.into_iter().collect()
}

fn collect(graph: &Graph, node: NodeId, user: &UserGraph, found: &mut BTreeSet<u32>) {
    let n = graph.node(node);
    if matches!(n.kind, NodeKind::Input) {
        return;
    }
    found.extend(user.named(&n.name));
    if let NodeKind::Fused(fused) = &n.kind {
        let computed =
            fused.body.node_ids().into_iter().filter(|id| matches!(fused.body.node(*id).kind, NodeKind::Prim(_)));
        for id in computed {
            found.extend(user.named(&fused.body.node(id).name));
        }
    }
    if let NodeKind::Prim(Prim::Flow(flow)) = &n.kind {
        for body in &flow.bodies {
            body.node_ids().into_iter().for_each(|id| collect(body, id, user, found));
        }
    }
}

/// Median times of steps, each run by itself, and of whole runs.
fn measure(
    compiler: &Compiler,
    lowered: Lowered,
    signature: Signature,
    measured: &Measured,
) -> Result<(Vec<u64>, Duration, Report), Error> {
    compiler.progress("measure");
    let code = SessionCode::linked(Program::from_lowered(compiler, lowered)?, signature);
    let report = code.program.report().clone();
    let mut memory = code.memory()?;
    let inputs: Vec<TensorRef<'_>> = measured.inputs.iter().map(Tensor::as_ref).collect();
    let (mut runs, mut profiles) = (vec![], vec![]);
    OutputMemory::new(1).with(code.plan(), |outputs| {
        for i in 0..WARM_UP + measured.repeat {
            let start = Instant::now();
            code.execute(&mut memory, &inputs, outputs)?;
            if i >= WARM_UP {
                runs.push(start.elapsed());
            }
        }
        for _ in 0..measured.repeat {
            profiles.push(profile(&code, &mut memory, &inputs, outputs)?);
        }
        Ok(())
    })?;
    let of_step = |i: usize| median(profiles.iter().map(|times| times[i]).collect()).as_nanos() as u64;
    Ok(((0..code.plan().steps.len()).map(of_step).collect(), median(runs), report))
}

fn profile(
    code: &SessionCode,
    memory: &mut RunMemory,
    inputs: &[TensorRef<'_>],
    outputs: &mut [TensorMut<'_>],
) -> Result<Vec<Duration>, Error> {
    let pool = code.program.compiler().pool();
    code.bound(memory, inputs, outputs, |context, bindings| context.run_profiled(None, pool, bindings))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_lower_roof() {
        let roofline = Roofline { flops: Some(100e9), memory: 10e9, cache: 50e9, threads: 1 };
        // 1000 operations take 10 ns at least, 1000 bytes 100 ns.
        assert_eq!(share(&roofline, 1000, 1000, 200), Some(0.5));
        assert_eq!(share(&roofline, 100_000, 1000, 2000), Some(0.5));
        assert_eq!(share(&roofline, 0, 0, 10), None);
        assert_eq!(share(&Roofline { flops: None, ..roofline }, 1000, 0, 10), None);
    }
}
