//! Exchanges between GPUs of this process by NCCL, which is looked for when devices are first joined.
//!
//! One thread makes the calls for all devices of an exchange, between `ncclGroupStart` and `ncclGroupEnd`: a call that waited for
//! another device's would wait for ever. Packages with which programs run name the library `libnccl.so.2`, where cudarc
//! looks for `libnccl.so` alone, which comes with headers; so functions are found here, under cudarc's types, and their
//! results are numbers, as a newer library has more of them than cudarc knows.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use tensorc_abi::DType;

use super::stream::CudaStream;
use super::{CudaDriver, Shared};
use crate::device::Device;
use crate::gpu::{Collective, CollectiveError, CollectiveRank, Exchange, LaunchConfig};

/// Names of the library, those that programs are installed with first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The first version with bf16.
const LEAST_VERSION: c_int = 21000;

/// A value of `ncclResult_t`.
type NcclResult = u32;
const SUCCESS: NcclResult = ncclResult_t::ncclSuccess as NcclResult;

type InitAll = unsafe extern "C" fn(*mut ncclComm_t, c_int, *const c_int) -> NcclResult;
type OfOne = unsafe extern "C" fn(ncclComm_t) -> NcclResult;
type AsyncError = unsafe extern "C" fn(ncclComm_t, *mut NcclResult) -> NcclResult;
type NcclGroupFn = unsafe extern "C" fn() -> NcclResult;
type Describe = unsafe extern "C" fn(NcclResult) -> *const c_char;
type NcclVersionFn = unsafe extern "C" fn(*mut c_int) -> NcclResult;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    ncclComm_t,
    cudaStream_t,
) -> NcclResult;
type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    c_int,
    ncclComm_t,
    cudaStream_t,
) -> NcclResult;
type Broadcast = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    c_int,
    ncclComm_t,
    cudaStream_t,
) -> NcclResult;

/// The functions that are called.
struct NcclFunctions {
    init_all: InitAll,
    destroy: OfOne,
    abort: OfOne,
    async_error: AsyncError,
    group_start: NcclGroupFn,
    group_end: NcclGroupFn,
    describe: Describe,
    all_reduce: AllReduce,
    reduce: Reduce,
    broadcast: Broadcast,
    /// Unloads it when it goes, which it never does.
    _library: libloading::Library,
}

impl NcclFunctions {
    /// The library of this process.
    fn get() -> Result<&'static NcclFunctions, CollectiveError> {
        static LIBRARY: OnceLock<Result<NcclFunctions, CollectiveError>> = OnceLock::new();
        LIBRARY.get_or_init(NcclFunctions::open).as_ref().map_err(CollectiveError::clone)
    }

    fn open() -> Result<NcclFunctions, CollectiveError> {
        // SAFETY: loading NCCL runs its initialisers, which set up its own state only.
        let found = NAMES.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
        let library = found.ok_or(CollectiveError::NotInstalled)?;
        // SAFETY: all functions have the types that NCCL's header gives them since 2.10.
        let opened = unsafe {
            NcclFunctions {
                init_all: symbol(&library, "ncclCommInitAll")?,
                destroy: symbol(&library, "ncclCommDestroy")?,
                abort: symbol(&library, "ncclCommAbort")?,
                async_error: symbol(&library, "ncclCommGetAsyncError")?,
                group_start: symbol(&library, "ncclGroupStart")?,
                group_end: symbol(&library, "ncclGroupEnd")?,
                describe: symbol(&library, "ncclGetErrorString")?,
                all_reduce: symbol(&library, "ncclAllReduce")?,
                reduce: symbol(&library, "ncclReduce")?,
                broadcast: symbol(&library, "ncclBroadcast")?,
                _library: library,
            }
        };
        // SAFETY: as above.
        let version_of: NcclVersionFn = unsafe { symbol(&opened._library, "ncclGetVersion") }?;
        let mut version = 0;
        // SAFETY: the place is this function's.
        opened.check("ncclGetVersion", unsafe { version_of(&raw mut version) })?;
        if version < LEAST_VERSION {
            return Err(CollectiveError::TooOld { version });
        }
        Ok(opened)
    }

    fn check(&self, call: &'static str, status: NcclResult) -> Result<(), CollectiveError> {
        if status == SUCCESS {
            return Ok(());
        }
        Err(CollectiveError::Call { call, why: self.text(status) })
    }

    /// What the library says of a status.
    fn text(&self, status: NcclResult) -> String {
        // SAFETY: the function takes any number.
        let words = unsafe { (self.describe)(status) };
        if words.is_null() {
            return format!("status {status}");
        }
        // SAFETY: the text is the library's and stays.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        format!("{words} (status {status})")
    }
}

