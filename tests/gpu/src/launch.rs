//! Single launches on a device, with buffers of their own.

use std::sync::Arc;

use tensorc::ir::kir::Kernel;
use tensorc::runtime::Device;
use tensorc::runtime::device::stream::Transfer;
use tensorc::runtime::gpu::{Driver, KernelCode, LaunchConfig, LoadedKernel, Memory};
use tensorc::schedule::target::Capability;

use crate::context::Fault;

/// Loads PTX with one entry.
///
/// # Errors
/// The driver refuses the code.
pub fn load(driver: &dyn Driver, text: String, entry: LaunchConfig) -> Result<LoadedKernel, Fault> {
    let mut loaded = driver.load(KernelCode::Ptx { text, entries: vec![entry] })?;
    Ok(loaded.pop().ok_or("the driver loaded no kernel")?)
}

/// Launches a kernel once on copies of buffers; what they are then.
///
/// # Errors
/// The device's memory is used up, or the launch fails.
pub fn once(driver: &dyn Driver, function: &LoadedKernel, buffers: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Fault> {
    let stream = driver.stream()?;
    let blocks: Vec<Box<dyn Memory>> =
        buffers.iter().map(|bytes| driver.alloc(bytes.len() as u64)).collect::<Result<_, _>>()?;
    let mut after = buffers.to_vec();
    let (host, there) = (Device::cpu(0), driver.device());
    let addresses: Vec<*mut u8> = blocks.iter().map(|block| block.address()).collect();
    let outcome = {
        for (bytes, at) in buffers.iter().zip(&addresses) {
            let to = Transfer { source: bytes.as_ptr(), from: host, target: *at, to: there, bytes: bytes.len() };
            // SAFETY: both ranges are as long as the buffer, and live until the stream is synchronised below.
            unsafe { stream.copy(to) };
        }
        // SAFETY: the kernel's buffers are as long as those it was recorded with; nobody else knows this memory.
        unsafe { stream.launch(function, &addresses) };
        for (bytes, at) in after.iter_mut().zip(&addresses) {
            let back = Transfer { source: *at, from: there, target: bytes.as_mut_ptr(), to: host, bytes: bytes.len() };
            // SAFETY: as for the copies before.
            unsafe { stream.copy(back) };
        }
        stream.synchronize()
    };
    outcome?;
    Ok(after)
}

/// A kernel of the compiler's for a device.
///
/// # Errors
/// There is no code for it, or the driver refuses the code.
pub fn compiled(driver: &Arc<dyn Driver>, kernel: &Kernel, capability: Capability) -> Result<LoadedKernel, Fault> {
    let text = tensorc::gpu::ptx(std::slice::from_ref(kernel), capability)?;
    load(&**driver, text, tensorc_tests::launches::entry(kernel))
}
