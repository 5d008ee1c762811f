//! GPUs made of the host: an interpreter of KIR that runs all threads of a block and finds races, devices whose streams do their
//! work late and in an unexpected order, and a driver that counts.
//!
//! [`interpreted`] is what `--device=interpreted` names. No crate below the command line depends on this one: the compiler hands
//! kernels to a driver of [`CodeForm::Ir`](tensorc_runtime::gpu::CodeForm::Ir) as they are.
//!
//! ```
//! use tensorc_runtime::Device;
//!
//! let gpu = tensorc_simulator::interpreted(Device::accelerator(0));
//! assert_eq!(gpu.device(), Device::accelerator(0));
//! ```

#![warn(missing_docs)]

mod counting;
mod function;
mod host;
mod memory;
mod simt;
mod stream;
mod traffic;
mod vendor;

use std::sync::Arc;

use tensorc_runtime::Device;
use tensorc_runtime::gpu::Driver;
use tensorc_schedule::target::Capability;

pub use counting::{CountingDriver, Counts};
pub use function::{HostCode, HostFunction, HostKernel, Relaunch, functions, relaunched};
pub use host::HostDriver;
pub use simt::{BufferTraffic, LaunchCounts, Traffic, run_launch};
pub use traffic::traffic;

/// A GPU whose kernels the interpreter executes, with every access checked: races, bounds, barriers and reads of what was
/// never written are errors of the run. Slow; for tests of models where there is no GPU.
pub fn interpreted(device: Device) -> Arc<dyn Driver> {
    interpreted_as(device, Capability::Sm80)
}

/// As [`interpreted`], with the instructions of a generation of GPUs.
pub fn interpreted_as(device: Device, capability: Capability) -> Arc<dyn Driver> {
    let number = match capability {
        Capability::Sm80 => 80,
        Capability::Sm90a => 90,
    };
    Arc::new(HostDriver::new(device).of_capability(number))
}
