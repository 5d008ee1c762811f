//! Plans for a GPU: kernels become code of the form its driver takes.

pub(crate) mod vendor;

use std::sync::Arc;

use tensorc_abi::{Arg, BufferId, Number, Plan, StepOp, StorageClass};
use tensorc_codegen::ptx::entry_names;
use tensorc_ir::Extent;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode as ErrorCode};
use tensorc_ir::kir::{Kernel, TensorMap};
use tensorc_runtime::Device;
use tensorc_runtime::gpu::{CodeForm, Driver, LaunchConfig, MatrixParam};
use tensorc_schedule::lowered::Lowered;
use tensorc_schedule::target::{Capability, VendorLibraries};

use crate::error::Error;

/// The generation whose code a GPU executes, the oldest if it is older than all.
pub(crate) fn capability(driver: &dyn Driver) -> Capability {
    let (CodeForm::Ir { capability } | CodeForm::Ptx { capability }) = driver.form();
    capability_of(capability).unwrap_or(Capability::Sm80)
}

/// NVIDIA's GPU of a number.
///
/// # Errors
/// No driver is installed, there is no such GPU, or this build was made without the feature `cuda`.
pub fn cuda(id: u16) -> Result<Arc<dyn Driver>, Error> {
    let device = Device::accelerator(id);
    #[cfg(feature = "cuda")]
    let driver = tensorc_runtime::gpu::CudaDriver::new(device).map(|driver| Arc::new(driver) as Arc<dyn Driver>);
    #[cfg(not(feature = "cuda"))]
    let driver = Err(tensorc_runtime::gpu::DriverError {
        device,
        message: "this build has no driver for CUDA; build with the feature `cuda`".into(),
    });
    Ok(driver?)
}

/// What libraries of a GPU's maker can compute: those that are installed here. A driver that takes kernels as they are takes calls, too.
pub fn libraries(driver: &dyn Driver) -> VendorLibraries {
    let [products, convolutions] = match driver.form() {
        CodeForm::Ir { .. } => [true; 2],
        #[cfg(feature = "cuda")]
        CodeForm::Ptx { .. } => tensorc_runtime::gpu::installed_libraries(),
        #[cfg(not(feature = "cuda"))]
        CodeForm::Ptx { .. } => [false; 2],
    };
    VendorLibraries { products, convolutions }
}

/// PTX of kernels for a GPU as one module, whose entries are named after them.
///
/// # Errors
/// A kernel is not for a GPU or has no code, or the build has no LLVM.
pub fn ptx(kernels: &[Kernel], capability: Capability) -> Result<String, Error> {
    module(kernels, &entries(kernels)?, &vec![true; kernels.len()], capability)
}

/// How kernels are launched, under names of their own.
pub(crate) fn entries(kernels: &[Kernel]) -> Result<Vec<LaunchConfig>, Error> {
    kernels.iter().zip(entry_names(kernels)).map(|(kernel, name)| entry(kernel, name)).collect()
}

/// How a kernel is launched.
pub(crate) fn entry(kernel: &Kernel, name: String) -> Result<LaunchConfig, Error> {
    let launch = kernel
        .launch()
        .ok_or_else(|| Diagnostic::new(ErrorCode::Internal, format!("kernel `{}` is not for a GPU", kernel.name)))?;
    let shared_bytes = launch.shared_bytes as u32;
    let matrices = kernel.tensor_maps().iter().map(|map| matrix(kernel, map)).collect();
    Ok(LaunchConfig { name, blocks: launch.blocks, threads: launch.threads, shared_bytes, sizes: vec![], matrices })
}

fn matrix(kernel: &Kernel, map: &TensorMap) -> MatrixParam {
    let TensorMap { buf, rows, columns, stride, box_rows, ref batch } = *map;
    let batch = batch.iter().map(|axis| (axis.extent, axis.stride)).collect();
    MatrixParam { argument: buf.0, dtype: kernel.buf(buf).dtype, rows, columns, stride, box_rows, batch }
}

/// For each kernel, whether none of its launches has two arguments in the same memory of which it writes one.
pub(crate) fn distinct(plan: &Plan) -> Vec<bool> {
    apart(plan, &|_, a, b| share(plan, a, b))
}

