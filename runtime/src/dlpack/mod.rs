//! DLPack: dense tensors handed between libraries without copying.
//!
//! The structures are those of `dlpack.h` 1.x and of its older form without version. [`export()`]
//! and [`export_legacy`] lend memory of ours; [`Imported`] takes over a tensor of somebody else.
//! Tensors are in host memory: a device with memory of its own is refused in both directions.

mod import;

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use tensorc_abi::DType;

use crate::device::{Device, DeviceKind};
use tensorc_abi::memory::AllocError;

pub use import::Imported;

/// `kDLCPU`
pub const DEVICE_CPU: i32 = 1;
/// `kDLCUDAHost`: host memory that is pinned for CUDA.
pub const DEVICE_CUDA_HOST: i32 = 3;
/// `kDLROCMHost`: host memory that is pinned for ROCm.
pub const DEVICE_ROCM_HOST: i32 = 11;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`
pub const FLAG_READ_ONLY: u64 = 1;

/// The version that is written. Others with the same major number have the same structure.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };

/// Version of the structure behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Structures of different major versions differ in layout.
    pub major: u32,
    /// Minor versions add element types, devices and flags.
    pub minor: u32,
}

/// Where the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// Kind of device, one of the `kDL…` numbers.
    pub device_type: i32,
    /// Number of the device among those of its kind.
    pub device_id: i32,
}

/// An element type: a kind of number, its bits, and how many of them are one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// Kind of number: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool.
    pub code: u8,
    /// Bits of one number.
    pub bits: u8,
    /// Numbers in an element; 1 unless it is a vector.
    pub lanes: u16,
}

/// A tensor: element `i` lies `byte_offset + dot(i, strides) * element size` bytes after `data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// Address that `byte_offset` counts from; it may be null if there are no elements.
    pub data: *mut c_void,
    /// Device of the memory.
    pub device: DLDevice,
    /// Number of axes.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// `ndim` extents.
    pub shape: *mut i64,
    /// `ndim` distances in elements; null for a row-major tensor without gaps.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// The older form of a tensor with owner.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The owner's pointer, for its deleter.
    pub manager_ctx: *mut c_void,
    /// Gives the memory back; called once, with this structure, unless it is null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor with owner. Whoever receives it calls the deleter once.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Version of the structure. All versions have the fields up to `deleter` in these places.
    pub version: DLPackVersion,
    /// The owner's pointer, for its deleter.
    pub manager_ctx: *mut c_void,
    /// Gives the memory back; called once, with this structure, unless it is null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bits such as [`FLAG_READ_ONLY`].
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// Why a tensor cannot be lent or taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DlpackError {
    /// There is no structure, or no memory.
    #[error("there is no DLPack tensor: the pointer is null")]
    Null,
    /// The structure has another major version.
    #[error("DLPack version {}.{} is not supported (supported: 1)", .0.major, .0.minor)]
    Version(DLPackVersion),
    /// The memory is not the host's, by [`DLDevice::device_type`].
    #[error("DLPack device type {0} is not supported (supported: host memory, 1, 3 and 11)")]
    DeviceType(i32),
    /// The memory to lend is that of a device.
    #[error("memory of {0} cannot be lent: only host memory can")]
    Device(Device),
    /// No [`DType`] stands for the element type.
    #[error("DLPack element type with code {}, {} bits and {} lanes is not supported", .0.code, .0.bits, .0.lanes)]
    DType(DLDataType),
    /// The number of axes is negative.
    #[error("the rank of the DLPack tensor is {0}")]
    Rank(i32),
    /// There are axes, but no extents.
    #[error("the DLPack tensor has no shape")]
    NoShape,
    /// An extent is negative.
    #[error("dimension {index} of the DLPack tensor is {value}")]
    Dimension {
        /// Its axis.
        index: usize,
        /// The extent.
        value: i64,
    },
    /// Sizes or offsets cannot be addressed.
    #[error("the DLPack tensor exceeds the address space")]
    TooLarge,
    /// There are elements, but no address.
    #[error("the DLPack tensor has elements but no data")]
    NoData,
    /// Read-only memory was to be lent in the older form, which cannot say so.
    #[error("memory that must not be written can only be lent with the versioned form of DLPack")]
    ReadOnly,
    /// There is no memory for a copy.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl DLDataType {
    /// The DLPack form of an element type. Types below a byte are lent as the bytes that hold their elements.
    pub const fn of(dtype: DType) -> DLDataType {
        let code = match dtype {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4 | DType::I2 => 0,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
            DType::U4 | DType::U2 | DType::F6E2M3 | DType::F6E3M2 | DType::F4E2M1 => 1,
            DType::F16 | DType::F32 | DType::F64 => 2,
            DType::BF16 => 4,
            DType::Bool => 6,
            DType::F8E4M3FN => 10,
            DType::F8E4M3FNUZ => 11,
            DType::F8E5M2 => 12,
            DType::F8E5M2FNUZ => 13,
            DType::F8E8M0 => 14,
        };
        DLDataType { code, bits: dtype.size() as u8 * 8, lanes: 1 }
    }

    /// The inverse of [`DLDataType::of`], but for types below a byte; `None` for what tensorc has no counterpart for.
    pub fn dtype(self) -> Option<DType> {
        DType::ALL.into_iter().find(|&dtype| DLDataType::of(dtype) == self)
    }
}

