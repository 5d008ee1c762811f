//! Host tensors at the edge of the API.

use bytes::Bytes;
use ndarray::{ArrayD, IxDyn};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_runtime::host_tensor::{HostTensor, SizeMismatch, aligned};
use tensorc_runtime::{Element, TensorRef};

use crate::error::Error;

/// A dense row-major tensor in host memory. Cloning shares the elements.
#[derive(Clone, Debug, PartialEq, derive_more::From, derive_more::Into)]
pub struct Tensor(pub(crate) TensorData);

impl Tensor {
    /// Wraps little-endian elements, copying only if their address does not suit the type.
    ///
    /// # Errors
    /// The number of bytes does not fill the shape.
    pub fn from_bytes(dtype: DType, dims: &[u64], bytes: impl Into<Bytes>) -> Result<Tensor, Error> {
        let bytes = aligned(dtype.size(), bytes.into());
        let elements = bytes.len() / dtype.size();
        let data = TensorData::new(DenseType::new(dtype, dims), bytes);
        data.map(Tensor).ok_or(Error::TensorSize { elements, dims: dims.to_vec() })
    }

    /// Copies elements of a primitive type.
    ///
    /// # Errors
    /// Their number does not fill the shape.
    pub fn from_slice<T: Element>(dims: &[u64], values: &[T]) -> Result<Tensor, Error> {
        Tensor::from_bytes(T::DTYPE, dims, TensorRef::from_slice(dims, values).data.to_vec())
    }

    /// Copies f32 elements; see [`Tensor::from_slice`].
    pub fn from_f32(dims: &[u64], values: &[f32]) -> Result<Tensor, Error> {
        Tensor::from_slice(dims, values)
    }

    /// The elements with their type and shape.
    pub fn data(&self) -> &TensorData {
        &self.0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        self.0.dims()
    }

    /// The elements, little-endian and row-major.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The elements as f32.
    ///
    /// # Errors
    /// The tensor holds another type.
    pub fn to_f32(&self) -> Result<Vec<f32>, Error> {
        match self.dtype() {
            DType::F32 => {
                Ok(self.0.bytes().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
            }
            found => Err(Error::TensorType { found, expected: DType::F32 }),
        }
    }

    /// The tensor as an `ndarray` of f32.
    ///
    /// # Errors
    /// The tensor holds another type.
    pub fn to_ndarray(&self) -> Result<ArrayD<f32>, Error> {
        let shape: Vec<usize> = self.dims().iter().map(|d| *d as usize).collect();
        let values = self.to_f32()?;
        let elements = values.len();
        ArrayD::from_shape_vec(IxDyn(&shape), values)
            .map_err(|_| Error::TensorSize { elements, dims: self.dims().to_vec() })
    }

    /// The elements converted to f32: `(element - offset) * scale`, computed in f64.
    ///
    /// # Errors
    /// The shape has more bytes than can be addressed.
    pub fn to_scaled(&self, offset: f64, scale: f64) -> Result<Tensor, Error> {
        let convert = |i| Scalar::from_f64(DType::F32, (self.0.get(i).as_f64() - offset) * scale);
        Ok(Tensor(TensorData::from_fn(DenseType::new(DType::F32, self.dims()), convert)))
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// The numbers of elements differ.
    pub fn reshape(&self, dims: &[u64]) -> Result<Tensor, Error> {
        let elements = self.0.len() as usize;
        self.0.reshape(dims).map(Tensor).ok_or(Error::TensorSize { elements, dims: dims.to_vec() })
    }

    /// A borrow of the elements with their type and shape.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype(), self.dims(), self.bytes())
    }
}

impl TryFrom<Tensor> for HostTensor {
    type Error = SizeMismatch;

    fn try_from(tensor: Tensor) -> Result<HostTensor, SizeMismatch> {
        HostTensor::new(tensor.dtype(), tensor.dims(), tensor.0.bytes().clone())
    }
}

impl TryFrom<&HostTensor> for Tensor {
    type Error = Error;

    fn try_from(tensor: &HostTensor) -> Result<Tensor, Error> {
        Tensor::from_bytes(tensor.dtype(), tensor.dims(), tensor.bytes().clone())
    }
}

impl TryFrom<HostTensor> for Tensor {
    type Error = Error;

    fn try_from(tensor: HostTensor) -> Result<Tensor, Error> {
        Tensor::try_from(&tensor)
    }
}

impl<T: Element, D: ndarray::Dimension> TryFrom<&ndarray::Array<T, D>> for Tensor {
    type Error = Error;

    fn try_from(array: &ndarray::Array<T, D>) -> Result<Tensor, Error> {
        let dims: Vec<u64> = array.shape().iter().map(|d| *d as u64).collect();
        let values: Vec<T> = array.iter().copied().collect();
        Tensor::from_slice(&dims, &values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_bytes_are_copied_to_an_aligned_address() {
        let shared = Bytes::from((0u8..33).collect::<Vec<_>>());
        for start in 0..8 {
            let part = shared.slice(start..start + 24);
            let tensor = Tensor::from_bytes(DType::F64, &[3], part.clone()).unwrap();
            assert_eq!(tensor.bytes(), &part[..]);
            assert_eq!(tensor.bytes().as_ptr() as usize % 8, 0);
        }
        assert!(Tensor::from_bytes(DType::F64, &[4], shared).is_err());
    }
}
