//! Plans for many shapes: numbers that depend on symbols are arguments of kernels.
//!
//! Each such kernel has a further argument, memory of its sizes ([`SizedKernel`]). It is a weight of the plan, a constant of
//! integers that depend on symbols, so that a shape gives it its numbers as it gives them to all constants. To kernels for a GPU
//! launches pass them by value: they stand in the signature.

use std::collections::BTreeMap;

use tensorc_abi::{
    Arg, Buffer, BufferId, DType, KernelId, LeftOperand, Packing, Parameter, Plan, StepOp, StorageClass, Weight,
};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::kir::SizedKernel;
use tensorc_ir::{DenseType, Extent, TensorData};
use tensorc_schedule::lowered::Lowered;

/// Kernels that compute for all numbers of the symbols, in place of those that hold expressions of them.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`]: a kernel needs a number.
pub fn sized(mut lowered: Lowered<Extent>) -> Result<Lowered<Extent>> {
    let mut weights = BTreeMap::new();
    for position in 0..lowered.kernels.len() {
        if !lowered.kernels[position].is_open() {
            continue;
        }
        let SizedKernel { kernel, sizes } = lowered.kernels[position].sized()?;
        lowered.kernels[position] = kernel;
        if sizes.is_empty() {
            continue;
        }
        if lowered.kernels[position].is_launch() {
            lowered.signatures[position].sizes = sizes;
            continue;
        }
        let count = sizes.len();
        let parameter = Parameter { name: "sizes".to_owned(), dtype: DType::I64, span: count.into(), writes: false };
        lowered.signatures[position].parameters.push(parameter);
        let constant = lowered.constants.len() as u32;
        let data = TensorData::of_extents(DenseType::new(DType::I64, [count as u64]), sizes);
        let counted = || Diagnostic::new(DiagnosticCode::Internal, "sizes of a kernel are not counted");
        lowered.constants.push(data.ok_or_else(counted)?);
        let name = format!("sizes of {}", lowered.plan.kernels[position]);
        let weight = Weight { name: name.clone(), constant, packing: Packing::Plain };
        let storage = StorageClass::Weight(lowered.plan.weights.len() as u32);
        lowered.plan.weights.push(weight);
        let buffer = Buffer { name, dtype: DType::I64, dims: vec![count.into()], storage, part: None };
        weights.insert(KernelId(position as u32), buffer);
    }
    add_arguments(&mut lowered.plan, &weights);
    Ok(lowered)
}

/// Adds the sizes to the arguments of calls, in nested plans, too.
fn add_arguments(plan: &mut Plan<Extent>, weights: &BTreeMap<KernelId, Buffer<Extent>>) {
    let Plan { steps, buffers, .. } = plan;
    let mut known = BTreeMap::new();
    let mut add = |kernel: KernelId, args: &mut Vec<Arg>| {
        let Some(buffer) = weights.get(&kernel) else { return };
        let id = *known.entry(kernel).or_insert_with(|| {
            buffers.push(buffer.clone());
            BufferId(buffers.len() as u32 - 1)
        });
        args.push(Arg { buffer: id, writes: false });
    };
    for step in steps {
        match &mut step.op {
            StepOp::Launch { kernel, args, .. } => add(*kernel, args),
            StepOp::Gemm { a, epilogue, .. } | StepOp::Conv { a, epilogue, .. } => {
                epilogue.iter_mut().for_each(|e| add(e.kernel, &mut e.args));
                if let LeftOperand::Computed(prologue) = a {
                    add(prologue.kernel, &mut prologue.args);
                }
            }
            StepOp::Attention { epilogue, .. } => epilogue.iter_mut().for_each(|e| add(e.kernel, &mut e.args)),
            StepOp::Flow { flow, .. } => flow.bodies.iter_mut().for_each(|body| add_arguments(body, weights)),
            StepOp::Vendor { .. } | StepOp::Copy { .. } | StepOp::Extern { .. } => {}
        }
    }
}
