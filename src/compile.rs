//! From a bound graph to an executable: the one place that joins compiler and run time.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorc_abi::content::Piece;
use tensorc_abi::{ExternFn, KernelFn, KernelSignature, PackedElements, Packing, Plan, Weight};
use tensorc_codegen::jit::{JitModule, compile_kernels};
use tensorc_codegen::lower::{Choices, lower_with};
use tensorc_ir::TensorData;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::Graph;
use tensorc_ir::interrupt::{Interrupt, PassLimits, StopReason};
use tensorc_ir::kir::Kernel;
use tensorc_ir::parallel::try_map;
use tensorc_passes::manager::{PassCx, Timing};
use tensorc_passes::pipeline::{CompilePhase, End, LOWER, PLAN_MEMORY, Pipeline};
use tensorc_passes::simplify::scalar::RewrittenBodies;
use tensorc_runtime::gpu::{Driver, LoadedKernel};
use tensorc_runtime::plan::{LoadError, RenumberRoom, verify_kernels};
use tensorc_runtime::profiler::Span;
use tensorc_runtime::{Executable, WeightCache, WeightStorage};
use tensorc_schedule::lowered::Lowered;
use tensorc_schedule::plan_memory;

use crate::compiler::{COMPILE, Compiler};
use crate::error::Error;
use crate::gpu::{distinct, vendor};
use crate::gpu_kernels;
use crate::limits::Deadline;

/// What compiling took, by step.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name and time of each step, in order.
    pub timings: Vec<(String, Duration)>,
}

impl Report {
    pub(crate) fn timed<T>(
        &mut self,
        compiler: &Compiler,
        step: &'static str,
        f: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _span = compiler.span(step);
        let start = Instant::now();
        let result = f()?;
        self.timings.push((step.to_owned(), start.elapsed()));
        Ok(result)
    }

    /// The time of all steps.
    pub fn total(&self) -> Duration {
        self.timings.iter().map(|(_, t)| *t).sum()
    }
}

/// What passes run in under the options of a compiler; `stop` says whether they shall end early.
pub(crate) fn pass_context<'a>(
    compiler: &'a Compiler,
    stop: &'a (dyn Fn() -> Option<StopReason> + Sync),
) -> PassCx<'a> {
    let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
    cx.threads = compiler.pool().threads();
    cx.limits = PassLimits { nodes: compiler.options().limits.graph_nodes(), interrupt: Interrupt::new(stop) };
    cx
}

/// Runs the passes of a pipeline on a graph.
pub(crate) fn optimize(
    compiler: &Compiler,
    pipeline: &Pipeline,
    graph: &mut Graph,
    deadline: Deadline<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    optimize_knowing(&RewrittenBodies::default(), compiler, pipeline, graph, deadline, report)
}

/// As [`optimize`], for one of several pipelines that follow each other: bodies that were rewritten before are known.
pub(crate) fn optimize_knowing(
    bodies: &RewrittenBodies,
    compiler: &Compiler,
    pipeline: &Pipeline,
    graph: &mut Graph,
    deadline: Deadline<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    compiler.progress("optimize");
    let stop = || deadline.passed();
    let mut cx = PassCx { bodies: bodies.clone(), ..pass_context(compiler, &stop) };
    pipeline.run(graph, &mut cx)?;
    for Timing { pass, start, time, .. } in cx.timings {
        if let Some(profiler) = compiler.profiler() {
            profiler.record(Span::new(pass, COMPILE, start, start + time));
        }
        report.timings.push((pass.to_owned(), time));
    }
    Ok(())
}

