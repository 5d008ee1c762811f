//! NVIDIA's GPUs, through the driver that is installed where the program runs.
//!
//! The driver's library is looked for when a [`CudaDriver`] is made; nothing of CUDA is needed before. A device has one
//! context, its primary one, which threads enter before every call. Modules are found by a hash of their PTX as long as
//! some kernel of theirs is in use, since the driver takes long to translate it.

mod graph;
mod matrix;
#[cfg(feature = "nccl")]
mod nccl;
mod peer;
mod stream;
mod vendor;

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{result, sys};
use xxhash_rust::xxh3::xxh3_128;

use crate::device::Device;
use crate::driver::{
    CodeForm, Driver, DriverError, KernelCode, LaunchConfig, LaunchStream, LoadedKernel, Memory, Properties,
    VendorKernel,
};
#[cfg(feature = "nccl")]
pub(super) use nccl::Communicators;
use peer::Peers;
use stream::CudaStream;
pub use vendor::installed_libraries;
use vendor::{Libraries, VendorLibraryCall};

/// Shared memory of a block that a kernel gets without asking, in bytes.
const PLAIN_SHARED: u32 = 48 << 10;

/// A GPU with a CUDA driver. Clones share it.
#[derive(Clone, Debug)]
pub struct CudaDriver(Arc<Shared>);

/// A device's context. Calls of the driver are made by threads that entered it.
#[derive(Debug)]
struct Shared {
    device: Device,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    capability: u32,
    /// Modules by the hash of their PTX.
    modules: Mutex<BTreeMap<u128, Weak<CudaModule>>>,
    libraries: Libraries,
    peers: Peers,
}

// SAFETY: the handles are names that any thread may use once it entered the context.
unsafe impl Send for Shared {}
// SAFETY: as above; the driver's calls are safe for threads.
unsafe impl Sync for Shared {}

/// Translated PTX, unloaded with the last kernel of it.
struct CudaModule {
    handle: sys::CUmodule,
    shared: Arc<Shared>,
}

// SAFETY: as for `Shared`.
unsafe impl Send for CudaModule {}
// SAFETY: as above.
unsafe impl Sync for CudaModule {}

