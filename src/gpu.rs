//! Plans for a GPU: kernels become code of the form its driver takes.

use std::sync::Arc;

use tensorc_abi::{BufferId, Home, Plan, StepOp};
use tensorc_codegen::target::{Capability, entry_names};
use tensorc_ir::diag::{Code as ErrorCode, Diagnostic};
use tensorc_ir::interp::run_launch;
use tensorc_ir::kir::Kernel;
use tensorc_ir::verify::verify_kernel;
use tensorc_runtime::Device;
use tensorc_runtime::gpu::{Code, CodeForm, Driver, Entry, Function, HostDriver, HostKernel};

#[cfg(not(feature = "llvm"))]
use crate::Backend;
use crate::Error;

/// A GPU whose kernels the interpreter executes, with every access checked: races, bounds, barriers and reads of what was
/// never written are errors of the run. Slow; for tests of models where there is no GPU.
pub fn interpreted(device: Device) -> Arc<dyn Driver> {
    Arc::new(HostDriver::new(device))
}

/// NVIDIA's GPU of a number.
///
/// # Errors
/// No driver is installed, there is no such GPU, or this build was made without the feature `cuda`.
pub fn cuda(id: u16) -> Result<Arc<dyn Driver>, Error> {
    let device = Device::accelerator(id);
    #[cfg(feature = "cuda")]
    let driver = tensorc_runtime::gpu::CudaDriver::new(device);
    #[cfg(not(feature = "cuda"))]
    let driver: Result<HostDriver, _> = Err(tensorc_runtime::gpu::DriverError {
        device,
        message: "this build has no driver for CUDA; build with the feature `cuda`".into(),
    });
    Ok(driver.map(|driver| Arc::new(driver) as Arc<dyn Driver>)?)
}

/// PTX of kernels for a GPU as one module, whose entries are named after them.
///
/// # Errors
/// A kernel is not for a GPU or has no code, or the build has no LLVM.
pub fn ptx(kernels: &[Kernel], capability: Capability) -> Result<String, Error> {
    module(kernels, &entries(kernels)?, &vec![true; kernels.len()], capability)
}

/// Loads a plan's kernels.
pub(crate) fn load(driver: &Arc<dyn Driver>, plan: &Plan, kernels: &[Kernel]) -> Result<Vec<Function>, Error> {
    let entries = entries(kernels)?;
    let code = match driver.form() {
        CodeForm::Host => {
            kernels.iter().try_for_each(verify_kernel)?;
            Code::Host(entries.into_iter().zip(kernels.iter().map(host_kernel)).collect())
        }
        CodeForm::Ptx { capability } => {
            let text = module(kernels, &entries, &distinct(plan), capability_of(capability)?)?;
            Code::Ptx { text, entries }
        }
    };
    Ok(driver.load(code)?)
}

fn entries(kernels: &[Kernel]) -> Result<Vec<Entry>, Error> {
    kernels.iter().zip(entry_names(kernels)).map(|(kernel, name)| entry(kernel, name)).collect()
}

/// How a kernel is launched.
pub(crate) fn entry(kernel: &Kernel, name: String) -> Result<Entry, Error> {
    let launch = kernel
        .launch()
        .ok_or_else(|| Diagnostic::new(ErrorCode::Internal, format!("kernel `{}` is not for a GPU", kernel.name)))?;
    let shared_bytes = launch.shared_bytes as u32;
    Ok(Entry { name, blocks: launch.blocks, threads: launch.threads, shared_bytes })
}

fn host_kernel(kernel: &Kernel) -> HostKernel {
    let bytes = |b: &tensorc_ir::kir::BufInfo| (b.len as usize * b.dtype.size(), b.writable);
    let buffers = kernel.buffers[..kernel.params].iter().map(bytes).collect();
    let kernel = kernel.clone();
    let run = move |buffers: &mut [Vec<u8>]| Ok(run_launch(&kernel, buffers).map(drop)?);
    HostKernel { buffers, run: Arc::new(run) }
}

/// For each kernel, whether none of its launches has two arguments in the same memory of which it writes one.
pub(crate) fn distinct(plan: &Plan) -> Vec<bool> {
    let mut distinct = vec![true; plan.kernels.len()];
    for step in &plan.steps {
        let StepOp::Launch { kernel, args, .. } = &step.op else { continue };
        let overlap = args
            .iter()
            .enumerate()
            .any(|(i, a)| args[i + 1..].iter().any(|b| (a.writes || b.writes) && share(plan, a.buffer, b.buffer)));
        distinct[kernel.0 as usize] &= !overlap;
    }
    distinct
}

/// Whether two buffers may share memory.
fn share(plan: &Plan, a: BufferId, b: BufferId) -> bool {
    let (a, b) = (plan.buffer(plan.whole(a)), plan.buffer(plan.whole(b)));
    match (a.home, b.home) {
        (Home::Arena(x), Home::Arena(y)) => x < y + b.bytes() && y < x + a.bytes(),
        (x, y) => x == y,
    }
}

/// The newest code that a GPU executes.
fn capability_of(number: u32) -> Result<Capability, Error> {
    match number {
        90 => Ok(Capability::Sm90a),
        80.. => Ok(Capability::Sm80),
        older => {
            let why = format!("a GPU of compute capability {}.{}; 8.0 is the least", older / 10, older % 10);
            Err(Diagnostic::new(ErrorCode::Unsupported, why).into())
        }
    }
}

/// PTX of kernels as one module.
#[cfg(feature = "llvm")]
pub(crate) fn module(
    kernels: &[Kernel],
    entries: &[Entry],
    distinct: &[bool],
    capability: Capability,
) -> Result<String, Error> {
    let named: Vec<(&str, &Kernel)> = entries.iter().map(|e| e.name.as_str()).zip(kernels).collect();
    Ok(tensorc_codegen::llvm::ptx(&named, distinct, capability)?)
}

#[cfg(not(feature = "llvm"))]
pub(crate) fn module(_: &[Kernel], _: &[Entry], _: &[bool], _: Capability) -> Result<String, Error> {
    Backend::Llvm.check()?;
    Ok(String::new())
}