/// Takes the steps of a pipeline behind its passes: from clusters to kernels and a plan. `after` is told the name of each step, the
/// time it took and what it made.
///
/// # Errors
/// A cluster has no kernel on the target; what `after` returns.
pub fn lower(
    compiler: &Compiler,
    graph: &Graph,
    choices: Choices,
    end: End,
    after: &mut dyn FnMut(&'static str, Duration, &Lowered) -> Result<(), Diagnostic>,
) -> Result<Lowered, Diagnostic> {
    compiler.progress(LOWER);
    let (span, start) = (compiler.span(LOWER), Instant::now());
    let mut lowered = lower_with(graph, compiler.registry().math(), choices, compiler.pool().threads())?;
    drop(span);
    after(LOWER, start.elapsed(), &lowered)?;
    if end == End::Planned {
        let (span, start) = (compiler.span(PLAN_MEMORY), Instant::now());
        plan_memory(&mut lowered)?;
        drop(span);
        after(PLAN_MEMORY, start.elapsed(), &lowered)?;
    }
    Ok(lowered)
}

/// A graph of known types that is to be compiled.
pub(crate) enum Source {
    /// As a front end made it.
    Typed(Graph),
    /// Fused already.
    Fused(Graph),
}

/// Optimizes, lowers and plans a graph; also gives the optimized graph.
pub(crate) fn lowered(
    compiler: &Compiler,
    source: Source,
    choices: Choices,
    deadline: Deadline<'_>,
    report: &mut Report,
) -> Result<(Graph, Lowered), Error> {
    let (pipeline, mut graph) = match source {
        Source::Typed(graph) => (Pipeline::to(CompilePhase::Plan), graph),
        Source::Fused(graph) => (Pipeline::closed(), graph),
    };
    optimize(compiler, &pipeline, &mut graph, deadline, report)?;
    let lowered = lower(compiler, &graph, choices, pipeline.end, &mut |step, time, _| {
        report.timings.push((step.to_owned(), time));
        Ok(())
    })?;
    Interrupt::new(&|| deadline.passed()).check("planning")?;
    let on_gpu = compiler.gpu().is_some();
    compiler.options().limits.admit_plan(&lowered.plan, compiler.pool().threads(), on_gpu)?;
    Ok((graph, lowered))
}

/// Generates code and packs weights.
pub(crate) fn link(
    compiler: &Compiler,
    lowered: Lowered,
    deadline: Deadline<'_>,
    report: &mut Report,
) -> Result<Executable, Error> {
    let Lowered { plan, kernels, signatures, constants, externs, .. } = lowered;
    // Loading verifies the rest of the plan.
    verify_kernels(&plan, &signatures).map_err(LoadError::from)?;
    if let Some(driver) = compiler.gpu() {
        let weights = report.timed(compiler, "pack-weights", || pack_weights(compiler, &plan, &constants))?;
        compiler.progress("generate code");
        let loaded = report.timed(compiler, "codegen", || {
            let (kernels, calls) =
                (gpu_kernels::load(compiler, driver, &kernels, &distinct(&plan))?, vendor::load(driver, &plan)?);
            link_device(driver, plan, [&kernels, &calls], weights, compiler.weights())
        })?;
        compiler.progress("run");
        return Ok(loaded);
    }
    let code = generate(compiler, &kernels, deadline, report)?;
    compiler.progress("pack weights");
    let weights = report.timed(compiler, "pack-weights", || pack_weights(compiler, &plan, &constants))?;
    let loaded = report.timed(compiler, "load", || link_code(compiler, plan, &code, weights, &externs))?;
    compiler.progress("run");
    Ok(loaded)
}

/// Generates the code of kernels for the processor.
pub(crate) fn generate(
    compiler: &Compiler,
    kernels: &[Kernel],
    deadline: Deadline<'_>,
    report: &mut Report,
) -> Result<Arc<JitModule>, Error> {
    compiler.progress("generate code");
    let code = report.timed(compiler, "codegen", || {
        let (backend, threads) = (compiler.options().backend, compiler.pool().threads());
        let (stop, symbol) = (|| deadline.passed(), &tensorc_kernels::symbol);
        let interrupt = Interrupt::new(&stop);
        Ok(Arc::new(compile_kernels(kernels, backend, threads, interrupt, compiler.kernels(), symbol)?))
    })?;
    compiler.options().limits.admit_code(code.code_bytes())?;
    Ok(code)
}

/// The entry points of the kernels of some code.
pub(crate) fn entries(code: &JitModule) -> Vec<KernelFn> {
    (0..code.len()).filter_map(|i| code.entry(i)).collect()
}

/// Joins a plan with the code of its kernels.
pub(crate) fn link_code(
    compiler: &Compiler,
    plan: Plan,
    code: &Arc<JitModule>,
    weights: Vec<WeightStorage>,
    externs: &[ExternFn],
) -> Result<Executable, Error> {
    let executable = link_executable(plan, entries(code), code.clone(), weights, externs)?;
    Ok(if compiler.options().poison { executable.poisoning() } else { executable })
}

/// Brings the constants into the layouts of a plan's weights, on all threads.
pub(crate) fn pack_weights(
    compiler: &Compiler,
    plan: &Plan,
    constants: &[TensorData],
) -> Result<Vec<WeightStorage>, Error> {
    let weights = plan.weights.iter().map(|weight| (weight, &constants[weight.constant as usize]));
    pack_each(compiler, &weights.collect::<Vec<_>>())
}

/// Brings constants into the layouts of weights, on all threads.
pub(crate) fn pack_each(compiler: &Compiler, weights: &[(&Weight, &TensorData)]) -> Result<Vec<WeightStorage>, Error> {
    let rounds = |(weight, _): &(&Weight, &TensorData)| {
        matches!(weight.packing, Packing::GemmB { elements: PackedElements::Bf16, .. })
    };
    if !tensorc_kernels::has_bf16_products() && weights.iter().any(rounds) {
        let why =
            "products of bf16 take a processor with AVX-512 BF16, which this one is not; choose the precision f32";
        return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).into());
    }
    for (_, data) in weights.iter().filter(|(weight, _)| weight.packing == Packing::Plain) {
        read_plain(data, compiler.pool().threads());
    }
    compiler.side_by_side(weights.len(), "packing weights", |i| pack(compiler, weights[i].0, weights[i].1))
}