impl Drop for CudaModule {
    fn drop(&mut self) {
        if self.shared.enter().is_ok() {
            // SAFETY: nobody has a kernel of it any more.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

/// A function of a module.
struct CudaFunction {
    handle: sys::CUfunction,
    module: Arc<CudaModule>,
}

// SAFETY: as for `Shared`.
unsafe impl Send for CudaFunction {}
// SAFETY: as above.
unsafe impl Sync for CudaFunction {}

impl CudaDriver {
    /// The GPU with the number of `device`.
    ///
    /// # Errors
    /// No driver is installed, there is no such GPU, or the driver refuses it.
    pub fn new(device: Device) -> Result<CudaDriver, DriverError> {
        let fail = |message: String| DriverError { device, message };
        // SAFETY: the call looks for a library and loads it.
        if !unsafe { sys::is_culib_present() } {
            return Err(fail("no CUDA driver is installed here (libcuda.so was not found)".into()));
        }
        let describe = |e: result::DriverError| fail(text(e));
        result::init().map_err(describe)?;
        let count = result::device::get_count().map_err(describe)?;
        if i32::from(device.id) >= count {
            return Err(fail(format!("there are {count} GPUs here, numbered from 0")));
        }
        let handle = result::device::get(i32::from(device.id)).map_err(describe)?;
        let name = result::device::get_name(handle).map_err(describe)?;
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        // SAFETY: the handle is that of a device.
        let attribute = |which| unsafe { result::device::get_attribute(handle, which) }.map_err(describe);
        let capability = (attribute(MAJOR)? * 10 + attribute(MINOR)?).unsigned_abs();
        // SAFETY: as above; the context is released with the last owner of what is made here.
        let context = unsafe { result::primary_ctx::retain(handle) }.map_err(describe)?;
        let (modules, libraries, peers) = (Mutex::default(), Libraries::default(), Peers::default());
        Ok(CudaDriver(Arc::new(Shared { device, handle, context, name, capability, modules, libraries, peers })))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The libraries' handles go while there is a context.
        let _ = self.enter();
        self.libraries = Libraries::default();
        // SAFETY: everything of the context holds a reference to this, so nothing is left.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

impl Shared {
    /// Makes the calling thread one of the context.
    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is alive as long as this.
        self.check(unsafe { result::ctx::set_current(self.context) })
    }

    fn check<T>(&self, outcome: Result<T, result::DriverError>) -> Result<T, DriverError> {
        outcome.map_err(|e| DriverError { device: self.device, message: text(e) })
    }

    /// The module of some PTX, translated by the driver if it is not here.
    fn module(self: &Arc<Self>, ptx: &str) -> Result<Arc<CudaModule>, DriverError> {
        let number = xxh3_128(ptx.as_bytes());
        let modules = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |modules: &BTreeMap<u128, Weak<CudaModule>>| modules.get(&number).and_then(Weak::upgrade);
        if let Some(module) = known(&modules()) {
            return Ok(module);
        }
        self.enter()?;
        let image = CString::new(ptx).map_err(|_| self.error("PTX with a 0 in it"))?;
        // Not locked, so that threads translate side by side.
        // SAFETY: the image is text that ends in 0.
        let handle = self.check(unsafe { result::module::load_data(image.as_ptr().cast()) })?;
        let module = Arc::new(CudaModule { handle, shared: self.clone() });
        let mut modules = modules();
        if let Some(first) = known(&modules) {
            drop(modules);
            return Ok(first);
        }
        modules.retain(|_, module| module.strong_count() > 0);
        modules.insert(number, Arc::downgrade(&module));
        Ok(module)
    }

    fn properties(&self) -> Result<Properties, DriverError> {
        use sys::CUdevice_attribute as Attribute;
        self.enter()?;
        // SAFETY: the handle is that of a device.
        let number = |which| self.check(unsafe { result::device::get_attribute(self.handle, which) });
        let attribute = |which| number(which).map(i32::unsigned_abs);
        let (free, all) = self.check(result::mem_get_info())?;
        let mut version = 0;
        // SAFETY: the place is this function's.
        self.check(unsafe { sys::cuDriverGetVersion(&raw mut version) }.result())?;
        Ok(Properties {
            capability: self.capability,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bus_bits: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            cache_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            memory_bytes: all as u64,
            free_bytes: free as u64,
            driver_version: version.unsigned_abs(),
        })
    }

    fn error(&self, message: impl Into<String>) -> DriverError {
        DriverError { device: self.device, message: message.into() }
    }
}

/// What the driver says of an error.
fn text(e: result::DriverError) -> String {
    let words = e.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    // An older driver does not know the names of newer errors.
    let name = e.error_name().map_or_else(|_| format!("{:?}", e.0), |s| s.to_string_lossy().into_owned());
    format!("{words} ({name})")
}

/// Memory that the driver allocated.
#[derive(derive_more::Debug)]
#[debug("{}({address:#x} of {})", if self.pinned { "Pinned" } else { "Block" }, shared.device)]
struct CudaMemory {
    /// 0 for no bytes.
    address: sys::CUdeviceptr,
    /// It is page-locked memory of the host, else the device's.
    pinned: bool,
    shared: Arc<Shared>,
}

impl Memory for CudaMemory {
    fn address(&self) -> *mut u8 {
        self.address as *mut u8
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if self.address != 0 && self.shared.enter().is_ok() {
            let _ = match self.pinned {
                // SAFETY: the memory is this value's own, and work on it has ended.
                true => unsafe { result::free_host(self.address as *mut c_void) },
                // SAFETY: as above: freeing waits for the device.
                false => unsafe { result::free_sync(self.address) },
            };
        }
    }
}

impl Driver for CudaDriver {
    fn device(&self) -> Device {
        self.0.device
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn form(&self) -> CodeForm {
        CodeForm::Ptx { capability: self.0.capability }
    }

    fn properties(&self) -> Result<Option<Properties>, DriverError> {
        self.0.properties().map(Some)
    }

    fn load(&self, code: KernelCode) -> Result<Vec<LoadedKernel>, DriverError> {
        match code {
            KernelCode::Ptx { text, entries } => {
                let module = self.0.module(&text)?;
                entries.into_iter().map(|entry| self.function(&module, entry)).collect()
            }
            KernelCode::Vendor(calls) => {
                let loaded = |VendorKernel { name, call, .. }| {
                    let code = VendorLibraryCall::new(&self.0, &call)
                        .map_err(|why| self.0.error(format!("`{name}`: {why}")))?;
                    Ok(LoadedKernel {
                        entry: Arc::new(LaunchConfig { name, ..LaunchConfig::default() }),
                        code: Arc::new(code),
                    })
                };
                calls.into_iter().map(loaded).collect()
            }
            KernelCode::Ir(_) => Err(self.0.error("this device takes PTX, not functions of the host")),
        }
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        // SAFETY: the context is entered.
        self.memory(bytes, false, |bytes| unsafe { result::malloc_sync(bytes) })
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.memory(bytes, true, |bytes| {
            // SAFETY: the context is entered; other contexts may use the memory, too.
            let address = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
            address.map(|address| address as sys::CUdeviceptr)
        })
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        Ok(Box::new(CudaStream::new(self.0.clone())?))
    }
}

impl CudaDriver {
    /// Memory from `alloc`, which is called with the context entered.
    fn memory(
        &self,
        bytes: u64,
        pinned: bool,
        alloc: impl FnOnce(usize) -> Result<sys::CUdeviceptr, result::DriverError>,
    ) -> Result<Box<dyn Memory>, DriverError> {
        self.0.enter()?;
        let kind = if pinned { "page-locked memory" } else { "memory" };
        let fail = |e| self.0.error(format!("{bytes} bytes of {kind}: {}", text(e)));
        let address = if bytes > 0 { alloc(bytes as usize).map_err(fail)? } else { 0 };
        Ok(Box::new(CudaMemory { address, pinned, shared: self.0.clone() }))
    }

    fn function(&self, module: &Arc<CudaModule>, entry: LaunchConfig) -> Result<LoadedKernel, DriverError> {
        let shared = &self.0;
        shared.enter()?;
        let named = |e| shared.error(format!("kernel `{}`: {}", entry.name, text(e)));
        let name = CString::new(entry.name.as_str()).map_err(|_| shared.error("a kernel with a 0 in its name"))?;
        // SAFETY: the module is loaded.
        let handle = unsafe { result::module::get_function(module.handle, name) }.map_err(named)?;
        if entry.shared_bytes > PLAIN_SHARED {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is one of a loaded module.
            let outcome = unsafe { result::function::set_function_attribute(handle, most, entry.shared_bytes as i32) };
            outcome.map_err(named)?;
        }
        let kernel = CudaFunction { handle, module: module.clone() };
        Ok(LoadedKernel { entry: Arc::new(entry), code: Arc::new(kernel) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is no driver, an error says so; where there is one, memory goes there and back.
    #[test]
    fn a_missing_driver_is_an_error() {
        match CudaDriver::new(Device::accelerator(0)) {
            Err(error) => {
                assert!(error.to_string().starts_with("gpu:0: "), "{error}");
                eprintln!("skipped: {error}");
            }
            Ok(driver) => {
                let (stream, block) = (driver.stream().unwrap(), driver.alloc(8).unwrap());
                let (from, mut to) = ([1u8, 2, 3, 4, 5, 6, 7, 8], [0u8; 8]);
                let transfer = |source: *const u8, from, target: *mut u8, to| crate::device::stream::Transfer {
                    source,
                    from,
                    target,
                    to,
                    bytes: 8,
                };
                let (host, gpu) = (Device::cpu(0), driver.device());
                // SAFETY: all three live until the stream is done.
                unsafe {
                    stream.copy(transfer(from.as_ptr(), host, block.address(), gpu));
                    stream.copy(transfer(block.address(), gpu, to.as_mut_ptr(), host));
                }
                stream.synchronize().unwrap();
                assert_eq!(from, to);
            }
        }
        let beyond = CudaDriver::new(Device::accelerator(999));
        assert!(beyond.is_err());
    }
}
