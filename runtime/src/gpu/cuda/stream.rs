//! Streams and events of a CUDA device.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::graph::Recorded;
use super::matrix::encode;
use super::vendor::VendorLibraryCall;
use super::{CudaFunction, Shared, text};
use crate::device::Device;
use crate::device::stream::{Callback, Event, Stream, StreamError, StreamWork, Transfer};
use crate::driver::{DriverError, Graph, LaunchConfig, LaunchStream, LoadedKernel, Rows};
use crate::pool::TaskPanic;

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
    /// Where functions of the host leave what they failed with while the stream passed them, until the operation ends.
    late: Arc<Late>,
    /// Kernels launched since the last operation ended.
    launched: Vec<Arc<LaunchConfig>>,
    /// Kernels recorded so far, while the stream records.
    recording: Option<Vec<Arc<LaunchConfig>>>,
}

/// What a function of the host failed with.
type Late = Mutex<Option<StreamError>>;

fn lock<T>(state: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event after some work.
struct CudaEvent {
    shared: Arc<Shared>,
    handle: sys::CUevent,
    /// The stream whose point it is, by its address.
    stream: usize,
    /// What the stream failed with before.
    failure: Option<StreamError>,
    /// Kernels of the operation that ends here.
    launched: Vec<Arc<LaunchConfig>>,
    /// Where functions of the host leave their failure, which is known when the point is passed only.
    late: Option<Arc<Late>>,
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

    #[cfg(feature = "nccl")]
    pub fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    #[cfg(feature = "nccl")]
    pub fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// What the operation that is being enqueued has failed with.
    #[cfg(feature = "nccl")]
    pub fn failure(&self) -> Option<StreamError> {
        lock(&self.state).failure.clone()
    }

    /// Notes that a library has enqueued something, which messages are to name.
    #[cfg(feature = "nccl")]
    pub fn launched(&self, entry: &Arc<LaunchConfig>) {
        lock(&self.state).launched.push(entry.clone());
    }

    fn error(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StreamError {
        failed(self.shared.device, cause)
    }

    fn note(&self, error: StreamError) {
        lock(&self.state).failure.get_or_insert(error);
    }

    /// Launches a kernel of this device.
    ///
    /// # Safety
    /// As [`LaunchStream::launch`].
    unsafe fn launch_kernel(&self, kernel: &CudaFunction, entry: &LaunchConfig, arguments: &[*mut u8]) {
        let (mut addresses, mut sizes) = (arguments.to_vec(), entry.sizes.clone());
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
        parameters.extend(sizes.iter_mut().map(|size| std::ptr::from_mut(size).cast::<c_void>()));
        parameters.extend(maps.iter_mut().map(|map| std::ptr::from_mut(map).cast::<c_void>()));
        let blocks = u32::try_from(entry.blocks).unwrap_or(u32::MAX);
        let what = || format!("kernel `{}`", entry.name);
        // SAFETY: the function is loaded in this context and takes these addresses, numbers and matrices, which the caller answers for; the driver
        // copies the parameters before it returns.
        self.call(&what, || unsafe {
            let (grid, block) = ((blocks, 1, 1), (entry.threads, 1, 1));
            result::launch_kernel(kernel.handle, grid, block, entry.shared_bytes, self.handle, &mut parameters)
                .map_err(text)
        });
    }

    /// Makes a call, unless the stream has failed; `what` names it in the error.
    fn call(&self, what: &dyn Fn() -> String, f: impl FnOnce() -> Result<(), String>) {
        if lock(&self.state).failure.is_some() {
            return;
        }
        let outcome = self.shared.enter().map_err(|e| e.message).and_then(|()| f());
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

    /// Lets what follows wait for a point of another stream, whose failure it may carry on. It waits also after a failure, as
    /// the end of what failed must not come before the end of what was begun for it.
    fn wait_for(&self, event: &Arc<dyn Event>, carries: bool) {
        let any: &dyn Any = &**event;
        let Some(own) = any.downcast_ref::<CudaEvent>() else { return self.wait_here(event.clone(), carries) };
        if !own.handle.is_null() && own.stream != self.handle.addr() {
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            // SAFETY: both handles are alive; the driver keeps the event until the wait is over.
            let wait = || unsafe { result::stream::wait_event(self.handle, own.handle, flags) }.map_err(text);
            if let Err(message) = self.shared.enter().map_err(|e| e.message).and_then(|()| wait()) {
                self.note(self.error(format!("waiting for an event: {message}")));
            }
        }
        // Known already, so that the end of an operation that waits carries it.
        if let Some(failure) = own.failure.clone().filter(|_| carries) {
            self.note(failure);
        }
    }

    /// As [`CudaStream::wait_for`], for an event that the driver does not know.
    fn wait_here(&self, event: Arc<dyn Event>, carries: bool) {
        let late = lock(&self.state).late.clone();
        let run = move || match event.synchronize() {
            Err(error) if carries => _ = lock(&late).get_or_insert(error),
            _ => {}
        };
        if let Err(error) = self.host(run) {
            self.note(error);
        }
    }

    fn driver_error(&self, e: result::DriverError) -> DriverError {
        self.shared.error(text(e))
    }

    /// The point after everything enqueued so far, with the failure of the stream and the kernels it may be of.
    fn event(
        &self,
        failure: Option<StreamError>,
        launched: Vec<Arc<LaunchConfig>>,
        late: Option<Arc<Late>>,
    ) -> Arc<dyn Event> {
        let (shared, handle, stream) = (self.shared.clone(), std::ptr::null_mut(), self.handle.addr());
        let mut event = CudaEvent { shared, handle, stream, failure, launched, late };
        let made = self.shared.enter().map_err(|e| e.message).and_then(|()| {
            // Threads that wait sleep.
            let flags =
                sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
            // SAFETY: the context is entered, and the place for the handle is this function's.
            unsafe { sys::cuEventCreate(&raw mut event.handle, flags) }.result().map_err(text)?;
            // SAFETY: both handles are alive.
            unsafe { result::event::record(event.handle, self.handle) }.map_err(text)
        });
        if let Err(message) = made {
            // There is no point to wait for, so what is before it ends now.
            // SAFETY: the stream is alive.
            let _ = unsafe { result::stream::synchronize(self.handle) };
            event.failure.get_or_insert(self.error(of(&event.launched, &message)));
        }
        Arc::new(event)
    }
}

/// What went wrong, with the kernels that it may have been.
fn of(launched: &[Arc<LaunchConfig>], message: &str) -> String {
    const MAX_SHOWN_KERNELS: usize = 8;
    let names: Vec<&str> = launched.iter().rev().take(MAX_SHOWN_KERNELS).map(|entry| entry.name.as_str()).collect();
    let more = if launched.len() > MAX_SHOWN_KERNELS { ", …" } else { "" };
    match &names[..] {
        [] => format!("a copy: {message}"),
        [name] => format!("kernel `{name}`: {message}"),
        names => format!("one of the kernels {}{more}: {message}", names.join(", ")),
    }
}

impl Stream for CudaStream {
    fn device(&self) -> Device {
        self.shared.device
    }

    fn enqueue(&self, work: StreamWork) {
        let (late, device) = (lock(&self.state).late.clone(), self.shared.device);
        if lock(&self.state).failure.is_some() {
            return;
        }
        let run = move || {
            if lock(&late).is_some() {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(work));
            let result = result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into()));
            if let Err(cause) = result {
                lock(&late).get_or_insert(StreamError::Failed { device, cause: cause.into() });
            }
        };
        if let Err(error) = self.host(run) {
            self.note(error);
        }
    }

    unsafe fn copy(&self, transfer: Transfer) {
        let Transfer { from, to, bytes, .. } = transfer;
        if bytes > 0 {
            let what = || format!("a copy of {bytes} bytes from {from} to {to}");
            // SAFETY: passed on from the caller; `call` enters the context.
            self.call(&what, || unsafe { self.shared.copy(self.handle, transfer) });
        }
    }

    fn record(&self) -> Arc<dyn Event> {
        let failure = lock(&self.state).failure.clone();
        self.event(failure, vec![], None)
    }

    fn wait_event(&self, event: &Arc<dyn Event>) {
        self.wait_for(event, true);
    }

    fn on_complete(&self, callback: Callback) {
        let state = self.state.clone();
        let run = move || {
            let (failure, late) = {
                let mut state = lock(&state);
                (state.failure.take(), state.late.clone())
            };
            let failure = failure.or_else(|| lock(&late).take());
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
        self.close().synchronize()
    }
}

impl LaunchStream for CudaStream {
    unsafe fn launch(&self, function: &LoadedKernel, arguments: &[*mut u8]) {
        let (entry, code) = (&function.entry, &function.code);
        let kernel = code.downcast_ref::<CudaFunction>().filter(|k| Arc::ptr_eq(&k.module.shared, &self.shared));
        let call = code.downcast_ref::<VendorLibraryCall>().filter(|call| call.is_of(&self.shared));
        match (kernel, call) {
            // SAFETY: passed on from the caller.
            (Some(kernel), _) => unsafe { self.launch_kernel(kernel, entry, arguments) },
            (_, Some(call)) => {
                let what = || format!("kernel `{}`", entry.name);
                // SAFETY: passed on from the caller.
                self.call(&what, || unsafe { call.launch(self.handle, arguments) });
            }
            _ => return self.note(self.error(format!("kernel `{}` is another device's", entry.name))),
        }
        let state = &mut *lock(&self.state);
        state.recording.as_mut().unwrap_or(&mut state.launched).push(entry.clone());
    }

    unsafe fn fill(&self, target: *mut u8, bytes: usize, element: &[u8]) {
        let address = target as sys::CUdeviceptr;
        let word = |at: usize| element[at..].iter().take(4).rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let what = || format!("filling {bytes} bytes");
        if bytes == 0 {
            return;
        }
        // SAFETY: the caller promised that the range is valid, and aligned for the element.
        self.call(&what, || unsafe {
            let filled = match element.len() {
                1 => sys::cuMemsetD8Async(address, element[0], bytes, self.handle).result(),
                2 => sys::cuMemsetD16Async(address, word(0) as u16, bytes / 2, self.handle).result(),
                4 => sys::cuMemsetD32Async(address, word(0), bytes / 4, self.handle).result(),
                8 if word(0) == word(4) => sys::cuMemsetD32Async(address, word(0), bytes / 4, self.handle).result(),
                // Every other word, then the words between them.
                _ => (0..2).try_for_each(|half| {
                    let first = address + half * 4;
                    sys::cuMemsetD2D32Async(first, 8, word(half as usize * 4), 1, bytes / 8, self.handle).result()
                }),
            };
            filled.map_err(text)
        });
    }

    unsafe fn copy_rows(&self, rows: Rows) {
        let Rows { source, source_stride, target, target_stride, width, count } = rows;
        if width == 0 || count == 0 {
            return;
        }
        let there = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: there,
            srcHost: std::ptr::null(),
            srcDevice: source as sys::CUdeviceptr,
            srcArray: std::ptr::null_mut(),
            srcPitch: source_stride,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: there,
            dstHost: std::ptr::null_mut(),
            dstDevice: target as sys::CUdeviceptr,
            dstArray: std::ptr::null_mut(),
            dstPitch: target_stride,
            WidthInBytes: width,
            Height: count,
        };
        let what = || format!("a copy of {count} rows of {width} bytes");
        // SAFETY: the caller promised that all rows are valid; the driver copies the description.
        self.call(&what, || unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.handle).result().map_err(text) });
    }

    fn begin_capture(&self) -> Result<(), DriverError> {
        self.shared.enter()?;
        if let Some(failure) = &lock(&self.state).failure {
            return Err(self.shared.error(failure.to_string()));
        }
        // Other threads may go on with whatever they do.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(self.handle, mode) }.map_err(|e| self.driver_error(e))?;
        lock(&self.state).recording = Some(vec![]);
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph, DriverError> {
        let recording = lock(&self.state).recording.take();
        let kernels = recording.ok_or_else(|| self.shared.error("the stream does not record"))?;
        self.shared.enter()?;
        // SAFETY: the stream is alive and records.
        let graph = unsafe { result::stream::end_capture(self.handle) }.map_err(|e| self.driver_error(e));
        // A call that was refused belongs to the recording, not to the stream.
        if let Some(failure) = lock(&self.state).failure.take() {
            // SAFETY: the graph is this function's own.
            drop(graph.map(|graph| unsafe { result::graph::destroy(graph) }));
            return Err(self.shared.error(failure.to_string()));
        }
        let recorded = Recorded::new(self.shared.clone(), graph?)?;
        Ok(Graph { code: Box::new(recorded), kernels: kernels.into() })
    }

    unsafe fn replay(&self, graph: &Graph) {
        let Some(recorded) = graph.code.downcast_ref::<Recorded>().filter(|r| r.is_of(&self.shared)) else {
            return self.note(self.error("a graph of another device"));
        };
        // SAFETY: both are alive; what the graph uses is the caller's promise.
        let launch = || unsafe { result::graph::launch(recorded.handle(), self.handle) }.map_err(text);
        self.call(&|| of(&graph.kernels, "launched as one"), launch);
        lock(&self.state).launched.extend(graph.kernels.iter().cloned());
    }

    fn follow(&self, event: &Arc<dyn Event>) {
        self.wait_for(event, false);
    }

    fn close(&self) -> Arc<dyn Event> {
        let (failure, launched, late) = {
            let mut state = lock(&self.state);
            (state.failure.take(), std::mem::take(&mut state.launched), std::mem::take(&mut state.late))
        };
        self.event(failure, launched, Some(late))
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
        let error = |message: String| failed(self.shared.device, message);
        let mut ended = Ok(());
        if !self.handle.is_null() {
            self.shared.enter().map_err(|e| error(e.message))?;
            // SAFETY: the event is alive.
            let outcome = unsafe { result::event::synchronize(self.handle) };
            ended = outcome.map_err(|e| error(of(&self.launched, &text(e))));
        }
        let late = self.late.as_ref().and_then(|late| lock(late).clone());
        // What was refused at once is the cause of what followed; work before it has ended by now.
        self.failure.clone().or(late).map_or(ended, Err)
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
