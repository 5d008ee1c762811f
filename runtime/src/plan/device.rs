//! Plans whose steps are launches on a GPU.
//!
//! Weights lie in the device's memory with the executables that share them, the arena with the context. A run enqueues its launches on one
//! stream; when a third run finds everything at the same addresses, its launches are recorded, and from then on
//! replayed as one graph. Tensors of the host are copied on streams of their own ([`StagingPipeline`]).

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use tensorc_abi::image::slot;
use tensorc_abi::{BufferId, Plan, StorageClass};
use tensorc_exec::{DeviceStep, Queue, bind};

use super::error::{LoadError, RunError};
use super::executable::Executable;
use super::lanes::StagingPipeline;
use crate::device::Device;
use crate::device::stream::{StreamError, Transfer};
use crate::gpu::{Driver, DriverError, Graph, LaunchStream, LoadedKernel, Memory};
use crate::weights::{WeightCache, WeightStorage};

/// Runs at the same addresses before one is recorded.
const RUNS_BEFORE_RECORDING: u32 = 2;
/// Bytes of the word of a check.
pub(super) const WORD_BYTES: usize = size_of::<i64>();
/// The arena of a context that has none yet.
const NOWHERE: *mut u8 = std::ptr::null_mut();
/// Sets of addresses a context knows at a time.
const MAX_RECORDINGS: usize = 4;

/// What an executable on a device has there.
pub(super) struct DeviceProgram {
    pub driver: Arc<dyn Driver>,
    /// Kernels, then calls of vendor libraries in the order of their steps.
    functions: Arc<[LoadedKernel]>,
    /// The prepared calls as the device does them; every function that they launch exists.
    calls: Arc<[DeviceStep]>,
    weights: Vec<Arc<dyn Memory>>,
}

impl DeviceProgram {
    /// Copies the weights to the device, as far as they are not there.
    pub fn new(
        driver: Arc<dyn Driver>,
        functions: Arc<[LoadedKernel]>,
        calls: Arc<[DeviceStep]>,
        weights: &[WeightStorage],
        cache: &WeightCache,
    ) -> Result<DeviceProgram, LoadError> {
        let there = cache.load(&driver, weights)?;
        Ok(DeviceProgram { driver, functions, calls, weights: there })
    }
}

/// Launches at the same addresses.
struct RecordedRun {
    interface: usize,
    table: Vec<*mut u8>,
    runs: u32,
    graph: Option<Arc<Graph>>,
}

/// What a context of an executable on a device has there.
pub(super) struct DeviceContext {
    pub driver: Arc<dyn Driver>,
    functions: Arc<[LoadedKernel]>,
    calls: Arc<[DeviceStep]>,
    /// Addresses of arguments on the device, those of the caller's tensors from the last run.
    pub table: Vec<*mut u8>,
    /// Tensors of the host and their streams, once there was a run with some. They go before what they use.
    pub lanes: Option<StagingPipeline>,
    known: Vec<RecordedRun>,
    /// Start of the arena.
    base: *mut u8,
    /// None if others share it.
    _arena: Option<Box<dyn Memory>>,
}

impl DeviceContext {
    /// With an arena of its own, or in one that is announced by [`DeviceContext::rebase`].
    pub fn new(executable: &Executable, program: &DeviceProgram, own: bool) -> Result<DeviceContext, DriverError> {
        let (plan, driver) = (executable.plan(), &program.driver);
        let arena = own.then(|| driver.alloc(plan.arena_bytes)).transpose()?;
        let mut table = vec![std::ptr::null_mut(); executable.slots.len()];
        let weight = |storage, index: usize| (storage == slot::WEIGHTS).then(|| program.weights[index].address());
        bind(executable.slots.iter(), &mut table, weight);
        let (driver, functions, calls) = (driver.clone(), program.functions.clone(), program.calls.clone());
        let mut context =
            DeviceContext { driver, functions, calls, table, known: vec![], lanes: None, base: NOWHERE, _arena: None };
        if let Some(arena) = arena {
            context.rebase(executable, arena.address());
            context._arena = Some(arena);
        }
        Ok(context)
    }

    /// The arena begins at another address.
    pub fn rebase(&mut self, executable: &Executable, base: *mut u8) {
        self.base = base;
        bind(executable.slots.iter(), &mut self.table, |storage, _| (storage == slot::ARENA).then_some(base));
    }

