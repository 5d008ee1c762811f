//! What contexts of one model share on a GPU: the loaded code and the weights there, as long as there is a context.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::{null, null_mut};
use core::slice;

use tensorc_abi::artifact::{GpuHandle, Status, status};
use tensorc_abi::image::{Image, ImageVersion, batch, gpu, header, launch, matrix};
use xxhash_rust::xxh3::xxh3_128;

use super::GpuModel;
use super::driver::{Address, CuHandle, DriverApi};
use crate::message::ErrorText;

/// Numbers of the driver's interface.
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const MOST_DYNAMIC_SHARED: c_int = 8;
const JIT_ERROR_LOG: c_uint = 5;
const JIT_ERROR_LOG_BYTES: c_uint = 6;
/// A stream that does not wait for the streams of others.
const NON_BLOCKING: c_uint = 1;

/// Shared memory of a block that a kernel gets without asking, in bytes.
const PLAIN_SHARED: u64 = 48 << 10;

/// A model on a GPU.
pub struct Device {
    next: *mut Device,
    users: usize,
    model: *const GpuModel,
    /// The weights in the memory of the host: models may be given different ones.
    host_weights: *const u8,
    /// The functions of the driver.
    pub driver: DriverApi,
    number: c_int,
    handle: c_int,
    /// The primary context of the GPU.
    pub context: CuHandle,
    module: CuHandle,
    /// The block of weights in the memory of the GPU.
    pub weights: Address,
    /// Handles of the kernels.
    functions: *mut CuHandle,
}

/// All devices in use, a list, under a lock.
struct All {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    first: UnsafeCell<*mut Device>,
}

// SAFETY: the list is used under its lock.
unsafe impl Sync for All {}

static ALL: All = All { lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), first: UnsafeCell::new(null_mut()) };

struct Locked;

impl Locked {
    fn new() -> Locked {
        // SAFETY: a mutex that lives as long as the process.
        unsafe { libc::pthread_mutex_lock(ALL.lock.get()) };
        Locked
    }

    /// Where the first device is written.
    fn first(&mut self) -> *mut *mut Device {
        ALL.first.get()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: this thread has locked it.
        unsafe { libc::pthread_mutex_unlock(ALL.lock.get()) };
    }
}

/// The record of a model's code; an error if it is damaged or of a later version.
pub fn record(model: &'static GpuModel, image: &Image<'static>) -> Result<&'static [u64; gpu::WORDS], Status> {
    let since = ImageVersion { major: 1, minor: 1 };
    if !ImageVersion::of_word(image.word(header::VERSION)).reads(since) {
        return Err(status::DAMAGED);
    }
    let record = image.record::<{ gpu::WORDS }>(image.size(header::GPU)).ok_or(status::DAMAGED)?;
    for (at, code) in [(gpu::PTX, model.ptx), (gpu::CUBIN, model.cubin)] {
        let [bytes, low, high] = [0, 1, 2].map(|i| record[at + i]);
        if bytes == 0 && at == gpu::CUBIN {
            continue;
        }
        if bytes == 0 || code.is_null() {
            return Err(status::DAMAGED);
        }
        // SAFETY: generated code gives so many bytes.
        let code = unsafe { slice::from_raw_parts(code, bytes as usize) };
        // The driver reads PTX up to a zero.
        let ends = at == gpu::CUBIN || code.last() == Some(&0);
        if !ends || xxh3_128(code) != (u128::from(high) << 64 | u128::from(low)) {
            return Err(status::DAMAGED);
        }
    }
    Ok(record)
}

