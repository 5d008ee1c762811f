//! The C interface of compiled models: what their functions take and return. Generated headers declare the same.

use core::ffi::{c_char, c_void};

/// The section of an ELF file that holds the manifest of the model in it.
pub const MANIFEST_SECTION: &str = ".tensorc.manifest";

/// What functions of a compiled model return: one of [`status`].
pub type Status = i32;

/// Codes of [`Status`].
pub mod status {
    /// The call succeeded.
    pub const OK: i32 = 0;
    /// A pointer is null, or a number is out of range.
    pub const ARGUMENT: i32 = 1;
    /// A tensor has another element type.
    pub const TYPE: i32 = 2;
    /// A tensor has a rank or extents that the model was not compiled for.
    pub const SHAPE: i32 = 3;
    /// A tensor's memory is too small or not aligned for its type.
    pub const BUFFER: i32 = 4;
    /// The memory given is too small or not aligned, or there is no more.
    pub const MEMORY: i32 = 5;
    /// The file of weights cannot be read.
    pub const FILE: i32 = 6;
    /// The weights are not those of this model, or damaged.
    pub const WEIGHTS: i32 = 7;
    /// The model itself is damaged.
    pub const DAMAGED: i32 = 8;
    /// The model was compiled by another version.
    pub const VERSION: i32 = 9;
    /// The driver of the GPU cannot be loaded.
    pub const DRIVER: i32 = 10;
    /// There is no such GPU, or it does not execute the model's code.
    pub const DEVICE: i32 = 11;
    /// A kernel or another call of the GPU's driver failed.
    pub const GPU: i32 = 12;
    /// An operand holds a value that its operator does not take.
    pub const VALUE: i32 = 13;

    /// What a code means.
    pub fn text(status: i32) -> &'static core::ffi::CStr {
        match status {
            OK => c"success",
            ARGUMENT => c"an argument is null or out of range",
            TYPE => c"a tensor has another element type than the model",
            SHAPE => c"a tensor has a shape that the model was not compiled for",
            BUFFER => c"the memory of a tensor is too small or not aligned",
            MEMORY => c"the memory of the context is too small or not aligned, or memory is exhausted",
            FILE => c"the file of weights cannot be read",
            WEIGHTS => c"the weights are missing, damaged or those of another model",
            DAMAGED => c"the compiled model is damaged",
            VERSION => c"the model was compiled by a version that the run-time library does not know",
            DRIVER => c"the driver of the GPU cannot be loaded",
            DEVICE => c"there is no such GPU, or it does not execute the model's code",
            GPU => c"a kernel or another call of the GPU's driver failed",
            VALUE => c"an operand holds a value that its operator does not take",
            _ => c"unknown status",
        }
    }
}

/// A row-major tensor in memory of the caller's: `tc_tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// Address of the first element. Inputs are only read.
    pub data: *mut u8,
    /// Address of `rank` extents. [`EntryPoints::describe`] sets that of an output, [`EntryPoints::run`] does not read
    /// it, and sets it if the shapes of the model depend on values.
    pub dims: *const i64,
    /// Number of dimensions.
    pub rank: u32,
    /// [`crate::DType`] as a number; with [`Tensor::ON_DEVICE`], the memory is that of the model's GPU.
    pub dtype: u32,
    /// Size of the memory at `data` in bytes, at least that of the tensor.
    pub bytes: u64,
}

impl Tensor {
    /// A flag of the type: the data lies in the memory of the GPU.
    pub const ON_DEVICE: u32 = 1 << 16;
}

/// Weights that contexts share: `tc_weights`.
#[repr(C)]
#[derive(Debug)]
pub struct Weights {
    /// Start of the block of weights.
    pub data: *const u8,
    /// Bytes of the block.
    pub bytes: u64,
    /// The mapped file that the block lies in; null if the memory is the caller's.
    pub mapping: *mut u8,
    /// Bytes of the mapping.
    pub mapping_bytes: u64,
}

impl Weights {
    /// No weights.
    pub const NONE: Weights =
        Weights { data: core::ptr::null(), bytes: 0, mapping: core::ptr::null_mut(), mapping_bytes: 0 };
    /// A flag: do not read the contents to check their hash.
    pub const TRUSTED: u32 = 1;
}

/// A piece of work: called with the number of the piece, and that of the worker that executes it.
pub type Task = unsafe extern "C" fn(argument: *mut c_void, index: u64, worker: u32);

