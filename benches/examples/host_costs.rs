//! Every measurement of GPUs on a device that does nothing: what the host does for one, and whether LLVM translates all kernels.
//!
//! ```text
//! $ cargo run --release -p tensorc-bench --features cuda --example host_costs -- [TEXT …]
//! ```
//! runs the cases whose kind and name contain a text. Times are the host's alone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorc::runtime::device::stream::{Callback, Event, Stream, StreamError, StreamWork, Transfer};
use tensorc::runtime::gpu::{
    CodeForm, Driver, DriverError, Graph, KernelCode, LaunchStream, LoadedKernel, Memory, Rows,
};
use tensorc::runtime::{AlignedBuffer, Device};
use tensorc_bench::gpu::{GROUPS, Setup, Size};

const GPU: Device = Device::accelerator(0);

/// As much memory as a large GPU has, in bytes.
const MEMORY: usize = 80 << 30;

#[derive(Debug, Default)]
struct Nothing {
    /// Bytes of the device that are taken, which have no memory here.
    taken: Arc<AtomicUsize>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Addresses {
    start: usize,
    bytes: usize,
    taken: Arc<AtomicUsize>,
}

impl Memory for Addresses {
    fn address(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.start)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Pinned(AlignedBuffer);

impl Memory for Pinned {
    fn address(&self) -> *mut u8 {
        self.0.as_slice().as_ptr().cast_mut()
    }
}

fn error(message: impl fmt::Display) -> DriverError {
    DriverError { device: GPU, message: message.to_string() }
}

impl Driver for Nothing {
    fn device(&self) -> Device {
        GPU
    }

    fn name(&self) -> String {
        "a device that does nothing".into()
    }

    fn form(&self) -> CodeForm {
        CodeForm::Ptx { capability: 90 }
    }

    fn load(&self, code: KernelCode) -> Result<Vec<LoadedKernel>, DriverError> {
        match code {
            KernelCode::Ptx { entries, .. } => {
                let function = |entry| LoadedKernel { entry: Arc::new(entry), code: Arc::new(()) };
                Ok(entries.into_iter().map(function).collect())
            }
            KernelCode::Ir(_) | KernelCode::Vendor(_) => Err(error("only PTX is taken")),
        }
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        let bytes = (bytes as usize).next_multiple_of(256);
        if self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes > MEMORY {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error(format!("{bytes} bytes of memory: out of memory")));
        }
        let start = (1 << 40) + self.next.fetch_add(bytes, Ordering::Relaxed);
        Ok(Box::new(Addresses { start, bytes, taken: self.taken.clone() }))
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        Ok(Box::new(Pinned(AlignedBuffer::zeroed(bytes, "page-locked memory").map_err(error)?)))
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        Ok(Box::new(Idle))
    }
}

/// A stream that has always passed everything, and a point of it.
struct Idle;

impl Event for Idle {
    fn query(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        Ok(())
    }
}

impl Stream for Idle {
    fn device(&self) -> Device {
        GPU
    }

    fn enqueue(&self, work: StreamWork) {
        // What the host would have been told of it is not looked at.
        let _ = work();
    }

    unsafe fn copy(&self, _: Transfer) {}

    fn record(&self) -> Arc<dyn Event> {
        Arc::new(Idle)
    }

    fn wait_event(&self, _: &Arc<dyn Event>) {}

    fn on_complete(&self, callback: Callback) {
        callback(Ok(()));
    }

    fn query(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        Ok(())
    }
}

impl LaunchStream for Idle {
    unsafe fn launch(&self, _: &LoadedKernel, _: &[*mut u8]) {}

    unsafe fn fill(&self, _: *mut u8, _: usize, _: &[u8]) {}

    unsafe fn copy_rows(&self, _: Rows) {}

    fn begin_capture(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph, DriverError> {
        Ok(Graph { code: Box::new(()), kernels: Arc::new([]) })
    }

    unsafe fn replay(&self, _: &Graph) {}

    fn follow(&self, _: &Arc<dyn Event>) {}

    fn close(&self) -> Arc<dyn Event> {
        Arc::new(Idle)
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let driver: Arc<dyn Driver> = Arc::new(Nothing::default());
    let setup = Setup { time: Duration::from_millis(50), ..Setup::new(driver, Size::Device) };
    for (group, cases) in GROUPS {
        for case in cases(Size::Device) {
            let name = format!("{group}: {}", case.name);
            if wanted.is_empty() || wanted.iter().any(|text| name.contains(text.as_str())) {
                let start = Instant::now();
                let report = case.run(&setup);
                let figures: Vec<String> =
                    report.figures.iter().map(|f| format!("{} {:.4} {}", f.name, f.value, f.unit)).collect();
                let seconds = start.elapsed().as_secs_f64();
                println!("{name}: {:?} {} ({seconds:.1} s)  {}", report.outcome, report.note, figures.join(", "));
            }
        }
    }
}
