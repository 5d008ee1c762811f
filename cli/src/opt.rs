//! `tensorc opt`: runs passes over a model or text file and prints the IR.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tensorc::ir::diag::{Code, Diagnostic};
use tensorc::ir::graph::{Graph, NodeKind};
use tensorc::ir::interp::run_launch;
use tensorc::ir::kir::{BufInfo, Kernel};
use tensorc::ir::testing::Rng;
use tensorc::ir::text::{PrintOptions, parse_module, print_module};
use tensorc::ir::verify::{Stage, verify_graph, verify_kernel, verify_plan};
use tensorc::ir::{DenseType, Module};
use tensorc::passes::pipeline::known_names;
use tensorc::passes::{Pass, PassCx, Phase, Pipeline, PrintWhen, Rewrite, Timing, Unit, phase_passes};
use tensorc::schedule::lowered::Lowered;
use tensorc::schedule::{cost, plan_memory, verify::verify_clusters};
use tensorc::{Compiler, Options, Target, binding};
use tensorc_codegen::lower::lower_with;
use tensorc_codegen::target::Capability;

use super::code::Form;
use super::values::Comparison;
use super::{CompileArgs, Failure, Usage, arrays, print};

#[derive(Args)]
pub struct OptArgs {
    /// A model (.onnx, or a symbol of MXNet, .json), or a text file of graphs, kernels or plans (.tc)
    #[arg(required_unless_present = "print_cost_model")]
    file: Option<PathBuf>,
    /// Parameters of the symbol
    #[arg(long, value_name = "PARAMS")]
    params: Option<PathBuf>,
    /// Passes to run: `name{option=value},…`, ending in `lower` or `lower,plan-memory` if wanted
    #[arg(long, value_name = "PIPELINE", conflicts_with = "to")]
    passes: Option<String>,
    /// Run the default pipeline up to a phase: import, type, simplify, fuse, lower or plan; or on to the code of
    /// kernels: clif, llvm, asm or ptx
    #[arg(long, value_name = "PHASE")]
    to: Option<String>,
    /// What code is shown for: native, x86_64, x86_64-v3, x86_64-v4, aarch64 or riscv64; or a GPU, for which kernels are
    /// written, too: cuda:sm_80 or cuda:sm_90a
    #[arg(long, value_name = "NAME", default_value = "native")]
    target: String,
    /// Print the IR to standard error after these passes
    #[arg(long, value_name = "PASS,…", value_delimiter = ',')]
    print_after: Vec<String>,
    /// Print the IR to standard error after each pass that changed it
    #[arg(long)]
    print_changed: bool,
    /// Print how long each pass took to standard error
    #[arg(long)]
    time_passes: bool,
    /// Print what each kernel of the fused graph moves and is estimated to take to standard error
    #[arg(long)]
    costs: bool,
    /// Print what kernels are assumed to cost, and do nothing else
    #[arg(long)]
    print_cost_model: bool,
    /// Print to standard error which rewrites made each node, or one node, and what they saved
    #[arg(long, value_name = "NODE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    explain: Option<String>,
    /// Check the rules of the IR after each pass
    #[arg(long, default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true,
          action = clap::ArgAction::Set)]
    verify_each: bool,
    /// Print no IR but compare values before and after, in the interpreter and, if lowered or asked
    /// for, compiled
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "auto")]
    check_values: Option<CheckValues>,
    /// Print no IR but what memory has to do for each kernel for a GPU, run in the interpreter on random numbers
    #[arg(long, conflicts_with_all = ["check_values", "output"])]
    traffic: bool,
    /// Bind an input or a named dimension: `x=1,3,224,224` or `batch=4`
    #[arg(long = "shape", value_name = "NAME=N,…")]
    shapes: Vec<String>,
    /// Print every constant in full, also on standard output
    #[arg(long)]
    full: bool,
    /// Write the IR to a file, constants in full
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    compile: CompileArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckValues {
    /// Compiled if the pipeline lowers, else interpreted
    Auto,
    /// Interpreted, and compiled whatever the pipeline is
    Jit,
}

/// Extent of a dimension that `--check-values` finds open.
const OPEN_EXTENT: u64 = 3;

/// Name of the step from clusters to kernels in pipelines.
const LOWER: &str = "lower";
/// Name of memory planning in pipelines.
const PLAN_MEMORY: &str = "plan-memory";

