//! Arguments that several commands share.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use clap::Args;
use tensorc::ir::diag::Diagnostic;
use tensorc::ir::graph::Graph;
use tensorc::passes::{FusionStrategy, Precision};
use tensorc::runtime::gpu::Driver;
use tensorc::runtime::{Device as Place, DeviceKind};
use tensorc::schedule::cost::CostModel;
use tensorc::{Backend, Compiler, Error, Limits, Model, Options, VendorLibraries};

use super::arrays::Inputs;
use super::failure::{CliFailure, Usage};
use super::values::Rounded;
use super::{arrays, code, limits, npz, progress};

/// Values of `--precision`.
const F32: &str = "f32";
const BF16: &str = "bf16";

/// Options of every command that compiles.
#[derive(Args, Clone)]
#[command(next_help_heading = "Compilation")]
pub struct CompileArgs {
    /// Threads to compile and run on (default: all that CPU affinity and quota allow)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Forbid rewrites that change rounding, such as folding scales into weights
    #[arg(long)]
    pub exact: bool,
    /// Allow rewrites that ignore NaN, infinities, overflow or signed zeros, and contract multiply-adds
    #[arg(long, conflicts_with = "exact")]
    pub fast_math: bool,
    /// Use tf32 tensor cores for f32 matrix products on a GPU (10 bits of fraction)
    #[arg(long, conflicts_with = "exact")]
    pub tf32: bool,
    /// Precision of products with constants: f32, or bf16 (sums of f32; processors with AVX-512 BF16)
    #[arg(long, value_name = "TYPE", value_parser = [F32, BF16], default_value = F32)]
    precision: String,
    /// Node whose products stay in f32 with `--precision bf16`; may be repeated
    #[arg(long, value_name = "NODE")]
    keep_f32: Vec<String>,
    /// Clamp indices that are out of range, and give 0 for integers divided by 0, instead of failing
    #[arg(long)]
    clamp_indices: bool,
    /// Disable graph rewriting
    #[arg(long)]
    no_rewriting: bool,
    /// Disable fusion: `--fusion=off`
    #[arg(long)]
    no_fusion: bool,
    /// Fusion strategy: alternatives, greedy or off
    #[arg(long, value_name = "HOW", conflicts_with = "no_fusion")]
    fusion: Option<String>,
    /// Code generator: cranelift, llvm, or auto (chosen per kernel)
    #[arg(long, value_name = "NAME", default_value = "cranelift")]
    backend: String,
    /// Device: cpu; gpu or gpu:1 (feature cuda); interpreted (a GPU simulated by the kernel interpreter)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Vendor libraries on a GPU: none, cublaslt (matrix products), cudnn (convolutions) or all
    #[arg(long, value_name = "LIBRARIES", default_value = "none")]
    gpu_libraries: String,
    /// Most that the model may take: memory=4GiB, time=60s, nodes=100000, code=64MiB, separated by commas; `none` for no limits
    /// (default: the memory of this machine, an hour, 10 million nodes, 4 GiB of code)
    #[arg(long, value_name = "LIMITS", value_parser = limits::parse)]
    limit: Option<Limits>,
    /// Follow links to external data of the model, wherever they lead; for folders that are trusted
    #[arg(long)]
    allow_linked_data: bool,
    /// Cost model file, as printed by `tensorc opt --print-cost-model`
    #[arg(long, value_name = "FILE")]
    cost_model: Option<PathBuf>,
}

impl CompileArgs {
    /// Options that may be repeated.
    pub fn lists(&mut self) -> [&mut Vec<String>; 1] {
        [&mut self.keep_f32]
    }

    /// The back end that `--backend` names.
    pub fn backend(&self) -> Result<Backend, Usage> {
        let known = Backend::NAMES.join(", ");
        let unknown = || Usage(format!("--backend: unknown back end `{}`; known: {known}", self.backend));
        Backend::from_name(&self.backend).ok_or_else(unknown)
    }

    /// The GPU that `--device` names, if it does.
    pub fn driver(&self) -> Result<Option<Arc<dyn Driver>>, CliFailure> {
        let named = |e: &dyn Display| Usage(format!("--device: {e}"));
        match self.device.as_str() {
            "cpu" => Ok(None),
            "interpreted" => Ok(Some(tensorc_simulator::interpreted(Place::accelerator(0)))),
            name => match name.parse::<Place>().map_err(|e| named(&e))? {
                Place { kind: DeviceKind::Accelerator, id } => Ok(Some(tensorc::gpu::cuda(id)?)),
                other => Err(named(&format!("nothing runs on {other}; write cpu, gpu or interpreted")).into()),
            },
        }
    }

