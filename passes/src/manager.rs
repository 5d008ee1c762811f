//! The pass interface and the context passes run in: options, timings, printing, verification.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorc_ir::data_files::DataFiles;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;
use tensorc_ir::interrupt::PassLimits;
use tensorc_ir::op::Registry;

use crate::options::{Label, Options};
use crate::simplify::scalar::RewrittenBodies;

/// One transformation of a graph.
pub trait Pass {
    /// The name in pipelines, timings and `--print-after`.
    fn name(&self) -> &'static str;

    /// Transforms the graph; returns whether it changed.
    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool>;

    /// Whether the pass is run on the bodies of branches and loops, too, as on any graph.
    fn visits_bodies(&self) -> bool {
        true
    }
}

/// How long one run of a pass took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The name of the pass.
    pub pass: &'static str,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub time: Duration,
    /// Whether it changed the graph.
    pub changed: bool,
}

/// One application of a rewrite rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The node of the graph.
    pub node: Arc<str>,
    /// The name of the rule.
    pub rule: &'static str,
    /// Which arithmetic the rule keeps.
    pub label: Label,
    /// Costs of what the rule and those that fired with it found, and of what they left.
    pub before: u64,
    /// The cost afterwards.
    pub after: u64,
    /// The unit of both costs.
    pub unit: Unit,
}

/// What costs of rewrites count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Half cycles of one element of a scalar body.
    HalfCycles,
    /// Estimated time of the kernels of a region.
    Nanoseconds,
}

/// After which passes the graph is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrintWhen {
    /// After no pass.
    #[default]
    Never,
    /// After each pass that changed the graph.
    Changed,
    /// After the passes of these names.
    After(Vec<String>),
    /// After every pass.
    Always,
}

/// Receives the name of a pass and the graph it left.
pub type Printer<'a> = dyn FnMut(&str, &Graph) + 'a;

/// Checks the graph a pass left.
pub type Verifier<'a> = dyn FnMut(&str, &Graph) -> Result<()> + 'a;

/// What a pass may use besides the graph.
pub struct PassCx<'a> {
    /// The operators.
    pub registry: &'a Registry,
    /// What the user chose.
    pub options: Options,
    /// Most threads that a pass works on; what it makes does not depend on them.
    pub threads: usize,
    /// Where passes stop.
    pub limits: PassLimits<'a>,
    /// How long passes took, in order.
    pub timings: Vec<Timing>,
    /// The rules that fired, in order.
    pub rewrites: Vec<Rewrite>,
    /// Bodies that were rewritten before, for all passes of a compilation.
    pub bodies: RewrittenBodies,
    /// After which passes the graph is printed.
    pub print_when: PrintWhen,
    /// Receives the printed graphs.
    pub printer: Option<&'a mut Printer<'a>>,
    /// Runs after every pass.
    pub verifier: Option<&'a mut Verifier<'a>>,
}

impl<'a> PassCx<'a> {
    /// A context with the default options.
    pub fn new(registry: &'a Registry) -> PassCx<'a> {
        PassCx {
            registry,
            options: Options::default(),
            threads: 1,
            limits: PassLimits::default(),
            timings: vec![],
            rewrites: vec![],
            bodies: RewrittenBodies::default(),
            print_when: PrintWhen::Never,
            printer: None,
            verifier: None,
        }
    }

    /// Sets the options.
    pub fn with_options(mut self, options: Options) -> PassCx<'a> {
        self.options = options;
        self
    }
}

/// Runs passes in order; returns whether any changed the graph.
pub fn run_passes(passes: &[Box<dyn Pass>], graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
    DataFiles::of(graph).confirm(run_each(passes, graph, cx))
}

/// Runs a pass on the bodies of branches and loops, then on the graph around them.
pub(crate) fn run_with_bodies(pass: &dyn Pass, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
    if !pass.visits_bodies() {
        return pass.run(graph, cx);
    }
    let changed = graph.change_bodies(&mut |body| run_with_bodies(pass, body, cx))?;
    Ok(pass.run(graph, cx)? | changed)
}

fn run_each(passes: &[Box<dyn Pass>], graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
    let mut any = false;
    for pass in passes {
        let start = Instant::now();
        let changed = run_with_bodies(&**pass, graph, cx)?;
        cx.timings.push(Timing { pass: pass.name(), start, time: start.elapsed(), changed });
        any |= changed;
        cx.limits.admit(graph.total_nodes(), format_args!("pass `{}`", pass.name()))?;
        let wanted = match &cx.print_when {
            PrintWhen::Never => false,
            PrintWhen::Changed => changed,
            PrintWhen::After(names) => names.iter().any(|n| n == pass.name()),
            PrintWhen::Always => true,
        };
        if let (true, Some(printer)) = (wanted, cx.printer.as_mut()) {
            printer(pass.name(), graph);
        }
        if let Some(verifier) = cx.verifier.as_mut() {
            verifier(pass.name(), graph)?;
        }
    }
    Ok(any)
}