pub fn run(args: &OptArgs) -> Result<(), Failure> {
    let Some(file) = args.file.as_ref().filter(|_| !args.print_cost_model) else {
        let compiler = args.compile.compiler()?;
        return print(&compiler.options().passes.target.machine.to_text());
    };
    let work = Work::new(args)?;
    let shapes = arrays::shapes(&args.shapes)?;
    let named = |e: &dyn std::fmt::Display| Usage(format!("--target: {e}"));
    let gpu = match (args.target.starts_with("cuda"), work.code) {
        (true, _) => Some(args.target.parse::<Capability>().map_err(|e| named(&e))?),
        (false, Some(Form::Ptx)) => {
            return Err(usage("PTX is for a GPU: --target=cuda:sm_80 or cuda:sm_90a".into()).into());
        }
        _ => None,
    };
    let target = if gpu.is_some() { "native" } else { &args.target };
    let target = target.parse::<Target>().map_err(|e| named(&e))?;
    let device = tensorc::runtime::Device::accelerator(0);
    let gpus = gpu.iter().map(|capability| tensorc::gpu::interpreted_as(device, *capability)).collect();
    let compiler = args.compile.compiler_with(work.code, Options { gpus, ..Options::default() })?;
    let mut module = read(&compiler, file, args.params.as_deref())?;
    if work.plan && !work.lower && !module.graphs.is_empty() {
        return Err(usage(format!("`{PLAN_MEMORY}` plans what `{LOWER}` made: write `{LOWER},{PLAN_MEMORY}`")).into());
    }
    module.graphs.iter_mut().try_for_each(|g| binding::bind(g, &shapes))?;
    let named = |d: Diagnostic| Failure::from(format!("{}: {d}", file.display()));
    verify_module(&module).map_err(named)?;
    let code = work.code;
    let mut job = Job { args, work, compiler, timings: vec![] };
    if args.check_values.is_some() {
        let mut text = String::new();
        for graph in &module.graphs {
            text += &job.check(graph).map_err(|f| format!("{}: {f}", file.display()))?;
        }
        return print(&text);
    }
    job.transform(&mut module).map_err(named)?;
    if args.time_passes {
        eprint!("{}", job.table());
    }
    if args.traffic {
        return print(&traffic(&module.kernels).map_err(named)?);
    }
    if let Some(form) = code {
        let text = match gpu {
            Some(capability) if form == Form::Ptx => tensorc::gpu::ptx(&module.kernels, capability)?,
            _ => form.text(&module.kernels, args.compile.backend()?, target).map_err(named)?,
        };
        return match &args.output {
            Some(path) => Ok(std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?),
            None => print(&text),
        };
    }
    match &args.output {
        Some(path) => {
            let write = std::fs::write(path, print_module(&module, &PrintOptions::exact()));
            Ok(write.map_err(|e| format!("{}: {e}", path.display()))?)
        }
        None => print(&print_module(&module, &PrintOptions { elide: !args.full, ..PrintOptions::default() })),
    }
}

/// What memory has to do for kernels for a GPU, a paragraph each.
fn traffic(kernels: &[Kernel]) -> Result<String, Diagnostic> {
    let mut text = String::new();
    for kernel in kernels {
        let mut rng = Rng::new(0);
        let bytes = |b: &BufInfo, rng: &mut Rng| {
            let mut data = vec![0; b.len as usize * b.dtype.size()];
            data.chunks_exact_mut(b.dtype.size()).for_each(|element| rng.element(b.dtype).write(element));
            data
        };
        let mut buffers: Vec<Vec<u8>> = kernel.buffers[..kernel.params].iter().map(|b| bytes(b, &mut rng)).collect();
        let counts = run_launch(kernel, &mut buffers)?;
        // Writing to a string does not fail.
        let _ = writeln!(text, "kernel {}\n{}", kernel.name, counts.describe(kernel));
    }
    Ok(text)
}

