//! Running one operation: its function, its outcome, and its place in a trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::complete::{Completion, inside};
use super::error::{Cause, OpError};
use super::inbox::{OpBody, SubmittedOp};
use super::op::{OpName, RunContext, Running};
use super::sched::{Outcome, Receipt, Shared};
use super::task::Returned;
use crate::device::Device;
use crate::pool::TaskPanic;
use crate::profiler::{Span, TraceTrack};

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
pub struct OpTrace {
    start: Instant,
    worker: u32,
    bytes: u64,
}

impl OpTrace {
    #[inline]
    fn begin(shared: &Shared, seat: Seat, bytes: u64) -> Option<OpTrace> {
        let start = shared.config.profiler.as_ref()?.begin()?;
        Some(OpTrace { start, worker: seat.worker as u32, bytes })
    }

    /// Records the operation as ended now. It may have ended on another thread than it began on.
    pub fn end(self, shared: &Shared, name: &OpName, device: Device, elsewhere: bool, error: Option<&dyn ToString>) {
        let Some(profiler) = &shared.config.profiler else { return };
        profiler.record(Span {
            device,
            lane: elsewhere.then_some(TraceTrack::Floating),
            worker: Some(self.worker),
            bytes: self.bytes,
            error: error.map(|error| error.to_string().into()),
            ..Span::new(name.text(), CATEGORY, self.start, Instant::now())
        });
    }
}

fn context<'a>(name: &'a OpName, device: Device, seat: Seat, running: Option<Running<'a>>) -> RunContext<'a> {
    RunContext { op: name.operator(), device, worker: seat.worker, stream: seat.stream, running }
}

/// Runs an operation and tells its outcome, unless that comes through its completion.
#[inline]
pub fn run(shared: &Arc<Shared>, seat: Seat, receipt: Receipt, job: &mut SubmittedOp) -> Option<Outcome> {
    let SubmittedOp { body, name, device, bytes, .. } = job;
    let device = *device;
    // A completion may end the operation before the function returns.
    let running = matches!(body, OpBody::Task(_)).then_some(Running { shared, op: receipt.op });
    let context = context(name, device, seat, running);
    let trace = OpTrace::begin(shared, seat, *bytes);
    let call = || match &mut *body {
        OpBody::Task(task) => task.run(&context, None),
        OpBody::Async(task) => {
            let shared = shared.clone();
            let completion = Completion { shared, receipt, name: name.clone(), device, trace, done: false };
            task.run(&context, Some(completion))
        }
        OpBody::Delete(then) => {
            if let Some(then) = then.take() {
                then(&context);
            }
            Some(Ok(()))
        }
        OpBody::Wait(_) | OpBody::WaitAll(_) => Some(Ok(())),
    };
    let (called, orphaned) = inside(shared, receipt, || catch_unwind(AssertUnwindSafe(call)));
    match called {
        Err(payload) if receipt.completes_elsewhere() && !orphaned => {
            // Its completion lives on and will finish it; the panic must not be lost.
            let cause = Cause::Panicked(TaskPanic::from_payload(payload));
            shared.lock().failures.record(Arc::new(OpError { op: name.clone(), device, cause }));
            None
        }
        called => conclude(shared, called, name, device, trace),
    }
}

/// The outcome of a call, recorded in its trace.
#[inline]
fn conclude(
    shared: &Shared,
    called: std::thread::Result<Returned>,
    name: &OpName,
    device: Device,
    trace: Option<OpTrace>,
) -> Option<Outcome> {
    let cause = match called {
        Ok(None) => return None,
        Ok(Some(Ok(()))) => None,
        Ok(Some(Err(failure))) => Some(Cause::Failed(failure)),
        Err(payload) => Some(Cause::Panicked(TaskPanic::from_payload(payload))),
    };
    if let Some(trace) = trace {
        trace.end(shared, name, device, false, cause.as_ref().map(|cause| cause as _));
    }
    Some(cause.map_or(Ok(()), |cause| Err(Arc::new(OpError { op: name.clone(), device, cause }))))
}
