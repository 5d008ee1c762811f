//! Calls of libraries of a GPU's maker, as its driver loads them.

use std::sync::Arc;

use tensorc_abi::{Arg, Plan, StepOp};
use tensorc_runtime::gpu::{Driver, KernelCode, LoadedKernel, VendorKernel};

use crate::error::Error;

/// Loads the calls of a plan, in the order of their steps.
///
/// # Errors
/// A library is not installed where the program runs, or does not take a call.
pub(crate) fn load(driver: &Arc<dyn Driver>, plan: &Plan) -> Result<Vec<LoadedKernel>, Error> {
    let bytes = |arg: &Arg| {
        let buffer = plan.buffer(arg.buffer);
        (buffer.span() as usize * buffer.dtype.size(), arg.writes)
    };
    let calls = plan.steps.iter().filter_map(|step| match &step.op {
        StepOp::Vendor { call, args } => {
            let (name, buffers) = (format!("{} by {}", step.name, call.library()), args.iter().map(bytes).collect());
            Some(VendorKernel { name, call: *call, buffers })
        }
        _ => None,
    });
    let calls: Vec<VendorKernel> = calls.collect();
    if calls.is_empty() { Ok(vec![]) } else { Ok(driver.load(KernelCode::Vendor(calls))?) }
}
