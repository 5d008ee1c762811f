//! What arrays live in: an engine, memory pools, random streams and compiled operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_runtime::array::{ArraySpace, ArrayView, Chunk, byte_len};
use tensorc_runtime::engine::{Engine, EngineConfig};
use tensorc_runtime::resource::RandomStreams;
use tensorc_runtime::storage::{StorageConfig, StorageStats};
use tensorc_runtime::{Device, Element, TensorRef};

use super::lazy_batch::LazyBatch;
use super::operators::Common;
use super::program::ArrayProgram;
use super::{Call, NDArray};
use crate::error::Error;
use tensorc::{Compiler, Options, ProgramCache, Tensor};

/// Programs kept: calls, lazy batches, models and gradients.
const MAX_CACHED_PROGRAMS: usize = 4096;

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
    pub compiler: Compiler,
    pub space: ArraySpace,
    pub streams: RandomStreams,
    pub common: Common,
    pub options: RuntimeOptions,
    programs: ProgramCache<Arc<ArrayProgram>>,
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
        let (programs, ahead) = (ProgramCache::new(MAX_CACHED_PROGRAMS), AtomicU64::new(0));
        Ok(Runtime(Arc::new(Inner { compiler, space, streams, common, options, programs, front, ahead })))
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Arrays of another runtime are ordered by another engine, so they cannot meet ours.
    pub(super) fn check<'a>(&self, op: &str, arrays: impl IntoIterator<Item = &'a NDArray>) -> Result<(), Error> {
        match arrays.into_iter().all(|array| Arc::ptr_eq(&self.0, &array.runtime().0)) {
            true => Ok(()),
            false => Err(Error::Runtimes { op: op.to_owned() }),
        }
    }

    pub(super) fn front(&self) -> MutexGuard<'_, LazyBatch> {
        self.0.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn programs(&self) -> &ProgramCache<Arc<ArrayProgram>> {
        &self.0.programs
    }

    /// The compiler of its calls.
    pub fn compiler(&self) -> &Compiler {
        &self.0.compiler
    }

    /// The engine and the memory that arrays of this runtime are in.
    pub fn space(&self) -> &ArraySpace {
        &self.0.space
    }

    /// The next key of a device's random stream.
    pub(crate) fn next_key(&self, device: Device) -> [u32; 2] {
        self.0.streams.next_key(device)
    }

    /// The engine that orders its operations.
    pub fn engine(&self) -> &Engine {
        self.0.space.engine()
    }

    /// What it was made with.
    pub fn options(&self) -> &RuntimeOptions {
        &self.0.options
    }

    /// The call of an operator of the registry, by its name.
    ///
    /// # Errors
    /// No operator has the name.
    pub fn op(&self, name: &str) -> Result<Call<'_>, Error> {
        match self.0.compiler.registry().get(name) {
            Some(def) => Ok(Call::new(self, def.clone())),
            None => Err(Error::UnknownOperator { name: name.to_owned() }),
        }
    }

    /// Copies elements to an array on the default device.
    ///
    /// # Errors
    /// Their number does not fill the shape, or memory is short.
    pub fn array<T: Element>(&self, dims: &[u64], values: &[T]) -> Result<NDArray, Error> {
        self.from_bytes(self.0.options.device, T::DTYPE, dims, TensorRef::from_slice(dims, values).data)
    }

    /// Copies a tensor to a device.
    ///
    /// # Errors
    /// Memory is short.
    pub fn from_tensor(&self, tensor: &Tensor, device: Device) -> Result<NDArray, Error> {
        match self.0.space.is_driven(device) {
            true => {
                let array = self.empty(device, tensor.dtype(), tensor.dims())?;
                array.assign(tensor)?;
                Ok(array)
            }
            false => self.from_bytes(device, tensor.dtype(), tensor.dims(), tensor.bytes()),
        }
    }

    /// Copies little-endian, row-major elements to a device.
    ///
    /// # Errors
    /// The number of bytes does not fill the shape, or memory is short.
    pub fn from_bytes(&self, device: Device, dtype: DType, dims: &[u64], data: &[u8]) -> Result<NDArray, Error> {
        if byte_len(dtype, dims)? != data.len() as u64 {
            return Err(tensorc::Error::TensorSize { elements: data.len() / dtype.size(), dims: dims.to_vec() }.into());
        }
        self.0.space.check(device)?;
        if !self.0.space.is_driven(device) {
            self.bound_run_ahead(data.len() as u64)?;
            let chunk = Chunk::copy_of(&self.0.space, device, data)?;
            return Ok(NDArray::new(self.clone(), ArrayView::whole(chunk, dtype, dims)?));
        }
        self.from_tensor(&Tensor::from_bytes(dtype, dims, Bytes::copy_from_slice(data))?, device)
    }

    /// An array whose elements are undefined until they are written. Memory is allocated then.
    ///
    /// # Errors
    /// The shape has more bytes than can be addressed, or there are GPUs and the device is none of them.
    pub fn empty(&self, device: Device, dtype: DType, dims: &[u64]) -> Result<NDArray, Error> {
        self.0.space.check(device)?;
        let chunk = Chunk::new(&self.0.space, device, byte_len(dtype, dims)?);
        Ok(NDArray::new(self.clone(), ArrayView::whole(chunk, dtype, dims)?))
    }

    /// Every element `value`, converted to the type.
    ///
    /// # Errors
    /// The shape has more bytes than can be addressed, or the engine does not run.
    pub fn full(&self, device: Device, dtype: DType, dims: &[u64], value: f64) -> Result<NDArray, Error> {
        let array = self.empty(device, dtype, dims)?;
        array.fill(value)?;
        Ok(array)
    }

    /// Zeros on the default device.
    ///
    /// # Errors
    /// As [`Runtime::full`].
    pub fn zeros(&self, dims: &[u64], dtype: DType) -> Result<NDArray, Error> {
        self.full(self.0.options.device, dtype, dims, 0.0)
    }

    /// Ones on the default device.
    ///
    /// # Errors
    /// As [`Runtime::full`].
    pub fn ones(&self, dims: &[u64], dtype: DType) -> Result<NDArray, Error> {
        self.full(self.0.options.device, dtype, dims, 1.0)
    }

    /// Begins every call that was deferred. Returns before they are done.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn flush(&self) -> Result<(), Error> {
        self.front().flush(self)
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
        self.0.space.storage().stats(device)
    }

    /// Gives pooled memory that no array uses back to the system.
    pub fn release_memory(&self, device: Device) {
        self.0.space.storage().release(device);
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