fn read(compiler: &Compiler, path: &Path, params: Option<&Path>) -> Result<Module, Failure> {
    if path.extension().is_none_or(|e| e != "tc") {
        let graph = compiler.load_with(path, params)?.graph().clone();
        return Ok(Module { graphs: vec![graph], ..Module::default() });
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse_module(&text, compiler.registry()).map_err(|d| format!("{}: {d}", path.display()).into())
}

/// What the command line asks for.
struct Work {
    passes: Vec<Box<dyn Pass>>,
    lower: bool,
    plan: bool,
    /// What to show of the kernels' code.
    code: Option<Form>,
    /// Whether no pass may change a bit of a result.
    exact: bool,
}

impl Work {
    fn new(args: &OptArgs) -> Result<Work, Usage> {
        let known = [&known_names()[..], &[LOWER, PLAN_MEMORY]].concat();
        if let Some(name) = args.print_after.iter().find(|n| !known.contains(&n.as_str())) {
            return Err(usage(format!("--print-after: unknown pass `{name}`; known passes: {}", known.join(", "))));
        }
        let mut work = Work { passes: vec![], lower: false, plan: false, code: None, exact: true };
        if let Some(name) = &args.to {
            work.code = Form::from_name(name);
            let phase = work.code.map(|_| Phase::Plan).or_else(|| Phase::from_name(name)).ok_or_else(|| {
                let known: Vec<&str> = Phase::ALL.iter().map(|p| p.name()).chain(Form::NAMES).collect();
                usage(format!("unknown phase `{name}`; phases: {}", known.join(", ")))
            })?;
            work.passes = phase_passes(phase);
            (work.lower, work.plan) = (phase >= Phase::Lower, phase >= Phase::Plan);
            work.exact = args.compile.exact || phase < Phase::Simplify;
        }
        if let Some(text) = &args.passes {
            let mut rest = text.trim();
            (work.plan, rest) = strip_last(rest, PLAN_MEMORY);
            (work.lower, rest) = strip_last(rest, LOWER);
            work.passes = Pipeline::parse(rest)
                .map_err(|e| usage(format!("{e}; `{LOWER}` and `{LOWER},{PLAN_MEMORY}` stand at the end only")))?
                .passes;
            let reassociates = match rest.contains("reassociate") {
                true => !rest.contains("reassociate=false"),
                false => !args.compile.exact,
            };
            let approximates = match rest.contains("approximate") {
                true => !rest.contains("approximate=false"),
                false => args.compile.fast_math,
            };
            work.exact = !((reassociates || approximates) && work.passes.iter().any(|p| p.name() == "simplify"));
        }
        Ok(work)
    }
}

fn usage(why: String) -> Usage {
    Usage(Diagnostic::new(Code::Pipeline, why).to_string())
}

/// Whether a pipeline text ends in the pass of that name, and what stands before it.
fn strip_last<'t>(text: &'t str, pass: &str) -> (bool, &'t str) {
    let Some(before) = text.strip_suffix(pass) else { return (false, text) };
    let before = before.trim_end();
    match before.strip_suffix(',') {
        Some(before) => (true, before.trim_end()),
        None if before.is_empty() => (true, before),
        None => (false, text),
    }
}

/// Checks everything a file holds before anything is done with it.
fn verify_module(module: &Module) -> Result<(), Diagnostic> {
    module.graphs.iter().try_for_each(|g| verify_graph(g, stage_of(g)).and_then(|()| verify_clusters(g)))?;
    module.kernels.iter().try_for_each(verify_kernel)?;
    module.plans.iter().try_for_each(|plan| {
        let find = |name: &String| module.kernels.iter().find(|k| k.name == *name).cloned();
        let kernels: Option<Vec<Kernel>> = plan.kernels.iter().map(find).collect();
        verify_plan(plan, kernels.as_deref())
    })
}

/// The strongest rules that a graph may be expected to keep as it was read.
fn stage_of(graph: &Graph) -> Stage {
    let has = |is: fn(&NodeKind) -> bool| graph.node_ids().iter().any(|n| is(&graph.node(*n).kind));
    let typed = match () {
        () if has(|k| matches!(k, NodeKind::Fused(_))) => return Stage::Fused,
        () if has(|k| matches!(k, NodeKind::Op(_))) => Stage::Imported,
        () => Stage::Primitive,
    };
    if verify_graph(graph, typed).is_ok() { typed } else { Stage::Imported }
}

struct Job<'a> {
    args: &'a OptArgs,
    work: Work,
    compiler: Compiler,
    timings: Vec<(String, Duration, bool)>,
}

