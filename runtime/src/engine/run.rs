//! Running one operation: its function, its outcome, and its place in a trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::complete::{Completion, inside};
use super::error::{Cause, OpError};
use super::inbox::{Body, Job};
use super::op::{Name, RunContext, Running};
use super::operators::OperatorBody;
use super::sched::{Outcome, Receipt, Shared, drop_quietly};
use super::task::Returned;
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
    #[inline]
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

/// An operation that was taken out of the scheduler to be run.
pub enum Work {
    Job(Job),
    Operator(Arc<OperatorBody>),
}

/// Runs an operation and tells its outcome, unless that comes through its completion.
#[inline]
pub fn run(shared: &Arc<Shared>, seat: Seat, receipt: Receipt, work: &mut Work) -> Option<Outcome> {
    match work {
        Work::Job(job) => run_job(shared, seat, receipt, job),
        Work::Operator(operator) => {
            let OperatorBody { name, device, bytes, f } = &**operator;
            let context = context(name, *device, seat, Some(Running { shared, op: receipt.op }));
            let trace = Trace::begin(shared, seat, *bytes);
            let (called, _) = inside(shared, receipt, || catch_unwind(AssertUnwindSafe(|| Some(f(&context)))));
            conclude(shared, called, name, *device, trace)
        }
    }
}

fn context<'a>(name: &'a Name, device: Device, seat: Seat, running: Option<Running<'a>>) -> RunContext<'a> {
    RunContext { op: name.operator(), device, worker: seat.worker, stream: seat.stream, running }
}

fn run_job(shared: &Arc<Shared>, seat: Seat, receipt: Receipt, job: &mut Job) -> Option<Outcome> {
    let Job { body, name, device, bytes, .. } = job;
    let device = *device;
    // A completion may end the operation before the function returns, and parts of a bulk follow each other.
    let running = matches!(body, Body::Task(_)).then_some(Running { shared, op: receipt.op });
    let context = context(name, device, seat, running);
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
        Body::Bulk(bulk) => bulk.parts.get(part).map_or(&*name, |part| &part.name),
        _ => name,
    };
    let outcome = match called {
        Err(payload) if receipt.completes_elsewhere() && !orphaned => {
            // Its completion lives on and will finish it; the panic must not be lost.
            let cause = Cause::Panicked(TaskPanic::from_payload(payload));
            shared.lock().failures.record(Arc::new(OpError { op: name.clone(), device, cause }));
            None
        }
        called => conclude(shared, called, name, device, trace),
    };
    // Parts after one that failed.
    if let Body::Bulk(bulk) = body {
        drop_quietly(std::mem::take(bulk));
    }
    outcome
}

/// The outcome of a call, recorded in its trace.
#[inline]
fn conclude(
    shared: &Shared,
    called: std::thread::Result<Returned>,
    name: &Name,
    device: Device,
    trace: Option<Trace>,
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
