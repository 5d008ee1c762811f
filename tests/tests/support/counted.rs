//! A GPU made of the host that counts what is copied between its memory and the host's, and lets the host wait for the end of
//! operations until it is told otherwise.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use tensorc::runtime::device::stream::{Callback, Event, Stream, StreamError, Transfer, Work};
use tensorc::runtime::gpu::{
    Code, CodeForm, Driver, DriverError, Function, Graph, HostDriver, LaunchStream, Memory, Rows,
};
use tensorc::runtime::{Device, DeviceKind};

/// Copies so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes that came from the host or went there.
    pub host_bytes: AtomicU64,
    /// Launches of recorded work.
    pub replays: AtomicU64,
    /// Kernels loaded.
    pub loads: AtomicU64,
    /// Operations enqueued.
    pub operations: AtomicU64,
    /// While it is set, the host hears of no end but those of the first so many operations.
    hold: Mutex<Option<u64>>,
    released: Condvar,
}

impl Counts {
    /// From now on the host hears of no end of what is enqueued later.
    pub fn hold(&self) {
        *self.hold.lock().unwrap() = Some(self.operations.load(Ordering::SeqCst));
        self.released.notify_all();
    }

    /// The host hears of everything.
    pub fn release(&self) {
        *self.hold.lock().unwrap() = None;
        self.released.notify_all();
    }
}

/// See the module.
#[derive(Debug)]
pub struct CountedDriver {
    inner: HostDriver,
    pub counts: Arc<Counts>,
}

impl CountedDriver {
    pub fn new(device: Device, seed: u64) -> CountedDriver {
        CountedDriver { inner: HostDriver::with_seed(device, seed), counts: Arc::default() }
    }
}

impl Driver for CountedDriver {
    fn device(&self) -> Device {
        self.inner.device()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn form(&self) -> CodeForm {
        self.inner.form()
    }

    fn load(&self, code: Code) -> Result<Vec<Function>, DriverError> {
        let loaded = self.inner.load(code)?;
        self.counts.loads.fetch_add(loaded.len() as u64, Ordering::Relaxed);
        Ok(loaded)
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc(bytes)
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc_pinned(bytes)
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        Ok(Box::new(CountedStream { inner: self.inner.stream()?, counts: self.counts.clone() }))
    }
}

struct CountedStream {
    inner: Box<dyn LaunchStream>,
    counts: Arc<Counts>,
}

impl Stream for CountedStream {
    fn device(&self) -> Device {
        self.inner.device()
    }

    fn enqueue(&self, work: Work) {
        self.inner.enqueue(work);
    }

    unsafe fn copy(&self, transfer: Transfer) {
        if [transfer.from, transfer.to].iter().any(|device| device.kind != DeviceKind::Accelerator) {
            self.counts.host_bytes.fetch_add(transfer.bytes as u64, Ordering::Relaxed);
        }
        // SAFETY: passed on from the caller.
        unsafe { self.inner.copy(transfer) };
    }

    fn record(&self) -> Arc<dyn Event> {
        self.inner.record()
    }

    fn wait_event(&self, event: &Arc<dyn Event>) {
        self.inner.wait_event(inner(event));
    }

    fn on_complete(&self, callback: Callback) {
        self.inner.on_complete(callback);
    }

    fn query(&self) -> bool {
        self.inner.query()
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        self.inner.synchronize()
    }
}

impl LaunchStream for CountedStream {
    unsafe fn launch(&self, function: &Function, arguments: &[*mut u8]) {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.launch(function, arguments) };
    }

    unsafe fn fill(&self, target: *mut u8, bytes: usize, element: &[u8]) {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.fill(target, bytes, element) };
    }

    unsafe fn copy_rows(&self, rows: Rows) {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.copy_rows(rows) };
    }

    fn begin_capture(&self) -> Result<(), DriverError> {
        self.inner.begin_capture()
    }

    fn end_capture(&self) -> Result<Graph, DriverError> {
        self.inner.end_capture()
    }

    unsafe fn replay(&self, graph: &Graph) {
        self.counts.replays.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on from the caller.
        unsafe { self.inner.replay(graph) };
    }

    fn follow(&self, event: &Arc<dyn Event>) {
        self.inner.follow(inner(event));
    }

    fn close(&self) -> Arc<dyn Event> {
        let number = self.counts.operations.fetch_add(1, Ordering::SeqCst);
        Arc::new(End { inner: self.inner.close(), number, counts: self.counts.clone() })
    }
}

/// The end of an operation.
struct End {
    inner: Arc<dyn Event>,
    number: u64,
    counts: Arc<Counts>,
}

impl Event for End {
    fn query(&self) -> bool {
        self.inner.query()
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        let held = |hold: &mut Option<u64>| hold.is_some_and(|first| self.number >= first);
        drop(self.counts.released.wait_while(self.counts.hold.lock().unwrap(), held).unwrap());
        self.inner.synchronize()
    }
}

/// What streams of the device know an event by.
fn inner(event: &Arc<dyn Event>) -> &Arc<dyn Event> {
    let any: &dyn Any = &**event;
    any.downcast_ref::<End>().map_or(event, |end| &end.inner)
}
