//! What an operation reads: a view, a small value that travels with it, or bytes of the host.

use bytes::Bytes;
use tensorc_abi::DType;

use super::view::{ArrayView, Extents};
use crate::tensor::{Element, TensorRef};

/// An operand of an operation.
#[derive(Clone, Debug)]
pub enum ArrayOperand {
    /// A tensor in a chunk.
    View(ArrayView),
    /// A few bytes that are copied with the operation.
    Inline(Inline),
    /// Row-major elements that no one changes; the address suits the type.
    Host {
        /// Element type.
        dtype: DType,
        /// Shape.
        dims: Extents,
        /// The elements, little-endian.
        data: Bytes,
    },
}

impl ArrayOperand {
    /// The view, if it is one.
    pub fn view(&self) -> Option<&ArrayView> {
        match self {
            ArrayOperand::View(view) => Some(view),
            _ => None,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            ArrayOperand::View(view) => view.dtype(),
            ArrayOperand::Inline(value) => value.dtype,
            ArrayOperand::Host { dtype, .. } => *dtype,
        }
    }

    /// Shape.
    pub fn dims(&self) -> &[u64] {
        match self {
            ArrayOperand::View(view) => view.dims(),
            ArrayOperand::Inline(value) => value.dims(),
            ArrayOperand::Host { dims, .. } => dims,
        }
    }
}

/// A scalar, or a vector of at most eight bytes.
#[derive(Clone, Copy, Debug)]
pub struct Inline {
    dtype: DType,
    rank: u8,
    len: [u64; 1],
    data: Eight,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
struct Eight([u8; 8]);

impl Inline {
    /// A tensor of rank 0 from its little-endian bytes; `None` if their number is not the type's size.
    pub fn scalar(dtype: DType, bytes: &[u8]) -> Option<Inline> {
        (bytes.len() == dtype.size()).then(|| Inline::fill(dtype, 0, 1, bytes))
    }

    /// A tensor of rank 1; `None` above eight bytes.
    pub fn vector<T: Element>(values: &[T]) -> Option<Inline> {
        let len = [values.len() as u64];
        let bytes = TensorRef::from_slice(&len, values).data;
        (bytes.len() <= 8).then(|| Inline::fill(T::DTYPE, 1, len[0], bytes))
    }

    fn fill(dtype: DType, rank: u8, len: u64, bytes: &[u8]) -> Inline {
        let mut data = Eight([0; 8]);
        data.0[..bytes.len()].copy_from_slice(bytes);
        Inline { dtype, rank, len: [len], data }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, of rank 0 or 1.
    pub fn dims(&self) -> &[u64] {
        &self.len[..usize::from(self.rank)]
    }

    /// The elements, little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.data.0[..self.len[0] as usize * self.dtype.size()]
    }

    pub(super) fn as_ref(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype, self.dims(), self.bytes())
    }
}
