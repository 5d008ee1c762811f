//! `tensorc opt`: runs passes over a model or text file and prints the IR.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tensorc::abi::{KernelSignature, Plan};
use tensorc::ir::data_files::DataFiles;
use tensorc::ir::diag::{Diagnostic, DiagnosticCode};
use tensorc::ir::extent::{Fixed, advice};
use tensorc::ir::graph::{Graph, NodeKind};
use tensorc::ir::kir::Kernel;
use tensorc::ir::text::{PrintOptions, parse_module, print_graph, print_kernel, print_module, print_plan};
use tensorc::ir::verify::{Stage, verify_graph, verify_kernel};
use tensorc::ir::{DenseType, TextModule};
use tensorc::passes::parts::{Facts, next_part};
use tensorc::passes::pipeline::{LOWER, PLAN_MEMORY, known_names};
use tensorc::passes::template::{Restrictions, Template, TemplateRequest};
use tensorc::passes::{CompilePhase, End, PassCx, Pipeline, PrintWhen, Rewrite, Timing, Unit};
use tensorc::runtime::plan::{InvalidPlan, verify, verify_kernels, verify_unplaced};
use tensorc::schedule::lowered::Lowered;
use tensorc::schedule::target::Capability;
use tensorc::schedule::{Target, cost, plan_memory, verify::verify_clusters};
use tensorc::{Compiler, Error, Isa, Model, Options, binding, lower};
use tensorc_codegen::lower::lower_open;

use super::args::{CompileArgs, kept_nodes_exist, text_of};
use super::arrays;
use super::code::DumpForm;
use super::failure::{CliFailure, Usage};
use super::output::{print, write_text};
use super::values::Comparison;

#[derive(Args)]
pub struct OptArgs {
    /// A model (.onnx, or a symbol of MXNet, .json), or a text file of graphs, kernels or plans (.tc)
    #[arg(required_unless_present = "print_cost_model")]
    file: Option<PathBuf>,
    /// Parameters of the symbol
    #[arg(long, value_name = "PARAMS", help_heading = "Model and inputs")]
    params: Option<PathBuf>,
    /// Passes to run: `name{option=value},…`, ending in `lower` or `lower,plan-memory` if wanted
    #[arg(long, value_name = "PIPELINE", conflicts_with = "to", help_heading = "Passes")]
    passes: Option<String>,
    /// Run the default pipeline up to a phase: import, type, simplify, layout, fuse, schedule, lower or plan; or on to the code of
    /// kernels: clif, llvm, asm or ptx
    #[arg(long, value_name = "PHASE", help_heading = "Passes")]
    to: Option<String>,
    /// Target of the printed code: native, x86_64, x86_64-v3, x86_64-v4, aarch64 or riscv64; or a GPU: cuda:sm_80 or
    /// cuda:sm_90a
    #[arg(long, value_name = "NAME", default_value = "native", help_heading = "Passes")]
    target: String,
    /// Print the IR to standard error after these passes
    #[arg(long, value_name = "PASS,…", value_delimiter = ',', help_heading = "What is printed")]
    print_after: Vec<String>,
    /// Print the IR to standard error after each pass that changed it
    #[arg(long, help_heading = "What is printed")]
    print_changed: bool,
    /// Print how long each pass took to standard error
    #[arg(long, help_heading = "What is printed")]
    time_passes: bool,
    /// Print bytes moved and estimated time of each fused kernel to standard error
    #[arg(long, help_heading = "What is printed")]
    costs: bool,
    /// Print the cost model and exit
    #[arg(long, help_heading = "What is printed")]
    print_cost_model: bool,
    /// Print the rewrites that made each node (or one node) and their savings to standard error
    #[arg(long, value_name = "NODE", num_args = 0..=1, require_equals = true, default_missing_value = "", help_heading = "What is printed")]
    explain: Option<String>,
    /// Check the rules of the IR after each pass
    #[arg(long, default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true,
          action = clap::ArgAction::Set, help_heading = "Checks")]
    verify_each: bool,
    /// Instead of printing IR, check that passes preserve values (interpreter; compiled code if lowered or requested)
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "auto", help_heading = "Checks")]
    check_values: Option<CheckValues>,
    /// Instead of printing IR, print memory traffic of each GPU kernel, interpreted on random data
    #[arg(long, conflicts_with_all = ["check_values", "output"], help_heading = "Checks")]
    traffic: bool,
    /// Bind an input or a named dimension: `x=1,3,224,224` or `batch=4`
    #[arg(long = "shape", value_name = "NAME=N,…", help_heading = "Model and inputs")]
    shapes: Vec<String>,
    /// Keep open dimensions as symbols, up to `--to=lower`; the conditions under which the result holds follow it as comments
    #[arg(long, conflicts_with_all = ["check_values", "traffic", "output", "time_passes", "costs"], help_heading = "Passes")]
    open: bool,
    /// Print every constant in full, also on standard output
    #[arg(long, help_heading = "What is printed")]
    full: bool,
    /// Write the IR to a file, constants in full
    #[arg(short, long, value_name = "FILE", help_heading = "What is printed")]
    output: Option<PathBuf>,
    /// Take a text file apart at lines `// ---`; a part that fails does not keep the others from being printed
    #[arg(long, conflicts_with = "output", help_heading = "Passes")]
    split: bool,
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

