//! Kernels as functions of this process.

use std::any::Any;
use std::sync::Arc;

use tensorc_ir::kir::{BufInfo, Kernel};
use tensorc_runtime::engine::Failure;
use tensorc_runtime::gpu::{KernelCode, LaunchConfig};

use crate::simt::run_launch;
use crate::vendor;

/// A function of copies of a kernel's buffers, which it changes.
pub type HostFunction = dyn Fn(&mut [Vec<u8>]) -> Result<(), Failure> + Send + Sync;

/// A kernel as a function of the host.
#[derive(Clone)]
pub struct HostKernel {
    /// Bytes of each buffer, and whether the kernel writes it.
    pub buffers: Vec<(usize, bool)>,
    /// The function. It gets copies of all buffers, in order.
    pub run: Arc<HostFunction>,
}

impl HostKernel {
    /// The code of this kernel for a driver.
    pub fn into_code(self, entry: LaunchConfig) -> HostCode {
        (entry, Arc::new(self))
    }

    fn interpreting(kernel: &Kernel) -> HostKernel {
        let bytes = |b: &BufInfo| (b.elements() as usize * b.dtype.size(), b.writable);
        let buffers = kernel.buffers[..kernel.params].iter().map(bytes).collect();
        let kernel = kernel.clone();
        HostKernel {
            buffers,
            run: Arc::new(move |buffers: &mut [Vec<u8>]| Ok(run_launch(&kernel, buffers).map(drop)?)),
        }
    }
}

/// A kernel, or a function in the place of one, and how it is launched: an entry of [`KernelCode::Ir`].
pub type HostCode = (LaunchConfig, Arc<dyn Any + Send + Sync>);

/// What code does, as functions: those it consists of, kernels that the interpreter executes, and plain sums for calls of
/// libraries. `None` of PTX, and of what is no code of this compiler.
pub fn functions(code: KernelCode) -> Option<Vec<(LaunchConfig, HostKernel)>> {
    let function = |code: &(dyn Any + Send + Sync)| {
        let kernel = || code.downcast_ref::<Kernel>().map(HostKernel::interpreting);
        code.downcast_ref::<HostKernel>().cloned().or_else(kernel)
    };
    match code {
        KernelCode::Ir(kernels) => {
            kernels.into_iter().map(|(entry, kernel)| Some((entry, function(&*kernel)?))).collect()
        }
        KernelCode::Vendor(calls) => Some(calls.into_iter().map(vendor::function).collect()),
        KernelCode::Ptx { .. } => None,
    }
}
