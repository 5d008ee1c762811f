//! The pass interface and the context passes run in: options, timings, printing, verification.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;
use tensorc_ir::op::Registry;
use tensorc_schedule::Target;

use crate::fuse::By;
use crate::recompute::Budget;
use crate::simplify::scalar::Label;

/// One transformation of a graph.
pub trait Pass {
    /// The name in pipelines, timings and `--print-after`.
    fn name(&self) -> &'static str;

    /// Transforms the graph; returns whether it changed.
    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool>;
}

/// What a user may choose about the whole compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Constant folding may make a constant this many bytes larger than the operands it replaces.
    pub fold_bytes: u64,
    /// Values of operands that decide shapes are computed at compile time up to this many bytes.
    pub static_bytes: u64,
    /// Allow rewrites that are exact in real arithmetic but round differently.
    pub reassociate: bool,
    /// Allow rewrites that contract, or ignore NaN, infinities, overflow and signs of zero.
    pub approximate: bool,
    /// Allow products of f32 to round their operands to 10 bits of fraction (tf32), as matrix units of GPUs do; only where
    /// `reassociate` is.
    pub tf32: bool,
    /// Rewrite primitives into cheaper ones.
    pub rewrite: bool,
    /// What kernels are made for.
    pub target: Target,
    /// How primitives are put together into kernels.
    pub fuse: By,
    /// Compute values of the forward pass again in the backward pass until intermediate tensors fit
    /// in this; `None`: keep them.
    pub recompute: Option<Budget>,
    /// Least bytes that a cluster hands on for a part of the batch, where it runs part by part to save memory.
    pub slice_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fold_bytes: 1 << 20,
            static_bytes: 1 << 20,
            reassociate: true,
            approximate: false,
            tf32: false,
            rewrite: true,
            target: Target::default(),
            fuse: By::default(),
            recompute: None,
            slice_bytes: 128 << 10,
        }
    }
}

impl Options {
    /// Whether images may lie otherwise than the model has them: a convolution over other layouts than planes adds in
    /// another order, and those of a GPU are products over planes.
    pub fn chooses_layouts(&self) -> bool {
        self.reassociate && !self.target.is_gpu()
    }
}

/// How long one run of a pass took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub pass: &'static str,
    pub start: Instant,
    pub time: Duration,
    pub changed: bool,
}

/// One application of a rewrite rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The node of the graph.
    pub node: Arc<str>,
    pub rule: &'static str,
    pub label: Label,
    /// Costs of what the rule and those that fired with it found, and of what they left.
    pub before: u64,
    pub after: u64,
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
    #[default]
    Never,
    /// After each pass that changed the graph.
    Changed,
    /// After the passes of these names.
    After(Vec<String>),
    Always,
}

/// Receives the name of a pass and the graph it left.
pub type Printer<'a> = dyn FnMut(&str, &Graph) + 'a;

/// Checks the graph a pass left.
pub type Verifier<'a> = dyn FnMut(&str, &Graph) -> Result<()> + 'a;

/// What a pass may use besides the graph.
pub struct PassCx<'a> {
    pub registry: &'a Registry,
    pub options: Options,
    /// Most threads that a pass works on; what it makes does not depend on them.
    pub threads: usize,
    pub timings: Vec<Timing>,
    /// The rules that fired, in order.
    pub rewrites: Vec<Rewrite>,
    pub print_when: PrintWhen,
    pub printer: Option<&'a mut Printer<'a>>,
    /// Runs after every pass.
    pub verifier: Option<&'a mut Verifier<'a>>,
}

impl<'a> PassCx<'a> {
    pub fn new(registry: &'a Registry) -> PassCx<'a> {
        PassCx {
            registry,
            options: Options::default(),
            threads: 1,
            timings: vec![],
            rewrites: vec![],
            print_when: PrintWhen::Never,
            printer: None,
            verifier: None,
        }
    }

    pub fn with_options(mut self, options: Options) -> PassCx<'a> {
        self.options = options;
        self
    }
}

/// Runs passes in order; returns whether any changed the graph.
pub fn run_passes(passes: &[Box<dyn Pass>], graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
    let mut any = false;
    for pass in passes {
        let start = Instant::now();
        let changed = pass.run(graph, cx)?;
        cx.timings.push(Timing { pass: pass.name(), start, time: start.elapsed(), changed });
        any |= changed;
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