pub fn run(args: &OptArgs) -> Result<(), CliFailure> {
    let work = OptRequest::new(args)?;
    let shapes = arrays::shapes(&args.shapes)?;
    let named = |e: &dyn std::fmt::Display| Usage(format!("--target: {e}"));
    let gpu = match (args.target.starts_with("cuda"), work.code) {
        (true, _) => Some(args.target.parse::<Capability>().map_err(|e| named(&e))?),
        (false, Some(DumpForm::Ptx)) => {
            return Err(usage("PTX is for a GPU: --target=cuda:sm_80 or cuda:sm_90a".into()).into());
        }
        _ => None,
    };
    let target = if gpu.is_some() { "native" } else { &args.target };
    let target = target.parse::<Isa>().map_err(|e| named(&e))?;
    let device = tensorc::runtime::Device::accelerator(0);
    let gpus = gpu.iter().map(|capability| tensorc_simulator::interpreted_as(device, *capability)).collect();
    let compiler = args.compile.compiler_with(work.code, Options { gpus, ..Options::default() })?;
    let Some(file) = args.file.as_ref().filter(|_| !args.print_cost_model) else {
        return print(&compiler.target().machine().to_text());
    };
    let mut job = OptJob { args, work, compiler, timings: vec![], importing: None, shapes, gpu, target };
    if !args.split {
        let module = job.read(file)?;
        let files: Vec<DataFiles> = module.graphs.iter().map(DataFiles::of).collect();
        job.show_module(module, file)?;
        // Constants were read for what was printed, too.
        return Ok(files.iter().try_for_each(|files| files.confirm(Ok(())))?);
    }
    let parts = parts(&text_of(file)?);
    let mut failed = 0;
    for part in &parts {
        let parsed = parse_module(part, job.compiler.registry()).map_err(|d| format!("{}: {d}", file.display()).into());
        if let Err(failure) = parsed.and_then(|module| job.show_module(module, file)) {
            eprintln!("tensorc: {failure}");
            failed += 1;
        }
    }
    if failed > 0 { Err(format!("{failed} of {} parts failed", parts.len()).into()) } else { Ok(()) }
}

/// What stands between lines that begin with `// ---`, each behind as many line ends as lie before it in the text, so
/// that errors name the lines of the file.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for (i, line) in text.lines().enumerate() {
        match line.starts_with("// ---") {
            true => parts.push("\n".repeat(i + 1)),
            false => parts.iter_mut().next_back().into_iter().for_each(|part| *part += &[line, "\n"].concat()),
        }
    }
    parts
}

/// What the command line asks for.
struct OptRequest {
    pipeline: Pipeline,
    /// What to show of the kernels' code.
    code: Option<DumpForm>,
    /// Whether graphs with open dimensions are scheduled.
    plans: bool,
    /// Whether no pass may change a bit of a result.
    exact: bool,
}

