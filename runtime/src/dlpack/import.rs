//! Taking over a tensor of somebody else.

use std::ptr::NonNull;

use tensorc_abi::DType;

use super::{
    DEVICE_CPU, DEVICE_CUDA_HOST, DEVICE_ROCM_HOST, DLManagedTensor, DLManagedTensorVersioned, DLTensor, DlpackError,
    FLAG_READ_ONLY, VERSION, contiguous_strides,
};
use crate::tensor::TensorRef;
use tensorc_abi::memory::AlignedBuffer;

/// A tensor that was taken over, as row-major elements without gaps.
///
/// Elements that lie that way, aligned to their type, are used where they are, and the deleter is
/// called when this is dropped. Others are copied, and the deleter is called at once.
#[derive(Debug)]
pub struct Imported {
    dtype: DType,
    dims: Vec<u64>,
    read_only: bool,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// Memory of the other side, which the owner keeps alive.
    Foreign {
        start: NonNull<u8>,
        len: usize,
        _owner: Managed,
    },
    Copied(AlignedBuffer),
}

/// A tensor whose deleter is to be called.
#[derive(Debug)]
enum Managed {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Legacy(NonNull<DLManagedTensor>),
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: `Imported::from_versioned` and `Imported::from_legacy` were given the tensor and
        // with it the duty to call its deleter; a `Managed` is dropped once.
        unsafe {
            match *self {
                Managed::Versioned(tensor) => {
                    if let Some(deleter) = (*tensor.as_ptr()).deleter {
                        deleter(tensor.as_ptr());
                    }
                }
                Managed::Legacy(tensor) => {
                    if let Some(deleter) = (*tensor.as_ptr()).deleter {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        }
    }
}

// SAFETY: the memory is plain bytes, shared access only reads it, and whoever made the tensor over
// promised that its deleter may be called on any thread.
unsafe impl Send for Imported {}
// SAFETY: as above.
unsafe impl Sync for Imported {}

impl Imported {
    /// Takes over a tensor. Its deleter is called exactly once, also when this fails.
    ///
    /// # Errors
    /// The pointer is null, the major version is another, the memory is not that of the host, the
    /// element type has no counterpart, or shape and strides do not make sense.
    ///
    /// # Safety
    /// `tensor` is null or points to a structure as `dlpack.h` defines it, which is passed on to
    /// nobody else and whose deleter may be called on any thread. Until that, the elements are
    /// valid for reads, for writes unless the structure is marked read-only, and nobody else
    /// writes them while a reference from [`Imported::as_slice`] is alive. That includes arrays and
    /// other imports of the same memory: operations on two arrays over one memory are not ordered.
    pub unsafe fn from_versioned(tensor: *mut DLManagedTensorVersioned) -> Result<Imported, DlpackError> {
        let pointer = NonNull::new(tensor).ok_or(DlpackError::Null)?;
        let owner = Managed::Versioned(pointer);
        // SAFETY: the caller vouches for the version and the deleter, which lie at the same place
        // in every version, and for the rest in those with our major number.
        let (tensor, flags) = unsafe {
            let version = (&raw const (*tensor).version).read();
            if version.major != VERSION.major {
                return Err(DlpackError::Version(version));
            }
            ((*tensor).dl_tensor, (*tensor).flags)
        };
        // SAFETY: as the caller promises.
        unsafe { Imported::new(owner, tensor, flags & FLAG_READ_ONLY != 0) }
    }

    /// [`Imported::from_versioned`] for the older form.
    ///
    /// # Errors
    /// As [`Imported::from_versioned`].
    ///
    /// # Safety
    /// As [`Imported::from_versioned`].
    pub unsafe fn from_legacy(tensor: *mut DLManagedTensor) -> Result<Imported, DlpackError> {
        let pointer = NonNull::new(tensor).ok_or(DlpackError::Null)?;
        let owner = Managed::Legacy(pointer);
        // SAFETY: the caller vouches for the structure.
        let tensor = unsafe { (*tensor).dl_tensor };
        // SAFETY: as the caller promises.
        unsafe { Imported::new(owner, tensor, false) }
    }

    /// # Safety
    /// `tensor` describes memory that `owner` keeps alive.
    unsafe fn new(owner: Managed, tensor: DLTensor, read_only: bool) -> Result<Imported, DlpackError> {
        let device = tensor.device.device_type;
        if ![DEVICE_CPU, DEVICE_CUDA_HOST, DEVICE_ROCM_HOST].contains(&device) {
            return Err(DlpackError::DeviceType(device));
        }
        let dtype = tensor.dtype.dtype().ok_or(DlpackError::DType(tensor.dtype))?;
        let rank = usize::try_from(tensor.ndim).map_err(|_| DlpackError::Rank(tensor.ndim))?;
        // SAFETY: a shape and strides that are not null have `ndim` numbers.
        let (shape, strides) = unsafe { (numbers(tensor.shape, rank), numbers(tensor.strides, rank)) };
        let shape = shape.ok_or(DlpackError::NoShape)?;
        let dim = |(index, &value)| u64::try_from(value).map_err(|_| DlpackError::Dimension { index, value });
        let dims = shape.iter().enumerate().map(dim).collect::<Result<Vec<u64>, _>>()?;
        let row_major = contiguous_strides(&shape).ok_or(DlpackError::TooLarge)?;
        // The distance along an axis of one element is of no consequence.
        let stride = |i: usize| match &strides {
            Some(strides) if dims[i] != 1 => strides[i],
            _ => row_major[i],
        };
        let strides: Vec<i64> = (0..rank).map(stride).collect();

        let size = dtype.size();
        let bytes = match dims.iter().try_fold(size as u64, |bytes, &d| bytes.checked_mul(d)) {
            Some(bytes) => bytes,
            None if dims.contains(&0) => 0,
            None => return Err(DlpackError::TooLarge),
        };
        let len = isize::try_from(bytes).map_err(|_| DlpackError::TooLarge)? as usize;
        if len == 0 {
            let data = Data::Copied(AlignedBuffer::zeroed(0, "DLPack tensor")?);
            return Ok(Imported { dtype, dims, read_only, data });
        }
        let data = NonNull::new(tensor.data.cast::<u8>()).ok_or(DlpackError::NoData)?;
        let offset = isize::try_from(tensor.byte_offset).map_err(|_| DlpackError::TooLarge)?;
        // SAFETY: the offset leads to the first element, which is inside of the memory.
        let start = unsafe { data.offset(offset) };

        // SAFETY: elements without gaps are `len` bytes.
        let usable =
            *strides == *row_major && start.addr().get().is_multiple_of(size) && unsafe { valid(dtype, start, len) };
        if usable {
            return Ok(Imported { dtype, dims, read_only, data: Data::Foreign { start, len, _owner: owner } });
        }
        check_reach(&dims, &strides, size)?;
        let mut copy = AlignedBuffer::zeroed(bytes, "copy of a DLPack tensor")?;
        // SAFETY: the elements that shape and strides describe are valid for reads, and the copy
        // has room for all of them.
        unsafe {
            match size {
                1 => gather::<1>(start, &dims, &strides, copy.as_mut_ptr()),
                2 => gather::<2>(start, &dims, &strides, copy.as_mut_ptr()),
                4 => gather::<4>(start, &dims, &strides, copy.as_mut_ptr()),
                _ => gather::<8>(start, &dims, &strides, copy.as_mut_ptr()),
            }
        }
        if dtype == DType::Bool {
            copy.as_mut_slice().iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(Imported { dtype, dims, read_only, data: Data::Copied(copy) })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Whether the other side forbids writing.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the elements were copied, so that the other side does not see what is written.
    pub fn is_copy(&self) -> bool {
        matches!(self.data, Data::Copied(_))
    }

    /// The elements, row-major and without gaps.
    pub fn as_slice(&self) -> &[u8] {
        match &self.data {
            // SAFETY: the owner keeps these bytes alive, and they are not written meanwhile.
            Data::Foreign { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
            Data::Copied(buffer) => buffer.as_slice(),
        }
    }

    /// The elements to write; `None` if the other side forbids that.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if self.read_only {
            return None;
        }
        match &mut self.data {
            // SAFETY: as for `as_slice`, the memory may be written, and `&mut self` is exclusive.
            Data::Foreign { start, len, .. } => Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) }),
            Data::Copied(buffer) => Some(buffer.as_mut_slice()),
        }
    }

