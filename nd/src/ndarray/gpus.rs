//! GPUs that exchange elements with each other by a library of their maker.

use std::sync::Arc;

use tensorc_runtime::engine::OpName;
use tensorc_runtime::gpu::{Collective, Exchange};
use tensorc_runtime::{Device, array};

use super::array::NDArray;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::DType;

/// NVIDIA's GPUs of a runtime, joined by NCCL. Clones share what it holds of them; it is given back with the last one.
///
/// Every method takes one array of each GPU, in the order in which they were joined, all of one type and shape, and is one
/// operation: it is enqueued on all of them behind what uses the arrays, and returns before it ran. NCCL adds in an order of its
/// own, so sums of floating-point numbers need not have the bits of others.
#[derive(Clone, Debug)]
pub struct JoinedGpus {
    rt: Runtime,
    collective: Arc<dyn Collective>,
}

impl Runtime {
    /// Joins GPUs of this runtime by NCCL, which takes its time.
    ///
    /// # Errors
    /// This build was made without the feature `nccl`, NCCL is not installed or refuses, or the devices are not two or more
    /// different GPUs of CUDA's driver, [`tensorc::gpu::cuda`].
    pub fn join(&self, devices: &[Device]) -> Result<JoinedGpus, Error> {
        Ok(JoinedGpus { rt: self.clone(), collective: self.space().join(devices)? })
    }
}

impl JoinedGpus {
    /// The devices, in the order in which they were joined.
    pub fn devices(&self) -> &[Device] {
        self.collective.devices()
    }

    /// Whether NCCL supports this element type: all numeric types except i16 and u16.
    pub fn takes(&self, dtype: DType) -> bool {
        self.collective.takes(dtype)
    }

    /// Lets every array be the sum of all.
    ///
    /// # Errors
    /// The arrays are not one of each GPU, differ in type or shape, or have elements that NCCL does not take.
    pub fn all_reduce(&self, arrays: &[&NDArray]) -> Result<(), Error> {
        self.exchange(&OpName::from_static("all_reduce"), Exchange::AllReduce, arrays)
    }

    /// Lets the array of the GPU at the position `root` be the sum of all; the others stay as they are.
    ///
    /// # Errors
    /// As [`JoinedGpus::all_reduce`], or there is no such position.
    pub fn reduce(&self, arrays: &[&NDArray], root: usize) -> Result<(), Error> {
        self.exchange(&OpName::from_static("reduce"), Exchange::Reduce { root }, arrays)
    }

    /// Copies the array of the GPU at the position `root` to the others.
    ///
    /// # Errors
    /// As [`JoinedGpus::reduce`].
    pub fn broadcast(&self, arrays: &[&NDArray], root: usize) -> Result<(), Error> {
        self.exchange(&OpName::from_static("broadcast"), Exchange::Broadcast { root }, arrays)
    }

    fn exchange(&self, name: &OpName, exchange: Exchange, arrays: &[&NDArray]) -> Result<(), Error> {
        self.rt.check(name, arrays.iter().copied())?;
        arrays.iter().try_for_each(|array| array.settle())?;
        let views = arrays.iter().map(|array| array.view().clone()).collect();
        array::exchange(self.rt.space(), name, 0, exchange, &self.collective, views)?;
        let written = arrays.iter().enumerate().filter(|(at, _)| exchange.writes(*at));
        written.for_each(|(_, array)| array.view().chunk().touch());
        Ok(())
    }
}
