//! A driver that counts what is asked of another one, and can keep things from those who use it: the ends of operations, and
//! recordings.
//!
//! Tests and measurements see so what passes between host and device, how much memory is taken, and whether the host waits.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensorc_runtime::device::stream::{Callback, Event, Stream, StreamError, StreamWork, Transfer};
use tensorc_runtime::gpu::{
    CodeForm, Driver, DriverError, Graph, KernelCode, LaunchConfig, LaunchStream, LoadedKernel, Memory, Properties,
    Rows,
};
use tensorc_runtime::{Device, DeviceKind};

/// What was counted so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes that came from the host or went there.
    pub host_bytes: AtomicU64,
    /// Kernels launched or recorded one by one.
    pub launches: AtomicU64,
    /// Launches of recorded work.
    pub replays: AtomicU64,
    /// Kernels loaded.
    pub loads: AtomicU64,
    /// Nanoseconds that threads spent in loading them, added up.
    pub load_nanos: AtomicU64,
    /// Operations enqueued.
    pub operations: AtomicU64,
    /// Bytes of the device's memory that are taken, and the most there were.
    memory: Mutex<(u64, u64)>,
    /// Streams refuse to record.
    unrecorded: AtomicBool,
    /// While it is set, only the first so many operations report their completion to the host.
    hold: Mutex<Option<u64>>,
    released: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counts {
    /// From now on the host hears of no end of what is enqueued later.
    pub fn hold(&self) {
        *lock(&self.hold) = Some(self.operations.load(Ordering::SeqCst));
        self.released.notify_all();
    }

    /// The host hears of everything.
    pub fn release(&self) {
        *lock(&self.hold) = None;
        self.released.notify_all();
    }

    /// While ends are held, waits until so many operations are enqueued, and returns how often that took the end of an
    /// earlier one: where no operation comes for `patience`, those so far are let go. `None` if the host waits more than
    /// `most` times.
    pub fn host_waits(&self, operations: u64, patience: Duration, most: u64) -> Option<u64> {
        const POLL: Duration = Duration::from_micros(20);
        let (mut waits, mut seen, mut since) = (0, 0, Instant::now());
        loop {
            match self.operations.load(Ordering::SeqCst) {
                now if now >= operations => return Some(waits),
                now if now != seen => (seen, since) = (now, Instant::now()),
                _ if since.elapsed() <= patience => std::thread::sleep(POLL),
                _ if waits == most => return None,
                _ => {
                    self.hold();
                    (waits, since) = (waits + 1, Instant::now());
                }
            }
        }
    }

    /// Whether streams record for those who ask from now on.
    pub fn record(&self, recording: bool) {
        self.unrecorded.store(!recording, Ordering::Relaxed);
    }

    /// Bytes of the device's memory that are taken.
    pub fn memory(&self) -> u64 {
        lock(&self.memory).0
    }

    /// The most bytes that were taken at once, since the driver was made.
    pub fn peak_memory(&self) -> u64 {
        lock(&self.memory).1
    }
}

/// A driver that passes on what it is asked, and counts it.
#[derive(Debug)]
pub struct CountingDriver {
    inner: Arc<dyn Driver>,
    form: CodeForm,
    most_memory: u64,
    /// What was counted.
    pub counts: Arc<Counts>,
}

impl CountingDriver {
    /// Counts what is asked of `inner`.
    pub fn new(inner: Arc<dyn Driver>) -> CountingDriver {
        CountingDriver { form: inner.form(), inner, most_memory: u64::MAX, counts: Arc::default() }
    }

    /// The device has no more memory than these bytes.
    pub fn with_memory(self, bytes: u64) -> CountingDriver {
        CountingDriver { most_memory: bytes, ..self }
    }

    /// It takes code for an older compute capability, which the device executes as well.
    pub fn of_capability(mut self, number: u32) -> CountingDriver {
        let (CodeForm::Ir { capability } | CodeForm::Ptx { capability }) = &mut self.form;
        *capability = number;
        self
    }
}