/// Brings a constant into the layout of a weight.
pub(crate) fn pack(compiler: &Compiler, weight: &Weight, data: &TensorData) -> Result<WeightStorage, Error> {
    let packed = compiler.weights().pack(&weight.packing, data.dtype(), data.content());
    packed.map_err(|source| Error::Weight { name: weight.name.clone(), source })
}

/// Reads a weight that is used as it is. Many models have one that is as large as all others: all threads read it.
fn read_plain(data: &TensorData, threads: usize) {
    let read = |piece: Piece<'_>| {
        piece.read();
        Ok::<(), Infallible>(())
    };
    data.content().bytes_by(|pieces| {
        let Ok(_) = try_map(pieces, threads, read, |panic| resume_unwind(panic));
    });
}

#[allow(unsafe_code, reason = "joining generated code with the run time is the one unsafe act of this crate")]
pub(crate) fn link_device(
    driver: &Arc<dyn Driver>,
    plan: Plan,
    functions: [&[LoadedKernel]; 2],
    weights: Vec<WeightStorage>,
    cache: &WeightCache,
) -> Result<Executable, Error> {
    // SAFETY: the functions are the kernels and calls the plan was lowered with; lowering bounds every access by the buffers'
    // sizes.
    unsafe { Executable::on_device(plan, driver.clone(), functions, weights, cache) }.map_err(Error::from)
}

#[allow(unsafe_code, reason = "joining generated code with the run time is the one unsafe act of this crate")]
pub(crate) fn link_executable(
    plan: Plan,
    entries: Vec<KernelFn>,
    code: Arc<dyn std::any::Any + Send + Sync>,
    weights: Vec<WeightStorage>,
    externs: &[ExternFn],
) -> Result<Executable, Error> {
    // SAFETY: the entries come from `code`, compiled from the kernels the plan was lowered with;
    // lowering bounds every access by the buffers' sizes and keeps parallel iterations disjoint.
    unsafe { Executable::with_externs(plan, entries, code, weights, externs) }.map_err(Error::from)
}

#[allow(unsafe_code, reason = "joining generated code with the run time is the one unsafe act of this crate")]
pub(crate) fn renumber(
    executable: &mut Executable,
    entries: &[KernelFn],
    signatures: &mut [KernelSignature],
    room: &mut RenumberRoom,
    change: impl FnOnce(&mut Plan, &mut [KernelSignature], &mut [WeightStorage]) -> Result<(), Error>,
) -> Result<(), Error> {
    // SAFETY: the entries are those of the kernels that the plan was lowered with for many shapes; lowering bounds every access
    // by the buffers' sizes and keeps parallel iterations disjoint.
    unsafe { executable.renumber(entries, signatures, room, change) }
}
