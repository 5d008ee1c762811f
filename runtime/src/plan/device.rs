//! Plans whose steps are launches on a GPU.
//!
//! Weights lie in the device's memory with the executable, the arena and a copy of every tensor of the caller's with
//! the context. A run copies in what it reads, enqueues its launches on one stream, copies out what it wrote,
//! and waits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tensorc_abi::{Arg, BufferId, Home, Plan};

use super::bindings::Interface;
use super::error::{LoadError, RunError};
use super::executable::{Call, Executable, Prepared};
use crate::device::stream::Transfer;
use crate::gpu::{Driver, DriverError, Function, LaunchStream, Memory};
use crate::{Device, WeightStorage};

/// A kernel as a step calls it.
pub(super) struct Launch {
    pub function: Function,
    /// Number of its arguments.
    pub arguments: usize,
}

/// What an executable on a device has there.
pub(super) struct DeviceProgram {
    pub driver: Arc<dyn Driver>,
    weights: Vec<Box<dyn Memory>>,
}

impl DeviceProgram {
    /// Copies the weights to the device.
    pub fn new(driver: Arc<dyn Driver>, weights: &[WeightStorage]) -> Result<DeviceProgram, LoadError> {
        let stream = driver.stream()?;
        let mut there = Vec::with_capacity(weights.len());
        for weight in weights {
            let data = weight.as_slice();
            let memory = driver.alloc(data.len() as u64)?;
            let transfer = Transfer {
                source: data.as_ptr(),
                from: Device::cpu(0),
                target: memory.address(),
                to: driver.device(),
                bytes: data.len(),
            };
            // SAFETY: both ranges live until the stream is done, which is waited for below.
            unsafe { stream.copy(transfer) };
            there.push(memory);
        }
        stream.synchronize().map_err(|e| DriverError { device: driver.device(), message: e.to_string() })?;
        Ok(DeviceProgram { driver, weights: there })
    }
}

/// A tensor of the caller's that a run copies.
struct Edge {
    /// An entry of the argument table with its address, and how far behind its start that is.
    slot: usize,
    offset: usize,
    /// Its copy on the device.
    there: *mut u8,
    bytes: usize,
    copy_in: bool,
    copy_out: bool,
}

/// What a context of an executable on a device has there.
pub(super) struct DeviceContext {
    device: Device,
    stream: Box<dyn LaunchStream>,
    /// Addresses of arguments on the device.
    table: Vec<*mut u8>,
    /// By interface of the executable.
    edges: Vec<Vec<Edge>>,
    _memory: Vec<Box<dyn Memory>>,
}

impl DeviceContext {
    pub fn new(executable: &Executable, program: &DeviceProgram) -> Result<DeviceContext, DriverError> {
        let (plan, driver) = (executable.plan(), &program.driver);
        let mut memory = vec![driver.alloc(plan.arena_bytes)?];
        let arena = memory[0].address();
        let mut homes: BTreeMap<BufferId, *mut u8> = BTreeMap::new();
        for id in plan.inputs.iter().chain(&plan.outputs).chain(&plan.states) {
            let block = driver.alloc(plan.buffer(*id).bytes())?;
            homes.insert(*id, block.address());
            memory.push(block);
        }
        let start = |id: BufferId| {
            let home = match plan.buffer(id).home {
                Home::Arena(offset) => arena.wrapping_add(offset as usize),
                Home::Weight(index) => program.weights[index as usize].address(),
                home => edge_of(plan, home).and_then(|id| homes.get(&id)).copied().unwrap_or(std::ptr::null_mut()),
            };
            home.wrapping_add(plan.byte_offset(id) as usize)
        };
        let table = executable.slots.iter().map(|id| start(*id)).collect();
        let interfaces = executable.interfaces();
        let edges = interfaces.iter().map(|i| edges(executable, i, &homes)).collect();
        Ok(DeviceContext { device: driver.device(), stream: driver.stream()?, table, edges, _memory: memory })
    }

