//! GPUs behind one interface: memory, code, and streams that launch it.
//!
//! A [`Driver`] is what the run time knows of a GPU. `host` is one whose kernels are functions of this process, with which
//! everything above drivers is tested where there is no GPU; with the feature `cuda`, `cuda` is one of NVIDIA's.

mod collective;
mod copies;
mod counting;
#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod memory;
mod queue;
mod simulated;

pub use crate::driver::{
    CodeForm, Driver, DriverError, Graph, HostFunction, HostKernel, KernelCode, LaunchConfig, LaunchStream,
    LoadedKernel, MatrixParam, Memory, Properties, Rows,
};
pub use collective::{Collective, CollectiveError, CollectiveRank, Exchange, join};
pub use copies::{Copies, Way};
pub use counting::{CountingDriver, Counts};
#[cfg(feature = "cuda")]
pub use cuda::{CudaDriver, installed_libraries};
pub use host::HostDriver;
pub(crate) use memory::Flight;
pub use memory::StreamMemory;
pub use queue::{Finished, KeepAlive, KeepAliveQueue};