/// A function of a library.
///
/// # Safety
/// `F` is its type, and is not used after the library.
unsafe fn symbol<F: Copy>(library: &libloading::Library, name: &'static str) -> Result<F, CollectiveError> {
    // SAFETY: passed on from the caller.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| CollectiveError::NoFunction { function: name })
}

/// A device's communicator, with the context that it needs.
struct Rank {
    handle: ncclComm_t,
    shared: Arc<Shared>,
}

/// Communicators of several devices.
pub struct Communicators {
    library: &'static NcclFunctions,
    ranks: Vec<Rank>,
    devices: Vec<Device>,
    /// Names of exchanges where streams fail.
    entries: [Arc<LaunchConfig>; 3],
    /// Why they were given back. Held during an exchange, as one thread at a time may use them.
    broken: Mutex<Option<CollectiveError>>,
}

// SAFETY: the handles are used by one thread at a time, under the lock or by who drops this; NCCL binds them to no thread.
unsafe impl Send for Communicators {}
// SAFETY: as above.
unsafe impl Sync for Communicators {}

impl fmt::Debug for Communicators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Communicators").field(&self.devices).finish()
    }
}

fn entry(name: &str) -> Arc<LaunchConfig> {
    Arc::new(LaunchConfig { name: name.into(), ..LaunchConfig::default() })
}

impl Communicators {
    /// Communicators of devices that are all different.
    ///
    /// # Errors
    /// The library is missing or refuses the devices.
    pub fn new(drivers: &[CudaDriver]) -> Result<Communicators, CollectiveError> {
        let library = NcclFunctions::get()?;
        let devices: Vec<Device> = drivers.iter().map(|driver| driver.0.device).collect();
        let numbers: Vec<c_int> = devices.iter().map(|device| c_int::from(device.id)).collect();
        let mut handles: Vec<ncclComm_t> = vec![std::ptr::null_mut(); drivers.len()];
        for driver in drivers {
            driver.0.enter()?;
        }
        // SAFETY: both lists have so many places, and the devices' contexts are alive.
        let status = unsafe { (library.init_all)(handles.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) };
        library.check("ncclCommInitAll", status)?;
        let rank = |(handle, driver): (ncclComm_t, &CudaDriver)| Rank { handle, shared: driver.0.clone() };
        let ranks = handles.into_iter().zip(drivers).map(rank).collect();
        let entries = ["ncclAllReduce", "ncclReduce", "ncclBroadcast"].map(entry);
        Ok(Communicators { library, ranks, devices, entries, broken: Mutex::default() })
    }

    fn broken(&self) -> MutexGuard<'_, Option<CollectiveError>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether NCCL can go on with what it was asked before.
    fn ask(&self) -> Result<(), CollectiveError> {
        for (rank, device) in self.ranks.iter().zip(&self.devices) {
            let mut status = SUCCESS;
            // SAFETY: the communicator is alive, and the place is this function's.
            let asked = unsafe { (self.library.async_error)(rank.handle, &raw mut status) };
            self.library.check("ncclCommGetAsyncError", asked)?;
            if status != SUCCESS {
                return Err(CollectiveError::Later { device: *device, why: self.library.text(status) });
            }
        }
        Ok(())
    }

    /// Gives all communicators back, after which they are not used.
    fn end(&self, end: OfOne) {
        for rank in &self.ranks {
            let _ = rank.shared.enter();
            // SAFETY: the handle is used no more, and the context is alive. There is nobody to tell of a failure.
            let _ = unsafe { end(rank.handle) };
        }
    }