impl OptRequest {
    fn new(args: &OptArgs) -> Result<OptRequest, Usage> {
        let known = known_names();
        if let Some(name) = args.print_after.iter().find(|n| !known.contains(&n.as_str())) {
            return Err(usage(format!("--print-after: unknown pass `{name}`; known passes: {}", known.join(", "))));
        }
        let mut work = OptRequest { pipeline: Pipeline::default(), code: None, plans: false, exact: true };
        if let Some(name) = &args.to {
            work.code = DumpForm::from_name(name);
            let phase =
                work.code.map(|_| CompilePhase::Plan).or_else(|| CompilePhase::from_name(name)).ok_or_else(|| {
                    let forms = DumpForm::ALL.iter().map(|form| form.name());
                    let known: Vec<&str> = CompilePhase::ALL.iter().map(|p| p.name()).chain(forms).collect();
                    usage(format!("unknown phase `{name}`; phases: {}", known.join(", ")))
                })?;
            if args.open && (phase > CompilePhase::Lower || work.code.is_some()) {
                return Err(usage(format!("--open goes up to `--to=lower`: `{name}` needs numbers (`--shape`)")));
            }
            work.pipeline = if args.open { Pipeline::open(phase) } else { Pipeline::to(phase) };
            work.plans = args.open && phase == CompilePhase::Lower;
            work.exact = args.compile.exact || phase < CompilePhase::Simplify;
        }
        if let Some(text) = &args.passes {
            work.pipeline = Pipeline::parse(text).map_err(|e| usage(e.to_string()))?;
            let reassociates = match text.contains("reassociate") {
                true => !text.contains("reassociate=false"),
                false => !args.compile.exact,
            };
            let approximates = match text.contains("approximate") {
                true => !text.contains("approximate=false"),
                false => args.compile.fast_math,
            };
            work.exact = !((reassociates || approximates) && work.has("simplify"));
            if args.open && work.lowers() {
                return Err(usage("--open: these passes need numbers (`--shape`); write `--to=lower`".to_owned()));
            }
        }
        Ok(work)
    }

    fn has(&self, pass: &str) -> bool {
        self.pipeline.passes.iter().any(|p| p.name() == pass)
    }

    fn lowers(&self) -> bool {
        self.pipeline.end >= End::Lowered
    }
}

fn usage(why: String) -> Usage {
    Usage(Diagnostic::new(DiagnosticCode::Pipeline, why).to_string())
}

/// Checks everything a file holds before anything is done with it; plans as those that say where buffers lie, or not.
fn verify_module(module: &TextModule, target: &Target, placed: bool) -> Result<(), Diagnostic> {
    module.graphs.iter().try_for_each(|g| verify_graph(g, stage_of(g)).and_then(|()| verify_clusters(g, target)))?;
    module.kernels.iter().try_for_each(verify_kernel)?;
    module.plans.iter().try_for_each(|plan| {
        let find = |name: &String| module.kernels.iter().find(|k| k.name == *name).cloned();
        let kernels: Option<Vec<Kernel>> = plan.kernels.iter().map(find).collect();
        verify_plan(plan, kernels.as_deref(), placed)
    })
}

/// Checks a plan, and its calls where its kernels are known.
fn verify_plan(plan: &Plan, kernels: Option<&[Kernel]>, placed: bool) -> Result<(), Diagnostic> {
    let wrong = |e: InvalidPlan| Diagnostic::new(DiagnosticCode::Verify, e.to_string());
    if placed { verify(plan).map(drop) } else { verify_unplaced(plan) }.map_err(wrong)?;
    let Some(kernels) = kernels else { return Ok(()) };
    let signatures: Vec<KernelSignature> = kernels.iter().map(|kernel| kernel.signature().convert(&Fixed)).collect();
    verify_kernels(plan, &signatures).map_err(wrong)
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

struct OptJob<'a> {
    args: &'a OptArgs,
    work: OptRequest,
    compiler: Compiler,
    timings: Vec<(String, Duration, bool)>,
    /// A model that is imported for types of its inputs, with open extents in them.
    importing: Option<Model>,
    /// What `--shape` binds.
    shapes: BTreeMap<String, Vec<u64>>,
    gpu: Option<Capability>,
    target: Isa,
}

