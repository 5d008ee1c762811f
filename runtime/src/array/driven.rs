//! Operations on a driver's device: each is enqueued on a stream as a whole, and done when the stream has passed it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::device::stream::Event;
use crate::engine::{Completion, Failure, Property};
use crate::gpu::{Driver, DriverError, Kept, LaunchStream, Queue};
use crate::{Storage, TaskPanic};

/// The streams of a device.
pub(super) struct Driven {
    compute: Lane,
    copy_in: Lane,
    copy_out: Lane,
}

/// A stream, and the thread that learns when operations on it are done.
struct Lane {
    /// Held while an operation is enqueued: its parts are not mixed with another's.
    stream: Mutex<Box<dyn LaunchStream>>,
    /// None once the lane is being dropped.
    ended: Option<Sender<Box<Ending>>>,
    thread: Option<JoinHandle<()>>,
}

/// An operation that was enqueued.
struct Ending {
    event: Arc<dyn Event>,
    kept: Kept,
    /// What went wrong while it was enqueued.
    outcome: Result<(), Failure>,
    completion: Completion,
}

impl Driven {
    pub fn new(driver: &dyn Driver) -> Result<Driven, DriverError> {
        Ok(Driven {
            compute: Lane::new(driver, "compute")?,
            copy_in: Lane::new(driver, "copy in")?,
            copy_out: Lane::new(driver, "copy out")?,
        })
    }

    /// Enqueues an operation on the stream for its kind of work. `f` puts together what is enqueued.
    pub fn operate(
        &self,
        property: Property,
        storage: &Storage,
        completion: Completion,
        f: impl FnOnce(&mut Queue<'_>) -> Result<(), Failure>,
    ) {
        let lane = match property {
            Property::CopyToDevice => &self.copy_in,
            Property::CopyFromDevice => &self.copy_out,
            Property::Normal | Property::Prioritized => &self.compute,
        };
        let stream = lane.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = Queue::new(&**stream, storage);
        // What was enqueued before a panic uses memory that the queue keeps.
        let outcome = catch_unwind(AssertUnwindSafe(|| f(&mut queue)));
        let outcome = outcome.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into()));
        let (event, kept) = queue.finish();
        let ending = Box::new(Ending { event, kept, outcome, completion });
        let sent = lane.ended.as_ref().map(|ended| ended.send(ending));
        debug_assert!(matches!(sent, Some(Ok(()))), "the thread ends after the sender is gone");
    }
}

impl Lane {
    fn new(driver: &dyn Driver, name: &str) -> Result<Lane, DriverError> {
        let (stream, device) = (driver.stream()?, driver.device());
        let (ended, endings) = mpsc::channel();
        let thread = thread::Builder::new().name(format!("{device} {name} done")).spawn(move || watch(&endings));
        let fail = |e| DriverError { device, message: format!("the thread of a stream cannot start: {e}") };
        Ok(Lane { stream: Mutex::new(stream), ended: Some(ended), thread: Some(thread.map_err(fail)?) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        drop(self.ended.take());
        let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Completes operations in the order in which they were enqueued.
fn watch(endings: &Receiver<Box<Ending>>) {
    for ending in endings {
        let Ending { event, kept, outcome, completion } = *ending;
        let ended = event.synchronize();
        // Before the next operation begins, so that it can have the same memory.
        drop(kept);
        completion.complete(outcome.and(ended.map_err(Failure::from)));
    }
}