/// What the copy engine is told of, a [`matrix`] record each.
pub fn matrices(image: &Image<'static>) -> impl Iterator<Item = &'static [u64; matrix::WORDS]> {
    records(image, 2, gpu::MATRICES)
}

/// Axes along which matrices lie beside others, a [`batch`] record each.
pub fn batches(image: &Image<'static>) -> impl Iterator<Item = &'static [u64; batch::WORDS]> {
    records(image, 3, gpu::BATCHES)
}

/// Records whose number and offset stand behind that of the model's code since a minor version.
fn records<const N: usize>(
    image: &Image<'static>,
    minor: u32,
    counted: usize,
) -> impl Iterator<Item = &'static [u64; N]> {
    let has = ImageVersion::of_word(image.word(header::VERSION)).reads(ImageVersion { major: 1, minor });
    let counted = has.then(|| image.record::<2>(image.size(header::GPU) + counted)).flatten();
    let [count, first] = counted.copied().unwrap_or([0; 2]);
    let image = *image;
    // The records end where the image does.
    (0..count as usize).map_while(move |i| image.record(first as usize + i * N))
}

/// The name of a kernel.
pub fn name(image: &Image<'static>, record: &[u64; gpu::WORDS], kernel: u64) -> &'static CStr {
    let launch = image.record::<{ launch::WORDS }>(record[gpu::LAUNCHES] as usize + kernel as usize * launch::WORDS);
    let text = launch.map_or("", |l| image.text(l[launch::NAME] as usize));
    CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or(c"?")
}

impl Device {
    /// The model with these weights on a GPU, brought there if it is not.
    ///
    /// # Safety
    /// The driver's path is null or a text, and its library a driver; weights are as long as the image says, and live
    /// until the device is released.
    pub unsafe fn acquire(
        model: &'static GpuModel,
        image: &Image<'static>,
        host_weights: *const u8,
        wanted: &GpuHandle,
        message: &mut ErrorText,
    ) -> Result<*mut Device, Status> {
        let record = record(model, image)?;
        let mut locked = Locked::new();
        // SAFETY: passed on from the caller.
        let driver = unsafe { DriverApi::open(wanted.driver, message)? };
        let number = c_int::try_from(wanted.device).unwrap_or(c_int::MAX);
        let first = locked.first();
        // SAFETY: devices in the list are alive, and the lock is held.
        unsafe {
            let mut at = *first;
            while let Some(known) = at.as_mut() {
                let (a, b) = ((known.model, known.host_weights), (&raw const *model, host_weights));
                if a == b && known.number == number && known.driver.library == driver.library {
                    known.users += 1;
                    return Ok(at);
                }
                at = known.next;
            }
        }
        let new = Device {
            next: null_mut(),
            users: 1,
            model,
            host_weights,
            driver,
            number,
            handle: 0,
            context: null_mut(),
            module: null_mut(),
            weights: 0,
            functions: null_mut(),
        };
        // SAFETY: memory for a device, or null.
        let device = unsafe { libc::malloc(size_of::<Device>()) }.cast::<Device>();
        if device.is_null() {
            return Err(status::MEMORY);
        }
        // SAFETY: `device` is memory for one, which the list gets only when it is complete; the lock is held.
        unsafe {
            device.write(new);
            if let Err(status) = (*device).prepare(image, record, message) {
                Device::destroy(device);
                return Err(status);
            }
            (*device).next = *first;
            *first = device;
        }
        Ok(device)
    }

    /// Gives a use of a device back; the last one frees what is there.
    ///
    /// # Safety
    /// It came from [`Device::acquire`], and nothing of its user's is under way.
    pub unsafe fn release(device: *mut Device) {
        let mut locked = Locked::new();
        // SAFETY: devices in the list are alive, and the lock is held.
        unsafe {
            (*device).users -= 1;
            if (*device).users > 0 {
                return;
            }
            let mut link = locked.first();
            while !(*link).is_null() && *link != device {
                link = &raw mut (**link).next;
            }
            if !(*link).is_null() {
                *link = (*device).next;
            }
            Device::destroy(device);
        }
    }

    /// The model that it was acquired for.
    pub fn model(&self) -> &'static GpuModel {
        // SAFETY: a model of generated code.
        unsafe { &*self.model }
    }

    /// A kernel by its number.
    pub fn function(&self, image: &Image<'_>, kernel: u64) -> Option<CuHandle> {
        let exists = kernel < image.word(header::KERNELS) && !self.functions.is_null();
        // SAFETY: the table has a handle for every kernel.
        exists.then(|| unsafe { *self.functions.add(kernel as usize) })
    }

    /// Finds the GPU, loads the code and copies the weights.
    unsafe fn prepare(
        &mut self,
        image: &Image<'static>,
        record: &[u64; gpu::WORDS],
        message: &mut ErrorText,
    ) -> Result<(), Status> {
        let driver = self.driver;
        let mut count = 0;
        // SAFETY: the driver's functions are given what they take; handles are those it gave before.
        unsafe {
            driver.check((driver.init)(0), message, "the driver of the GPU")?;
            driver.check((driver.device_count)(&raw mut count), message, "the GPUs")?;
            if self.number >= count {
                message.text("GPU ").number(self.number.unsigned_abs().into()).text(" is asked for, there are ");
                message.number(count.unsigned_abs().into()).text(", numbered from 0");
                return Err(status::DEVICE);
            }
            driver.check((driver.device_get)(&raw mut self.handle, self.number), message, "the GPU")?;
            let number = self.capability(message)?;
            let form = self.form(record, number, message)?;
            driver.check((driver.primary_retain)(&raw mut self.context, self.handle), message, "the GPU's context")?;
            let _entered = driver.enter(self.context, message)?;
            self.load(form, message)?;
            self.find_functions(image, record, message)?;
            self.copy_weights(image.word(header::WEIGHTS), message)
        }
    }

    /// The compute capability of the GPU, ten times its major and once its minor number.
    unsafe fn capability(&self, message: &mut ErrorText) -> Result<u64, Status> {
        let (driver, mut major, mut minor) = (&self.driver, 0, 0);
        // SAFETY: a device's handle.
        unsafe {
            for (number, out) in [(CAPABILITY_MAJOR, &raw mut major), (CAPABILITY_MINOR, &raw mut minor)] {
                let code = (driver.device_attribute)(out, number, self.handle);
                driver.check(code, message, "the GPU's compute capability")?;
            }
        }
        Ok(u64::from(major.unsigned_abs()) * 10 + u64::from(minor.unsigned_abs()))
    }

    /// The forms of the code that the GPU takes, the better one first.
    unsafe fn form(
        &self,
        record: &[u64; gpu::WORDS],
        found: u64,
        message: &mut ErrorText,
    ) -> Result<[*const u8; 2], Status> {
        let made_for = record[gpu::CAPABILITY];
        let later = record[gpu::LATER] != 0;
        if found != made_for && !(later && found > made_for) {
            let mut name = [0; 64];
            // SAFETY: room for so many bytes.
            unsafe {
                (self.driver.device_name)(name.as_mut_ptr(), name.len() as c_int - 1, self.handle);
                message.text("GPU ").number(self.number.unsigned_abs().into()).text(" (").c_text(name.as_ptr());
            }
            message.text(") has compute capability ").number(found / 10).text(".").number(found % 10);
            message.text(", the model is compiled for ").number(made_for / 10).text(".").number(made_for % 10);
            message.text(if later { " and later" } else { " alone" });
            return Err(status::DEVICE);
        }
        let model = self.model();
        // Machine code is for the minor versions from its own on.
        let same = found / 10 == made_for / 10 && record[gpu::CUBIN] > 0;
        Ok([if same { model.cubin } else { null() }, model.ptx])
    }

    /// Loads the first form of the code that the driver takes: an old driver may know no new machine code.
    unsafe fn load(&mut self, forms: [*const u8; 2], message: &mut ErrorText) -> Result<(), Status> {
        let mut log = [0u8; GpuHandle::MESSAGE];
        let mut outcome = 0;
        for code in forms.into_iter().filter(|code| !code.is_null()) {
            let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
            let mut values = [log.as_mut_ptr().cast::<c_void>(), (log.len() - 1) as *mut c_void];
            // SAFETY: PTX ends with a zero and machine code says how long it is; the log has room for what the options
            // say.
            outcome = unsafe {
                let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
                (self.driver.module_load)(&raw mut self.module, code.cast(), 2, options, values)
            };
            if outcome == 0 {
                return Ok(());
            }
        }
        let refused = self.driver.check(outcome, message, "the driver does not take the model's code");
        let len = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        if len > 0 {
            message.text(": ").text(core::str::from_utf8(&log[..len]).unwrap_or("?"));
        }
        refused
    }

    unsafe fn find_functions(
        &mut self,
        image: &Image<'static>,
        record: &[u64; gpu::WORDS],
        message: &mut ErrorText,
    ) -> Result<(), Status> {
        let count = image.word(header::KERNELS);
        // SAFETY: memory for as many handles, or null.
        self.functions = unsafe { libc::calloc(count.max(1) as usize, size_of::<CuHandle>()) }.cast();
        if self.functions.is_null() {
            return Err(status::MEMORY);
        }
        for kernel in 0..count {
            let at = record[gpu::LAUNCHES] as usize + kernel as usize * launch::WORDS;
            let launch = image.record::<{ launch::WORDS }>(at).ok_or(status::DAMAGED)?;
            let name = name(image, record, kernel);
            let shown = name.to_str().unwrap_or("?");
            // SAFETY: the module is loaded, the table has a place for every kernel.
            unsafe {
                let function = self.functions.add(kernel as usize);
                let mut code = (self.driver.module_function)(function, self.module, name.as_ptr());
                if code == 0 && launch[launch::SHARED_BYTES] > PLAIN_SHARED {
                    let bytes = launch[launch::SHARED_BYTES] as c_int;
                    code = (self.driver.function_set)(*function, MOST_DYNAMIC_SHARED, bytes);
                }
                if code != 0 {
                    message.text("kernel `").text(shown);
                    return self.driver.check(code, message, "`");
                }
            }
        }
        Ok(())
    }

    unsafe fn copy_weights(&mut self, bytes: u64, message: &mut ErrorText) -> Result<(), Status> {
        if bytes == 0 {
            return Ok(());
        }
        let (driver, bytes, mut stream) = (&self.driver, bytes as usize, null_mut());
        // SAFETY: the weights have so many bytes, here and there; the stream is waited for before it is destroyed.
        unsafe {
            driver.check((driver.alloc)(&raw mut self.weights, bytes), message, "memory of the GPU for weights")?;
            driver.check((driver.stream_create)(&raw mut stream, NON_BLOCKING), message, "a stream")?;
            let mut code = (driver.copy_in)(self.weights, self.host_weights.cast(), bytes, stream);
            if code == 0 {
                code = (driver.stream_wait)(stream);
            }
            (driver.stream_destroy)(stream);
            driver.check(code, message, "copying the weights")
        }
    }

    /// Frees what is on the GPU, and the record.
    ///
    /// # Safety
    /// Nobody uses it any more.
    unsafe fn destroy(device: *mut Device) {
        let mut nobody = ErrorText::EMPTY;
        // SAFETY: the handles are the driver's, and nothing of this device is under way.
        unsafe {
            let own = &*device;
            if !own.context.is_null() {
                if let Ok(_entered) = own.driver.enter(own.context, &mut nobody) {
                    if own.weights != 0 {
                        (own.driver.free)(own.weights);
                    }
                    if !own.module.is_null() {
                        (own.driver.module_unload)(own.module);
                    }
                }
                (own.driver.primary_release)(own.handle);
            }
            libc::free(own.functions.cast());
            libc::free(device.cast());
        }
    }
}
