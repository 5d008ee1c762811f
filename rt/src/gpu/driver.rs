//! The driver of NVIDIA's GPUs: the functions of its library that are called, looked up when a context is made, and its
//! errors in words. Nothing of CUDA is needed to link a program.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{null, null_mut};

use tensorc_abi::artifact::{Status, status};

use crate::message::Message;

/// Where systems have the driver's library.
const LIBRARY: &CStr = c"libcuda.so.1";

/// What a function of the driver returns: 0, or the number of an error.
pub type Code = c_int;
/// Handles of contexts, modules, functions and streams.
pub type Handle = *mut c_void;
/// An address in the memory of a GPU.
pub type Address = u64;

/// Errors that have statuses of their own.
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
const INVALID_DEVICE: Code = 101;

/// Declares the functions that are called, each with its symbol.
macro_rules! driver {
    ($($field:ident = $symbol:literal($($argument:ty),*);)*) => {
        /// The functions of a driver.
        #[derive(Clone, Copy)]
        pub struct Driver {
            /// Of the library, which stays open.
            pub library: Handle,
            $(pub $field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Driver {
            /// Opens the library and finds the functions in it.
            ///
            /// # Safety
            /// `path` is null or a text; the library is a driver.
            pub unsafe fn open(path: *const c_char, message: &mut Message) -> Result<Driver, Status> {
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
                Ok(Driver {
                    library,
                    $(
                        // SAFETY: a driver's function of this name has this type.
                        $field: unsafe {
                            core::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> Code>($field)
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
    primary_retain = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2"(c_int);
    push = c"cuCtxPushCurrent_v2"(Handle);
    pop = c"cuCtxPopCurrent_v2"(*mut Handle);
    module_load = c"cuModuleLoadDataEx"(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload = c"cuModuleUnload"(Handle);
    module_function = c"cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    function_set = c"cuFuncSetAttribute"(Handle, c_int, c_int);
    alloc = c"cuMemAlloc_v2"(*mut Address, usize);
    free = c"cuMemFree_v2"(Address);
    copy_in = c"cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
    copy_out = c"cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
    copy_there = c"cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
    stream_create = c"cuStreamCreate"(*mut Handle, c_uint);
    stream_wait = c"cuStreamSynchronize"(Handle);
    stream_destroy = c"cuStreamDestroy_v2"(Handle);
    launch = c"cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    error_text = c"cuGetErrorString"(Code, *mut *const c_char);
    error_name = c"cuGetErrorName"(Code, *mut *const c_char);
}

/// What the copy engine is told of a matrix, as the driver writes it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap([u64; 16]);

/// `cuTensorMapEncodeTiled`: map, type, rank, address, extents, strides, box, steps; then interleaving, permutation, prefetching and
/// what is beyond the ends.
pub type Encode = unsafe extern "C" fn(
    *mut TensorMap, c_int, c_uint, *mut c_void, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int, c_int, c_int,
) -> Code;

impl TensorMap {
    pub const EMPTY: TensorMap = TensorMap([0; 16]);
}

impl Driver {
    /// The function that encodes matrices, which drivers before CUDA 12 lack.
    ///
    /// # Errors
    /// The driver has none.
    pub fn encoder(&self, message: &mut Message) -> Result<Encode, Status> {
        // SAFETY: the library is open and the name a text.
        let found = unsafe { libc::dlsym(self.library, c"cuTensorMapEncodeTiled".as_ptr()) };
        if found.is_null() {
            message.text("the driver has no cuTensorMapEncodeTiled");
            return Err(status::DRIVER);
        }
        // SAFETY: a driver's function of this name has this type.
        Ok(unsafe { core::mem::transmute::<Handle, Encode>(found) })
    }

    /// Adds to a message what an error means.
    pub fn explain(&self, code: Code, message: &mut Message) {
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
    pub fn check(&self, code: Code, message: &mut Message, what: &str) -> Result<(), Status> {
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
    pub unsafe fn enter(&self, context: Handle, message: &mut Message) -> Result<Entered<'_>, Status> {
        // SAFETY: by the caller's contract.
        self.check(unsafe { (self.push)(context) }, message, "entering the context of the GPU")?;
        Ok(Entered(self))
    }
}

/// That the calling thread is one of a context.
pub struct Entered<'d>(&'d Driver);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: the context was pushed by this thread. There is nobody to tell of a failure.
        unsafe { (self.0.pop)(&raw mut context) };
    }
}
