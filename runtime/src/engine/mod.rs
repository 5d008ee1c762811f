//! The dependency engine: runs operations on worker threads in an order that the variables they
//! read and write allow.
//!
//! Operations are *pushed* with the list of variables that they read and write, and run later.
//! Between two operations of which one writes a variable that the other uses, the order of pushing
//! is kept; all else may run at the same time. So a program that pushes from one thread means what
//! it would mean if every operation ran at once. With several pushing threads, the order of each
//! is kept.
//!
//! A failed operation leaves an *error* in everything it should have written. What reads or updates
//! such a variable does not run and passes the error on. A pure overwrite runs, and clears it.
//!
//! - [`state`]: the rules, free of threads
//! - `access`: what operations do with variables
//! - `inbox`, `submit`: where pushing threads leave operations, and how
//! - `sched`: the lock around the rules, and what happens under it
//! - `lane`, `worker`, `run`: queues of ready operations, the threads that run them, and one run
//! - `rounds`: waiting for everything
//! - `wait`, `complete`, `var`: waiting threads, asynchronous operations, handles
//! - `task`, `prefetch`: functions stored without allocation, memory asked for in advance

mod access;
mod complete;
mod error;
mod inbox;
mod lane;
mod op;
mod prefetch;
mod rounds;
mod run;
mod sched;
#[doc(hidden)]
pub mod state;
mod submit;
mod task;
mod var;
mod wait;
mod worker;

use std::sync::Arc;

use inbox::{OpBody, SubmittedOp};
use lane::LaneId;
use sched::Shared;
use state::{AccessKind, VarAccess};
use task::ErasedFn;

pub use complete::Completion;
pub use error::{Cause, EngineError, Failure, Failures, OpError, WaitError};
pub use op::{EngineConfig, EngineKind, Op, OpName, Property, RunContext};
pub use var::Var;

/// A handle of an engine. Clones are handles of the same engine.
///
/// Dropping the last one runs everything that was pushed and ends the workers. Variables
/// and completions may outlive it.
#[derive(Clone)]
pub struct Engine(Arc<EngineHandle>);

struct EngineHandle {
    shared: Arc<Shared>,
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Figures of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Operations pushed so far.
    pub pushed: u64,
    /// Those of them that are done, run or not.
    pub finished: u64,
    /// Worker threads started so far.
    pub workers_started: u64,
}

impl Engine {
    /// An engine of a configuration. Workers start when a device is first used.
    ///
    /// # Errors
    /// [`EngineError::Config`] for a number that is 0 or too large.
    pub fn new(config: EngineConfig) -> Result<Engine, EngineError> {
        config.check()?;
        Ok(Engine(Arc::new(EngineHandle { shared: Arc::new(Shared::new(config)) })))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Where its operations run.
    pub fn kind(&self) -> EngineKind {
        self.shared().config.kind
    }

    /// The configuration that it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.shared().config
    }

    /// A new variable, which holds no error.
    pub fn new_var(&self) -> Var {
        let id = self.shared().lock_inbox().new_var();
        Var { shared: self.shared().clone(), id, on_streams: false, deleted: false }
    }

    /// A variable of something that operations pushed by [`Engine::push_enqueued`] use on streams alone: they may begin
    /// when those before them have enqueued their work ([`Completion::issue`]), and order theirs behind it on the streams.
    /// Any other operation on it begins when those before are done, as always.
    pub(crate) fn new_stream_var(&self) -> Var {
        let mut var = self.new_var();
        var.on_streams = true;
        var
    }

