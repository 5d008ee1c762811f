//! What arrays live in: an engine, memory pools, random streams and compiled operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayOperand, ArraySpace, ArrayView};
use tensorc_runtime::engine::{Engine, EngineConfig};
use tensorc_runtime::resource::RandomStreams;
use tensorc_runtime::storage::{StorageConfig, StorageStats};

use super::common::Common;
use super::lazy_batch::LazyBatch;
use super::program::{ArrayProgram, Programs};
use crate::error::Error;
use tensorc::{Compiler, Options};

/// Where random numbers begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// The same numbers in every run.
    Fixed(u64),
    /// From the operating system's source of randomness.
    Entropy,
}

/// What a user may choose.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// Threads and queues of the dependency engine.
    pub engine: EngineConfig,
    /// Memory pools.
    pub storage: StorageConfig,
    /// Where arrays are made unless a device is given.
    pub device: Device,
    /// Collect element-wise calls and compile chains of them as one kernel.
    pub fuse: bool,
    /// Most calls collected.
    pub window: usize,
    /// Every process draws the same numbers unless this says otherwise.
    pub seed: Seed,
    /// Bytes copied from the host since the engine was last seen idle, above which making another
    /// array waits: it bounds the memory of a loop that makes arrays and never reads one.
    pub ahead_bytes: u64,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions {
            engine: EngineConfig::default(),
            storage: StorageConfig::default(),
            device: Device::cpu(0),
            fuse: true,
            window: 48,
            seed: Seed::Fixed(0),
            ahead_bytes: 1 << 28,
        }
    }
}

/// Engine, memory, random streams and compiled operators of arrays. Cloning shares them.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

pub(super) struct Inner {
    pub streams: RandomStreams,
    pub common: Common,
    pub options: RuntimeOptions,
    programs: Programs,
    /// Calls of one thread pass through it in order.
    front: Mutex<LazyBatch>,
    /// Bytes copied from the host since the engine was last idle.
    ahead: AtomicU64,
}

impl Runtime {
    /// A runtime with a compiler of its own.
    ///
    /// # Errors
    /// No thread could be started, or the options contradict each other.
    pub fn new(options: RuntimeOptions) -> Result<Runtime, Error> {
        Runtime::with_compiler(Compiler::new(Options::default())?, options)
    }

    /// A runtime that shares operators, threads and kernels with models of `compiler`. With
    /// [`Options::gpus`], arrays on such a device are in its memory, and what works on them runs there.
    ///
    /// # Errors
    /// As [`Runtime::new`].
    pub fn with_compiler(compiler: Compiler, options: RuntimeOptions) -> Result<Runtime, Error> {
        let drivers = compiler.options().gpus.clone();
        let space = ArraySpace::with_drivers(options.engine.clone(), options.storage.clone(), drivers)?;
        let streams = RandomStreams::new();
        match options.seed {
            Seed::Fixed(seed) => streams.seed(seed),
            Seed::Entropy => drop(streams.seed_from_entropy()?),
        }
        let common = Common::new(compiler.registry())?;
        let front = Mutex::new(LazyBatch::new(options.window));
        let (programs, ahead) = (Programs::new(compiler, space), AtomicU64::new(0));
        Ok(Runtime(Arc::new(Inner { streams, common, options, programs, front, ahead })))
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }

    pub(super) fn is_same(&self, other: &Runtime) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn front(&self) -> MutexGuard<'_, LazyBatch> {
        self.0.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn programs(&self) -> &Programs {
        &self.0.programs
    }

    /// Begins the deferred calls that concern the memory of a view.
    pub(super) fn settle(&self, view: &ArrayView) -> Result<(), Error> {
        self.front().settle(self.programs(), view)
    }

    /// Pushes a run of a program on a device of the kind that it is for, behind what is deferred on the arrays.
    pub(super) fn run<'v>(
        &self,
        program: &ArrayProgram,
        device: Device,
        inputs: Vec<ArrayOperand>,
        outputs: impl Iterator<Item = &'v ArrayView> + Clone,
    ) -> Result<(), Error> {
        inputs.iter().filter_map(ArrayOperand::view).try_for_each(|view| self.settle(view))?;
        outputs.clone().try_for_each(|view| self.settle(view))?;
        program.launch(self.programs(), device, inputs, outputs)
    }

    /// The compiler of its calls.
    pub fn compiler(&self) -> &Compiler {
        &self.0.programs.compiler
    }

    /// The engine and the memory that arrays of this runtime are in.
    pub fn space(&self) -> &ArraySpace {
        &self.0.programs.space
    }

    /// The next key of a device's random stream.
    pub(crate) fn next_key(&self, device: Device) -> [u32; 2] {
        self.0.streams.next_key(device)
    }

    /// The engine that orders its operations.
    pub fn engine(&self) -> &Engine {
        self.0.programs.space.engine()
    }

    /// What it was made with.
    pub fn options(&self) -> &RuntimeOptions {
        &self.0.options
    }

    /// Begins every call that was deferred. Returns before they are done.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn flush(&self) -> Result<(), Error> {
        self.front().flush(self.programs())
    }

    /// Waits until everything called so far is done.
    ///
    /// # Errors
    /// Every failure since the last call of this function; then they are forgotten here, but stay
    /// with the arrays concerned.
    pub fn wait_all(&self) -> Result<(), Error> {
        self.flush()?;
        Ok(self.engine().wait_all()?)
    }

    /// Memory of a device, in bytes.
    pub fn memory(&self, device: Device) -> StorageStats {
        self.0.programs.space.storage().stats(device)
    }

    /// Gives pooled memory that no array uses back to the system.
    pub fn release_memory(&self, device: Device) {
        self.0.programs.space.storage().release(device);
    }

    /// Waits for the engine when much host data may be waiting in it.
    pub(super) fn bound_run_ahead(&self, bytes: u64) -> Result<(), Error> {
        let ahead = self.0.ahead.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if ahead > self.0.options.ahead_bytes {
            self.flush()?;
            self.engine().wait_idle()?;
            self.0.ahead.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("options", &self.0.options).finish_non_exhaustive()
    }
}