impl OptJob<'_> {
    /// The graphs of a file. A model with branches, or with inputs that are sequences or optional, has one for the given
    /// shapes alone.
    fn read(&mut self, path: &Path) -> Result<TextModule, CliFailure> {
        if path.extension().is_none_or(|e| e != "tc") {
            let mut model = self.compiler.load_with(path, self.args.params.as_deref())?;
            kept_nodes_exist(&self.compiler, &model)?;
            model.refuse_text_operators()?;
            if model.has_lists() {
                model = model.with_elements(&self.shapes.keys().map(String::as_str).collect::<Vec<_>>())?;
            }
            let mut graph = model.graph().clone();
            if let Some(hosted) = self.args.open.then(|| model.hosted_graph()).flatten() {
                graph = hosted;
            } else if model.has_branches() && self.args.open {
                self.importing = Some(model);
            } else if model.has_branches() {
                binding::bind(&mut graph, &std::mem::take(&mut self.shapes))?;
                graph = model.graph_for(&binding::input_types(&graph)?)?;
            }
            return Ok(TextModule { graphs: vec![graph], ..TextModule::default() });
        }
        parse_module(&text_of(path)?, self.compiler.registry()).map_err(|d| format!("{}: {d}", path.display()).into())
    }

    /// Does what is asked with all that a file holds, or a part of one.
    fn show_module(&mut self, mut module: TextModule, file: &Path) -> Result<(), CliFailure> {
        let (args, work) = (self.args, &self.work);
        if work.pipeline.end == End::Replanned && !module.graphs.is_empty() {
            let why = format!("`{PLAN_MEMORY}` plans what `{LOWER}` made: write `{LOWER},{PLAN_MEMORY}`");
            return Err(usage(why).into());
        }
        module.graphs.iter_mut().try_for_each(|g| binding::bind(g, &self.shapes))?;
        let named = |d: Diagnostic| CliFailure::from(format!("{}: {d}", file.display()));
        let placed = !matches!(work.pipeline.end, End::Replanned | End::Planned);
        verify_module(&module, &self.compiler.target(), placed).map_err(named)?;
        if args.check_values.is_some() {
            let mut text = String::new();
            for graph in &module.graphs {
                text += &self.check(graph).map_err(|f| format!("{}: {f}", file.display()))?;
            }
            return print(&text);
        }
        if args.open {
            let named = |error| match error {
                Error::Diagnostic(diagnostic) => named(diagnostic),
                error => error.into(),
            };
            return self.show_open(&module.graphs).map_err(named).and_then(|text| print(&text));
        }
        self.transform(&mut module).map_err(named)?;
        if args.time_passes {
            eprint!("{}", self.table());
        }
        if args.traffic {
            return print(&tensorc_simulator::traffic(&module.kernels).map_err(named)?);
        }
        if let Some(form) = self.work.code {
            let text = match self.gpu {
                Some(capability) if form == DumpForm::Ptx => tensorc::gpu::ptx(&module.kernels, capability)?,
                _ => form.text(&module.kernels, args.compile.backend()?, self.target).map_err(named)?,
            };
            return match &args.output {
                Some(path) => write_text(path, &text),
                None => print(&text),
            };
        }
        match &args.output {
            Some(path) => write_text(path, &print_module(&module, &PrintOptions::exact())),
            None => print(&print_module(&module, &PrintOptions { elide: !args.full, ..PrintOptions::default() })),
        }
    }

    /// Runs everything asked for over all graphs; plans of the file are planned anew if planning is
    /// asked for.
    fn transform(&mut self, module: &mut TextModule) -> Result<(), Diagnostic> {
        if matches!(self.work.pipeline.end, End::Replanned | End::Planned) {
            for plan in &mut module.plans {
                let mut lowered = Lowered { plan: std::mem::take(plan), ..Lowered::default() };
                self.plan_memory(&mut lowered)?;
                *plan = lowered.plan;
            }
        }
        for graph in &mut module.graphs {
            self.passes(graph)?;
            if self.args.costs {
                let machine = self.compiler.target().machine();
                eprint!("{}", cost::table(&cost::kernels(graph, &machine)?));
            }
        }
        if self.work.lowers() {
            for graph in std::mem::take(&mut module.graphs) {
                let lowered = self.lower(&graph, self.work.pipeline.end)?;
                module.kernels.extend(lowered.kernels);
                module.plans.push(lowered.plan);
            }
        }
        Ok(())
    }

    /// Graphs for all extents of their open dimensions, with the conditions under which they hold; part by part where shapes depend
    /// on values.
    fn show_open(&mut self, graphs: &[Graph]) -> Result<String, Error> {
        let mut text = String::new();
        for graph in graphs {
            let none = || Diagnostic::new(DiagnosticCode::Unresolved, "no dimension of the inputs is open");
            let mut facts = Facts::of_any_inputs(graph).ok_or_else(none)?;
            for number in 1.. {
                let mut open = TemplateRequest { graph, facts: &facts }.restricting(&Restrictions::default());
                if let (Some(model), Some(template)) = (&self.importing, &mut open) {
                    template.replace(|inputs| model.graph_for(&binding::input_types(inputs)?))?;
                }
                let (mut part, mut closed) = (open.clone(), graph.clone());
                let shape = match &mut part {
                    Some(template) => template.divide(self.compiler.typing())?,
                    None => next_part(&mut closed, self.compiler.typing(), &facts)?,
                };
                if number == 1 && shape.is_last() {
                    text += &self.show_template(open.ok_or_else(none)?)?;
                    break;
                }
                let _ = writeln!(text, "// part {number}");
                text += &match part {
                    Some(template) => self.show_template(template)?,
                    None => self.show_graph(&mut closed)?,
                };
                if shape.is_last() {
                    break;
                }
                if self.importing.is_some() {
                    return Err(Error::Parts { model: graph.name.to_string() });
                }
                for call in &shape.hosts {
                    let _ = writeln!(text, "// then {} on the host", call.text(graph));
                }
                facts = facts.after(graph, &shape);
            }
        }
        Ok(text)
    }

    fn show_template(&mut self, mut template: Template) -> Result<String, Diagnostic> {
        let mut text = template.change(|graph| self.show_graph(graph))?;
        for (condition, place) in template.trace.guards() {
            let _ = writeln!(text, "// if {condition} ({place})");
        }
        Ok(text)
    }

    /// A graph behind the passes, or its kernels and its plan.
    fn show_graph(&mut self, graph: &mut Graph) -> Result<String, Diagnostic> {
        self.passes(graph)?;
        match self.work.plans {
            true => self.open_plan(graph),
            false => Ok(print_graph(graph, &PrintOptions { elide: !self.args.full, ..PrintOptions::default() })),
        }
    }

    /// The kernels and the plan of a graph whose extents depend on symbols.
    fn open_plan(&self, graph: &Graph) -> Result<String, Diagnostic> {
        let compiler = &self.compiler;
        let choices = compiler.choices_for(self.args.target.parse().ok());
        let lowered = lower_open(graph, compiler.registry().math(), choices, compiler.pool().threads())?;
        let kernels = lowered.kernels.iter().map(print_kernel);
        Ok(kernels.chain([print_plan(&lowered.plan)]).collect::<Vec<_>>().join("\n"))
    }

    fn passes(&mut self, graph: &mut Graph) -> Result<(), Diagnostic> {
        let options = PrintOptions { elide: !self.args.full, history: self.args.print_changed, ..Default::default() };
        let mut printer = |pass: &str, graph: &Graph| {
            eprintln!("// after {pass}\n{}", tensorc::ir::text::print_graph(graph, &options));
        };
        let mut stage = stage_of(graph);
        let target = self.compiler.target();
        let mut verifier = |pass: &str, graph: &Graph| {
            stage = match pass {
                "decompose" => Stage::Primitive,
                "fuse" => Stage::Fused,
                _ => stage,
            };
            let verified = advice(|| verify_graph(graph, stage).and_then(|()| verify_clusters(graph, &target)));
            verified.map_err(|d| d.note(format!("after pass `{pass}`")))
        };
        let compiler = self.compiler.clone();
        let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
        cx.threads = compiler.pool().threads();
        cx.print_when = match self.args.print_changed {
            true => PrintWhen::Changed,
            false => PrintWhen::After(self.args.print_after.clone()),
        };
        cx.printer = Some(&mut printer);
        if self.args.verify_each {
            cx.verifier = Some(&mut verifier);
        }
        let result = tensorc::passes::manager::run_passes(&self.work.pipeline.passes, graph, &mut cx);
        let timings = cx.timings.iter().map(|Timing { pass, time, changed, .. }| ((*pass).to_owned(), *time, *changed));
        self.timings.extend(timings);
        if let Some(node) = &self.args.explain {
            eprint!("{}", explanation(graph, &cx.rewrites, node));
        }
        result.map(drop)
    }

    fn lower(&mut self, graph: &Graph, end: End) -> Result<Lowered, Diagnostic> {
        // The name of a GPU is none of a processor, which its kernels do not run on.
        let choices = self.compiler.choices_for(self.args.target.parse().ok());
        let mut timings = vec![];
        let lowered = lower(&self.compiler, graph, choices, end, &mut |step, time, lowered| {
            timings.push((step.to_owned(), time, true));
            self.lowered(step, lowered)
        });
        self.timings.extend(timings);
        lowered
    }

    /// Checks and shows what a step made.
    fn lowered(&self, step: &str, lowered: &Lowered) -> Result<(), Diagnostic> {
        if self.args.verify_each && step == LOWER {
            lowered.kernels.iter().try_for_each(verify_kernel)?;
            verify_plan(&lowered.plan, Some(&lowered.kernels), false)?;
        }
        if self.args.verify_each && step == PLAN_MEMORY {
            verify_plan(&lowered.plan, None, true)?;
        }
        self.show(step, lowered);
        Ok(())
    }

    fn plan_memory(&mut self, lowered: &mut Lowered) -> Result<(), Diagnostic> {
        let start = Instant::now();
        plan_memory(lowered)?;
        self.timings.push((PLAN_MEMORY.to_owned(), start.elapsed(), true));
        self.lowered(PLAN_MEMORY, lowered)
    }

    fn show(&self, pass: &str, lowered: &Lowered) {
        if self.args.print_changed || self.args.print_after.iter().any(|n| n == pass) {
            let (kernels, plans) = (lowered.kernels.clone(), vec![lowered.plan.clone()]);
            let module = TextModule { kernels, plans, ..TextModule::default() };
            eprintln!("// after {pass}\n{}", print_module(&module, &PrintOptions::default()));
        }
    }

    /// Compares the values of a graph before and after the passes.
    fn check(&mut self, graph: &Graph) -> Result<String, CliFailure> {
        let inputs = self.input_types(graph)?;
        let mut before = graph.clone();
        tensorc::passes::infer::bind(&mut before, &inputs)?;
        // The passes see the graph as it stands, open dimensions included, if they can.
        let jit = self.work.lowers() || self.args.check_values == Some(CheckValues::Jit);
        let mut after = if jit { before.clone() } else { graph.clone() };
        self.passes(&mut after)?;
        let compiled = match jit {
            true => Some(self.compiled(&after)?),
            false => None,
        };
        let (exact, products) = (self.work.exact, self.args.compile.products());
        Comparison { compiler: &self.compiler, before: &before, after: &after, compiled, exact, products }.run(&inputs)
    }

    /// Types for the inputs: as stated, as inferred where that says more, small where open.
    fn input_types(&self, graph: &Graph) -> Result<Vec<DenseType>, CliFailure> {
        let mut typed = graph.clone();
        let mut cx = PassCx::new(self.compiler.registry()).with_options(self.compiler.options().passes.clone());
        if Pipeline::to(CompilePhase::Type).run(&mut typed, &mut cx).is_err() {
            // A conflict is reported by the passes, if they look at types.
            typed = graph.clone();
        }
        binding::bind_open(&mut typed, OPEN_EXTENT)?;
        Ok(binding::input_types(&typed)?)
    }

    /// Runs what is left of the default pipeline.
    fn compiled(&mut self, graph: &Graph) -> Result<Lowered, Diagnostic> {
        let mut graph = graph.clone();
        if !self.work.has("fuse") {
            let mut cx = PassCx::new(self.compiler.registry()).with_options(self.compiler.options().passes.clone());
            cx.threads = self.compiler.pool().threads();
            cx.options.reassociate &= !self.work.exact;
            cx.options.approximate &= !self.work.exact;
            Pipeline::parse("infer,decompose,fuse")?.run(&mut graph, &mut cx)?;
        }
        self.lower(&graph, End::Planned)
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
