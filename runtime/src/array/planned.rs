//! Runs of plans, and what else operations do on the memory of a driver's device: copies, and filling.

use std::sync::{Arc, Mutex, PoisonError};

use super::launch::{ArrayLaunch, LaunchError, bring, enqueue, launch_releasing};
use super::region::SliceRows;
use super::source::ArrayOperand;
use super::space::ArraySpace;
use super::view::ArrayView;
use crate::device::Device;
use crate::engine::Property;
use crate::gpu::Rows;
use crate::plan::Context;
use crate::plan::{Bindings, DeviceBindings, Phase};
use crate::pool::Pool;
use crate::profiler::Profiler;

/// A run of a plan, or of one of its phases.
pub struct PlannedRun {
    /// The context that runs; it is locked while it runs here, or enqueues its work on a device.
    pub context: Arc<Mutex<Context>>,
    /// The phase to run, or `None` for the whole plan.
    pub phase: Option<Phase>,
    /// How many of the operation's first results are states of the plan.
    pub states: usize,
    /// How many of the results behind them are its outputs; what follows is written by nobody.
    pub outputs: usize,
}

/// Pushes a run of a plan that was made for the host; returns before it ran. The launch's inputs are those of the plan. An
/// output that covers its chunk becomes available when the last step that uses it is done, and all else when the run ends.
/// The profiler records the steps while it is on.
///
/// # Errors
/// As [`super::launch`]; what goes wrong while running stays with the outputs that are not available yet.
pub fn run_here(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    run: PlannedRun,
    pool: Arc<Pool>,
    profiler: Option<Profiler>,
) -> Result<(), LaunchError> {
    let PlannedRun { context, phase, states, outputs } = run;
    // SAFETY: the run does not touch an output that its context calls final, and nobody else does here.
    unsafe {
        launch_releasing(space, launch, move |inputs, targets, tell| {
            let (states, rest) = targets.split_at_mut(states.min(targets.len()));
            let first = states.len();
            let outputs = outputs.min(rest.len());
            let bindings = Bindings { inputs, states, outputs: &mut rest[..outputs] };
            let profiler = profiler.as_ref().filter(|profiler| profiler.is_on()).map(|p| (p, Device::default()));
            let mut context = context.lock().unwrap_or_else(PoisonError::into_inner);
            context.run_observed(phase, &pool, bindings, profiler, &mut |output| tell(first + output))?;
            Ok(())
        })
    }
}

/// Pushes a run of a plan that was made for a device; returns before it ran. The launch's inputs are those of the plan.
///
/// # Errors
/// As [`enqueue`]; what goes wrong with the run stays with the outputs.
pub fn run(space: &ArraySpace, launch: ArrayLaunch<'_>, run: PlannedRun) -> Result<(), LaunchError> {
    // Runs of one context, and of contexts that share memory, follow each other on one stream.
    let launch = ArrayLaunch { property: Property::Normal, ..launch };
    enqueue(space, launch, move |queue, inputs, written| {
        let PlannedRun { context, phase, states, outputs } = run;
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

/// Pushes a copy of the only input, which may be on another driver's device, to the only output, of the same size; returns
/// before it ran.
///
/// # Errors
/// As [`enqueue`].
pub fn duplicate(space: &ArraySpace, launch: ArrayLaunch<'_>) -> Result<(), LaunchError> {
    let elsewhere = |view: &ArrayView| view.device() != launch.device && space.is_driven(view.device());
    if launch.inputs.iter().filter_map(ArrayOperand::view).any(elsewhere) {
        return bring(space, launch);
    }
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

/// Pushes a copy of the pieces of the only input to the only output, a dense tensor of them; returns before it ran.
///
/// # Errors
/// As [`enqueue`]; also if the pieces are none of these tensors.
pub fn gather(space: &ArraySpace, launch: ArrayLaunch<'_>, pieces: Vec<SliceRows>) -> Result<(), LaunchError> {
    copy_pieces(space, launch, pieces, |apart, dense| [apart, dense])
}

/// Pushes a copy of the only input, a dense tensor of the pieces, to the pieces of the only output; returns before it ran.
///
/// # Errors
/// As [`gather`].
pub fn scatter(space: &ArraySpace, launch: ArrayLaunch<'_>, pieces: Vec<SliceRows>) -> Result<(), LaunchError> {
    copy_pieces(space, launch, pieces, |apart, dense| [dense, apart])
}

/// Where the rows of a piece begin in a tensor, and how far apart they are, in bytes.
type RowPlaces = (usize, usize);

/// `sides` puts the places of a piece's rows, apart and densely, in the order of input and output.
fn copy_pieces(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    pieces: Vec<SliceRows>,
    sides: fn(RowPlaces, RowPlaces) -> [RowPlaces; 2],
) -> Result<(), LaunchError> {
    enqueue(space, launch, move |queue, inputs, outputs| {
        let ([from], [to]) = (inputs, outputs) else { return Err("a copy of one tensor to another".into()) };
        for &SliceRows { at, dense, width, count, stride } in &pieces {
            let [read, written] = sides((at, stride), (dense, width));
            let end = |(start, stride): RowPlaces| start + (count - 1) * stride + width;
            if end(read) > from.bytes() || end(written) > to.bytes() {
                return Err("a piece outside of its tensor".into());
            }
            let (source, target) = (from.address.wrapping_add(read.0).cast_const(), to.address.wrapping_add(written.0));
            let rows = Rows { source, source_stride: read.1, target, target_stride: written.1, width, count };
            // SAFETY: `enqueue` gives addresses of tensors that are apart, and keeps them; all rows lie inside.
            unsafe { queue.copy_rows(rows) };
        }
        Ok(())
    })
}

/// Pushes writing one element to all of the only output; returns before it ran.
///
/// # Errors
/// As [`enqueue`].
pub fn repeat(space: &ArraySpace, launch: ArrayLaunch<'_>, element: Vec<u8>) -> Result<(), LaunchError> {
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