impl Job<'_> {
    /// Runs everything asked for over all graphs; plans of the file are planned anew if planning is
    /// asked for.
    fn transform(&mut self, module: &mut Module) -> Result<(), Diagnostic> {
        if self.work.plan {
            for plan in &mut module.plans {
                let mut lowered = Lowered { plan: std::mem::take(plan), ..Lowered::default() };
                self.plan_memory(&mut lowered)?;
                *plan = lowered.plan;
            }
        }
        for graph in &mut module.graphs {
            self.passes(graph)?;
            if self.args.costs {
                let machine = self.compiler.options().passes.target.machine;
                eprint!("{}", cost::table(&cost::kernels(graph, &machine)?));
            }
        }
        if self.work.lower {
            for graph in std::mem::take(&mut module.graphs) {
                let lowered = self.lower(&graph, self.work.plan)?;
                module.kernels.extend(lowered.kernels);
                module.plans.push(lowered.plan);
            }
        }
        Ok(())
    }

    fn timed<T>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> Result<T, Diagnostic>) -> Result<T, Diagnostic> {
        let start = Instant::now();
        let result = f(self)?;
        self.timings.push((name.to_owned(), start.elapsed(), true));
        Ok(result)
    }

    fn passes(&mut self, graph: &mut Graph) -> Result<(), Diagnostic> {
        let options = PrintOptions { elide: !self.args.full, history: self.args.print_changed, ..Default::default() };
        let mut printer = |pass: &str, graph: &Graph| {
            eprintln!("// after {pass}\n{}", tensorc::ir::text::print_graph(graph, &options));
        };
        let mut stage = stage_of(graph);
        let mut verifier = |pass: &str, graph: &Graph| {
            stage = match pass {
                "decompose" => Stage::Primitive,
                "fuse" => Stage::Fused,
                _ => stage,
            };
            let verified = verify_graph(graph, stage).and_then(|()| verify_clusters(graph));
            verified.map_err(|d| d.note(format!("after pass `{pass}`")))
        };
        let compiler = self.compiler.clone();
        let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes);
        cx.threads = compiler.pool().threads();
        cx.print_when = match self.args.print_changed {
            true => PrintWhen::Changed,
            false => PrintWhen::After(self.args.print_after.clone()),
        };
        cx.printer = Some(&mut printer);
        if self.args.verify_each {
            cx.verifier = Some(&mut verifier);
        }
        let result = tensorc::passes::manager::run_passes(&self.work.passes, graph, &mut cx);
        let timings = cx.timings.iter().map(|Timing { pass, time, changed, .. }| ((*pass).to_owned(), *time, *changed));
        self.timings.extend(timings);
        if let Some(node) = &self.args.explain {
            eprint!("{}", explanation(graph, &cx.rewrites, node));
        }
        result.map(drop)
    }

    fn lower(&mut self, graph: &Graph, plan: bool) -> Result<Lowered, Diagnostic> {
        // The name of a GPU is none of a processor, which its kernels do not run on.
        let choices = self.compiler.choices_for(self.args.target.parse().ok());
        let mut lowered = self.timed(LOWER, |job| {
            lower_with(graph, job.compiler.registry().math(), choices, job.compiler.pool().threads())
        })?;
        if self.args.verify_each {
            lowered.kernels.iter().try_for_each(verify_kernel)?;
            verify_plan(&lowered.plan, Some(&lowered.kernels))?;
        }
        self.show(LOWER, &lowered);
        if plan {
            self.plan_memory(&mut lowered)?;
            self.show(PLAN_MEMORY, &lowered);
        }
        Ok(lowered)
    }

    fn plan_memory(&mut self, lowered: &mut Lowered) -> Result<(), Diagnostic> {
        self.timed(PLAN_MEMORY, |_| plan_memory(lowered))?;
        if self.args.verify_each {
            tensorc::runtime::plan::verify(&lowered.plan)
                .map_err(|e| Diagnostic::new(Code::Internal, e.to_string()))?;
        }
        Ok(())
    }

    fn show(&self, pass: &str, lowered: &Lowered) {
        if self.args.print_changed || self.args.print_after.iter().any(|n| n == pass) {
            let (kernels, plans) = (lowered.kernels.clone(), vec![lowered.plan.clone()]);
            let module = Module { kernels, plans, ..Module::default() };
            eprintln!("// after {pass}\n{}", print_module(&module, &PrintOptions::default()));
        }
    }

    /// Compares the values of a graph before and after the passes.
    fn check(&mut self, graph: &Graph) -> Result<String, Failure> {
        let inputs = self.input_types(graph)?;
        let mut before = graph.clone();
        tensorc::passes::infer::bind(&mut before, &inputs)?;
        // The passes see the graph as it stands, open dimensions included, if they can.
        let jit = self.work.lower || self.args.check_values == Some(CheckValues::Jit);
        let mut after = if jit { before.clone() } else { graph.clone() };
        self.passes(&mut after)?;
        let compiled = match jit {
            true => Some(self.compiled(&after)?),
            false => None,
        };
        let (exact, tf32) = (self.work.exact, self.args.compile.tf32);
        Comparison { compiler: &self.compiler, before: &before, after: &after, compiled, exact, tf32 }.run(&inputs)
    }

    /// Types for the inputs: as stated, as inferred where that says more, small where open.
    fn input_types(&self, graph: &Graph) -> Result<Vec<DenseType>, Failure> {
        let mut typed = graph.clone();
        let mut cx = PassCx::new(self.compiler.registry()).with_options(self.compiler.options().passes);
        if Pipeline::to(Phase::Type).run(&mut typed, &mut cx).is_err() {
            // A conflict is reported by the passes, if they look at types.
            typed = graph.clone();
        }
        binding::bind_open(&mut typed, OPEN_EXTENT)?;
        Ok(binding::input_types(&typed)?)
    }

    /// Runs what is left of the default pipeline.
    fn compiled(&mut self, graph: &Graph) -> Result<Lowered, Diagnostic> {
        let mut graph = graph.clone();
        let fused = self.work.passes.iter().any(|p| p.name() == "fuse");
        if !fused {
            let mut cx = PassCx::new(self.compiler.registry()).with_options(self.compiler.options().passes);
            cx.threads = self.compiler.pool().threads();
            cx.options.reassociate &= !self.work.exact;
            cx.options.approximate &= !self.work.exact;
            Pipeline::parse("infer,decompose,fuse")?.run(&mut graph, &mut cx)?;
        }
        self.lower(&graph, true)
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let total: Duration = self.timings.iter().map(|(_, t, _)| *t).sum();
        for (pass, time, changed) in &self.timings {
            let note = if *changed { "" } else { "  (no change)" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:>10.3} ms  {pass}{note}", time.as_secs_f64() * 1e3);
        }
        let _ = writeln!(text, "{:>10.3} ms  total", total.as_secs_f64() * 1e3);
        text
    }
}

