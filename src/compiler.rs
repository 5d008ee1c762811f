//! The compiler instance: operators, options, threads and the cache of kernels.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_codegen::isa::Isa;
use tensorc_codegen::jit::{Backend, KernelCache};
use tensorc_codegen::lower::{Choices, ConcatOperands};
use tensorc_codegen::ptx::PtxCache;
use tensorc_frontend::onnx::{ImportLimits, ReadOptions};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::op::{OpDef, Registry};
use tensorc_passes::Precision;
use tensorc_passes::parts::Typing;
use tensorc_runtime::gpu::Driver;
use tensorc_runtime::profiler::SpanGuard;
use tensorc_runtime::threads::resolve_threads;
use tensorc_runtime::{Context, Device as Place, DeviceKind, Interrupter, Pool, Profiler, WeightCache};
use tensorc_schedule::Target;
use tensorc_schedule::target::{Cpu, Gpu, Processor, VendorLibraries};

use crate::code_cache::CodeFolder;
use crate::error::Error;
use crate::gpu;
use crate::limits::{Deadline, Limits};

/// Category of the phases of compilation in profiles.
pub(crate) const COMPILE: &str = "compile";

/// What a user may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads for running and compiling; by default what affinity and CPU quota allow.
    pub threads: Option<usize>,
    /// Options of passes.
    pub passes: tensorc_passes::Options,
    /// What makes machine code. The results have the same bits.
    pub backend: Backend,
    /// A folder in which machine code, and PTX for GPUs, is kept for later processes; it is created with the first code in
    /// it. Whoever can write to it decides what this process runs: it is not used if it belongs to another user, or others
    /// may write to it. Nothing that goes wrong with it is an error ([`Compiler::code_cache_failure`]).
    pub code_cache: Option<PathBuf>,
    /// GPUs, each with a number of its own. Models run on the first, if there is one: passes and kernels are made for it then.
    /// What works on arrays runs on the device that they are on.
    pub gpus: Vec<Arc<dyn Driver>>,
    /// What libraries of the GPU's maker compute, found where the model runs; by default nothing, so that a model needs no more
    /// than the driver and its code and results do not depend on versions of libraries.
    pub gpu_libraries: VendorLibraries,
    /// Combinations of input shapes for which a [`crate::Model`] keeps what it compiled, by default 64; one that has not been used
    /// longest makes room.
    pub sessions: Option<usize>,
    /// When plans and kernels are made for one combination of shapes. Results have the same bits.
    pub specialize: Specialize,
    /// What models may take; by default as much as they ask for.
    pub limits: Limits,
    /// Whom compilations and runs ask whether they shall end early; a run on a GPU does not ask.
    pub interrupter: Option<Interrupter>,
    /// Also reads external data of ONNX models that is reached by symbolic links, wherever they lead, or that has further names
    /// (hard links). For model folders that are trusted, such as caches of downloads.
    pub linked_data: bool,
    /// Called when a phase of compilation begins.
    pub progress: Option<fn(&str)>,
    /// While it is on, records what compiling and running take.
    pub profiler: Option<Profiler>,
    /// Fills memory with NaN as soon as nothing lives in it, so that a wrong memory plan gives wrong
    /// numbers. For tests; it costs time.
    pub poison: bool,
    /// Copies the operands of concatenations rather than computing them in their place. For tests: the
    /// results have the same bits.
    pub copies: bool,
}

/// When a model is compiled for one combination of input shapes instead of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Specialize {
    /// Only where nothing serves many.
    #[default]
    Never,
    /// In the background, when the combination has come up so often. Runs go on meanwhile, with what serves many.
    After(u32),
    /// At once.
    Always,
}

/// Operators, threads and compiled kernels shared by models. Cloning shares them.
#[derive(Clone)]
pub struct Compiler(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    options: Options,
    /// Where what is compiled runs, if not here.
    gpu: Option<Arc<dyn Driver>>,
}

/// What compilers for different devices have in common.
struct Shared {
    registry: Registry,
    kernels: KernelCache,
    ptx: PtxCache,
    code: Option<Arc<CodeFolder>>,
    weights: WeightCache,
    pool: Arc<Pool>,
}

