//! What operations do on the memory of a driver's device: runs of plans, copies, and filling.

use std::sync::{Arc, Mutex, PoisonError};

use super::launch::{Launch, LaunchError, enqueue};
use super::space::Space;
use crate::Context;
use crate::engine::Property;
use crate::plan::{DeviceBindings, Phase};

/// A run of a plan that was made for a device, or of one of its phases.
pub struct Run {
    pub context: Arc<Mutex<Context>>,
    pub phase: Option<Phase>,
    /// How many of the operation's first results are states of the plan.
    pub states: usize,
    /// How many of the results behind them are its outputs; what follows is written by nobody.
    pub outputs: usize,
}

/// Pushes a run of a plan; returns before it ran. The launch's inputs are those of the plan.
///
/// # Errors
/// As [`enqueue`]; what goes wrong with the run stays with the outputs.
pub fn run(space: &Space, launch: Launch<'_>, run: Run) -> Result<(), LaunchError> {
    // Runs of one context, and of contexts that share memory, follow each other on one stream.
    let launch = Launch { property: Property::Normal, ..launch };
    enqueue(space, launch, move |queue, inputs, written| {
        let Run { context, phase, states, outputs } = run;
        queue.keep(context.clone());
        let (states, rest) = written.split_at(states.min(written.len()));
        let bindings = DeviceBindings { inputs, states, outputs: &rest[..outputs.min(rest.len())] };
        let mut context = context.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `enqueue` gives addresses in the device's memory that stay valid and are this operation's until it is
        // complete, with results apart from each other and from operands; the context is kept as long, and the device has
        // one stream for such work.
        unsafe { context.enqueue(phase, queue, bindings) }?;
        Ok(())
    })
}

/// Pushes a copy of the only input to the only output, of the same size; returns before it ran.
///
/// # Errors
/// As [`enqueue`].
pub fn duplicate(space: &Space, launch: Launch<'_>) -> Result<(), LaunchError> {
    enqueue(space, launch, |queue, inputs, outputs| {
        let ([from], [to]) = (inputs, outputs) else { return Err("a copy of one tensor to another".into()) };
        match (from.bytes(), to.bytes()) {
            // SAFETY: `enqueue` gives addresses of tensors of these sizes that are apart, and keeps them.
            (a, b) if a == b => unsafe { queue.copy(from.address, to.address, a) },
            (a, b) => return Err(format!("a copy of {a} bytes to {b}").into()),
        }
        Ok(())
    })
}

/// Pushes writing one element to all of the only output; returns before it ran.
///
/// # Errors
/// As [`enqueue`].
pub fn repeat(space: &Space, launch: Launch<'_>, element: Vec<u8>) -> Result<(), LaunchError> {
    enqueue(space, launch, move |queue, _, outputs| {
        let [to] = outputs else { return Err("one tensor is filled".into()) };
        if element.len() != to.dtype.size() {
            return Err(format!("an element of {} bytes for {}", element.len(), to.dtype).into());
        }
        // SAFETY: `enqueue` gives the address of a tensor of this size, aligned for more than an element, and keeps it.
        unsafe { queue.stream().fill(to.address, to.bytes(), &element) };
        Ok(())
    })
}
