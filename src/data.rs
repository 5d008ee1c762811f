//! Data loading, joined with the tensors of this crate.

pub use tensorc_data::*;
use tensorc_runtime::host_tensor::SizeMismatch;

use crate::{Error, Tensor};

impl iter::ToHost for Tensor {
    fn to_host(self) -> Result<HostTensor, SizeMismatch> {
        HostTensor::new(self.dtype(), self.dims(), self.0.bytes().clone())
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