    /// Enqueues the calls of an interface on the addresses in the table. The graph, if there is one, is to be kept until
    /// they are done.
    ///
    /// # Safety
    /// Every address in the table that the calls use is memory of the device of its buffer's size until the stream has
    /// passed the calls, and ordered with it.
    pub unsafe fn enqueue(
        &mut self,
        stream: &dyn LaunchStream,
        interface: usize,
        calls: Range<usize>,
    ) -> Option<Arc<Graph>> {
        let at = self.known.iter().position(|known| known.interface == interface && known.table == self.table);
        let at = at.unwrap_or_else(|| {
            if self.known.len() == MAX_RECORDINGS {
                self.known.remove(0);
            }
            self.known.push(RecordedRun { interface, table: self.table.clone(), runs: 0, graph: None });
            self.known.len() - 1
        });
        self.known[at].runs = self.known[at].runs.saturating_add(1);
        // A device that cannot record is not asked again.
        if self.known[at].runs == RUNS_BEFORE_RECORDING + 1 && calls.len() > 1 && stream.begin_capture().is_ok() {
            calls.clone().for_each(|call| self.call(stream, call));
            self.known[at].graph = stream.end_capture().ok().map(Arc::new);
        }
        let graph = self.known[at].graph.clone();
        match &graph {
            // SAFETY: passed on from the caller, for the addresses that were recorded.
            Some(graph) => unsafe { stream.replay(graph) },
            None => calls.for_each(|call| self.call(stream, call)),
        }
        graph
    }

    /// Enqueues copies of the words of all checks to memory of the host, one behind the other.
    ///
    /// # Safety
    /// `target` has room for them, in memory of `to`, until the stream has passed.
    pub unsafe fn copy_words(&self, executable: &Executable, stream: &dyn LaunchStream, target: *mut u8, to: Device) {
        let from = self.driver.device();
        for (i, word) in executable.words.iter().enumerate() {
            let (source, target) =
                (self.base.wrapping_add(word.offset).cast_const(), target.wrapping_add(i * WORD_BYTES));
            // SAFETY: the verifier proved words to lie inside the arena, which is this context's until the stream has passed;
            // the rest is passed on from the caller.
            unsafe { stream.copy(Transfer { source, from, target, to, bytes: WORD_BYTES }) };
        }
    }

    /// The lanes, to be put back.
    pub fn take_lanes(&mut self, executable: &Executable) -> Result<StagingPipeline, DriverError> {
        self.lanes.take().map_or_else(|| StagingPipeline::new(executable, &*self.driver), Ok)
    }

    /// Whether runs replay what was recorded.
    pub fn replays(&self) -> bool {
        self.known.iter().any(|known| known.graph.is_some())
    }

    /// Enqueues one of the executable's calls, by its position.
    pub fn call(&self, stream: &dyn LaunchStream, call: usize) {
        let mut queue = Launches { stream, device: self.driver.device(), functions: &self.functions };
        // SAFETY: every argument is a buffer of the plan, in memory as `enqueue` demands, and has an entry in the table.
        let Ok(()) = unsafe { self.calls[call].enqueue(&self.table, &mut queue) };
    }
}

/// A stream as plans see it. What goes wrong there is an error of the stream.
struct Launches<'s> {
    stream: &'s dyn LaunchStream,
    device: Device,
    functions: &'s [LoadedKernel],
}

impl Queue for Launches<'_> {
    type Error = Infallible;

    unsafe fn launch(&mut self, function: u64, arguments: &[*mut u8]) -> Result<(), Infallible> {
        // SAFETY: passed on from the caller.
        unsafe { self.stream.launch(&self.functions[function as usize], arguments) };
        Ok(())
    }

    unsafe fn copy(&mut self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Infallible> {
        // SAFETY: passed on from the caller.
        unsafe { self.stream.copy(Transfer { source, from: self.device, target, to: self.device, bytes }) };
        Ok(())
    }
}

/// The error of a stream as one of a run.
pub(super) fn failed(error: &StreamError) -> RunError {
    RunError::Device { message: error.to_string() }
}

/// The buffer of an edge of the plan.
pub(super) fn edge_of(plan: &Plan, storage: StorageClass) -> Option<BufferId> {
    match storage {
        StorageClass::Input(i) => plan.inputs.get(i as usize).copied(),
        StorageClass::Output(i) => plan.outputs.get(i as usize).copied(),
        StorageClass::State(i) => plan.states.get(i as usize).copied(),
        StorageClass::Weight(_) | StorageClass::Arena(_) => None,
    }
}
