//! Asynchronous completion, and what a thread knows about the operation that it runs.

use std::cell::Cell;
use std::sync::Arc;

use super::error::{Cause, Failure, OpError};
use super::op::OpName;
use super::rounds::Age;
use super::run::OpTrace;
use super::sched::{Receipt, Shared};
use super::state::OpId;
use super::var::Var;
use crate::device::Device;

/// The operation that a thread runs.
#[derive(Clone, Copy)]
struct Here {
    engine: *const Shared,
    op: Option<OpId>,
    age: Option<Age>,
    /// The completion of the operation was dropped while the thread unwound.
    orphaned: bool,
}

const NOWHERE: Here = Here { engine: std::ptr::null(), op: None, age: None, orphaned: false };

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(NOWHERE) };
}

/// Whether the calling thread runs an operation of this engine.
#[inline]
pub fn is_inside(engine: &Shared) -> bool {
    std::ptr::eq(HERE.get().engine, engine)
}

/// The age of the operation of this engine that the calling thread runs.
#[inline]
pub fn current_age(engine: &Shared) -> Option<Age> {
    let here = HERE.get();
    here.age.filter(|_| std::ptr::eq(here.engine, engine))
}

/// Marks the calling thread as running an operation, for the duration of `f`. The second result tells
/// whether the operation's completion was dropped by a panic of `f`.
#[inline]
pub fn inside<R>(engine: &Shared, op: Receipt, f: impl FnOnce() -> R) -> (R, bool) {
    let before = HERE.replace(Here { engine, op: Some(op.op), age: op.age, orphaned: false });
    let result = f();
    (result, HERE.replace(before).orphaned)
}

/// Marks the calling thread as one of the engine's own for the duration of `f`, which may drop values
/// of the user.
pub fn aside(engine: &Shared, f: impl FnOnce()) {
    let before = HERE.get();
    if !std::ptr::eq(before.engine, engine) {
        enter(engine);
    }
    f();
    HERE.set(Here { orphaned: HERE.get().orphaned, ..before });
}

/// Marks the calling thread as one of the engine's own.
pub fn enter(engine: &Shared) {
    HERE.set(Here { engine, op: None, age: None, orphaned: false });
}

/// The obligation to finish an asynchronous operation, from any thread.
///
/// Dropping it finishes the operation with an error.
pub struct Completion {
    pub(super) shared: Arc<Shared>,
    pub(super) receipt: Receipt,
    pub(super) name: OpName,
    pub(super) device: Device,
    pub(super) trace: Option<OpTrace>,
    pub(super) done: bool,
}

impl Completion {
    /// Finishes the operation: what depends on it may start.
    pub fn complete(mut self, result: Result<(), Failure>) {
        self.done = true;
        self.finish(result.map_err(Cause::Failed));
    }

    /// The work is enqueued on a stream: operations that order themselves behind it there may begin
    /// ([`super::Engine::push_enqueued`]).
    pub fn issue(&self) {
        self.shared.issue(self.receipt.op);
    }

    /// Gives up a variable that the operation has overwritten, before it is complete, as [`super::RunContext::release`] does.
    pub fn release(&self, var: &Var) -> bool {
        self.shared.release(self.receipt.op, var)
    }

    fn finish(&self, result: Result<(), Cause>) {
        if let Some(trace) = self.trace {
            let error = result.as_ref().err();
            trace.end(&self.shared, &self.name, self.device, true, error.map(|cause| cause as _));
        }
        let outcome = result.map_err(|cause| Arc::new(OpError { op: self.name.clone(), device: self.device, cause }));
        self.shared.finish(self.receipt, outcome);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let here = HERE.get();
        if std::thread::panicking() && std::ptr::eq(here.engine, &*self.shared) && here.op == Some(self.receipt.op) {
            HERE.set(Here { orphaned: true, ..here });
            return;
        }
        self.finish(Err(Cause::Abandoned));
    }
}
