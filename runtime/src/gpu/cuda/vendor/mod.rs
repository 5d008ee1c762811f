//! Calls of cuBLASLt and cuDNN, which are looked for when the first call of theirs is loaded.
//!
//! A call is prepared once: descriptors are made and an algorithm is chosen that needs no more working memory than the plan has.
//! A launch then enqueues it on a stream, and may be recorded.

mod convolution;
mod product;

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUstream;
use tensorc_abi::{VendorCall, VendorContraction};

use super::Shared;
use convolution::Convolution;
use product::Product;

/// The libraries of a device, or why they cannot be used.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    cublaslt: OnceLock<Result<product::Library, String>>,
    cudnn: OnceLock<Result<convolution::Library, String>>,
}

/// Whether cuBLASLt, and whether cuDNN is installed here.
pub fn installed_libraries() -> [bool; 2] {
    // SAFETY: the calls look for libraries and load them.
    unsafe { [cudarc::cublaslt::sys::is_culib_present(), cudarc::cudnn::sys::is_culib_present()] }
}

/// A call as a library is asked for it.
pub(super) enum VendorLibraryCall {
    Product(Box<Product>),
    Convolution(Convolution),
}

impl VendorLibraryCall {
    /// # Errors
    /// The library is not installed or has no algorithm for the call; the message says so.
    pub fn new(shared: &Arc<Shared>, call: &VendorCall) -> Result<VendorLibraryCall, String> {
        if !call.fits() {
            return Err("the library does not take operands that lie so".into());
        }
        shared.enter().map_err(|e| e.message)?;
        match &call.contraction {
            VendorContraction::Product { call: product, bias } => {
                Product::new(shared, call, product, *bias).map(|product| VendorLibraryCall::Product(Box::new(product)))
            }
            VendorContraction::Convolution(conv) => {
                Convolution::new(shared, call, conv).map(VendorLibraryCall::Convolution)
            }
        }
    }

    /// Enqueues the call. The context is entered.
    ///
    /// # Errors
    /// The library refuses it; the message says how.
    ///
    /// # Safety
    /// The arguments are those of the step, in memory of the device, valid until the stream has passed; the stream is one of
    /// the device.
    pub unsafe fn launch(&self, stream: CUstream, arguments: &[*mut u8]) -> Result<(), String> {
        match self {
            // SAFETY: passed on from the caller.
            VendorLibraryCall::Product(product) => unsafe { product.launch(stream, arguments) },
            // SAFETY: passed on from the caller.
            VendorLibraryCall::Convolution(convolution) => unsafe { convolution.launch(stream, arguments) },
        }
    }

    pub fn is_of(&self, shared: &Arc<Shared>) -> bool {
        let own = match self {
            VendorLibraryCall::Product(product) => &product.shared,
            VendorLibraryCall::Convolution(convolution) => &convolution.shared,
        };
        Arc::ptr_eq(own, shared)
    }
}

/// Something of a library's, destroyed with this.
struct Owned<T, S> {
    handle: *mut T,
    destroy: unsafe fn(*mut T) -> S,
}

impl<T, S> Owned<T, S> {
    /// What `create` makes.
    fn new<E>(
        create: impl FnOnce(*mut *mut T) -> Result<(), E>,
        destroy: unsafe fn(*mut T) -> S,
    ) -> Result<Owned<T, S>, E> {
        let mut handle = std::ptr::null_mut();
        create(&raw mut handle)?;
        Ok(Owned { handle, destroy })
    }
}

impl<T, S> Drop for Owned<T, S> {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own. There is nobody to tell of a failure.
        unsafe { (self.destroy)(self.handle) };
    }
}

const ONE: f32 = 1.0;
const ZERO: f32 = 0.0;

/// A number of the host that a library reads.
fn scalar(value: &'static f32) -> *const c_void {
    std::ptr::from_ref(value).cast()
}
