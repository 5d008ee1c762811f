//! Arrays of other libraries: `ndarray` by copying, DLPack by sharing memory.

use ndarray::{ArrayD, IxDyn};
use tensorc_runtime::array::{self, ArrayView, Chunk};
use tensorc_runtime::dlpack::{DLManagedTensorVersioned, DlpackError, Imported};
use tensorc_runtime::{DeviceKind, Element};

use super::array::NDArray;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::Tensor;

impl Runtime {
    /// Copies an `ndarray` array of any layout to the default device.
    ///
    /// # Errors
    /// Memory is short.
    pub fn from_ndarray<T: Element, D: ndarray::Dimension>(
        &self,
        array: &ndarray::Array<T, D>,
    ) -> Result<NDArray, Error> {
        self.from_tensor(&Tensor::try_from(array)?, self.options().device)
    }

    /// An array in memory of another library, which gets it back after the last use. What either
    /// side writes, the other sees; the other side writes only while no call that uses the memory is
    /// pending.
    ///
    /// # Errors
    /// The default device is no cpu.
    pub fn from_dlpack(&self, tensor: Imported) -> Result<NDArray, Error> {
        let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
        let device = self.options().device;
        if device.kind != DeviceKind::Cpu {
            return Err(Error::Lend(DlpackError::Device(device).into()));
        }
        let chunk = Chunk::foreign(self.space(), device, tensor);
        Ok(NDArray::new(self.clone(), ArrayView::whole(chunk, dtype, &dims)?))
    }
}

impl NDArray {
    /// Waits for everything that uses the array and lends its memory to another library, until that
    /// calls the deleter. What either side writes, the other sees; the other side writes only while
    /// no call that uses the memory is pending.
    ///
    /// # Errors
    /// What computed the array failed, or its memory is not the host's.
    pub fn to_dlpack(&self) -> Result<*mut DLManagedTensorVersioned, Error> {
        self.settle()?;
        Ok(array::lend(self.runtime().space(), &self.runtime().inner().common.read, self.view())?)
    }

    /// Waits for the elements and copies them to an `ndarray` array.
    ///
    /// # Errors
    /// The array holds another type, or what computed it failed.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>, Error> {
        let shape: Vec<usize> = self.dims().iter().map(|d| *d as usize).collect();
        let values = self.to_vec::<T>()?;
        let elements = values.len();
        ArrayD::from_shape_vec(IxDyn(&shape), values)
            .map_err(|_| tensorc::Error::TensorSize { elements, dims: self.dims().to_vec() }.into())
    }
}
