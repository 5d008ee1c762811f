//! What an operation reads: a view, a small value that travels with it, or bytes of the host.

use bytes::Bytes;
use tensorc_abi::DType;

use super::view::{Extents, View};
use crate::{Element, TensorRef};

/// An operand of an operation.
#[derive(Clone, Debug)]
pub enum Source {
    View(View),
    Inline(Inline),
    /// Row-major elements that no one changes; the address suits the type.
    Host {
        dtype: DType,
        dims: Extents,
        data: Bytes,
    },
}

impl Source {
    pub fn view(&self) -> Option<&View> {
        match self {
            Source::View(view) => Some(view),
            _ => None,
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Source::View(view) => view.dtype(),
            Source::Inline(value) => value.dtype,
            Source::Host { dtype, .. } => *dtype,
        }
    }

    pub fn dims(&self) -> &[u64] {
        match self {
            Source::View(view) => view.dims(),
            Source::Inline(value) => value.dims(),
            Source::Host { dims, .. } => dims,
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

    pub fn dtype(&self) -> DType {
        self.dtype
    }

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
