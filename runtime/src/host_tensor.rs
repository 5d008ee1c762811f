//! Owned dense tensors in host memory.

use bytes::Bytes;
use tensorc_abi::DType;

use crate::tensor::{Element, TensorRef};

/// A dense row-major tensor of little-endian elements in host memory, aligned for their type. Cloning shares them.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    dtype: DType,
    dims: Vec<u64>,
    data: Bytes,
}

/// Bytes that do not fill a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes do not fill {dims:?} of {dtype}")]
pub struct SizeMismatch {
    /// Number of bytes that were given.
    pub bytes: usize,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<u64>,
}

impl HostTensor {
    /// Wraps elements, copying only if their address does not suit the type.
    ///
    /// # Errors
    /// The number of bytes does not fill the shape.
    pub fn new(dtype: DType, dims: &[u64], data: impl Into<Bytes>) -> Result<HostTensor, SizeMismatch> {
        let data: Bytes = data.into();
        if byte_len(dtype, dims) != Some(data.len() as u64) {
            return Err(SizeMismatch { bytes: data.len(), dtype, dims: dims.to_vec() });
        }
        Ok(HostTensor { dtype, dims: dims.to_vec(), data: aligned(dtype.size(), data) })
    }

    /// Copies elements of a primitive type.
    ///
    /// # Errors
    /// Their number does not fill the shape.
    pub fn from_slice<T: Element>(dims: &[u64], values: &[T]) -> Result<HostTensor, SizeMismatch> {
        HostTensor::new(T::DTYPE, dims, TensorRef::from_slice(dims, values).data.to_vec())
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// The elements, little-endian and row-major.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The tensor, borrowed.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype, &self.dims, &self.data)
    }

    /// The elements, if they have this type.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        (self.dtype == T::DTYPE).then(|| self.as_ref().elements().collect())
    }

    /// The same elements in another shape; `None` if it has another number of elements.
    pub fn reshape(self, dims: &[u64]) -> Option<HostTensor> {
        let fits = byte_len(self.dtype, dims) == Some(self.data.len() as u64);
        fits.then(|| HostTensor { dims: dims.to_vec(), ..self })
    }
}

/// Bytes of a tensor; `None` above what can be addressed.
pub fn byte_len(dtype: DType, dims: &[u64]) -> Option<u64> {
    match dims.contains(&0) {
        true => Some(0),
        false => dims.iter().try_fold(dtype.size() as u64, |n, d| n.checked_mul(*d)),
    }
    .filter(|n| i64::try_from(*n).is_ok())
}

/// The bytes, or a copy of them, whose first lies at a multiple of `size`, a power of two.
pub fn aligned(size: usize, bytes: Bytes) -> Bytes {
    if (bytes.as_ptr() as usize).is_multiple_of(size) {
        return bytes;
    }
    let mut buffer = vec![0u8; bytes.len() + size];
    let start = buffer.as_ptr().align_offset(size).min(size);
    buffer[start..start + bytes.len()].copy_from_slice(&bytes);
    Bytes::from(buffer).slice(start..start + bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked_and_elements_aligned() {
        let shared = Bytes::from((0u8..33).collect::<Vec<_>>());
        for start in 0..8 {
            let part = shared.slice(start..start + 24);
            let tensor = HostTensor::new(DType::F64, &[3], part.clone()).unwrap();
            assert_eq!(tensor.bytes(), &part);
            assert_eq!(tensor.bytes().as_ptr() as usize % 8, 0);
        }
        assert!(HostTensor::new(DType::F64, &[4], shared.clone()).is_err());
        assert!(HostTensor::new(DType::F64, &[u64::MAX, 2], shared).is_err());
        let tensor = HostTensor::from_slice(&[2, 2], &[1i32, 2, 3, 4]).unwrap();
        assert_eq!((tensor.to_vec::<i32>(), tensor.to_vec::<f32>()), (Some(vec![1, 2, 3, 4]), None));
        assert!(tensor.clone().reshape(&[4]).is_some() && tensor.reshape(&[3]).is_none());
    }
}