impl Driver for CountingDriver {
    fn device(&self) -> Device {
        self.inner.device()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn form(&self) -> CodeForm {
        self.form
    }

    fn properties(&self) -> Result<Option<Properties>, DriverError> {
        self.inner.properties()
    }

    fn load(&self, code: KernelCode) -> Result<Vec<LoadedKernel>, DriverError> {
        let start = Instant::now();
        let loaded = self.inner.load(code)?;
        let nanos = start.elapsed().as_nanos() as u64;
        self.counts.load_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.counts.loads.fetch_add(loaded.len() as u64, Ordering::Relaxed);
        Ok(loaded)
    }

    fn relaunched(&self, kernel: &LoadedKernel, launch: LaunchConfig, spans: &[u64]) -> LoadedKernel {
        self.inner.relaunched(kernel, launch, spans)
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        let (now, peak) = &mut *lock(&self.counts.memory);
        if now.saturating_add(bytes) > self.most_memory {
            let message = format!("{bytes} bytes of memory, of which {} are left", self.most_memory - *now);
            return Err(DriverError { device: self.device(), message });
        }
        let inner = self.inner.alloc(bytes)?;
        *now += bytes;
        *peak = (*peak).max(*now);
        Ok(Box::new(CountedMemory { inner, bytes, counts: self.counts.clone() }))
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc_pinned(bytes)
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        Ok(Box::new(CountingStream { inner: self.inner.stream()?, counts: self.counts.clone() }))
    }
}

/// Memory of the device.
struct CountedMemory {
    inner: Box<dyn Memory>,
    bytes: u64,
    counts: Arc<Counts>,
}

impl fmt::Debug for CountedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Memory for CountedMemory {
    fn address(&self) -> *mut u8 {
        self.inner.address()
    }
}

impl Drop for CountedMemory {
    fn drop(&mut self) {
        lock(&self.counts.memory).0 -= self.bytes;
    }
}

struct CountingStream {
    inner: Box<dyn LaunchStream>,
    counts: Arc<Counts>,
}

impl Stream for CountingStream {
    fn device(&self) -> Device {
        self.inner.device()
    }

    fn enqueue(&self, work: StreamWork) {
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

impl LaunchStream for CountingStream {
    unsafe fn launch(&self, function: &LoadedKernel, arguments: &[*mut u8]) {
        self.counts.launches.fetch_add(1, Ordering::Relaxed);
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
        if self.counts.unrecorded.load(Ordering::Relaxed) {
            return Err(DriverError { device: self.device(), message: "nothing is to be recorded".into() });
        }
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
        let released = self.counts.released.wait_while(lock(&self.counts.hold), held);
        drop(released.unwrap_or_else(PoisonError::into_inner));
        self.inner.synchronize()
    }
}

/// What streams of the device know an event by.
fn inner(event: &Arc<dyn Event>) -> &Arc<dyn Event> {
    let any: &dyn Any = &**event;
    any.downcast_ref::<End>().map_or(event, |end| &end.inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::host::HostDriver;

    const GPU: Device = Device::accelerator(0);

    #[test]
    fn memory_is_counted_until_it_is_given_back() {
        let driver = CountingDriver::new(Arc::new(HostDriver::new(GPU)));
        let counts = driver.counts.clone();
        let first = driver.alloc(100).unwrap();
        let second = driver.alloc(50).unwrap();
        drop(first);
        assert_eq!((counts.memory(), counts.peak_memory()), (50, 150));
        drop(second);
        assert_eq!((counts.memory(), counts.peak_memory()), (0, 150));
        let driver = driver.with_memory(50);
        let _third = driver.alloc(30).unwrap();
        assert!(driver.alloc(21).unwrap_err().to_string().contains("21 bytes of memory, of which 20 are left"));
    }

    #[test]
    fn ends_are_held_and_recordings_refused() {
        let driver = CountingDriver::new(Arc::new(HostDriver::new(GPU)));
        let (counts, stream) = (driver.counts.clone(), driver.stream().unwrap());
        counts.record(false);
        assert!(stream.begin_capture().is_err());
        counts.record(true);
        stream.begin_capture().unwrap();
        stream.end_capture().unwrap();
        counts.hold();
        let end = stream.close();
        let waiting = std::thread::spawn(move || end.synchronize().map_err(|e| e.to_string()));
        let patience = Duration::from_millis(1);
        assert_eq!(counts.host_waits(1, patience, 3), Some(0), "it is enqueued");
        assert_eq!(counts.host_waits(2, patience, 3), None, "nothing else comes");
        waiting.join().unwrap().unwrap();
        counts.release();
    }

    #[test]
    fn a_driver_takes_code_for_an_older_generation() {
        let driver = CountingDriver::new(Arc::new(HostDriver::new(GPU).of_capability(90)));
        assert_eq!(driver.form(), CodeForm::Ir { capability: 90 });
        assert_eq!(driver.of_capability(80).form(), CodeForm::Ir { capability: 80 });
    }
}
