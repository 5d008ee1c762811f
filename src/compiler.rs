//! The compiler instance: operators, options, threads and the cache of kernels.

use std::path::Path;
use std::sync::Arc;

use tensorc_codegen::cranelift::KernelCache;
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};
use tensorc_ir::graph::Graph;
use tensorc_ir::op::{OpDef, Registry};
use tensorc_passes::Phase;
use tensorc_runtime::profiler::Task;
use tensorc_runtime::threads::resolve_threads;
use tensorc_runtime::{Pool, Profiler};

use crate::{Error, Model};

/// Category of the phases of compilation in profiles.
pub(crate) const COMPILE: &str = "compile";

/// What a user may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads for running and compiling; by default what affinity and CPU quota allow.
    pub threads: Option<usize>,
    pub passes: tensorc_passes::Options,
    /// Called when a phase of compilation begins.
    pub progress: Option<fn(&str)>,
    /// While it is on, records what compiling and running take.
    pub profiler: Option<Profiler>,
}

/// Operators, threads and compiled kernels shared by models. Cloning shares them.
#[derive(Clone)]
pub struct Compiler(Arc<Inner>);

struct Inner {
    registry: Registry,
    options: Options,
    kernels: KernelCache,
    pool: Pool,
}

impl Compiler {
    /// A compiler with every operator of [`tensorc_ops`].
    ///
    /// # Errors
    /// No thread could be started.
    pub fn new(options: Options) -> Result<Compiler, Error> {
        let registry = tensorc_ops::registry().map_err(Error::Internal)?;
        Compiler::with_registry(registry, options)
    }

    /// A compiler with every operator of [`tensorc_ops`] and those of the caller's; see [`crate::op`].
    ///
    /// # Errors
    /// An operator's name is taken, its entry contradicts itself, or no thread could be started.
    pub fn with_operators(
        options: Options,
        operators: impl IntoIterator<Item = impl Into<OpDef>>,
    ) -> Result<Compiler, Error> {
        let mut registry = tensorc_ops::registry().map_err(Error::Internal)?;
        operators.into_iter().try_for_each(|op| registry.add(op.into())).map_err(Error::Operator)?;
        Compiler::with_registry(registry, options)
    }

    /// A compiler with a registry of the caller's.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn with_registry(registry: Registry, options: Options) -> Result<Compiler, Error> {
        let pool = Pool::new(resolve_threads(options.threads))?;
        Ok(Compiler(Arc::new(Inner { registry, options, kernels: KernelCache::new(), pool })))
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub fn options(&self) -> &Options {
        &self.0.options
    }

    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// The profiler of the options.
    pub fn profiler(&self) -> Option<&Profiler> {
        self.0.options.profiler.as_ref()
    }

    /// A phase of compilation, until the result is dropped.
    pub(crate) fn span(&self, phase: &'static str) -> Option<Task> {
        self.profiler().map(|profiler| profiler.scope(phase, COMPILE))
    }

    pub(crate) fn kernels(&self) -> &KernelCache {
        &self.0.kernels
    }

    pub(crate) fn progress(&self, what: &str) {
        if let Some(report) = self.0.options.progress {
            report(what);
        }
    }

    /// Loads a model file: ONNX, or the text IR if the name ends in `.tc`.
    ///
    /// # Errors
    /// The file cannot be read, is no model, or holds what is not supported; then the error lists
    /// everything unsupported at once.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Model, Error> {
        Ok(Model::new(self.clone(), self.load_graph(path)?))
    }

    /// The graph of a model file as imported.
    ///
    /// # Errors
    /// As [`Compiler::load`].
    pub fn load_graph(&self, path: impl AsRef<Path>) -> Result<Graph, Error> {
        let path = path.as_ref();
        self.progress(Phase::Import.name());
        let _span = self.span(Phase::Import.name());
        if path.extension().is_some_and(|e| e == "tc") {
            let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
            let mut module = tensorc_ir::text::parse_module(&text, self.registry())?;
            return match module.graphs.len() {
                0 => Err(Error::Internal(format!("{}: the file holds no graph", path.display()))),
                _ => Ok(module.graphs.swap_remove(0)),
            };
        }
        let fail = |source| Error::Onnx { path: path.to_owned(), source: Box::new(source) };
        let model = OnnxModel::open(path).map_err(fail)?;
        let imported = import(model, self.registry(), &ImportOptions::default()).map_err(fail)?;
        Ok(imported.graph)
    }

    /// Wraps a graph built in Rust.
    pub fn model(&self, graph: Graph) -> Model {
        Model::new(self.clone(), graph)
    }
}
