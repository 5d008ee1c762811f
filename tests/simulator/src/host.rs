//! A GPU made of the host: its kernels are functions of this process.
//!
//! Launches, copies and events are asynchronous as on a device, and happen as late and in as unexpected an order as
//! streams allow, so what is not ordered shows (`stream`).

use std::fmt;
use std::sync::Arc;

use tensorc_runtime::gpu::{
    CodeForm, Driver, DriverError, KernelCode, LaunchConfig, LaunchStream, LoadedKernel, Memory,
};
use tensorc_runtime::{AlignedBuffer, Device};

use crate::function::{HostKernel, functions};
use crate::stream::Simulator;

/// A driver whose device is made of the host.
pub struct HostDriver {
    device: Device,
    /// As in [`CodeForm::Ir`].
    capability: u32,
    simulator: Arc<Simulator>,
}

impl HostDriver {
    /// A device of compute capability 8.0, with the seed 0.
    pub fn new(device: Device) -> HostDriver {
        HostDriver::with_seed(device, 0)
    }

    /// It does what a GPU of this compute capability does.
    pub fn of_capability(mut self, capability: u32) -> HostDriver {
        self.capability = capability;
        self
    }

    /// A device on which `seed` decides what happens first where nothing else does.
    pub fn with_seed(device: Device, seed: u64) -> HostDriver {
        HostDriver { device, capability: 80, simulator: Arc::new(Simulator::new(device, seed)) }
    }
}

impl fmt::Debug for HostDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostDriver({})", self.device)
    }
}

/// Memory of the host that counts as page-locked.
#[derive(Debug)]
struct Pinned(AlignedBuffer);

impl Memory for Pinned {
    fn address(&self) -> *mut u8 {
        self.0.start().as_ptr()
    }
}

impl Driver for HostDriver {
    fn device(&self) -> Device {
        self.device
    }

    fn name(&self) -> String {
        "functions of the host".into()
    }

    fn form(&self) -> CodeForm {
        CodeForm::Ir { capability: self.capability }
    }

    fn load(&self, code: KernelCode) -> Result<Vec<LoadedKernel>, DriverError> {
        let refused = || {
            let message = "this device executes functions of the host, not PTX and not libraries".into();
            DriverError { device: self.device, message }
        };
        let loaded = |(entry, kernel)| LoadedKernel { entry: Arc::new(entry), code: Arc::new(kernel) };
        Ok(functions(code).ok_or_else(refused)?.into_iter().map(loaded).collect())
    }

    fn relaunched(&self, kernel: &LoadedKernel, launch: LaunchConfig, spans: &[u64]) -> LoadedKernel {
        let relaunch = kernel.code.downcast_ref::<HostKernel>().and_then(|code| code.relaunched.as_ref());
        let code =
            relaunch.map_or_else(|| kernel.code.clone(), |relaunch| Arc::new(relaunch(&launch, spans)) as Arc<_>);
        LoadedKernel { entry: Arc::new(launch), code }
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.simulator.alloc(bytes)
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        let buffer = AlignedBuffer::zeroed(bytes, "page-locked memory");
        let buffer = buffer.map_err(|e| DriverError { device: self.device, message: e.to_string() })?;
        Ok(Box::new(Pinned(buffer)))
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        Ok(Box::new(self.simulator.stream()?))
    }
}
