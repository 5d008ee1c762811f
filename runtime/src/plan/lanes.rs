//! Runs of a plan on a device with tensors of the host.
//!
//! A *lane* is room on the device for the tensors of one run. Three streams share the work: one copies in, one computes, one
//! copies out, ordered by events. With two lanes, the inputs of a run are on their way while the one before computes, and
//! its results while the one after does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tensorc_abi::{Arg, BufferId, Plan, StorageClass};

use super::context::{phase_of, word_in};
use super::device::{DeviceContext, WORD_BYTES, edge_of, failed};
use super::error::RunError;
use super::executable::{Executable, Prepared};
use crate::device::Device;
use crate::device::stream::{Event, Transfer};
use crate::gpu::{Driver, DriverError, Graph, LaunchStream, Memory};
use crate::tensor::{TensorMut, TensorRef};

/// Runs under way at the same time.
const LANES: usize = 2;

/// A tensor of the caller's that a run copies.
struct HostTensorCopy {
    buffer: BufferId,
    /// An entry of the argument table with its address, and how far behind its start that is.
    slot: usize,
    offset: usize,
    bytes: usize,
    copy_in: bool,
    copy_out: bool,
}

/// Room for the tensors of one run.
struct StagingSlot {
    homes: BTreeMap<BufferId, *mut u8>,
    /// Page-locked memory of the host for inputs and outputs of a run that is begun, one behind the other.
    staging: Option<Box<dyn Memory>>,
    /// Page-locked memory of the host for the words of checks, if there are some.
    words: Option<Box<dyn Memory>>,
    _memory: Vec<Box<dyn Memory>>,
}

/// A run that was begun.
struct Pending {
    lane: usize,
    ended: Arc<dyn Event>,
    _graph: Option<Arc<Graph>>,
}

/// See the module. The streams go first: that waits for what uses the rest.
pub(super) struct StagingPipeline {
    device: Device,
    copies_in: Box<dyn LaunchStream>,
    compute: Box<dyn LaunchStream>,
    copies_out: Box<dyn LaunchStream>,
    /// By interface of the executable.
    edges: Vec<Vec<HostTensorCopy>>,
    lanes: Vec<StagingSlot>,
    /// The oldest first.
    pending: VecDeque<Pending>,
    /// The lane of the next run.
    next: usize,
}

impl StagingPipeline {
    pub fn new(executable: &Executable, driver: &dyn Driver) -> Result<StagingPipeline, DriverError> {
        let (copies_in, compute, copies_out) = (driver.stream()?, driver.stream()?, driver.stream()?);
        let interfaces = executable.interfaces().iter();
        let edges = interfaces.map(|i| edges(executable, &executable.prepared[i.calls.clone()])).collect();
        let device = driver.device();
        Ok(StagingPipeline {
            device,
            copies_in,
            compute,
            copies_out,
            edges,
            lanes: vec![],
            pending: VecDeque::new(),
            next: 0,
        })
    }

    fn lane(&mut self, plan: &Plan, driver: &dyn Driver, index: usize) -> Result<(), DriverError> {
        let words = || driver.alloc_pinned((plan.checks.len() * WORD_BYTES) as u64);
        while self.lanes.len() <= index {
            let (mut homes, mut memory) = (BTreeMap::new(), vec![]);
            for id in plan.inputs.iter().chain(&plan.outputs).chain(&plan.states) {
                let block = driver.alloc(plan.buffer(*id).bytes())?;
                homes.insert(*id, block.address());
                memory.push(block);
            }
            let words = if plan.checks.is_empty() { None } else { Some(words()?) };
            self.lanes.push(StagingSlot { homes, staging: None, words, _memory: memory });
        }
        Ok(())
    }

    /// Copies the tensors that a run takes to its lane or, if it has run, those that it wrote from there. `host` is where the
    /// caller has them.
    fn copy(
        &self,
        stream: &dyn LaunchStream,
        (interface, lane): (usize, usize),
        host: &dyn Fn(usize) -> (*mut u8, Device),
        has_run: bool,
    ) {
        for (i, edge) in self.edges[interface].iter().enumerate() {
            if !(if has_run { edge.copy_out } else { edge.copy_in }) {
                continue;
            }
            let (host, there) = (host(i), (self.lanes[lane].homes[&edge.buffer], self.device));
            let ((source, from), (target, to)) = if has_run { (there, host) } else { (host, there) };
            // SAFETY: the plan's verifier and the checks of bindings say that both ranges have these bytes; they are the
            // lane's or the caller's until the run ends, which is waited for.
            unsafe { stream.copy(Transfer { source: source.cast_const(), from, target, to, bytes: edge.bytes }) };
        }
    }