/// Which rules fired on the nodes of a name, or on all nodes, with costs of scalar bodies before and after; then the
/// other rewrites that nodes of the graph came from.
fn explanation(graph: &Graph, rewrites: &[Rewrite], node: &str) -> String {
    let mut text = String::new();
    let wanted = |name: &str| node.is_empty() || name == node;
    for r in rewrites.iter().filter(|r| wanted(&r.node)) {
        let (label, node, rule) = (r.label.name(), &r.node, r.rule);
        // Writing to a string does not fail.
        let _ = match r.unit {
            Unit::HalfCycles => writeln!(text, "{node}: {rule} ({label}), cost {} to {}", r.before, r.after),
            Unit::Nanoseconds => writeln!(text, "{node}: {rule} ({label}), region {} ns to {} ns", r.before, r.after),
        };
    }
    for id in graph.order() {
        let n = graph.node(id);
        let known = |label: &str| rewrites.iter().any(|r| r.rule == label && r.node == n.name);
        for label in n.history.iter().filter(|label| wanted(&n.name) && !known(label)) {
            let _ = writeln!(text, "{}: {label}", n.name);
        }
    }
    if text.is_empty() {
        let what = if node.is_empty() { "the graph" } else { node };
        let _ = writeln!(text, "nothing was rewritten in {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_pipeline_is_recognised() {
        assert_eq!(strip_last("infer, lower", LOWER), (true, "infer"));
        assert_eq!(strip_last("lower", LOWER), (true, ""));
        assert_eq!(strip_last("infer,slower", LOWER), (false, "infer,slower"));
        assert_eq!(strip_last("infer", LOWER), (false, "infer"));
    }
}
