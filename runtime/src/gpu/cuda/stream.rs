//! Streams and events of a CUDA device.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::matrix::encode;
use super::{Kernel, Shared, text};
use crate::device::stream::{Callback, Event, Stream, StreamError, Transfer, Work};
use crate::gpu::{DriverError, Function, LaunchStream};
use crate::{Device, TaskPanic};

/// A stream. Dropping it waits for its work.
pub(super) struct CudaStream {
    shared: Arc<Shared>,
    handle: sys::CUstream,
    state: Arc<Mutex<State>>,
}

// SAFETY: handles may be used by any thread that entered the context.
unsafe impl Send for CudaStream {}
// SAFETY: as above; the driver orders calls for one stream.
unsafe impl Sync for CudaStream {}

#[derive(Default)]
struct State {
    failure: Option<StreamError>,
    /// Kernels launched since the stream was last known to be empty.
    launched: Vec<String>,
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event after some work.
struct CudaEvent {
    shared: Arc<Shared>,
    handle: sys::CUevent,
    /// What the stream failed with before.
    failure: Option<StreamError>,
}

// SAFETY: as for `CudaStream`.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

fn failed(device: Device, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StreamError {
    StreamError::Failed { device, cause: cause.into().into() }
}

impl CudaStream {
    pub fn new(shared: Arc<Shared>) -> Result<CudaStream, DriverError> {
        shared.enter()?;
        let handle = shared.check(result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(CudaStream { shared, handle, state: Arc::default() })
    }

    fn error(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StreamError {
        failed(self.shared.device, cause)
    }

    fn note(&self, error: StreamError) {
        lock(&self.state).failure.get_or_insert(error);
    }

    /// Makes a call of the driver, unless the stream has failed; `what` names it in the error.
    fn call(&self, what: &dyn Fn() -> String, f: impl FnOnce() -> Result<(), result::DriverError>) {
        if lock(&self.state).failure.is_some() {
            return;
        }
        let outcome = self.shared.enter().map_err(|e| e.message).and_then(|()| f().map_err(text));
        if let Err(message) = outcome {
            self.note(self.error(format!("{}: {message}", what())));
        }
    }

    /// Runs a function of the host after everything before it, on a thread of the driver, which must not call it.
    fn host(&self, f: impl FnOnce() + Send + 'static) -> Result<(), StreamError> {
        unsafe extern "C" fn run(argument: *mut c_void) {
            // SAFETY: the argument is the box that was given with this function, once.
            let f = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
            // A panic must not reach the driver; what may panic reports it itself.
            let _ = catch_unwind(AssertUnwindSafe(f));
        }
        self.shared.enter().map_err(|e| self.error(e.message))?;
        let boxed: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(f));
        let argument = Box::into_raw(boxed);
        // SAFETY: the stream is alive, and the function takes the argument over.
        let outcome = unsafe { result::stream::launch_host_function(self.handle, run, argument.cast()) };
        outcome.map_err(|e| {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Box::from_raw(argument) });
            self.error(text(e))
        })
    }

    /// The failure of work that has ended, with the kernels it may be of.
    fn outcome(&self, ended: Result<(), result::DriverError>) -> Result<(), StreamError> {
        let mut state = lock(&self.state);
        let launched = std::mem::take(&mut state.launched);
        let failure = state.failure.take();
        match (failure, ended) {
            (Some(failure), _) => Err(failure),
            (None, Ok(())) => Ok(()),
            (None, Err(e)) => {
                let of = if launched.is_empty() { "a copy".into() } else { format!("kernels {}", launched.join(", ")) };
                Err(self.error(format!("{of}: {}", text(e))))
            }
        }
    }
}

impl Stream for CudaStream {
    fn device(&self) -> Device {
        self.shared.device
    }

