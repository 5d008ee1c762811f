//! Running one operation: its function, its outcome, and its place in a trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::complete::{Completion, inside};
use super::error::{Cause, OpError};
use super::inbox::{Body, Job};
use super::op::{Name, RunContext};
use super::sched::{Admitted, Outcome, Receipt, Shared, drop_quietly};
use super::state::OpId;
use super::task::Returned;
use super::var::OperatorBody;
use crate::device::Device;
use crate::pool::TaskPanic;
use crate::profiler::{Lane, Span};

/// What the profiler groups operations by.
const CATEGORY: &str = "operator";

/// Where a thread runs operations.
#[derive(Clone, Copy)]
pub struct Seat {
    pub worker: usize,
    pub stream: u32,
}

/// The beginning of an operation that the profiler records.
#[derive(Clone, Copy)]
pub struct Trace {
    start: Instant,
    worker: u32,
    bytes: u64,
}

impl Trace {
    fn begin(shared: &Shared, seat: Seat, bytes: u64) -> Option<Trace> {
        let start = shared.config.profiler.as_ref()?.begin()?;
        Some(Trace { start, worker: seat.worker as u32, bytes })
    }

    /// Records the operation as ended now. It may have ended on another thread than it began on.
    pub fn end(self, shared: &Shared, name: &Name, device: Device, elsewhere: bool, error: Option<&dyn ToString>) {
        let Some(profiler) = &shared.config.profiler else { return };
        profiler.record(Span {
            device,
            lane: elsewhere.then_some(Lane::Floating),
            worker: Some(self.worker),
            bytes: self.bytes,
            error: error.map(|error| error.to_string().into()),
            ..Span::new(name.text(), CATEGORY, self.start, Instant::now())
        });
    }
}

/// Runs an operation and tells its outcome, unless that comes through its completion.
pub fn run(
    shared: &Arc<Shared>,
    seat: Seat,
    op: OpId,
    admitted: &mut Admitted,
    operator: Option<&OperatorBody>,
) -> (Receipt, Option<Outcome>) {
    let receipt = Receipt::new(op, admitted);
    let Job { body, name, device, bytes, .. } = &mut admitted.job;
    let (name, device) = (operator.map_or(&*name, |operator| &operator.name), *device);
    let context = RunContext { op: name.operator(), device, worker: seat.worker, stream: seat.stream };
    let begin = |bytes| Trace::begin(shared, seat, bytes);
    let mut trace = begin(*bytes);
    // The part of a bulk that runs.
    let mut part = 0;
    let call = || match &mut *body {
        Body::Task(task) => task.run(&context, None),
        Body::Async(task) => {
            let shared = shared.clone();
            let completion = Completion { shared, receipt, name: name.clone(), device, trace, done: false };
            task.run(&context, Some(completion))
        }
        Body::Bulk(bulk) => {
            let end = |trace: Trace, name: &Name| trace.end(shared, name, device, false, None);
            run_parts(&mut bulk.parts, context, &mut part, &mut trace, begin, end)
        }
        Body::Operator(_) => operator.map(|operator| (operator.f)(&context)),
        Body::Delete(then) => {
            if let Some(then) = then.take() {
                then(&context);
            }
            Some(Ok(()))
        }
        Body::Wait(_) | Body::WaitAll(_) | Body::Retire(_) => Some(Ok(())),
    };
    let (called, orphaned) = inside(shared, receipt, || catch_unwind(AssertUnwindSafe(call)));
    let name = match &*body {
        Body::Bulk(bulk) => bulk.parts.get(part).map_or(name, |part| &part.name),
        _ => name,
    };
    let error = |cause| Arc::new(OpError { op: name.clone(), device, cause });
    let outcome = match called {
        Ok(None) => None,
        Ok(Some(result)) => Some(result.map_err(|failure| error(Cause::Failed(failure)))),
        Err(payload) => {
            let error = error(Cause::Panicked(TaskPanic::from_payload(payload)));
            if receipt.completes_elsewhere() && !orphaned {
                // Its completion lives on and will finish it; the panic must not be lost.
                shared.lock().failures.record(error);
                None
            } else {
                Some(Err(error))
            }
        }
    };
    if let (Some(trace), Some(outcome)) = (trace, &outcome) {
        let error = outcome.as_ref().err();
        trace.end(shared, name, device, false, error.map(|error| &error.cause as _));
    }
    // Parts after one that failed.
    if let Body::Bulk(bulk) = body {
        drop_quietly(std::mem::take(bulk));
    }
    (receipt, outcome)
}

/// An operation that was joined with others.
pub struct Part {
    pub name: Name,
    pub task: super::task::Task,
    pub bytes: u64,
}

/// Runs joined operations until one fails. `at` tells which one is running, and `trace` when it began.
fn run_parts(
    parts: &mut [Part],
    context: RunContext<'_>,
    at: &mut usize,
    trace: &mut Option<Trace>,
    mut begin: impl FnMut(u64) -> Option<Trace>,
    mut end: impl FnMut(Trace, &Name),
) -> Returned {
    for (index, Part { name, task, bytes }) in parts.iter_mut().enumerate() {
        (*at, *trace) = (index, begin(*bytes));
        if let Some(Err(failure)) = task.run(&RunContext { op: name.operator(), ..context }, None) {
            return Some(Err(failure));
        }
        if let Some(trace) = trace.take() {
            end(trace, name);
        }
    }
    Some(Ok(()))
}