    /// The first byte, for owners that share the tensor and keep accesses apart themselves: the
    /// bytes may be written through this pointer while no reference to them exists, unless
    /// [`Imported::is_read_only`].
    pub fn start(&self) -> NonNull<u8> {
        match &self.data {
            Data::Foreign { start, .. } => *start,
            Data::Copied(buffer) => buffer.start(),
        }
    }

    /// The tensor as an input of a plan.
    pub fn as_tensor(&self) -> TensorRef<'_> {
        TensorRef { dtype: self.dtype, dims: &self.dims, data: self.as_slice() }
    }
}

/// The bytes, so that [`bytes::Bytes::from_owner`] can hold a tensor.
impl AsRef<[u8]> for Imported {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// A copy of `count` numbers; `None` if there should be some but the pointer is null.
///
/// # Safety
/// `start` is null or points to `count` numbers.
unsafe fn numbers(start: *const i64, count: usize) -> Option<Vec<i64>> {
    if start.is_null() {
        return (count == 0).then(Vec::new);
    }
    // SAFETY: as the caller promises.
    Some((0..count).map(|i| unsafe { start.add(i).read_unaligned() }).collect())
}

/// Whether the run time can use the bytes as elements: the only true that it knows is 1.
///
/// # Safety
/// `start` points to `len` bytes.
unsafe fn valid(dtype: DType, start: NonNull<u8>, len: usize) -> bool {
    // SAFETY: as the caller promises.
    dtype != DType::Bool || unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }.iter().all(|&b| b <= 1)
}

