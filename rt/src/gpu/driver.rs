//! The driver of NVIDIA's GPUs: the functions of its library that are called, looked up when a context is made, and its
//! errors in words. Nothing of CUDA is needed to link a program.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{null, null_mut};

use tensorc_abi::artifact::{Status, status};

use crate::message::ErrorText;

/// Where systems have the driver's library.
const LIBRARY: &CStr = c"libcuda.so.1";

/// What a function of the driver returns: 0, or the number of an error.
pub type CuResult = c_int;
/// Handles of contexts, modules, functions and streams.
pub type CuHandle = *mut c_void;
/// An address in the memory of a GPU.
pub type Address = u64;

/// Errors that have statuses of their own.
const OUT_OF_MEMORY: CuResult = 2;
const NO_DEVICE: CuResult = 100;
const INVALID_DEVICE: CuResult = 101;

/// Declares the functions that are called, each with its symbol.
macro_rules! driver {
    ($($field:ident = $symbol:literal($($argument:ty),*);)*) => {
        /// The functions of a driver.
        #[derive(Clone, Copy)]
        pub struct DriverApi {
            /// Of the library, which stays open.
            pub library: CuHandle,
            $(
                /// A function of the driver.
                pub $field: unsafe extern "C" fn($($argument),*) -> CuResult,
            )*
        }

        impl DriverApi {
            /// Opens the library and finds the functions in it.
            ///
            /// # Safety
            /// `path` is null or a text; the library is a driver.
            pub unsafe fn open(path: *const c_char, message: &mut ErrorText) -> Result<DriverApi, Status> {
                let path = if path.is_null() { LIBRARY.as_ptr() } else { path };
                // SAFETY: a text; what a library does when it is opened is the caller's promise.
                let library = unsafe { libc::dlopen(path, libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if library.is_null() {
                    message.text("no driver of a GPU: ");
                    // SAFETY: a text, as the call before failed.
                    unsafe { message.c_text(libc::dlerror()) };
                    return Err(status::DRIVER);
                }
                $(
                    // SAFETY: the library is open and the name a text.
                    let $field = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                    if $field.is_null() {
                        // SAFETY: texts.
                        unsafe { message.text("the driver ").c_text(path).text(" has no ").c_text($symbol.as_ptr()) };
                        return Err(status::DRIVER);
                    }
                )*
                Ok(DriverApi {
                    library,
                    $(
                        // SAFETY: a driver's function of this name has this type.
                        $field: unsafe {
                            core::mem::transmute::<CuHandle, unsafe extern "C" fn($($argument),*) -> CuResult>($field)
                        },
                    )*
                })
            }
        }
    };
}

driver! {
    init = c"cuInit"(c_uint);
    device_count = c"cuDeviceGetCount"(*mut c_int);
    device_get = c"cuDeviceGet"(*mut c_int, c_int);
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain"(*mut CuHandle, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2"(c_int);
    push = c"cuCtxPushCurrent_v2"(CuHandle);
    pop = c"cuCtxPopCurrent_v2"(*mut CuHandle);
    module_load = c"cuModuleLoadDataEx"(*mut CuHandle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload = c"cuModuleUnload"(CuHandle);
    module_function = c"cuModuleGetFunction"(*mut CuHandle, CuHandle, *const c_char);
    function_set = c"cuFuncSetAttribute"(CuHandle, c_int, c_int);
    alloc = c"cuMemAlloc_v2"(*mut Address, usize);
    free = c"cuMemFree_v2"(Address);
    copy_in = c"cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, CuHandle);
    copy_out = c"cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, CuHandle);
    copy_there = c"cuMemcpyDtoDAsync_v2"(Address, Address, usize, CuHandle);
    stream_create = c"cuStreamCreate"(*mut CuHandle, c_uint);
    stream_wait = c"cuStreamSynchronize"(CuHandle);
    stream_destroy = c"cuStreamDestroy_v2"(CuHandle);
    launch = c"cuLaunchKernel"(
        CuHandle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CuHandle, *mut *mut c_void, *mut *mut c_void
    );
    error_text = c"cuGetErrorString"(CuResult, *mut *const c_char);
    error_name = c"cuGetErrorName"(CuResult, *mut *const c_char);
}

/// What the copy engine is told of a matrix, as the driver writes it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap([u64; 16]);

/// `cuTensorMapEncodeTiled`: map, type, rank, address, extents, strides, box, steps; then interleaving, permutation, prefetching and
/// what is beyond the ends.
pub type Encode = unsafe extern "C" fn(
    *mut TensorMap,
    c_int,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    *const c_uint,
    *const c_uint,
    c_int,
    c_int,
    c_int,
    c_int,
) -> CuResult;

impl TensorMap {
    /// One that no driver has written yet.
    pub const EMPTY: TensorMap = TensorMap([0; 16]);
}

impl DriverApi {
    /// The function that encodes matrices, which drivers before CUDA 12 lack.
    ///
    /// # Errors
    /// The driver has none.
    pub fn encoder(&self, message: &mut ErrorText) -> Result<Encode, Status> {
        // SAFETY: the library is open and the name a text.
        let found = unsafe { libc::dlsym(self.library, c"cuTensorMapEncodeTiled".as_ptr()) };
        if found.is_null() {
            message.text("the driver has no cuTensorMapEncodeTiled");
            return Err(status::DRIVER);
        }
        // SAFETY: a driver's function of this name has this type.
        Ok(unsafe { core::mem::transmute::<CuHandle, Encode>(found) })
    }

    /// Adds to a message what an error means.
    pub fn explain(&self, code: CuResult, message: &mut ErrorText) {
        let (mut text, mut name) = (null(), null());
        // SAFETY: the functions give texts that stay, or leave null.
        unsafe {
            (self.error_text)(code, &raw mut text);
            (self.error_name)(code, &raw mut name);
            if name.is_null() {
                message.text("error ").number(u64::from(code.unsigned_abs()));
            } else {
                message.c_text(text).text(" (").c_text(name).text(")");
            }
        }
    }

    /// The status of a call, and what failed in words.
    pub fn check(&self, code: CuResult, message: &mut ErrorText, what: &str) -> Result<(), Status> {
        if code == 0 {
            return Ok(());
        }
        message.text(what).text(": ");
        self.explain(code, message);
        Err(match code {
            OUT_OF_MEMORY => status::MEMORY,
            NO_DEVICE | INVALID_DEVICE => status::DEVICE,
            _ => status::GPU,
        })
    }

    /// Makes the calling thread one of a context until the value is dropped, and then what it was before.
    ///
    /// # Safety
    /// The context is alive as long as that.
    pub unsafe fn enter(&self, context: CuHandle, message: &mut ErrorText) -> Result<Entered<'_>, Status> {
        // SAFETY: by the caller's contract.
        self.check(unsafe { (self.push)(context) }, message, "entering the context of the GPU")?;
        Ok(Entered(self))
    }
}

/// That the calling thread is one of a context.
pub struct Entered<'d>(&'d DriverApi);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: the context was pushed by this thread. There is nobody to tell of a failure.
        unsafe { (self.0.pop)(&raw mut context) };
    }
}
