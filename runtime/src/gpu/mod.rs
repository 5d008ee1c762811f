//! GPUs behind one interface: memory, code, and streams that launch it.
//!
//! A [`Driver`] is what the run time knows of a GPU. With the feature `cuda`, `cuda` is one of NVIDIA's; the tests have
//! drivers of their own, with which everything above them is tested where there is no GPU (`tests/simulator`).

mod collective;
#[cfg(feature = "cuda")]
mod cuda;
mod memory;
mod queue;

pub use crate::driver::{
    CodeForm, Driver, DriverError, Graph, KernelCode, LaunchConfig, LaunchStream, LoadedKernel, MatrixParam, Memory,
    Properties, Rows, VendorKernel,
};
pub use collective::{Collective, CollectiveError, CollectiveRank, Exchange, join};
#[cfg(feature = "cuda")]
pub use cuda::{CudaDriver, installed_libraries};
pub(crate) use memory::Flight;
pub use memory::StreamMemory;
pub use queue::{Confirmations, Finished, KeepAlive, KeepAliveQueue};