/// Whether the distance of every element from the first can be expressed in bytes.
fn check_reach(dims: &[u64], strides: &[i64], size: usize) -> Result<(), DlpackError> {
    let reach = dims
        .iter()
        .zip(strides)
        .try_fold(0u64, |reach, (&d, &stride)| reach.checked_add(stride.unsigned_abs().checked_mul(d - 1)?));
    match reach.and_then(|reach| reach.checked_mul(size as u64)) {
        Some(reach) if isize::try_from(reach).is_ok() => Ok(()),
        _ => Err(DlpackError::TooLarge),
    }
}

/// Copies elements of `N` bytes to `to`, in row-major order.
///
/// # Safety
/// `start` is the first of elements that lie at `strides`; all are valid for reads, no dimension
/// is 0, and `to` is valid for writes of all.
unsafe fn gather<const N: usize>(start: NonNull<u8>, dims: &[u64], strides: &[i64], to: *mut u8) {
    let row = dims.last().copied().unwrap_or(1);
    let step = strides.last().copied().unwrap_or(1) as isize * N as isize;
    let outer = dims.len().saturating_sub(1);
    let mut position = vec![0u64; outer];
    let mut offset = 0isize;
    let mut to = to.cast::<[u8; N]>();
    loop {
        for i in 0..row as isize {
            // SAFETY: as the caller promises; elements need not be aligned.
            unsafe {
                to.write_unaligned(start.as_ptr().offset(offset + i * step).cast::<[u8; N]>().read_unaligned());
                to = to.add(1);
            }
        }
        // The next row: the innermost axis that is not at its end moves on, those after it go back.
        let Some(axis) = (0..outer).rev().find(|&a| position[a] + 1 < dims[a]) else { return };
        for a in axis + 1..outer {
            offset -= position[a] as isize * strides[a] as isize * N as isize;
            position[a] = 0;
        }
        position[axis] += 1;
        offset += strides[axis] as isize * N as isize;
    }
}