/// What a tensor of ours refers to while it is lent.
struct Lent {
    dims: Box<[i64]>,
    strides: Box<[i64]>,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// Lends a row-major tensor without gaps. `owner` is kept until the receiver calls the deleter,
/// which may be on any thread.
///
/// A caller that has nobody to give the tensor to calls the deleter itself, or takes it back with
/// [`Imported::from_versioned`].
///
/// # Errors
/// The device's memory is not host memory, or an extent does not fit an `i64`.
///
/// # Safety
/// As long as `owner` lives, `data` is valid for reads of the elements, and for writes unless
/// `read_only` is set. It may be null if there are none.
pub unsafe fn export(
    owner: Arc<dyn Any + Send + Sync>,
    data: *mut u8,
    dtype: DType,
    dims: &[u64],
    device: Device,
    read_only: bool,
) -> Result<*mut DLManagedTensorVersioned, DlpackError> {
    let (dl_tensor, manager_ctx) = lend(owner, data, dtype, dims, device)?;
    let flags = if read_only { FLAG_READ_ONLY } else { 0 };
    let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
    Ok(Box::into_raw(Box::new(DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter, flags, dl_tensor })))
}

/// [`export()`] in the older form, which cannot say that memory must not be written.
///
/// # Errors
/// As [`export()`], and [`DlpackError::ReadOnly`].
///
/// # Safety
/// As [`export()`].
pub unsafe fn export_legacy(
    owner: Arc<dyn Any + Send + Sync>,
    data: *mut u8,
    dtype: DType,
    dims: &[u64],
    device: Device,
    read_only: bool,
) -> Result<*mut DLManagedTensor, DlpackError> {
    if read_only {
        return Err(DlpackError::ReadOnly);
    }
    let (dl_tensor, manager_ctx) = lend(owner, data, dtype, dims, device)?;
    let deleter = Some(delete_legacy as unsafe extern "C" fn(_));
    Ok(Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter })))
}

/// Puts what a tensor refers to on the heap; the tensor, and the address to free.
fn lend(
    owner: Arc<dyn Any + Send + Sync>,
    data: *mut u8,
    dtype: DType,
    dims: &[u64],
    device: Device,
) -> Result<(DLTensor, *mut c_void), DlpackError> {
    if device.kind == DeviceKind::Accelerator {
        return Err(DlpackError::Device(device));
    }
    let ndim = i32::try_from(dims.len()).map_err(|_| DlpackError::TooLarge)?;
    let dims = dims.iter().map(|&d| i64::try_from(d).map_err(|_| DlpackError::TooLarge));
    let dims = dims.collect::<Result<Box<[i64]>, _>>()?;
    let strides = contiguous_strides(&dims).ok_or(DlpackError::TooLarge)?;
    let lent = Box::into_raw(Box::new(Lent { dims, strides, _owner: owner }));
    // SAFETY: the pointer is that of a box that nobody else knows yet.
    let (shape, strides) = unsafe { ((*lent).dims.as_mut_ptr(), (*lent).strides.as_mut_ptr()) };
    // Pinned memory is host memory to others, and the numbers of host devices are ours alone.
    let device = DLDevice { device_type: DEVICE_CPU, device_id: 0 };
    let dtype = DLDataType::of(dtype);
    Ok((DLTensor { data: data.cast(), device, ndim, dtype, shape, strides, byte_offset: 0 }, lent.cast()))
}

/// Deleter of [`export()`].
unsafe extern "C" fn delete_versioned(tensor: *mut DLManagedTensorVersioned) {
    if !tensor.is_null() {
        // SAFETY: `export` made the tensor from a box and `lend` its context from another; a
        // deleter is called once.
        unsafe {
            let tensor = Box::from_raw(tensor);
            drop(Box::from_raw(tensor.manager_ctx.cast::<Lent>()));
        }
    }
}

/// Deleter of [`export_legacy`].
unsafe extern "C" fn delete_legacy(tensor: *mut DLManagedTensor) {
    if !tensor.is_null() {
        // SAFETY: as for `delete_versioned`.
        unsafe {
            let tensor = Box::from_raw(tensor);
            drop(Box::from_raw(tensor.manager_ctx.cast::<Lent>()));
        }
    }
}

/// Row-major strides in elements; `None` if one does not fit.
fn contiguous_strides(dims: &[i64]) -> Option<Box<[i64]>> {
    let mut strides = vec![1i64; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i].checked_mul(dims[i].max(1))?;
    }
    Some(strides.into())
}