    /// Copies the words of checks to the host's memory of a lane.
    fn copy_words(&self, context: &DeviceContext, executable: &Executable, lane: usize) {
        if let Some(words) = &self.lanes[lane].words {
            // SAFETY: the memory has room for all words; it is the lane's, whose next run begins when this one was waited for.
            unsafe { context.copy_words(executable, &*self.compute, words.address(), Device::pinned(self.device.id)) };
        }
    }

    /// Enqueues a run in a lane, with copies from and to addresses of the host; its end.
    fn enqueue(
        &mut self,
        context: &mut DeviceContext,
        executable: &Executable,
        (interface, lane): (usize, usize),
        host: &dyn Fn(usize) -> (*mut u8, Device),
    ) -> Result<Pending, RunError> {
        let Some(of) = executable.interfaces().get(interface) else {
            return Err(RunError::Turn { plan: executable.plan().name.clone(), why: "it has one phase only" });
        };
        self.place(context, executable, interface, lane);
        self.copy(&*self.copies_in, (interface, lane), host, false);
        self.compute.wait_event(&self.copies_in.close());
        // SAFETY: the table holds addresses of the lane, the arena and weights; the next run in the lane begins when this
        // one was waited for, and all runs compute on one stream.
        let graph = unsafe { context.enqueue(&*self.compute, interface, of.calls.clone()) };
        self.copy_words(context, executable, lane);
        self.copies_out.wait_event(&self.compute.close());
        self.copy(&*self.copies_out, (interface, lane), host, true);
        Ok(Pending { lane, ended: self.copies_out.close(), _graph: graph })
    }

    fn place(&self, context: &mut DeviceContext, executable: &Executable, interface: usize, lane: usize) {
        let homes = &self.lanes[lane].homes;
        let at = |id: BufferId| homes.get(&id).copied().unwrap_or(std::ptr::null_mut());
        if let Some(of) = executable.interfaces().get(interface) {
            of.place(&mut context.table, at);
        }
    }

    /// Runs with tensors whose addresses are in `arguments`; `after` is told of every call that has ended, if it wants to
    /// be.
    pub fn run(
        &mut self,
        context: &mut DeviceContext,
        executable: &Executable,
        interface: usize,
        arguments: &[*mut u8],
        after: Option<&mut dyn FnMut(&Prepared)>,
    ) -> Result<(), RunError> {
        let plan = executable.plan();
        if !self.pending.is_empty() {
            return Err(RunError::Turn { plan: plan.name.clone(), why: "runs that were begun are not finished" });
        }
        self.lane(plan, &*context.driver, 0)?;
        let addresses: Vec<(*mut u8, Device)> = self.edges[interface]
            .iter()
            .map(|edge| (arguments[edge.slot].wrapping_sub(edge.offset), Device::cpu(0)))
            .collect();
        let Some(after) = after else {
            let run = self.enqueue(context, executable, (interface, 0), &|i| addresses[i])?;
            run.ended.synchronize().map_err(|e| failed(&e))?;
            return self.confirm(executable, interface, 0);
        };
        self.place(context, executable, interface, 0);
        self.copy(&*self.compute, (interface, 0), &|i| addresses[i], false);
        self.compute.synchronize().map_err(|e| failed(&e))?;
        for call in executable.interfaces()[interface].calls.clone() {
            context.call(&*self.compute, call);
            self.compute.synchronize().map_err(|e| failed(&e))?;
            after(&executable.prepared[call]);
        }
        self.copy(&*self.compute, (interface, 0), &|i| addresses[i], true);
        self.copy_words(context, executable, 0);
        self.compute.synchronize().map_err(|e| failed(&e))?;
        self.confirm(executable, interface, 0)
    }

