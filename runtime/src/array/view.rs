//! A contiguous part of a chunk, seen as a tensor.

use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::chunk::Chunk;
use crate::device::Device;
use crate::host_tensor;

/// The extents of a tensor, outermost first.
pub type Extents = SmallVec<[u64; 4]>;

/// A row-major tensor in a [`Chunk`]. Cloning shares the memory.
#[derive(Clone, Debug)]
pub struct ArrayView {
    chunk: Arc<Chunk>,
    /// Bytes before the first element.
    offset: u64,
    dtype: DType,
    dims: Extents,
}

/// A view that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// A tensor with more bytes than can be addressed.
    #[error("{dtype}{dims:?} has more than 2^63 - 1 bytes")]
    Size {
        /// Its element type.
        dtype: DType,
        /// Its shape.
        dims: Vec<u64>,
    },
    /// A change of shape that changes the number of elements; of a whole chunk, all four fields count bytes.
    #[error("{from:?} has {have} elements, {to:?} has {want}")]
    Reshape {
        /// Shape of what there is.
        from: Vec<u64>,
        /// Shape that was asked for.
        to: Vec<u64>,
        /// Number of elements of `from`.
        have: u64,
        /// Number of elements of `to`.
        want: u64,
    },
    /// Positions outside of the first axis.
    #[error("rows {begin}..{end} of an array of shape {dims:?}")]
    Rows {
        /// The first position.
        begin: u64,
        /// The position behind the last.
        end: u64,
        /// Shape of the tensor, empty if it has no axis.
        dims: Vec<u64>,
    },
}

/// Bytes of a row-major tensor.
///
/// # Errors
/// They cannot be addressed.
pub fn byte_len(dtype: DType, dims: &[u64]) -> Result<u64, ViewError> {
    host_tensor::byte_len(dtype, dims).ok_or_else(|| ViewError::Size { dtype, dims: dims.to_vec() })
}

impl ArrayView {
    /// The whole of a chunk as a tensor of that many bytes.
    ///
    /// # Errors
    /// The sizes differ.
    pub fn whole(chunk: Arc<Chunk>, dtype: DType, dims: &[u64]) -> Result<ArrayView, ViewError> {
        let (have, want) = (chunk.bytes(), byte_len(dtype, dims)?);
        match have == want {
            true => Ok(ArrayView { chunk, offset: 0, dtype, dims: dims.into() }),
            false => Err(ViewError::Reshape { from: vec![have], to: vec![want], have, want }),
        }
    }

    /// The chunk that it is a part of.
    pub fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }

    /// The device whose memory it is in.
    pub fn device(&self) -> Device {
        self.chunk.device()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        // The product of the other extents may not be a number when one is 0.
        if self.is_empty() { 0 } else { self.dims.iter().product() }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.dims.contains(&0)
    }

    /// Size of the elements in bytes.
    pub fn bytes(&self) -> u64 {
        self.len() * self.dtype.size() as u64
    }

    /// The bytes of the chunk that this view covers.
    pub fn range(&self) -> std::ops::Range<usize> {
        let start = self.offset as usize;
        start..start + self.bytes() as usize
    }

    /// Whether the view is all of its chunk.
    pub fn is_whole(&self) -> bool {
        self.offset == 0 && self.bytes() == self.chunk.bytes()
    }

    /// The same elements under other extents.
    ///
    /// # Errors
    /// The numbers of elements differ.
    pub fn reshape(&self, dims: &[u64]) -> Result<ArrayView, ViewError> {
        let want = byte_len(self.dtype, dims)? / self.dtype.size() as u64;
        match want == self.len() {
            true => Ok(ArrayView { dims: dims.into(), ..self.clone() }),
            false => Err(ViewError::Reshape { from: self.dims.to_vec(), to: dims.to_vec(), have: self.len(), want }),
        }
    }

    /// Positions `begin..end` of the first axis.
    ///
    /// # Errors
    /// They lie outside, or there is no axis.
    pub fn rows(&self, begin: u64, end: u64) -> Result<ArrayView, ViewError> {
        match self.dims.first() {
            Some(&n) if begin <= end && end <= n => {
                let row = self.bytes().checked_div(n).unwrap_or(0);
                let mut dims = self.dims.clone();
                dims[0] = end - begin;
                Ok(ArrayView { offset: self.offset + begin * row, dims, ..self.clone() })
            }
            _ => Err(ViewError::Rows { begin, end, dims: self.dims.to_vec() }),
        }
    }

    /// Whether two views share an element.
    pub fn overlaps(&self, other: &ArrayView) -> bool {
        let (a, b) = (self.range(), other.range());
        Arc::ptr_eq(&self.chunk, &other.chunk) && a.start < b.end && b.start < a.end
    }
}
