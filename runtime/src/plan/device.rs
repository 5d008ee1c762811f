//! Plans whose steps are launches on a GPU.
//!
//! Weights lie in the device's memory with the executables that share them, the arena with the context. A run enqueues its launches on one
//! stream; when a third run finds everything at the same addresses, its launches are recorded, and from then on
//! replayed as one graph. Tensors of the host are copied on streams of their own ([`Lanes`]).

use std::sync::Arc;

use tensorc_abi::{BufferId, Home, Plan};

use super::error::{LoadError, RunError};
use super::executable::{Call, Executable, Prepared};
use super::lanes::Lanes;
use crate::device::stream::{StreamError, Transfer};
use crate::gpu::{Driver, DriverError, Function, Graph, LaunchStream, Memory};
use crate::{WeightCache, WeightStorage};

/// Runs at the same addresses before one is recorded.
const RUNS: u32 = 2;
/// Sets of addresses a context knows at a time.
const KNOWN: usize = 4;

/// A kernel as a step calls it.
pub(super) struct Launch {
    pub function: Function,
    /// Number of its arguments.
    pub arguments: usize,
}

/// What an executable on a device has there.
pub(super) struct DeviceProgram {
    pub driver: Arc<dyn Driver>,
    weights: Vec<Arc<dyn Memory>>,
}

impl DeviceProgram {
    /// Copies the weights to the device, as far as they are not there.
    pub fn new(
        driver: Arc<dyn Driver>,
        weights: &[WeightStorage],
        cache: &WeightCache,
    ) -> Result<DeviceProgram, LoadError> {
        let there = cache.load(&driver, weights)?;
        Ok(DeviceProgram { driver, weights: there })
    }
}

/// Launches at the same addresses.
struct Known {
    interface: usize,
    table: Vec<*mut u8>,
    runs: u32,
    graph: Option<Arc<Graph>>,
}

/// What a context of an executable on a device has there.
pub(super) struct DeviceContext {
    pub driver: Arc<dyn Driver>,
    /// Addresses of arguments on the device, those of the caller's tensors from the last run.
    pub table: Vec<*mut u8>,
    /// Tensors of the host and their streams, once there was a run with some. They go before what they use.
    pub lanes: Option<Lanes>,
    known: Vec<Known>,
    /// None if others share it.
    _arena: Option<Box<dyn Memory>>,
}

impl DeviceContext {
    /// With an arena of its own, or in one that is announced by [`DeviceContext::rebase`].
    pub fn new(executable: &Executable, program: &DeviceProgram, own: bool) -> Result<DeviceContext, DriverError> {
        let (plan, driver) = (executable.plan(), &program.driver);
        let arena = own.then(|| driver.alloc(plan.arena_bytes)).transpose()?;
        let start = |id: &BufferId| match plan.buffer(*id).home {
            Home::Weight(index) => {
                program.weights[index as usize].address().wrapping_add(plan.byte_offset(*id) as usize)
            }
            _ => std::ptr::null_mut(),
        };
        let table = executable.slots.iter().map(start).collect();
        let mut context = DeviceContext { driver: driver.clone(), table, known: vec![], lanes: None, _arena: None };
        if let Some(arena) = arena {
            context.rebase(executable, arena.address());
            context._arena = Some(arena);
        }
        Ok(context)
    }

    /// The arena begins at another address.
    pub fn rebase(&mut self, executable: &Executable, base: *mut u8) {
        let plan = executable.plan();
        for (argument, id) in self.table.iter_mut().zip(&executable.slots) {
            if let Home::Arena(offset) = plan.buffer(*id).home {
                *argument = base.wrapping_add((offset + plan.byte_offset(*id)) as usize);
            }
        }
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
        calls: &[Prepared],
    ) -> Option<Arc<Graph>> {
        let at = self.known.iter().position(|known| known.interface == interface && known.table == self.table);
        let at = at.unwrap_or_else(|| {
            if self.known.len() == KNOWN {
                self.known.remove(0);
            }
            self.known.push(Known { interface, table: self.table.clone(), runs: 0, graph: None });
            self.known.len() - 1
        });
        self.known[at].runs = self.known[at].runs.saturating_add(1);
        // A device that cannot record is not asked again.
        if self.known[at].runs == RUNS + 1 && calls.len() > 1 && stream.begin_capture().is_ok() {
            calls.iter().for_each(|call| self.call(stream, call));
            self.known[at].graph = stream.end_capture().ok().map(Arc::new);
        }
        let graph = self.known[at].graph.clone();
        match &graph {
            // SAFETY: passed on from the caller, for the addresses that were recorded.
            Some(graph) => unsafe { stream.replay(graph) },
            None => calls.iter().for_each(|call| self.call(stream, call)),
        }
        graph
    }

    /// The lanes, to be put back.
    pub fn take_lanes(&mut self, executable: &Executable) -> Result<Lanes, DriverError> {
        self.lanes.take().map_or_else(|| Lanes::new(executable, &*self.driver), Ok)
    }

    /// Whether runs replay what was recorded.
    pub fn replays(&self) -> bool {
        self.known.iter().any(|known| known.graph.is_some())
    }

    /// Enqueues one call.
    pub fn call(&self, stream: &dyn LaunchStream, prepared: &Prepared) {
        match &prepared.call {
            Call::Launch(launch) => {
                let arguments = &self.table[prepared.first_slot..prepared.first_slot + launch.arguments];
                // SAFETY: every argument is a buffer of the plan, in memory as `enqueue` demands.
                unsafe { stream.launch(&launch.function, arguments) };
            }
            Call::Copy(bytes) => {
                let (source, target) = (self.table[prepared.first_slot], self.table[prepared.first_slot + 1]);
                let device = self.driver.device();
                let bytes = *bytes as usize;
                // SAFETY: as above; the plan's verifier proved that both have these bytes and are apart.
                unsafe { stream.copy(Transfer { source, from: device, target, to: device, bytes }) };
            }
            // Loading refused them.
            Call::Kernel(_) | Call::Library(_) | Call::Extern(_) => {}
        }
    }
}

/// The error of a stream as one of a run.
pub(super) fn failed(error: &StreamError) -> RunError {
    RunError::Device { message: error.to_string() }
}

/// The buffer of an edge of the plan.
pub(super) fn edge_of(plan: &Plan, home: Home) -> Option<BufferId> {
    match home {
        Home::Input(i) => plan.inputs.get(i as usize).copied(),
        Home::Output(i) => plan.outputs.get(i as usize).copied(),
        Home::State(i) => plan.states.get(i as usize).copied(),
        Home::Weight(_) | Home::Arena(_) => None,
    }
}