    /// The streams of the parts, if none of them has failed.
    fn streams<'a>(&self, parts: &[CollectiveRank<'a>]) -> Result<Vec<&'a CudaStream>, CollectiveError> {
        if parts.len() != self.ranks.len() {
            let why = format!("{} parts of an exchange between {} devices", parts.len(), self.ranks.len());
            return Err(CollectiveError::Shape { why });
        }
        let mut streams = vec![];
        for (part, rank) in parts.iter().zip(&self.ranks) {
            let device = rank.shared.device;
            let any: &'a dyn Any = part.stream;
            let stream = any.downcast_ref::<CudaStream>().filter(|stream| stream.is_of(&rank.shared));
            let stream = stream.ok_or(CollectiveError::Foreign { device })?;
            if let Some(failure) = stream.failure() {
                return Err(CollectiveError::Behind { why: failure.to_string() });
            }
            streams.push(stream);
        }
        Ok(streams)
    }

    /// The call for one device.
    ///
    /// # Safety
    /// As for [`Collective::exchange`]; between the calls that begin and end a group.
    unsafe fn call(
        &self,
        exchange: Exchange,
        (dtype, count): (ncclDataType_t, usize),
        rank: &Rank,
        (address, stream): (*mut u8, &CudaStream),
    ) -> Result<(), CollectiveError> {
        rank.shared.enter()?;
        let (at, comm, stream) = (address.cast::<c_void>(), rank.handle, stream.handle().cast());
        let (library, sum) = (self.library, ncclRedOp_t::ncclSum);
        // SAFETY: the communicator is alive and of the stream's device; the rest is passed on from the caller.
        unsafe {
            match exchange {
                Exchange::AllReduce => {
                    let status = (library.all_reduce)(at, at, count, dtype, sum, comm, stream);
                    library.check("ncclAllReduce", status)
                }
                Exchange::Reduce { root } => {
                    let status = (library.reduce)(at, at, count, dtype, sum, root as c_int, comm, stream);
                    library.check("ncclReduce", status)
                }
                Exchange::Broadcast { root } => {
                    let status = (library.broadcast)(at, at, count, dtype, root as c_int, comm, stream);
                    library.check("ncclBroadcast", status)
                }
            }
        }
    }
}

/// The library's name for an element type.
fn type_of(dtype: DType) -> Option<ncclDataType_t> {
    Some(match dtype {
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::U64 => ncclDataType_t::ncclUint64,
        _ => return None,
    })
}

impl Collective for Communicators {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn takes(&self, dtype: DType) -> bool {
        type_of(dtype).is_some()
    }

    unsafe fn exchange(
        &self,
        exchange: Exchange,
        dtype: DType,
        count: usize,
        parts: &[CollectiveRank<'_>],
    ) -> Result<(), CollectiveError> {
        let kind = type_of(dtype).ok_or(CollectiveError::Type { dtype })?;
        if let Some(root) = exchange.root().filter(|root| *root >= self.ranks.len()) {
            let why = format!("position {root} among {} devices", self.ranks.len());
            return Err(CollectiveError::Shape { why });
        }
        let streams = self.streams(parts)?;
        if count == 0 {
            return Ok(());
        }
        let mut broken = self.broken();
        if let Some(first) = &*broken {
            return Err(CollectiveError::Broken { first: Box::new(first.clone()) });
        }
        let group = || -> Result<(), CollectiveError> {
            self.ask()?;
            // SAFETY: the group is ended below.
            self.library.check("ncclGroupStart", unsafe { (self.library.group_start)() })?;
            let mut calls = self.ranks.iter().zip(parts).zip(&streams);
            // SAFETY: passed on from the caller.
            let called = calls.try_for_each(|((rank, part), stream)| unsafe {
                self.call(exchange, (kind, count), rank, (part.address, stream))
            });
            // SAFETY: begun above. What was refused in a group is not enqueued.
            let ended = self.library.check("ncclGroupEnd", unsafe { (self.library.group_end)() });
            called.and(ended)
        };
        if let Err(error) = group() {
            *broken = Some(error.clone());
            // What was enqueued on some of the devices would wait for the others for ever.
            self.end(self.library.abort);
            return Err(error);
        }
        let name = match exchange {
            Exchange::AllReduce => 0,
            Exchange::Reduce { .. } => 1,
            Exchange::Broadcast { .. } => 2,
        };
        streams.iter().for_each(|stream| stream.launched(&self.entries[name]));
        Ok(())
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        if self.broken().is_some() {
            return;
        }
        // One that has failed may never finish what it was asked.
        self.end(if self.ask().is_err() { self.library.abort } else { self.library.destroy });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the library is missing, an error says so; where it is there, it has all functions.
    #[test]
    fn a_missing_library_is_an_error() {
        match NcclFunctions::get() {
            Ok(library) => assert!(library.text(SUCCESS).contains("status 0")),
            Err(error) => {
                assert_eq!(error, CollectiveError::NotInstalled);
                eprintln!("skipped: {error}");
            }
        }
    }
}