    /// A compiler with these options.
    pub fn compiler(&self) -> Result<Compiler, CliFailure> {
        self.compiler_with(None, Options::default())
    }

    /// A compiler with some options chosen otherwise, whose kernels are written for the back end of a form of code.
    pub fn compiler_with(&self, code: Option<code::DumpForm>, options: Options) -> Result<Compiler, CliFailure> {
        self.check()?;
        let mut options = Options { threads: self.threads.map(usize::from), ..options };
        if options.gpus.is_empty() {
            options.gpus.extend(self.driver()?);
        }
        options.linked_data = self.allow_linked_data;
        options.passes.reassociate = !self.exact;
        options.passes.approximate = self.fast_math;
        options.passes.tf32 = self.tf32;
        options.passes.precision = self.product_precision()?;
        options.limits = self.limit.unwrap_or_else(limits::default);
        options.passes.clamp_indices = self.clamp_indices;
        options.passes.rewrite = !self.no_rewriting;
        if let Some(name) = &self.fusion {
            let known = "alternatives, greedy, off";
            let unknown = || Usage(format!("--fusion: unknown way `{name}`; known: {known}"));
            options.passes.fuse = FusionStrategy::from_name(name).ok_or_else(unknown)?;
        }
        let known = || Usage(format!("--gpu-libraries: write {}", VendorLibraries::NAMES.join(", ")));
        options.gpu_libraries = VendorLibraries::from_name(&self.gpu_libraries).ok_or_else(known)?;
        let backend = self.backend()?;
        options.backend = code.map_or(backend, |form| form.backend(backend));
        if self.no_fusion {
            options.passes.fuse = FusionStrategy::Off;
        }
        if let Some(path) = &self.cost_model {
            let text = text_of(path)?;
            let named = |e: Diagnostic| format!("{}: {e}", path.display());
            options.passes.target.costs = Some(CostModel::from_text(&text).map_err(named)?);
        }
        options.progress = Some(progress::phase);
        Ok(Compiler::new(options)?)
    }

    /// Refuses options that exclude each other, wherever they come from.
    fn check(&self) -> Result<(), Usage> {
        let pairs = [
            (self.exact && self.fast_math, "--exact: not with --fast-math"),
            (self.exact && self.tf32, "--exact: not with --tf32"),
            (self.no_fusion && self.fusion.is_some(), "--no-fusion: not with --fusion"),
        ];
        match pairs.into_iter().find(|(both, _)| *both) {
            Some((_, why)) => Err(Usage(why.to_owned())),
            None => Ok(()),
        }
    }

    /// What `--precision` and `--keep-f32` say.
    fn product_precision(&self) -> Result<Precision, Usage> {
        match self.precision == BF16 {
            false if !self.keep_f32.is_empty() => Err(Usage("--keep-f32: only with --precision bf16".into())),
            false => Ok(Precision::Full),
            true if self.exact => Err(Usage("--precision bf16: not with --exact".into())),
            true => Ok(Precision::Bf16 { keep: Arc::new(self.keep_f32.iter().cloned().collect()) }),
        }
    }

    /// What products of f32 round their operands to.
    pub fn products(&self) -> Rounded {
        match (self.precision == BF16, self.tf32) {
            (true, _) => Rounded::Bf16,
            (_, true) => Rounded::Tf32,
            _ => Rounded::No,
        }
    }

    /// Whether results may be other than with `--exact` by more than rounding of f32.
    fn is_approximate(&self) -> bool {
        self.fast_math || self.products() != Rounded::No
    }

    /// A compiler for exact values, if these options allow less ([`tensorc::report`]).
    pub fn exact_reference(&self) -> Result<Option<Compiler>, CliFailure> {
        let (precision, keep_f32) = (F32.to_owned(), vec![]);
        let exact = CompileArgs { exact: true, fast_math: false, tf32: false, precision, keep_f32, ..self.clone() };
        self.is_approximate().then(|| exact.compiler()).transpose()
    }
}

/// Refuses names of `--keep-f32` that no node has. The nodes of a model whose branches depend on its inputs are not known yet.
pub fn kept_nodes_exist(compiler: &Compiler, model: &Model) -> Result<(), Usage> {
    let Precision::Bf16 { keep } = &compiler.options().passes.precision else { return Ok(()) };
    if model.has_branches() {
        return Ok(());
    }
    match keep.iter().find(|name| !has_node(model.graph(), name)) {
        Some(name) => Err(Usage(format!("--keep-f32: the model has no node `{name}`"))),
        None => Ok(()),
    }
}