/// Executes pieces of work: `parallel_for` of `tc_parallel`.
pub type ParallelFor = unsafe extern "C" fn(pool: *mut c_void, count: u64, task: Task, argument: *mut c_void);

/// How a context's work is shared: `tc_parallel`. Every piece is executed once, in any order, and all are when the
/// function returns. Pieces that run at the same time have different workers, below `workers`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Parallel {
    /// None: everything happens on the calling thread.
    pub parallel_for: Option<ParallelFor>,
    /// The first argument of `parallel_for`.
    pub pool: *mut c_void,
    /// Number of workers, the calling thread among them.
    pub workers: u32,
}

impl Parallel {
    /// One worker: the calling thread.
    pub const NONE: Parallel = Parallel { parallel_for: None, pool: core::ptr::null_mut(), workers: 1 };
}

/// Where a model for a GPU runs: `tc_gpu`.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct GpuHandle {
    /// The number of the GPU.
    pub device: u32,
    /// 0 or [`GpuHandle::STEPWISE`].
    pub flags: u32,
    /// The library of the driver, a text; null: that of the system.
    pub driver: *const c_char,
    /// Filled with why the model does not run there, ended by a zero.
    pub message: [u8; GpuHandle::MESSAGE],
}

impl GpuHandle {
    /// Bytes of [`GpuHandle::message`].
    pub const MESSAGE: usize = 256;
    /// A flag: wait for every kernel, so that an error names the one that failed.
    pub const STEPWISE: u32 = 1;
    /// The first GPU.
    pub const FIRST: GpuHandle =
        GpuHandle { device: 0, flags: 0, driver: core::ptr::null(), message: [0; GpuHandle::MESSAGE] };
}

/// `init` of a model for a GPU that its caller chooses.
pub type InitOn = unsafe extern "C" fn(
    out: *mut *mut c_void,
    gpu: *mut GpuHandle,
    memory: *mut c_void,
    bytes: u64,
    weights: *const Weights,
) -> Status;

/// The functions of a compiled model, behind its name. Contexts are opaque.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoints {
    /// Bytes of host memory that a context for `workers` workers takes for any shapes; 0 if the model is damaged.
    pub memory_bytes: unsafe extern "C" fn(workers: u32) -> u64,
    /// The same for inputs of these shapes; 0 if the model was not compiled for them. None: the model has a format before 1.7.
    pub memory_for: Option<unsafe extern "C" fn(inputs: *const Tensor, workers: u32) -> u64>,
    /// Makes a context in `memory`, `bytes` bytes at a multiple of 64 bytes, or in memory of its own if that is null.
    /// `weights` and `parallel` may be null, and outlive the context.
    pub init: unsafe extern "C" fn(
        out: *mut *mut c_void,
        memory: *mut c_void,
        bytes: u64,
        weights: *const Weights,
        parallel: *const Parallel,
    ) -> Status,
    /// None: the model is for processors.
    pub init_on: Option<InitOn>,
    /// Fills types, shapes and sizes of the outputs for the types and shapes of the inputs; touches no data. Of extents that depend
    /// on values, it gives the greatest.
    pub describe: unsafe extern "C" fn(context: *mut c_void, inputs: *const Tensor, outputs: *mut Tensor) -> Status,
    /// Runs the model: reads the inputs and fills the outputs, which overlap nothing.
    pub run: unsafe extern "C" fn(context: *mut c_void, inputs: *const Tensor, outputs: *mut Tensor) -> Status,
    /// What went wrong in the last call with the context, ended by a zero; valid until the next call.
    pub error: unsafe extern "C" fn(context: *const c_void) -> *const c_char,
    /// Ends a context, and frees the memory that `init` allocated for it.
    pub free: unsafe extern "C" fn(context: *mut c_void),
    /// Maps a file of weights. `flags` is 0 or [`Weights::TRUSTED`].
    pub weights_open: unsafe extern "C" fn(path: *const c_char, flags: u32, out: *mut Weights) -> Status,
    /// Takes a whole file of weights that lies in memory, at a multiple of 64 bytes. `flags` is 0 or
    /// [`Weights::TRUSTED`].
    pub weights_view: unsafe extern "C" fn(file: *const c_void, bytes: u64, flags: u32, out: *mut Weights) -> Status,
    /// Ends the use of weights that no context uses any more, and unmaps their file.
    pub weights_close: unsafe extern "C" fn(weights: *mut Weights),
}
