//! The interface of a GPU: memory, code, and streams that launch it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tensorc_abi::{DType, VendorCall};

use crate::device::Device;
use crate::device::stream::{Event, Stream};

/// A call of a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {message}")]
pub struct DriverError {
    /// The device of the driver.
    pub device: Device,
    /// What failed, in words.
    pub message: String,
}

/// What code a driver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeForm {
    /// PTX for a compute capability, written as ten times its major and once its minor number: 80, 90.
    Ptx {
        /// That number.
        capability: u32,
    },
    /// Kernels as the compiler represents them, for a driver that does what a GPU of a compute capability does.
    Ir {
        /// Ten times its major and once its minor number.
        capability: u32,
    },
}

/// What a GPU says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Ten times the major and once the minor number of its compute capability.
    pub capability: u32,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Greatest clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// Greatest clock of the memory, in kHz.
    pub memory_clock_khz: u32,
    /// Width of the path to the memory, in bits.
    pub memory_bus_bits: u32,
    /// Second-level cache, in bytes.
    pub cache_bytes: u64,
    /// All memory of the device, in bytes.
    pub memory_bytes: u64,
    /// Memory that nobody uses now, in bytes.
    pub free_bytes: u64,
    /// Greatest version of CUDA that the driver knows: a thousand times its major and ten times its minor number.
    pub driver_version: u32,
}

/// How a kernel is launched. Of a call of a library the name counts alone, which is that of its step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The name of the kernel in its code.
    pub name: String,
    /// Blocks of the grid, which has one dimension.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Numbers that the kernel takes by value, behind the addresses of the arguments.
    pub sizes: Vec<i64>,
    /// Matrices in the arguments that the copy engine is told of, behind the numbers.
    pub matrices: Vec<MatrixParam>,
}

/// An argument as matrices, of which kernels copy boxes to shared memory, each row of a box 128 bytes, with
/// pieces of 16 bytes permuted by row. Elements are f16, bf16, or f32 that is rounded to 10 bits of fraction on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixParam {
    /// Position among the arguments.
    pub argument: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Rows of a matrix.
    pub rows: u64,
    /// Columns of a matrix.
    pub columns: u64,
    /// Elements from one row to the next, of whole pieces.
    pub stride: u64,
    /// Rows of a box.
    pub box_rows: u32,
    /// How many matrices lie beside each other, and elements from one to the next: along up to three axes, near
    /// neighbours first.
    pub batch: Vec<(u64, u64)>,
}

impl MatrixParam {
    /// Axes behind that of columns as kernels count them, by distance: extents, elements from one to the next, and extents of
    /// a box.
    pub fn axes(&self) -> Vec<(u64, u64, u32)> {
        let nearer = self.batch.iter().take_while(|(_, stride)| *stride < self.stride).count();
        let mut axes: Vec<(u64, u64, u32)> = self.batch.iter().map(|(extent, stride)| (*extent, *stride, 1)).collect();
        axes.insert(nearer, (self.rows, self.stride, self.box_rows));
        axes
    }
}

/// A call of a library of the GPU's maker. A launch takes the arguments of its step.
#[derive(Clone, Debug)]
pub struct VendorKernel {
    /// The name of the step.
    pub name: String,
    /// What is called.
    pub call: VendorCall,
    /// Bytes of each argument, and whether it is written.
    pub buffers: Vec<(usize, bool)>,
}

/// Code of kernels, an entry each.
pub enum KernelCode {
    /// Kernels in PTX.
    Ptx {
        /// The text of the module.
        text: String,
        /// The kernels that are taken from it, and how they are launched.
        entries: Vec<LaunchConfig>,
    },
    /// Kernels as the compiler represents them, which the driver knows, and how a GPU would launch them.
    Ir(Vec<(LaunchConfig, Arc<dyn Any + Send + Sync>)>),
    /// Calls of the libraries of the GPU's maker.
    Vendor(Vec<VendorKernel>),
}

/// A loaded kernel. Clones share it.
#[derive(Clone)]
pub struct LoadedKernel {
    /// How it is launched.
    pub entry: Arc<LaunchConfig>,
    /// What the driver that loaded it made of it.
    pub code: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Function").field(&self.entry).finish()
    }
}

/// Memory of a device or page-locked memory of the host, returned when it is dropped.
pub trait Memory: fmt::Debug + Send + Sync {
    /// Where it begins, aligned to 256 bytes.
    fn address(&self) -> *mut u8;
}