/// As [`distinct`], whichever way the memory of the plan is planned: results may lie where operands do that they may replace.
pub(crate) fn surely_distinct(lowered: &Lowered<Extent>) -> Vec<bool> {
    let plan = &lowered.plan;
    let replaces = |step: usize, a: BufferId, b: BufferId| {
        let pairs = lowered.in_place.steps.iter().filter(|pair| pair.step == step);
        pairs.map(|pair| [plan.whole(pair.input), plan.whole(pair.output)]).any(|pair| pair == [a, b] || pair == [b, a])
    };
    apart(plan, &|step, a, b| {
        let (a, b) = (plan.whole(a), plan.whole(b));
        let (x, y) = (plan.buffer(a).storage, plan.buffer(b).storage);
        a == b || replaces(step, a, b) || x == y && !matches!(x, StorageClass::Arena(_))
    })
}

/// For each kernel, whether no launch of it, by the position of the step, has two arguments that share memory and of which it
/// writes one.
fn apart<N: Number>(plan: &Plan<N>, share: &dyn Fn(usize, BufferId, BufferId) -> bool) -> Vec<bool> {
    let mut distinct = vec![true; plan.kernels.len()];
    for (position, step) in plan.steps.iter().enumerate() {
        let StepOp::Launch { kernel, args, .. } = &step.op else { continue };
        let meets = |a: &Arg, b: &Arg| (a.writes || b.writes) && share(position, a.buffer, b.buffer);
        let overlap = args.iter().enumerate().any(|(i, a)| args[i + 1..].iter().any(|b| meets(a, b)));
        distinct[kernel.0 as usize] &= !overlap;
    }
    distinct
}

/// Whether two buffers may share memory.
fn share(plan: &Plan, a: BufferId, b: BufferId) -> bool {
    let (a, b) = (plan.buffer(plan.whole(a)), plan.buffer(plan.whole(b)));
    match (a.storage, b.storage) {
        (StorageClass::Arena(x), StorageClass::Arena(y)) => x < y + b.bytes() && y < x + a.bytes(),
        (x, y) => x == y,
    }
}

/// The newest code that a GPU executes.
pub(crate) fn capability_of(number: u32) -> Result<Capability, Error> {
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
pub(crate) fn module(
    kernels: &[Kernel],
    entries: &[LaunchConfig],
    distinct: &[bool],
    capability: Capability,
) -> Result<String, Error> {
    let named: Vec<(&str, &Kernel)> = entries.iter().map(|e| e.name.as_str()).zip(kernels).collect();
    Ok(tensorc_codegen::ptx::module(&named, distinct, capability)?)
}

#[cfg(test)]
mod tests {
    use tensorc_ir::DType;
    use tensorc_ir::verify::verify_kernel;

    use super::*;

    /// What the copy engine must know of a matrix goes with the kernel, once for all copies of one form.
    #[test]
    fn entries_tell_of_matrices() {
        let copy = |at: u32| {
            format!(
                "copy_tile %a[{at}], %w rows 120 columns 160 stride 168 box 64 batch 2 stride 20160 at %b at 0, 0 signals %full[0]"
            )
        };
        let text = format!(
            "kernel @k(%x: bf16[8], %w: f16[40320]) {{ grid %b in 0..2 {{
               %a = alloc tile f16[8192]  %full = alloc barrier i64[1]
               threads %t in 0..128 {{
                 init_barriers %full arrivals 1
                 barrier
                 roles {{ warps 0..4 registers 64 {{ {} {} }} }}
               }} }} }}",
            copy(0),
            copy(4096)
        );
        let registry = tensorc_ops::registry().unwrap();
        let kernels = tensorc_ir::text::parse_module(&text, &registry).unwrap().kernels;
        verify_kernel(&kernels[0]).unwrap();
        let entry = entries(&kernels).unwrap().swap_remove(0);
        let matrix = MatrixParam {
            argument: 1,
            dtype: DType::F16,
            rows: 120,
            columns: 160,
            stride: 168,
            box_rows: 64,
            batch: vec![(2, 20160)],
        };
        assert_eq!(matrix.axes(), [(120, 168, 64), (2, 20160, 1)]);
        assert_eq!((entry.matrices, entry.threads, entry.shared_bytes), (vec![matrix], 128, 16400));
    }
}