    /// Looks at what the last run in a lane, which has ended, has found of values.
    fn confirm(&self, executable: &Executable, interface: usize, lane: usize) -> Result<(), RunError> {
        let Some(words) = &self.lanes[lane].words else { return Ok(()) };
        // SAFETY: the memory has room for all words, and nothing writes it now.
        let words = unsafe { std::slice::from_raw_parts(words.address(), executable.words.len() * WORD_BYTES) };
        Ok(executable.confirm(phase_of(interface), |check| word_in(words, check))?)
    }

    /// Begins a run with copies of the inputs, which are those of the plan and were checked.
    pub fn begin(
        &mut self,
        context: &mut DeviceContext,
        executable: &Executable,
        inputs: &[TensorRef<'_>],
    ) -> Result<(), RunError> {
        let plan = executable.plan();
        if self.pending.len() == LANES {
            return Err(RunError::Turn { plan: plan.name.clone(), why: "two runs are under way; finish one first" });
        }
        let lane = self.next;
        self.lane(plan, &*context.driver, lane)?;
        let (offsets, total) = staged(&self.edges[0]);
        if self.lanes[lane].staging.is_none() {
            self.lanes[lane].staging = Some(context.driver.alloc_pinned(total as u64)?);
        }
        let base = self.lanes[lane].staging.as_ref().map_or(std::ptr::null_mut(), |memory| memory.address());
        for (edge, offset) in self.edges[0].iter().zip(&offsets) {
            if let StorageClass::Input(i) = plan.buffer(edge.buffer).storage {
                let data = inputs[i as usize].data;
                // SAFETY: the staging memory has room for every edge, and no run uses it.
                unsafe { base.add(*offset).copy_from_nonoverlapping(data.as_ptr(), data.len().min(edge.bytes)) };
            }
        }
        let pinned = Device::pinned(self.device.id);
        let run = self.enqueue(context, executable, (0, lane), &|i| (base.wrapping_add(offsets[i]), pinned))?;
        self.pending.push_back(run);
        self.next = (lane + 1) % LANES;
        Ok(())
    }

    /// Waits for the oldest run and copies its outputs, which were checked.
    pub fn finish(&mut self, executable: &Executable, outputs: &mut [TensorMut<'_>]) -> Result<(), RunError> {
        let plan = executable.plan();
        let Some(run) = self.pending.pop_front() else {
            return Err(RunError::Turn { plan: plan.name.clone(), why: "no run was begun" });
        };
        run.ended.synchronize().map_err(|e| failed(&e))?;
        self.confirm(executable, 0, run.lane)?;
        let Some(staging) = &self.lanes[run.lane].staging else { return Ok(()) };
        let (offsets, _) = staged(&self.edges[0]);
        for (edge, offset) in self.edges[0].iter().zip(&offsets) {
            if let StorageClass::Output(i) = plan.buffer(edge.buffer).storage {
                let into = &mut *outputs[i as usize].data;
                // SAFETY: the staging memory has room for every edge, and the run that wrote it has ended.
                let staged = unsafe { std::slice::from_raw_parts(staging.address().add(*offset), edge.bytes) };
                into.copy_from_slice(staged);
            }
        }
        Ok(())
    }
}

/// Where the edges lie in staging memory, and its size.
fn staged(edges: &[HostTensorCopy]) -> (Vec<usize>, usize) {
    const ALIGN: usize = 64;
    let mut total = 0;
    let offset = |edge: &HostTensorCopy| {
        let at = total;
        total += edge.bytes.next_multiple_of(ALIGN);
        at
    };
    (edges.iter().map(offset).collect(), total)
}

/// The caller's tensors that calls use.
fn edges(executable: &Executable, calls: &[Prepared]) -> Vec<HostTensorCopy> {
    let plan = executable.plan();
    let mut edges: BTreeMap<BufferId, HostTensorCopy> = BTreeMap::new();
    for call in calls {
        for (i, Arg { buffer, writes }) in plan.steps[call.step].op.args().into_iter().enumerate() {
            let Some(id) = edge_of(plan, plan.buffer(buffer).storage) else { continue };
            let edge = edges.entry(id).or_insert_with(|| HostTensorCopy {
                buffer: id,
                slot: call.call.first_slot + i,
                offset: plan.byte_offset(buffer) as usize,
                bytes: plan.buffer(id).bytes() as usize,
                copy_in: !matches!(plan.buffer(id).storage, StorageClass::Output(_)),
                copy_out: false,
            });
            edge.copy_out |= writes;
        }
    }
    edges.into_values().collect()
}