/// Work that a stream recorded instead of executing it, to be launched as one.
pub struct Graph {
    /// What the driver that recorded it made of it.
    pub code: Box<dyn Any + Send + Sync>,
    /// Kernels in it, for messages.
    pub kernels: Arc<[Arc<LaunchConfig>]>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("kernels", &self.kernels.len()).finish_non_exhaustive()
    }
}

/// Rows of bytes at equal distances, to be copied inside a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The first byte that is read.
    pub source: *const u8,
    /// Bytes from one row to the next, not less than a row has, and at most [`Rows::MAX_STRIDE`].
    pub source_stride: usize,
    /// The first byte that is written.
    pub target: *mut u8,
    /// Bytes from one row written to the next, within the same limits.
    pub target_stride: usize,
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub count: usize,
}

impl Rows {
    /// The greatest distance of rows that every device takes.
    pub const MAX_STRIDE: usize = i32::MAX as usize;
}

/// A stream that launches kernels. Failures of its work name the kernel.
pub trait LaunchStream: Stream + Any {
    /// Launches a kernel after everything before it. A failure is one of the stream.
    ///
    /// # Safety
    /// `arguments` are addresses in the device's memory, each valid for the buffer's size until the stream has passed
    /// the launch; nobody uses what the kernel writes, or writes what it reads, other than work ordered with
    /// this stream.
    unsafe fn launch(&self, function: &LoadedKernel, arguments: &[*mut u8]);

    /// Writes an element of 1, 2, 4 or 8 bytes over and over to `bytes` bytes, a multiple of its size.
    ///
    /// # Safety
    /// `target` is an address in the device's memory, a multiple of the element's size and valid for the bytes until the
    /// stream has passed; nobody else uses them, other than work ordered with this stream.
    unsafe fn fill(&self, target: *mut u8, bytes: usize, element: &[u8]);

    /// Copies rows inside the device's memory, after everything before it.
    ///
    /// # Safety
    /// As for [`Stream::copy`], for all rows.
    unsafe fn copy_rows(&self, rows: Rows);

    /// Begins to record: launches, copies inside the device and fills are kept instead of executed, until
    /// [`LaunchStream::end_capture`]. Nothing else may be asked of the stream until then.
    ///
    /// # Errors
    /// The device cannot record, or the stream has failed.
    fn begin_capture(&self) -> Result<(), DriverError>;

    /// What was recorded.
    ///
    /// # Errors
    /// Nothing is being recorded, or what was asked of the stream cannot be.
    fn end_capture(&self) -> Result<Graph, DriverError>;

    /// Executes what was recorded, after everything before it. A failure is one of the stream.
    ///
    /// # Safety
    /// As for [`LaunchStream::launch`], for everything recorded. The graph lives until the stream has passed.
    unsafe fn replay(&self, graph: &Graph);

    /// What follows runs after the event's point was passed, whatever failure it carries.
    fn follow(&self, event: &Arc<dyn Event>);

    /// Ends an operation: the point after everything enqueued so far. The event carries the failure of the
    /// stream, which forgets it.
    fn close(&self) -> Arc<dyn Event>;
}

/// A GPU.
pub trait Driver: Any + fmt::Debug + Send + Sync {
    /// The device.
    fn device(&self) -> Device;

    /// The name of the device, for people.
    fn name(&self) -> String;

    /// The form of code that it loads.
    fn form(&self) -> CodeForm;

    /// What the device says of itself; `None` for one that is made of the host.
    ///
    /// # Errors
    /// The driver does not answer.
    fn properties(&self) -> Result<Option<Properties>, DriverError> {
        Ok(None)
    }

    /// Loads code of the form it takes; the functions are in the order of the entries.
    ///
    /// # Errors
    /// The code is of another form or is refused.
    fn load(&self, code: KernelCode) -> Result<Vec<LoadedKernel>, DriverError>;

    /// Loaded code launched in another way: on another number of blocks, with other numbers in place of [`LaunchConfig::sizes`].
    /// Nothing is loaded. `_spans` has the elements of each argument, which these numbers tell.
    fn relaunched(&self, kernel: &LoadedKernel, launch: LaunchConfig, _spans: &[u64]) -> LoadedKernel {
        LoadedKernel { entry: Arc::new(launch), code: kernel.code.clone() }
    }

    /// Memory of the device, with undefined contents. Only the device can use it.
    ///
    /// # Errors
    /// The device's memory is used up.
    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError>;

    /// Page-locked memory of the host, with undefined contents: copies between it and the device go on while the host
    /// does other things.
    ///
    /// # Errors
    /// The host's memory is used up.
    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError>;

    /// A new stream of the device.
    ///
    /// # Errors
    /// The device has no further streams.
    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError>;
}
