//! Making arrays: of elements of the host, of one value, or empty.

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_runtime::array::{ArrayView, Chunk, byte_len};
use tensorc_runtime::{Device, Element, TensorRef};

use super::array::NDArray;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::Tensor;

impl Runtime {
    /// Copies elements to an array on the default device.
    ///
    /// # Errors
    /// Their number does not fill the shape, or memory is short.
    pub fn array<T: Element>(&self, dims: &[u64], values: &[T]) -> Result<NDArray, Error> {
        self.from_bytes(self.options().device, T::DTYPE, dims, TensorRef::from_slice(dims, values).data)
    }

    /// Copies a tensor to a device.
    ///
    /// # Errors
    /// Memory is short.
    pub fn from_tensor(&self, tensor: &Tensor, device: Device) -> Result<NDArray, Error> {
        match self.space().is_driven(device) {
            true => {
                let array = self.empty(device, tensor.dtype(), tensor.dims())?;
                array.assign(tensor)?;
                Ok(array)
            }
            false => self.from_bytes(device, tensor.dtype(), tensor.dims(), tensor.bytes()),
        }
    }

    /// Copies little-endian, row-major elements to a device.
    ///
    /// # Errors
    /// The number of bytes does not fill the shape, or memory is short.
    pub fn from_bytes(&self, device: Device, dtype: DType, dims: &[u64], data: &[u8]) -> Result<NDArray, Error> {
        if byte_len(dtype, dims)? != data.len() as u64 {
            return Err(tensorc::Error::TensorSize { elements: data.len() / dtype.size(), dims: dims.to_vec() }.into());
        }
        self.space().check(device)?;
        if !self.space().is_driven(device) {
            self.bound_run_ahead(data.len() as u64)?;
            let chunk = Chunk::copy_of(self.space(), device, data)?;
            return Ok(NDArray::new(self.clone(), ArrayView::whole(chunk, dtype, dims)?));
        }
        self.from_tensor(&Tensor::from_bytes(dtype, dims, Bytes::copy_from_slice(data))?, device)
    }

    /// An array whose elements are undefined until they are written. Memory is allocated then.
    ///
    /// # Errors
    /// The shape has more bytes than can be addressed, or there are GPUs and the device is none of them.
    pub fn empty(&self, device: Device, dtype: DType, dims: &[u64]) -> Result<NDArray, Error> {
        self.space().check(device)?;
        let chunk = Chunk::new(self.space(), device, byte_len(dtype, dims)?);
        Ok(NDArray::new(self.clone(), ArrayView::whole(chunk, dtype, dims)?))
    }

    /// Every element `value`, converted to the type.
    ///
    /// # Errors
    /// The shape has more bytes than can be addressed, or the engine does not run.
    pub fn full(&self, device: Device, dtype: DType, dims: &[u64], value: f64) -> Result<NDArray, Error> {
        let array = self.empty(device, dtype, dims)?;
        array.fill(value)?;
        Ok(array)
    }

    /// Zeros on the default device.
    ///
    /// # Errors
    /// As [`Runtime::full`].
    pub fn zeros(&self, dims: &[u64], dtype: DType) -> Result<NDArray, Error> {
        self.full(self.options().device, dtype, dims, 0.0)
    }

    /// Ones on the default device.
    ///
    /// # Errors
    /// As [`Runtime::full`].
    pub fn ones(&self, dims: &[u64], dtype: DType) -> Result<NDArray, Error> {
        self.full(self.options().device, dtype, dims, 1.0)
    }
}