    fn enqueue(&self, work: Work) {
        let (state, device) = (self.state.clone(), self.shared.device);
        let run = move || {
            if lock(&state).failure.is_some() {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(work));
            let result = result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into()));
            if let Err(cause) = result {
                lock(&state).failure.get_or_insert(StreamError::Failed { device, cause: cause.into() });
            }
        };
        if let Err(error) = self.host(run) {
            self.note(error);
        }
    }

    unsafe fn copy(&self, transfer: Transfer) {
        let Transfer { source, target, bytes, .. } = transfer;
        if bytes > 0 {
            let what = || format!("a copy of {bytes} bytes from {} to {}", transfer.from, transfer.to);
            // SAFETY: the caller promised that both ranges are valid; addresses of host and devices do not overlap, and
            // the driver knows which is which.
            self.call(&what, || unsafe {
                sys::cuMemcpyAsync(target as sys::CUdeviceptr, source as sys::CUdeviceptr, bytes, self.handle).result()
            });
        }
    }

    fn record(&self) -> Arc<dyn Event> {
        let mut event = CudaEvent { shared: self.shared.clone(), handle: std::ptr::null_mut(), failure: None };
        let made = self.shared.enter().map_err(|e| e.message).and_then(|()| {
            let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(text)?;
            event.handle = handle;
            // SAFETY: both handles are alive.
            unsafe { result::event::record(handle, self.handle) }.map_err(text)
        });
        event.failure = lock(&self.state).failure.clone().or_else(|| made.err().map(|e| self.error(e)));
        Arc::new(event)
    }

    fn wait_event(&self, event: &Arc<dyn Event>) {
        let any: &dyn Any = &**event;
        match any.downcast_ref::<CudaEvent>().filter(|e| e.failure.is_none() && !e.handle.is_null()) {
            Some(own) => self.call(&|| "waiting for an event".into(), || {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: both handles are alive; the driver keeps the event until the wait is over.
                unsafe { result::stream::wait_event(self.handle, own.handle, flags) }
            }),
            None => {
                let event = event.clone();
                self.enqueue(Box::new(move || Ok(event.synchronize()?)));
            }
        }
    }

    fn on_complete(&self, callback: Callback) {
        let state = self.state.clone();
        let run = move || {
            let failure = lock(&state).failure.take();
            callback(failure.map_or(Ok(()), Err));
        };
        // Without a driver nobody would be told.
        if let Err(error) = self.host(run) {
            self.note(error);
        }
    }

    fn query(&self) -> bool {
        // SAFETY: the stream is alive.
        self.shared.enter().is_err()
            || unsafe { sys::cuStreamQuery(self.handle) } != sys::CUresult::CUDA_ERROR_NOT_READY
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        self.shared.enter().map_err(|e| self.error(e.message))?;
        // SAFETY: the stream is alive.
        self.outcome(unsafe { result::stream::synchronize(self.handle) })
    }
}

impl LaunchStream for CudaStream {
    unsafe fn launch(&self, function: &Function, arguments: &[*mut u8]) {
        let entry = &function.entry;
        let Some(kernel) = function.code.downcast_ref::<Kernel>().filter(|k| Arc::ptr_eq(&k.shared, &self.shared))
        else {
            return self.note(self.error(format!("kernel `{}` is another device's", entry.name)));
        };
        let mut addresses = arguments.to_vec();
        let encoded = entry.matrices.iter().map(|m| {
            let address = arguments.get(m.argument as usize).ok_or("a matrix in no argument")?;
            encode(m, *address)
        });
        let mut maps = match encoded.collect::<Result<Vec<_>, String>>() {
            Ok(maps) => maps,
            Err(message) => return self.note(self.error(format!("kernel `{}`: {message}", entry.name))),
        };
        let mut parameters: Vec<*mut c_void> =
            addresses.iter_mut().map(|a| std::ptr::from_mut(a).cast::<c_void>()).collect();
        parameters.extend(maps.iter_mut().map(|map| std::ptr::from_mut(map).cast::<c_void>()));
        let blocks = u32::try_from(entry.blocks).unwrap_or(u32::MAX);
        let what = || format!("kernel `{}`", entry.name);
        // SAFETY: the function is loaded in this context and takes these addresses and matrices, which the caller answers for; the driver
        // copies the parameters before it returns.
        self.call(&what, || unsafe {
            let (grid, block) = ((blocks, 1, 1), (entry.threads, 1, 1));
            result::launch_kernel(kernel.handle, grid, block, entry.shared_bytes, self.handle, &mut parameters)
        });
        lock(&self.state).launched.push(entry.name.clone());
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.shared.enter().is_ok() {
            // SAFETY: nobody else has the handle; its work is waited for first.
            let _ = unsafe { result::stream::synchronize(self.handle) };
            // SAFETY: as above.
            let _ = unsafe { result::stream::destroy(self.handle) };
        }
    }
}

impl Event for CudaEvent {
    fn query(&self) -> bool {
        let gone = self.handle.is_null() || self.shared.enter().is_err();
        // SAFETY: the event is alive.
        gone || unsafe { sys::cuEventQuery(self.handle) } != sys::CUresult::CUDA_ERROR_NOT_READY
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let error = |message: String| failed(self.shared.device, message);
        self.shared.enter().map_err(|e| error(e.message))?;
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.handle) }.map_err(|e| error(text(e)))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if !self.handle.is_null() && self.shared.enter().is_ok() {
            // SAFETY: nobody else has the handle.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
