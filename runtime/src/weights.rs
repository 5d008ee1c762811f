//! Memory of constants: owned aligned buffers, or views of memory that something else keeps alive.

mod cache;

use std::ops::Range;
use std::sync::Arc;

pub use cache::WeightCache;

use bytes::Bytes;
use tensorc_abi::content::{Content, ReadError};
use tensorc_abi::{DType, Packing, Plan};
use tensorc_kernels::isa;

use crate::bounds::packing_fits;
use tensorc_abi::memory::{self, AlignedBuffer, AllocError};

/// A constant does not fit the layout asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// The constant has another size than its shape or packed form.
    #[error("{expected} bytes expected, {actual} found")]
    Bytes {
        /// Bytes of the shape or packed form.
        expected: u64,
        /// Bytes given.
        actual: u64,
    },
    /// The packing reads behind the end of the constant.
    #[error("the packing reads outside the constant's {elements} elements")]
    Bounds {
        /// Number of elements of the constant.
        elements: u64,
    },
    /// Elements of this type have no such packed form.
    #[error("elements of {0} have no such packed form")]
    DType(DType),
    /// The data is not aligned.
    #[error("the data starts at an address that is not a multiple of {align}")]
    Alignment {
        /// What the address must be a multiple of, in bytes.
        align: usize,
    },
    /// The packed form cannot be addressed.
    #[error("the packed form exceeds the address space")]
    Size,
    /// Memory is short.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The file that holds the constant cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Read-only bytes of one weight. Cloning shares them.
#[derive(Clone, Debug)]
pub enum WeightStorage {
    /// Memory of its own.
    Owned(Arc<AlignedBuffer>),
    /// For example a part of a model file or of mapped weights, which the view keeps alive.
    Shared(Bytes),
}

impl WeightStorage {
    /// All bytes, packed or row-major as the plan says.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            WeightStorage::Owned(buffer) => buffer.as_slice(),
            WeightStorage::Shared(bytes) => bytes,
        }
    }

    /// So many bytes to write, of a plain weight that changes: those that it has if nobody else reads them.
    ///
    /// # Errors
    /// Memory is short.
    pub fn changed(&mut self, bytes: usize) -> Result<&mut [u8], AllocError> {
        let mut own = match std::mem::replace(self, WeightStorage::Shared(Bytes::new())) {
            WeightStorage::Owned(buffer) => Some(buffer),
            WeightStorage::Shared(_) => None,
        };
        let fits = |buffer: &mut Arc<AlignedBuffer>| buffer.len() == bytes && Arc::get_mut(buffer).is_some();
        let own = match own.take_if(fits) {
            Some(buffer) => buffer,
            None => Arc::new(AlignedBuffer::zeroed(bytes as u64, "weight")?),
        };
        *self = WeightStorage::Owned(own);
        let WeightStorage::Owned(own) = self else { return Ok(&mut []) };
        Ok(Arc::get_mut(own).map_or(&mut [], AlignedBuffer::as_mut_slice))
    }

    /// Checks the storage against what a plan expects of the weight.
    pub(crate) fn check(&self, packing: &Packing, dtype: DType, plain_bytes: u64) -> Result<(), WeightError> {
        let (expected, align) = match packing {
            Packing::Plain => (plain_bytes, dtype.size()),
            _ => (packed_bytes(packing)?, Plan::ALIGN as usize),
        };
        let data = self.as_slice();
        if data.len() as u64 != expected {
            return Err(WeightError::Bytes { expected, actual: data.len() as u64 });
        }
        if !(data.as_ptr() as usize).is_multiple_of(align) && !data.is_empty() {
            return Err(WeightError::Alignment { align });
        }
        Ok(())
    }
}

/// Bytes of a weight in the packed form of the kernel library.
fn packed_bytes(packing: &Packing) -> Result<u64, WeightError> {
    let elements = tensorc_kernels::packed_len(packing) as u64;
    elements.checked_mul(size_of::<f32>() as u64).ok_or(WeightError::Size)
}

/// Brings a constant of type `dtype`, row-major in `source`, into the layout its kernel wants.
///
/// A plain weight whose address suits its type is used where it lies; anything else is copied.
///
/// # Errors
/// The source is smaller than the packing reads or cannot be read, or memory is exhausted.
pub fn pack_weight(packing: &Packing, dtype: DType, source: &Content) -> Result<WeightStorage, WeightError> {
    if *packing == Packing::Plain {
        let bytes = source.bytes();
        source.check()?;
        if bytes.as_ptr().addr().is_multiple_of(dtype.size()) {
            return Ok(WeightStorage::Shared(bytes.clone()));
        }
        let mut copy = AlignedBuffer::mapped(bytes.len() as u64, "weight")?;
        memory::populate(copy.as_mut_slice());
        copy.as_mut_slice().copy_from_slice(bytes);
        return Ok(WeightStorage::Owned(Arc::new(copy)));
    }
    if !packing.takes(dtype) {
        return Err(WeightError::DType(dtype));
    }
    let size = packing.element_size();
    let elements = source.len() as u64 / size as u64;
    if !packing_fits(packing, elements) {
        return Err(WeightError::Bounds { elements });
    }
    let mut packed = AlignedBuffer::mapped(packed_bytes(packing)?, "packed weight")?;
    memory::populate(packed.as_mut_slice());
    for units in parts(packing) {
        let elements = tensorc_kernels::pack_source(packing, units.clone());
        let bytes = source.part(elements.start * size..elements.end * size)?;
        // SAFETY: these are the elements that the units are made of.
        unsafe { tensorc_kernels::pack_part(isa(), packing, units, bytes.as_ptr(), packed.as_mut_f32()) };
    }
    Ok(WeightStorage::Owned(Arc::new(packed)))
}

/// Units that are packed at once, so that what they read stays in a core's cache.
fn parts(packing: &Packing) -> impl Iterator<Item = Range<usize>> {
    const BYTES: usize = 256 << 10;
    let units = tensorc_kernels::pack_units(packing);
    let all =
        if units == 0 { 0 } else { tensorc_kernels::pack_source(packing, 0..units).len() * packing.element_size() };
    let step = (units * BYTES / all.max(1)).max(1);
    (0..units).step_by(step).map(move |first| first..units.min(first + step))
}