/// Whether a node of a graph, or of a body within it, has a name.
fn has_node(graph: &Graph, name: &str) -> bool {
    graph.order().into_iter().any(|id| *graph.node(id).name == *name) || graph.bodies().any(|body| has_node(body, name))
}

/// The text in a file.
pub fn text_of(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Where code is kept for later runs of the program.
#[derive(Args, Clone)]
#[command(next_help_heading = "Compilation")]
pub struct CacheArgs {
    /// Cache machine code in a folder (default: $TENSORC_CODE_CACHE, else no cache)
    #[arg(long, value_name = "DIR")]
    code_cache: Option<PathBuf>,
}

impl CacheArgs {
    /// The folder, if code is kept.
    pub fn folder(&self) -> Option<PathBuf> {
        self.code_cache.clone().or_else(default_code_cache)
    }
}

/// The folder of `TENSORC_CODE_CACHE`.
pub fn default_code_cache() -> Option<PathBuf> {
    env::var_os("TENSORC_CODE_CACHE").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A model, in one file or two.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model and inputs")]
pub struct ModelArgs {
    /// Model file: ONNX (.onnx), MXNet symbol (.json) or text IR (.tc)
    #[arg(help_heading = None)]
    model: PathBuf,
    /// Parameters of the symbol
    #[arg(long, value_name = "PARAMS")]
    params: Option<PathBuf>,
    /// Bind an input to a constant: `rate=16000`, or comma-separated numbers
    #[arg(long = "value", value_name = "NAME=X,…")]
    values: Vec<String>,
}

impl ModelArgs {
    /// The model file.
    pub fn path(&self) -> &Path {
        &self.model
    }

    /// Loads the model, with the values of `--value`. Sequences and optional values have the tensors named there and in the
    /// arguments of `--shape`.
    pub fn load(&self, compiler: &Compiler, shapes: &[String]) -> Result<Model, CliFailure> {
        self.load_for(compiler, shapes, None)
    }

    /// As [`ModelArgs::load`]; sequences and optional values also have the tensors of a file.
    fn load_for(&self, compiler: &Compiler, shapes: &[String], file: Option<&Path>) -> Result<Model, CliFailure> {
        let mut model = compiler.load_with(&self.model, self.params.as_deref())?;
        kept_nodes_exist(compiler, &model)?;
        if model.has_lists() {
            let stored = file.map(npz::read).transpose()?.unwrap_or_default();
            let shapes = arrays::entries(shapes);
            let options = shapes.iter().chain(&self.values).filter_map(|text| Some(text.rsplit_once('=')?.0));
            let given: Vec<&str> = options.chain(stored.iter().map(|(name, _)| name.as_str())).collect();
            if given.is_empty() {
                eprintln!(
                    "sequences and optional inputs have no tensors: name some by --input, or --shape 'NAME[0]=N,…'"
                );
            }
            model = model.with_elements(&given)?;
        }
        let values = arrays::values(&model, &self.values)?;
        Ok(model.with_values(&values.iter().map(|(name, t)| (name.as_str(), t.clone())).collect::<Vec<_>>())?)
    }
}

/// Where a model's inputs come from.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model and inputs")]
pub struct InputArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Arrays named by graph input; random ones if absent
    #[arg(long, value_name = "NPZ")]
    input: Option<PathBuf>,
    /// Extents of an input or a named dimension, for random inputs: `x=1,3,224,224` or `batch=4`
    #[arg(long = "shape", value_name = "NAME=N,…")]
    shapes: Vec<String>,
}

impl InputArgs {
    /// The model file.
    pub fn path(&self) -> &Path {
        self.model.path()
    }

    /// Options that may be repeated.
    pub fn lists(&mut self) -> [&mut Vec<String>; 2] {
        [&mut self.model.values, &mut self.shapes]
    }

    /// The same arguments with another model file.
    #[must_use]
    pub fn at(&self, path: &Path) -> InputArgs {
        let mut other = self.clone();
        other.model.model = path.to_owned();
        other
    }

    /// Loads the model, with the values of `--value`.
    pub fn load(&self, compiler: &Compiler) -> Result<Model, CliFailure> {
        self.model.load_for(compiler, &self.shapes, self.input.as_deref())
    }

    /// The arrays to run the model on.
    pub fn arrays(&self, model: &Model) -> Result<Inputs, CliFailure> {
        arrays::inputs(model, self.input.as_deref(), &self.shapes)
    }
}