    /// Pushes an operation; returns before it has run, except on [`EngineKind::Naive`].
    ///
    /// Waits while the bounds of run-ahead are exceeded, unless called by an operation.
    ///
    /// # Errors
    /// A variable of another engine; no thread for a device used for the first time; a stopped
    /// engine that is full.
    pub fn push(
        &self,
        op: Op<'_>,
        f: impl FnOnce(&RunContext<'_>) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), EngineError> {
        self.shared().submit(&op, OpBody::Task(ErasedFn::new(move |context, _| Some(f(context)))), false)
    }

    /// Pushes an operation that is finished by its [`Completion`], on any thread.
    ///
    /// # Errors
    /// As [`Engine::push`].
    pub fn push_async(
        &self,
        op: Op<'_>,
        f: impl FnOnce(&RunContext<'_>, Completion) + Send + 'static,
    ) -> Result<(), EngineError> {
        self.shared().submit(&op, asynchronous(f), false)
    }

    /// Pushes an operation that enqueues work on streams, and is finished as one of [`Engine::push_async`] when that is done.
    ///
    /// If an operation before it fails that had been issued when this one began, this one fails with that error when it
    /// is completed, as if it had not run.
    ///
    /// # Errors
    /// As [`Engine::push`].
    pub(crate) fn push_enqueued(
        &self,
        op: Op<'_>,
        f: impl FnOnce(&RunContext<'_>, Completion) + Send + 'static,
    ) -> Result<(), EngineError> {
        self.shared().submit(&op, asynchronous(f), true)
    }

    /// Deletes a variable after all uses pushed before, and then calls `then` on the queue of the
    /// first processor, before everything else that waits there. An error of the variable does not
    /// prevent it.
    ///
    /// # Errors
    /// As [`Engine::push`]; the variable is deleted anyway, and `then` is dropped.
    pub fn delete_var(
        &self,
        mut var: Var,
        then: impl FnOnce(&RunContext<'_>) + Send + 'static,
    ) -> Result<(), EngineError> {
        let shared = self.shared();
        let mut job = SubmittedOp::internal(OpBody::Delete(Some(Box::new(then))));
        job.name = OpName::from_static("delete_var");
        if !Arc::ptr_eq(&var.shared, shared) {
            return Err(EngineError::ForeignVariable { op: job.name, device: job.device });
        }
        let (inbox, lane) = shared.lane(LaneId::of(self.kind(), job.device, Property::Normal))?;
        (job.lane, job.priority, job.accesses) = (lane, i32::MAX, 1);
        let parent = complete::current_age(shared);
        var.deleted = true;
        let access = VarAccess::new(var.id, AccessKind::Delete);
        shared.deliver(inbox, lane, |inbox| {
            inbox.batch.accesses.push(access);
            inbox.append(job, parent);
        });
        Ok(())
    }

    /// Waits until all writes of the variable pushed before are done.
    ///
    /// # Errors
    /// The error that the variable holds, every time until it is overwritten. Errors of waiting
    /// itself: inside an operation of this engine, or for something pushed to a stopped engine.
    pub fn wait_to_read(&self, var: &Var) -> Result<(), WaitError> {
        self.shared().wait_for(var, AccessKind::Read)
    }

    /// Waits until all uses of the variable pushed before are done.
    ///
    /// # Errors
    /// As [`Engine::wait_to_read`].
    pub fn wait_to_write(&self, var: &Var) -> Result<(), WaitError> {
        self.shared().wait_for(var, AccessKind::Barrier)
    }

    /// Waits until everything pushed before is done, and what that pushes in turn.
    ///
    /// # Errors
    /// All operations that failed since the last call; variables keep their errors. Errors of
    /// waiting itself as with [`Engine::wait_to_read`].
    pub fn wait_all(&self) -> Result<(), WaitError> {
        self.shared().wait_for_all()
    }

    /// Waits until nothing is pending, and leaves failures to [`Engine::wait_all`].
    ///
    /// # Errors
    /// Errors of waiting itself, as with [`Engine::wait_to_read`].
    pub fn wait_idle(&self) -> Result<(), WaitError> {
        self.shared().wait_until_idle()
    }

    /// Writes of the variable that are done, whatever came of them. 0 for one of another engine.
    pub fn version(&self, var: &Var) -> u64 {
        match Arc::ptr_eq(&var.shared, self.shared()) {
            true => self.shared().lock().state.version(var.id),
            false => 0,
        }
    }

    /// The error that the variable holds now, whatever is still pending; none for one of another engine.
    pub fn error(&self, var: &Var) -> Option<Arc<OpError>> {
        match Arc::ptr_eq(&var.shared, self.shared()) {
            true => self.shared().lock().state.error(var.id).cloned(),
            false => None,
        }
    }

    /// Finishes what was pushed before, and ends the workers. What is pushed from now on is kept.
    ///
    /// # Errors
    /// [`EngineError::InsideOperation`] if an operation of this engine calls it.
    pub fn stop(&self) -> Result<(), EngineError> {
        if complete::is_inside(self.shared()) {
            return Err(EngineError::InsideOperation);
        }
        self.shared().halt();
        Ok(())
    }

    /// Starts workers again after [`Engine::stop`].
    ///
    /// # Errors
    /// [`EngineError::InsideOperation`], or that a thread cannot be started.
    pub fn start(&self) -> Result<(), EngineError> {
        if complete::is_inside(self.shared()) {
            return Err(EngineError::InsideOperation);
        }
        self.shared().resume()
    }

    /// Counts of operations and threads so far.
    pub fn stats(&self) -> EngineStats {
        let sched = self.shared().lock();
        let pushed = self.shared().lock_inbox().pushed;
        EngineStats { pushed, finished: sched.finished, workers_started: u64::from(sched.streams) }
    }
}

/// The body of an operation that its completion finishes.
fn asynchronous(f: impl FnOnce(&RunContext<'_>, Completion) + Send + 'static) -> OpBody {
    OpBody::Async(ErasedFn::new(move |context, completion| {
        if let Some(completion) = completion {
            f(context, completion);
        }
        None
    }))
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("kind", &self.kind()).finish()
    }
}
