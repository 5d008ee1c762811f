//! An accelerator made of host memory and threads: every stream is a thread that takes its work from
//! a queue.
//!
//! It shows what asynchronous devices do to the rest of the run time, without such a device: work is
//! enqueued and runs later, streams run at the same time, and only events order them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use super::Device;
use super::stream::{Callback, Event, Stream, StreamError, Transfer, Work};
use crate::engine::Failure;
use crate::pool::TaskPanic;

/// The streams of an emulated accelerator. Its memory is that of a
/// [`Storage`](crate::storage::Storage).
#[derive(Debug)]
pub struct Accelerator {
    pub compute: HostStream,
    pub copy_in: HostStream,
    pub copy_out: HostStream,
}

impl Accelerator {
    pub fn new(device: Device) -> Result<Accelerator, StreamError> {
        Ok(Accelerator {
            compute: HostStream::new(device, "compute")?,
            copy_in: HostStream::new(device, "copy in")?,
            copy_out: HostStream::new(device, "copy out")?,
        })
    }
}

enum Command {
    Run(Work),
    Record(Arc<Mark>),
    Wait(Arc<dyn Event>),
    Complete(Callback),
}

/// A stream that is a thread. Dropping it waits for the work enqueued.
#[derive(Debug)]
pub struct HostStream {
    device: Device,
    /// None once the stream is being dropped.
    commands: Option<Sender<Command>>,
    /// Commands enqueued and not done.
    pending: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    id: ThreadId,
}

impl HostStream {
    /// `name` tells the thread from others of the device.
    pub fn new(device: Device, name: &str) -> Result<HostStream, StreamError> {
        let (commands, queue) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let worker = Worker { device, pending: pending.clone(), failure: None };
        let thread = thread::Builder::new().name(format!("{device} {name}")).spawn(move || worker.run(&queue));
        let thread =
            thread.map_err(|source| StreamError::Start { device, name: name.to_owned(), source: Arc::new(source) })?;
        let id = thread.thread().id();
        Ok(HostStream { device, commands: Some(commands), pending, thread: Some(thread), id })
    }

    fn push(&self, command: Command) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let sent = self.commands.as_ref().map(|commands| commands.send(command));
        debug_assert!(matches!(sent, Some(Ok(()))), "the thread ends after the sender is gone");
    }
}

impl Stream for HostStream {
    fn device(&self) -> Device {
        self.device
    }

    fn enqueue(&self, work: Work) {
        self.push(Command::Run(work));
    }

    unsafe fn copy(&self, transfer: Transfer) {
        self.enqueue(Box::new(move || {
            // SAFETY: promised by the caller of `copy`; the memory of every device is host memory.
            unsafe { transfer.in_host_memory() };
            Ok(())
        }));
    }

    fn record(&self) -> Arc<dyn Event> {
        let mark =
            Arc::new(Mark { device: self.device, stream: self.id, passed: Mutex::new(None), changed: Condvar::new() });
        self.push(Command::Record(mark.clone()));
        mark
    }

    fn wait_event(&self, event: &Arc<dyn Event>) {
        self.push(Command::Wait(event.clone()));
    }

    fn on_complete(&self, callback: Callback) {
        self.push(Command::Complete(callback));
    }

    fn query(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        if thread::current().id() == self.id {
            return Err(StreamError::Itself { device: self.device });
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        self.on_complete(Box::new(move |result| drop(sender.send(result))));
        receiver.recv().unwrap_or(Ok(()))
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        drop(self.commands.take());
        let own = thread::current().id() == self.id;
        if let Some(thread) = self.thread.take().filter(|_| !own) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the thread catches every panic");
        }
    }
}

/// The thread of a stream.
struct Worker {
    device: Device,
    pending: Arc<AtomicUsize>,
    failure: Option<StreamError>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Command>) {
        for command in queue {
            self.execute(command);
            self.pending.fetch_sub(1, Ordering::Release);
        }
    }

    fn execute(&mut self, command: Command) {
        let failed = self.failure.is_some();
        let result = match command {
            // Work that is not run is dropped in there too, which may panic.
            Command::Run(work) => self.guard(move || if failed { Ok(()) } else { work() }),
            Command::Wait(event) => event.synchronize(),
            Command::Record(mark) => {
                mark.pass(self.failure.clone().map_or(Ok(()), Err));
                return;
            }
            Command::Complete(callback) => {
                let outcome = self.failure.take().map_or(Ok(()), Err);
                self.guard(|| {
                    callback(outcome);
                    Ok(())
                })
            }
        };
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    /// The result of `f`; a panic is an error.
    fn guard(&self, f: impl FnOnce() -> Result<(), Failure>) -> Result<(), StreamError> {
        let result = catch_unwind(AssertUnwindSafe(f));
        let result = result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into()));
        result.map_err(|cause| StreamError::Failed { device: self.device, cause: cause.into() })
    }
}

/// A point in a [`HostStream`].
struct Mark {
    device: Device,
    stream: ThreadId,
    passed: Mutex<Option<Result<(), StreamError>>>,
    changed: Condvar,
}

impl Mark {
    fn pass(&self, result: Result<(), StreamError>) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.changed.notify_all();
    }
}

impl Event for Mark {
    fn query(&self) -> bool {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*passed {
                Some(result) => return result.clone(),
                None if thread::current().id() == self.stream => {
                    return Err(StreamError::Itself { device: self.device });
                }
                None => passed = self.changed.wait(passed).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

#[cfg(test)]
#[path = "emulated_tests.rs"]
mod tests;
