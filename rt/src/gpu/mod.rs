//! Models whose kernels run on a GPU of NVIDIA's.
//!
//! The compiled model holds PTX and, if the compiler had an assembler, machine code; the driver of the machine loads
//! one of them. `driver` finds the driver, `device` is what all contexts of a model share on a GPU, `context` one
//! run's memory there and the run. The functions here are those of [`crate::context`] for such models.

mod context;
mod device;
mod driver;

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use tensorc_abi::artifact::{GpuHandle, Parallel, Status, Tensor, Weights, status};

use crate::context::deliver;
use crate::message::ErrorText;
use crate::model::ArtifactModel;

pub use context::GpuContext;

/// A compiled model in the data section of its artifact. Its tables of functions are null.
#[repr(C)]
pub struct GpuModel {
    /// The part that models on processors have, too.
    pub model: ArtifactModel,
    /// Ends with a zero. Its length and hash, as those of the machine code, are in the image.
    ptx: *const u8,
    /// Machine code in an ELF file, or null.
    cubin: *const u8,
}

/// Bytes of host memory that a context takes; 0 if the model is damaged.
///
/// # Safety
/// `model` is what generated code hands over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_memory_bytes(model: &'static GpuModel, _: u32) -> u64 {
    context::memory_bytes(model).map_or(0, |bytes| bytes as u64)
}

/// As `tc_rt_memory_for`. Contexts take the same host memory for all shapes, and no memory is allocated.
///
/// # Safety
/// `model` is what generated code hands over; `inputs` is null or has an entry for every input of the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_memory_for(model: &'static GpuModel, inputs: *const Tensor, _: u32) -> u64 {
    // SAFETY: passed on from the caller.
    let bytes = unsafe { context::memory_for(model, inputs) };
    bytes.ok().flatten().map_or(0, |bytes| bytes as u64)
}

/// Makes a context on the first GPU, with the driver of the system.
///
/// # Safety
/// As `tc_rt_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_init(
    model: &'static GpuModel,
    out: *mut *mut GpuContext,
    memory: *mut c_void,
    bytes: u64,
    weights: *const Weights,
    _: *const Parallel,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe { tc_rt_gpu_init_on(model, out, null_mut(), memory, bytes, weights) }
}

/// Makes a context on a GPU in the caller's memory, or in memory of its own if `memory` is null.
///
/// # Safety
/// As `tc_rt_init`; `gpu` is null or valid, and its driver null or the path of a driver's library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_init_on(
    model: &'static GpuModel,
    out: *mut *mut GpuContext,
    gpu: *mut GpuHandle,
    memory: *mut c_void,
    bytes: u64,
    weights: *const Weights,
) -> Status {
    if out.is_null() {
        return status::ARGUMENT;
    }
    let mut message = ErrorText::EMPTY;
    // SAFETY: passed on from the caller.
    let outcome = unsafe {
        let wanted = gpu.as_ref().cloned().unwrap_or(GpuHandle::FIRST);
        context::init(model, &wanted, memory.cast(), bytes, weights.as_ref(), &mut message)
    };
    // SAFETY: valid by the caller's contract.
    if let Some(gpu) = unsafe { gpu.as_mut() } {
        gpu.message = message.bytes();
    }
    // SAFETY: not null, and valid by the caller's contract.
    unsafe { deliver(out, outcome) }
}

/// Ends a context. Memory of the caller's is the caller's again; that of the GPU is freed.
///
/// # Safety
/// `context` is null or came from `tc_rt_gpu_init`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_free(_: &'static GpuModel, context: *mut GpuContext) {
    if !context.is_null() {
        // SAFETY: by the caller's contract.
        unsafe { context::free(context) };
    }
}

/// As `tc_rt_error`.
///
/// # Safety
/// `context` is null or came from `tc_rt_gpu_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_error(_: &'static GpuModel, context: *const GpuContext) -> *const c_char {
    // SAFETY: by the caller's contract.
    let text = unsafe { context.as_ref() }.map(|context| context.signature.message.as_ptr().cast());
    text.unwrap_or(status::text(status::ARGUMENT).as_ptr())
}

/// As `tc_rt_describe`.
///
/// # Safety
/// `context` came from `tc_rt_gpu_init`; the arrays have an entry for every input and output of the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_describe(
    _: &'static GpuModel,
    context: *mut GpuContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    // SAFETY: passed on from the caller.
    unsafe { context.signature.outputs_for(inputs, outputs) }.err().unwrap_or(status::OK)
}

/// Runs the model: reads the inputs, fills the outputs, and waits for the GPU.
///
/// # Safety
/// As `tc_rt_gpu_describe`, and every tensor's data is valid for its bytes, in the memory that its type names; outputs
/// overlap neither one another nor inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_run(
    _: &'static GpuModel,
    context: *mut GpuContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    // SAFETY: passed on from the caller.
    unsafe { context.run(inputs, outputs) }.err().unwrap_or(status::OK)
}