    /// Copies the tensors of interface `interface`, whose addresses are in `arguments`, and executes the calls; `after`
    /// is told of every call that has ended, if it wants to be.
    pub fn run(
        &self,
        interface: usize,
        arguments: &[*mut u8],
        prepared: &[Prepared],
        after: Option<&mut dyn FnMut(&Prepared)>,
    ) -> Result<(), RunError> {
        let edges = &self.edges[interface];
        let host = |edge: &Edge| arguments[edge.slot].wrapping_sub(edge.offset);
        for edge in edges.iter().filter(|edge| edge.copy_in) {
            self.copy((host(edge), Device::cpu(0)), (edge.there, self.device), edge.bytes);
        }
        let failed =
            |step: &str, e: &dyn std::fmt::Display| RunError::Device { step: step.into(), message: e.to_string() };
        let mut outcome = Ok(());
        match after {
            None => prepared.iter().for_each(|call| self.call(call)),
            Some(after) => {
                for call in prepared {
                    self.call(call);
                    outcome = self.stream.synchronize().map_err(|e| failed(call.name(), &e));
                    if outcome.is_err() {
                        break;
                    }
                    after(call);
                }
            }
        }
        for edge in edges.iter().filter(|edge| edge.copy_out && outcome.is_ok()) {
            self.copy((edge.there, self.device), (host(edge), Device::cpu(0)), edge.bytes);
        }
        // The caller's tensors are its own again only when nothing is under way.
        let end = self.stream.synchronize().map_err(|e| failed("", &e));
        outcome.and(end)
    }

    fn copy(&self, (source, from): (*mut u8, Device), (target, to): (*mut u8, Device), bytes: usize) {
        let transfer = Transfer { source: source.cast_const(), from, target, to, bytes };
        // SAFETY: the plan's verifier and the checks of bindings say that both ranges have these bytes; they are the
        // context's or the caller's until the run ends, which waits for the stream.
        unsafe { self.stream.copy(transfer) };
    }

    fn call(&self, prepared: &Prepared) {
        match &prepared.call {
            Call::Launch(launch) => {
                let arguments = &self.table[prepared.first_slot..prepared.first_slot + launch.arguments];
                // SAFETY: every argument is a buffer of the plan in memory of this context or executable.
                unsafe { self.stream.launch(&launch.function, arguments) };
            }
            Call::Copy(bytes) => {
                let (source, target) = (self.table[prepared.first_slot], self.table[prepared.first_slot + 1]);
                self.copy((source, self.device), (target, self.device), *bytes as usize);
            }
            // Loading refused them.
            Call::Kernel(_) | Call::Library(_) | Call::Extern(_) => {}
        }
    }
}

/// The buffer of an edge of the plan.
fn edge_of(plan: &Plan, home: Home) -> Option<BufferId> {
    match home {
        Home::Input(i) => plan.inputs.get(i as usize).copied(),
        Home::Output(i) => plan.outputs.get(i as usize).copied(),
        Home::State(i) => plan.states.get(i as usize).copied(),
        Home::Weight(_) | Home::Arena(_) => None,
    }
}

/// The caller's tensors that the calls of an interface use.
fn edges(executable: &Executable, interface: &Interface, homes: &BTreeMap<BufferId, *mut u8>) -> Vec<Edge> {
    let plan = executable.plan();
    let mut edges: BTreeMap<BufferId, Edge> = BTreeMap::new();
    let calls: Range<usize> = interface.calls.clone();
    for call in &executable.prepared[calls] {
        for (i, Arg { buffer, writes }) in plan.steps[call.step].op.args().into_iter().enumerate() {
            let Some(id) = edge_of(plan, plan.buffer(buffer).home) else { continue };
            let edge = edges.entry(id).or_insert_with(|| Edge {
                slot: call.first_slot + i,
                offset: plan.byte_offset(buffer) as usize,
                there: homes.get(&id).copied().unwrap_or(std::ptr::null_mut()),
                bytes: plan.buffer(id).bytes() as usize,
                copy_in: !matches!(plan.buffer(id).home, Home::Output(_)),
                copy_out: false,
            });
            edge.copy_out |= writes;
        }
    }
    edges.into_values().collect()
}
