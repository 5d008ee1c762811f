//! Operations on a driver's device: each is enqueued on a stream as a whole, and done when the stream has passed it.
//!
//! What depends on an operation may be enqueued as soon as it is itself, with events between streams: the host waits for
//! the device only to learn that something is done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::uses::{Enqueued, Touched};
use crate::engine::{Completion, Failure, Property};
use crate::gpu::{
    Confirmations, Driver, DriverError, Finished, Flight, KeepAlive, KeepAliveQueue, LaunchStream, StreamMemory,
};
use crate::pool::TaskPanic;
use crate::storage::Storage;

/// The streams of a device.
pub(super) struct Driven {
    compute: StreamThread,
    copy_in: StreamThread,
    copy_out: StreamThread,
}

/// A stream, and the thread that learns when operations on it are done.
struct StreamThread {
    /// Different for all streams of the process.
    number: u64,
    /// Held while an operation is enqueued: its parts are not mixed with another's.
    stream: Mutex<Box<dyn LaunchStream>>,
    memory: Arc<StreamMemory>,
    /// None once the lane is being dropped.
    ended: Option<Sender<Box<Ending>>>,
    thread: Option<JoinHandle<()>>,
}

/// An operation that was enqueued.
struct Ending {
    operation: Arc<Enqueued>,
    kept: KeepAlive,
    confirms: Confirmations,
    /// For its memory.
    number: u64,
    /// What went wrong while it was enqueued.
    outcome: Result<(), Failure>,
    completion: Completion,
}

impl Driven {
    pub fn new(driver: &dyn Driver) -> Result<Driven, DriverError> {
        let flight = Arc::<Flight>::default();
        Ok(Driven {
            compute: StreamThread::new(driver, &flight, "compute")?,
            copy_in: StreamThread::new(driver, &flight, "copy in")?,
            copy_out: StreamThread::new(driver, &flight, "copy out")?,
        })
    }

    /// Enqueues an operation on the stream for its kind of work, behind what uses the chunks. `f` puts together what is
    /// enqueued.
    pub fn operate(
        &self,
        property: Property,
        storage: &Storage,
        touched: Touched,
        completion: Completion,
        f: impl FnOnce(&mut KeepAliveQueue<'_>) -> Result<(), Failure>,
    ) {
        let lane = match property {
            Property::CopyToDevice => &self.copy_in,
            Property::CopyFromDevice => &self.copy_out,
            Property::Normal | Property::Prioritized => &self.compute,
        };
        let (finished, outcome) = {
            let stream = lane.stream();
            touched.order(lane.number, &**stream);
            let mut queue = KeepAliveQueue::new(&**stream, storage, &lane.memory);
            let outcome = caught(|| f(&mut queue));
            lane.memory.flight.begin();
            (queue.finish(), outcome)
        };
        lane.hand_over(finished, outcome, touched, completion);
    }

    /// Enqueues one operation on the streams for computing of several devices, all different. It is done when the first one's
    /// stream has passed it, which waits for the others. `f` is given a queue for each device.
    pub fn operate_together(
        all: &[Arc<Driven>],
        storage: &Storage,
        touched: Touched,
        completion: Completion,
        f: impl FnOnce(&mut [KeepAliveQueue<'_>]) -> Result<(), Failure>,
    ) {
        let lanes: Vec<&StreamThread> = all.iter().map(|driven| &driven.compute).collect();
        // All who need several streams take them in one order.
        let mut order: Vec<usize> = (0..lanes.len()).collect();
        order.sort_by_key(|at| lanes[*at].number);
        let mut streams: Vec<_> = order.into_iter().map(|at| (at, lanes[at].stream())).collect();
        streams.sort_by_key(|(at, _)| *at);
        let mut queues = vec![];
        for ((_, stream), lane) in streams.iter().zip(&lanes) {
            touched.order(lane.number, &***stream);
            queues.push(KeepAliveQueue::new(&***stream, storage, &lane.memory));
        }
        let outcome = caught(|| f(&mut queues));
        let mut queues = queues.into_iter().zip(&lanes);
        let Some((mut first, lane)) = queues.next() else {
            return completion.complete(Err("an operation of no device".into()));
        };
        for (queue, other) in queues {
            other.memory.flight.begin();
            let Finished { end, kept, confirms, number } = queue.finish();
            first.stream().wait_event(&end);
            first.confirm_all(confirms);
            first.keep(Passing { memory: other.memory.clone(), kept, number });
        }
        lane.memory.flight.begin();
        let finished = first.finish();
        drop(streams);
        lane.hand_over(finished, outcome, touched, completion);
    }
}

/// What an operation keeps on another device than that whose stream tells of its end.
struct Passing {
    memory: Arc<StreamMemory>,
    kept: KeepAlive,
    number: u64,
}

impl Drop for Passing {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.kept));
        self.memory.passed(self.number);
        self.memory.flight.end();
    }
}

/// What was enqueued before a panic uses memory that the queue keeps.
fn caught(f: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    outcome.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into()))
}

impl StreamThread {
    fn new(driver: &dyn Driver, flight: &Arc<Flight>, name: &str) -> Result<StreamThread, DriverError> {
        static LANES: AtomicU64 = AtomicU64::new(0);
        let (stream, device) = (Mutex::new(driver.stream()?), driver.device());
        let memory = Arc::new(StreamMemory::new(flight.clone()));
        let (ended, endings) = mpsc::channel();
        let of = memory.clone();
        let thread = thread::Builder::new().name(format!("{device} {name} done")).spawn(move || watch(&endings, &of));
        let fail = |e| DriverError { device, message: format!("the thread of a stream cannot start: {e}") };
        let (number, thread) = (LANES.fetch_add(1, Ordering::Relaxed), Some(thread.map_err(fail)?));
        Ok(StreamThread { number, stream, memory, ended: Some(ended), thread })
    }

    fn stream(&self) -> MutexGuard<'_, Box<dyn LaunchStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those who come behind an operation know where it ends, and the thread of the stream wait for that.
    fn hand_over(&self, finished: Finished, outcome: Result<(), Failure>, touched: Touched, completion: Completion) {
        let operation = Enqueued { lane: self.number, event: finished.end, done: AtomicBool::new(false) };
        let operation = Arc::new(operation);
        touched.note(&operation);
        // Who waits for the operation finds the memory of arrays that it was the last to use given back.
        drop(touched);
        if outcome.is_ok() {
            completion.issue();
        }
        let Finished { kept, confirms, number, .. } = finished;
        let ending = Ending { operation, kept, confirms, number, outcome, completion };
        let sent = self.ended.as_ref().map(|ended| ended.send(Box::new(ending)));
        debug_assert!(matches!(sent, Some(Ok(()))), "the thread ends after the sender is gone");
    }
}

impl Drop for StreamThread {
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
fn watch(endings: &Receiver<Box<Ending>>, memory: &StreamMemory) {
    for ending in endings {
        let Ending { operation, kept, confirms, number, outcome, completion } = *ending;
        let ended = operation.event.synchronize().map_err(Failure::from).and_then(|()| confirms.ask());
        operation.done.store(ended.is_ok() && outcome.is_ok(), Ordering::Release);
        // Before anything that waits for the operation begins, so that it can have the same memory.
        drop(kept);
        memory.passed(number);
        memory.flight.end();
        completion.complete(outcome.and(ended));
    }
}
