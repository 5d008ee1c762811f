//! Kernels as functions of this process.

use std::any::Any;
use std::sync::Arc;

use tensorc_ir::index::Index;
use tensorc_ir::kir::{BufInfo, Kernel, Stmt, Var};
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
    /// The kernel launched in another way, if it can be: with the elements of its buffers.
    pub relaunched: Option<Arc<Relaunch>>,
}

/// Gives what [`Driver::relaunched`](tensorc_runtime::gpu::Driver::relaunched) demands of a kernel.
pub type Relaunch = dyn Fn(&LaunchConfig, &[u64]) -> HostKernel + Send + Sync;

impl HostKernel {
    /// A function that is launched in one way.
    pub fn new(buffers: Vec<(usize, bool)>, run: Arc<HostFunction>) -> HostKernel {
        HostKernel { buffers, run, relaunched: None }
    }

    /// The code of this kernel for a driver.
    pub fn into_code(self, entry: LaunchConfig) -> HostCode {
        (entry, Arc::new(self))
    }

    fn interpreting(kernel: &Kernel) -> HostKernel {
        let bytes = |b: &BufInfo| (b.elements() as usize * b.dtype.size(), b.writable);
        let buffers = kernel.buffers[..kernel.params].iter().map(bytes).collect();
        let (kernel, general) = (kernel.clone(), kernel.clone());
        let relaunched =
            move |launch: &LaunchConfig, spans: &[u64]| HostKernel::interpreting(&relaunched(&general, launch, spans));
        HostKernel {
            buffers,
            run: Arc::new(move |buffers: &mut [Vec<u8>]| Ok(run_launch(&kernel, buffers).map(drop)?)),
            relaunched: Some(Arc::new(relaunched)),
        }
    }
}

/// A kernel with the numbers of a launch: of its blocks, of the elements of its parameters, and of its scalars.
pub fn relaunched(kernel: &Kernel, launch: &LaunchConfig, spans: &[u64]) -> Kernel {
    let mut kernel = kernel.clone();
    kernel.buffers.iter_mut().zip(spans).for_each(|(buffer, span)| buffer.len = (*span).into());
    let scalars = std::mem::take(&mut kernel.scalars);
    if let [Stmt::For { hi, body, .. }] = &mut kernel.body[..] {
        *hi = Index::constant(launch.blocks);
        let bound = |(var, value): (Var, &i64)| Stmt::LetIndex { var, index: Index::constant(*value) };
        body.splice(0..0, scalars.into_iter().zip(&launch.sizes).map(bound));
    }
    kernel
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
