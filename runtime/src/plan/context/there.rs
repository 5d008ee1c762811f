//! Runs of contexts whose executable is on a device.

use super::super::arena::SharedArena;
use super::super::bindings::{DeviceBindings, Phase};
use super::super::device::{DeviceContext, WORD_BYTES};
use super::super::error::RunError;
use super::super::executable::Prepared;
use super::{Context, interface_of};
use crate::device::Device;
use crate::gpu::KeepAliveQueue;
use crate::tensor::{TensorMut, TensorRef};

/// The word of a check, by its position among others.
pub(in super::super) fn word_in(words: &[u8], check: usize) -> i64 {
    i64::from_ne_bytes(std::array::from_fn(|byte| words[check * WORD_BYTES + byte]))
}

impl Context {
    /// Enqueues a run, or with a phase as [`Context::run_phase`], on tensors in the memory of the executable's device;
    /// returns while it goes on. What goes wrong there is an error of the stream.
    ///
    /// # Errors
    /// A tensor's number, element type, shape or alignment is not the plan's, memory is short, or the executable is not
    /// one of the queue's device.
    ///
    /// # Safety
    /// Until the stream has passed the run, the tensors are memory of the device and used by work ordered with it only,
    /// states and outputs are apart from each other and from inputs, this context lives, and whatever runs in it or in
    /// others that share its arena is ordered with the stream.
    pub unsafe fn enqueue(
        &mut self,
        phase: Option<Phase>,
        queue: &mut KeepAliveQueue<'_>,
        bindings: DeviceBindings<'_>,
    ) -> Result<(), RunError> {
        let shared = self.shared();
        let mut turn = shared.as_ref().map(SharedArena::turn);
        // Nothing of a device's needs working memory of workers here.
        self.enter(turn.as_deref_mut(), 0)?;
        self.interface(phase)?;
        let (executable, number) = (self.executable.clone(), interface_of(phase));
        let Some(device) = self.device.as_mut().filter(|d| d.driver.device() == queue.device()) else {
            let message = format!("plan `{}` was not made for {}", executable.plan().name, queue.device());
            return Err(RunError::Device { message });
        };
        let Some(interface) = executable.interface(phase) else { return Ok(()) };
        interface.bind_device(executable.plan(), &mut device.table, bindings)?;
        // SAFETY: the tensors are the caller's promise and were checked; the rest is this context's.
        let graph = unsafe { device.enqueue(queue.stream(), number, interface.calls.clone()) };
        graph.into_iter().for_each(|graph| queue.keep(graph));
        if !executable.words.is_empty() {
            let pinned = Device::pinned(queue.device().id);
            let words = queue.alloc(pinned, (executable.words.len() * WORD_BYTES) as u64);
            let mut words = words.map_err(|e| RunError::Device { message: e.to_string() })?;
            // SAFETY: the operation keeps the memory until it has asked.
            unsafe { device.copy_words(&executable, queue.stream(), words.as_mut_slice().as_mut_ptr(), pinned) };
            let executable = executable.clone();
            queue.confirm(move || Ok(executable.confirm(phase, |check| word_in(words.as_slice(), check))?));
        }
        if let Some(turn) = &mut turn {
            turn.ended = Some(queue.stream().record());
        }
        self.halfway = phase == Some(Phase::First);
        Ok(())
    }

    /// Begins a run on copies of the inputs and returns while it goes on: on a device, where two runs may be under way
    /// at a time, the copies of one overlap the computation of the other. [`Context::finish`] takes the results in
    /// the order of the runs.
    ///
    /// # Errors
    /// As [`Context::run`]; the executable is none of a device, its plan has states, or two runs are under way.
    pub fn begin(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), RunError> {
        let executable = self.executable.clone();
        let plan = executable.plan();
        let turn = |why| RunError::Turn { plan: plan.name.clone(), why };
        if !plan.states.is_empty() || self.shared().is_some() {
            return Err(turn("only runs without states or a shared arena can be begun"));
        }
        self.interface(None)?.check_inputs(plan, inputs)?;
        let Some(device) = &mut self.device else { return Err(turn("it runs here, not on a device")) };
        let mut lanes = device.take_lanes(&executable)?;
        let begun = lanes.begin(device, &executable, inputs);
        device.lanes = Some(lanes);
        self.halfway = false;
        begun
    }

    /// Waits for the run that was begun first and copies its results.
    ///
    /// # Errors
    /// As [`Context::run`]; then the run is over. No run was begun.
    pub fn finish(&mut self, outputs: &mut [TensorMut<'_>]) -> Result<(), RunError> {
        let plan = self.executable.plan();
        let none = || RunError::Turn { plan: plan.name.clone(), why: "no run was begun" };
        self.interface(None)?.check_outputs(plan, outputs)?;
        let lanes = self.device.as_mut().and_then(|device| device.lanes.as_mut());
        lanes.ok_or_else(none)?.finish(&self.executable, outputs)
    }

    /// Whether runs on a device replay what was recorded of earlier ones.
    pub fn replays(&self) -> bool {
        self.device.as_ref().is_some_and(DeviceContext::replays)
    }

    /// Executes the calls on the device, with the tensors that are bound.
    pub(super) fn run_there(
        &mut self,
        phase: Option<Phase>,
        after: Option<&mut dyn FnMut(&Prepared)>,
    ) -> Result<(), RunError> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let mut lanes = device.take_lanes(&self.executable)?;
        let outcome = lanes.run(device, &self.executable, interface_of(phase), &self.arguments, after);
        device.lanes = Some(lanes);
        outcome
    }
}
