//! Queues of work on a device, behind one interface for every kind of device.

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use super::Device;

/// What work returns when it fails.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Work on a stream.
pub type StreamWork = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// Learns how the work before it ended.
pub type Callback = Box<dyn FnOnce(Result<(), StreamError>) + Send>;

/// What goes wrong on a stream. Clones share the cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamError {
    /// A piece of work failed or panicked.
    #[error("work on a stream of {device} failed: {cause}")]
    Failed {
        /// The device of the stream.
        device: Device,
        /// What it failed with.
        #[source]
        cause: Arc<dyn Error + Send + Sync>,
    },
    /// Work waited for the end of what only its own stream can do.
    #[error("work on a stream of {device} waited for what only that stream can do")]
    Itself {
        /// The device of the stream.
        device: Device,
    },
}

/// A point in a stream.
pub trait Event: Any + Send + Sync {
    /// Whether the stream has passed the point.
    fn query(&self) -> bool;

    /// Waits until it has.
    ///
    /// # Errors
    /// The failure that the stream carried there, or a wait that cannot end.
    fn synchronize(&self) -> Result<(), StreamError>;
}

/// A copy between the memories of devices, or inside one.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The first byte that is read.
    pub source: *const u8,
    /// Whose memory the source is.
    pub from: Device,
    /// The first byte that is written.
    pub target: *mut u8,
    /// Whose memory the target is.
    pub to: Device,
    /// Bytes that are copied.
    pub bytes: usize,
}

// SAFETY: the pointers are used only by `Stream::copy`, whose caller answers for them on any thread.
unsafe impl Send for Transfer {}

/// Work that runs in the order in which it was enqueued, while the threads that enqueue go on.
///
/// A failure stays in the stream: the work that follows is dropped, until [`Stream::on_complete`] or
/// [`Stream::synchronize`] has told somebody. So one operation enqueues its parts and then a
/// callback, which learns whether all of them succeeded; operations that share a stream enqueue one
/// after another.
pub trait Stream: Send + Sync {
    /// The device that does the work.
    fn device(&self) -> Device;

    /// Runs `work` after everything before it. A panic is a failure.
    fn enqueue(&self, work: StreamWork);

    /// Copies after everything before it.
    ///
    /// # Safety
    ///
    /// From now until the stream has passed the copy both ranges are valid, they do not overlap,
    /// nobody writes to the source and nobody uses the target, other than work ordered with this
    /// stream.
    unsafe fn copy(&self, transfer: Transfer);

    /// The point after everything enqueued so far.
    fn record(&self) -> Arc<dyn Event>;

    /// What follows runs after the event's point was passed, and fails if the event carries a
    /// failure.
    fn wait_event(&self, event: &Arc<dyn Event>);

    /// Calls `callback` after everything before it, on a thread of the device that it should not
    /// keep, and takes the failure out of the stream.
    fn on_complete(&self, callback: Callback);

    /// Whether everything enqueued so far is done.
    fn query(&self) -> bool;

    /// Waits until everything enqueued so far is done, and takes the failure out of the stream.
    ///
    /// # Errors
    /// That failure, or a wait that cannot end.
    fn synchronize(&self) -> Result<(), StreamError>;
}