impl Compiler {
    /// A compiler with every operator of [`tensorc_ops`].
    ///
    /// # Errors
    /// No thread could be started, or this build does not have the back end.
    pub fn new(options: Options) -> Result<Compiler, Error> {
        let registry = tensorc_ops::registry().map_err(Error::Internal)?;
        Compiler::with_registry(registry, options)
    }

    /// A compiler with every operator of [`tensorc_ops`] and those of the caller's; see [`crate::op`].
    ///
    /// # Errors
    /// An operator's name is taken, its entry contradicts itself, no thread could be started, or this build does
    /// not have the back end.
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
    /// No thread could be started, this build does not have the back end, or the target does not have the precision.
    pub fn with_registry(registry: Registry, options: Options) -> Result<Compiler, Error> {
        options.backend.check()?;
        let mut options = options;
        let gpu = options.gpus.first().cloned();
        // Models may be compiled for a GPU that is elsewhere.
        if gpu.is_some() || !options.passes.target.is_gpu() {
            aim(&mut options, gpu.as_deref());
        }
        if options.passes.precision != Precision::Full && options.passes.target.is_gpu() {
            let why = "products of bf16 from f32 are for processors; on a GPU use tf32, or a model of bf16";
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).into());
        }
        let pool = Arc::new(Pool::new(resolve_threads(options.threads))?);
        let code = options.code_cache.clone().map(|path| Arc::new(CodeFolder::new(path)));
        let (kernels, ptx) = (KernelCache::new(), PtxCache::default());
        let (kernels, ptx) = match &code {
            Some(folder) => (kernels.storing(folder.clone()), ptx.storing(folder.clone())),
            None => (kernels, ptx),
        };
        let shared = Arc::new(Shared { registry, kernels, ptx, code, weights: WeightCache::default(), pool });
        Ok(Compiler(Arc::new(Inner { shared, options, gpu })))
    }

    /// The compiler of what runs on a device: one with the same operators, threads and kernels, for that GPU or for
    /// processors.
    ///
    /// # Errors
    /// The device is an accelerator, and the options have no driver for it.
    pub fn on(&self, device: Place) -> Result<Compiler, Error> {
        let inner = &self.0;
        let gpu = inner.options.gpus.iter().find(|driver| driver.device() == device);
        if gpu.is_none() && device.kind == DeviceKind::Accelerator {
            return Err(Error::NoDriver { device });
        }
        if gpu.map(|driver| driver.device()) == inner.gpu.as_ref().map(|driver| driver.device()) {
            return Ok(self.clone());
        }
        let mut options = inner.options.clone();
        aim(&mut options, gpu.map(|driver| &**driver));
        Ok(Compiler(Arc::new(Inner { shared: inner.shared.clone(), options, gpu: gpu.cloned() })))
    }

    /// The GPU on which what is compiled runs, if it does not run here.
    pub fn gpu(&self) -> Option<&Arc<dyn Driver>> {
        self.0.gpu.as_ref()
    }

    /// The operators that it knows.
    pub fn registry(&self) -> &Registry {
        &self.0.shared.registry
    }

    /// How it types graphs.
    pub fn typing(&self) -> Typing<'_> {
        Typing { registry: self.registry(), static_bytes: self.options().passes.static_bytes }
    }

    /// What it was made with.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// How model files are read under the options.
    pub(crate) fn read_options(&self) -> ReadOptions {
        let Limits { nodes, memory, .. } = self.0.options.limits;
        let limits = ImportLimits { nodes, bytes: memory };
        ReadOptions { linked_data: self.0.options.linked_data, limits }
    }

    /// The threads that it compiles and runs with.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.0.shared.pool
    }

    /// Why no more code is written to [`Options::code_cache`], or why the folder is not used, if something is wrong with it.
    pub fn code_cache_failure(&self) -> Option<&str> {
        self.0.shared.code.as_ref()?.failure()
    }

    /// The profiler of the options.
    pub fn profiler(&self) -> Option<&Profiler> {
        self.0.options.profiler.as_ref()
    }

    /// A context whose runs take no longer than they may.
    pub(crate) fn limited(&self, context: Context) -> Context {
        context.within(self.options().limits.time).interrupted_by(self.options().interrupter.clone())
    }

    /// What ends a compilation that begins now.
    pub(crate) fn deadline(&self) -> Deadline<'_> {
        Deadline::new(self.options().limits.time, self.options().interrupter.as_ref())
    }

    /// A phase of compilation, until the result is dropped.
    pub(crate) fn span(&self, phase: &'static str) -> Option<SpanGuard> {
        self.profiler().map(|profiler| profiler.scope(phase, COMPILE))
    }

    /// What graphs are compiled for under the options: the GPU on which they run, or this machine.
    pub fn target(&self) -> Target {
        self.0.options.passes.target
    }

    /// How graphs are lowered under the options, for a processor of an instruction set if that is given.
    pub fn choices_for(&self, isa: Option<Isa>) -> Choices {
        let mut target = self.target();
        if let Processor::Cpu(cpu) = &mut target.processor {
            cpu.scale = isa.is_some_and(|isa| self.0.options.backend.scales(isa));
            cpu.loops = isa.and_then(|isa| self.0.options.backend.loops(isa));
        }
        let concat_operands = if self.0.options.copies { ConcatOperands::Copied } else { ConcatOperands::InPlace };
        Choices { target, concat_operands, workers: self.0.options.passes.workers }
    }

    /// How graphs are lowered under the options for this machine.
    pub fn choices(&self) -> Choices {
        self.choices_for(Isa::native().ok())
    }

    /// Bytes of memory in which weights lie as kernels take them, of everything compiled that is still there. Weights that
    /// kernels take as they are in the model's file need none.
    pub fn weight_bytes(&self) -> u64 {
        self.weights().bytes()
    }

    pub(crate) fn weights(&self) -> &WeightCache {
        &self.0.shared.weights
    }

    pub(crate) fn ptx(&self) -> &PtxCache {
        &self.0.shared.ptx
    }

    pub(crate) fn kernels(&self) -> &KernelCache {
        &self.0.shared.kernels
    }

    pub(crate) fn progress(&self, what: &str) {
        if let Some(report) = self.0.options.progress {
            report(what);
        }
    }

    /// Results of `make` for each of `count` numbers, on all threads. Fails with the first, in order, that does; `what` says
    /// what was done when something panicked.
    pub(crate) fn side_by_side<T: Send>(
        &self,
        count: usize,
        what: &str,
        make: impl Fn(usize) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let slots: Vec<Mutex<Option<Result<T, Error>>>> = (0..count).map(|_| Mutex::default()).collect();
        let one = |i: usize| *slots[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(make(i));
        let task = |_: usize, range: Range<u64>| range.for_each(|i| one(i as usize));
        self.pool().run(count as u64, 1, &task).map_err(|panic| Error::Internal(format!("{what}: {panic}")))?;
        let taken = slots.into_iter().map(|s| s.into_inner().unwrap_or_else(PoisonError::into_inner));
        taken.map(|made| made.unwrap_or_else(|| Err(Error::Internal(format!("{what}: one is missing"))))).collect()
    }
}

/// Makes a driver's GPU, or without one this machine, what passes and kernels are for.
fn aim(options: &mut Options, gpu: Option<&dyn Driver>) {
    let target = &mut options.passes.target;
    target.tf32 = options.passes.tf32 && options.passes.reassociate;
    target.processor = match gpu {
        Some(driver) => Processor::Gpu(Gpu { capability: gpu::capability(driver), libraries: options.gpu_libraries }),
        None => {
            let isa = Isa::native().ok();
            let scale = isa.is_some_and(|isa| options.backend.scales(isa));
            let loops = isa.and_then(|isa| options.backend.loops(isa));
            let tiles = tensorc_kernels::isa() == tensorc_kernels::Isa::Amx;
            Processor::Cpu(Cpu { vectors: options.backend.vectors(), scale, loops, tiles })
        }
    };
}
