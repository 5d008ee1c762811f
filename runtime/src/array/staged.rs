//! Work of the host on arrays in a device's memory: they are brought to the host, and back.

use super::launch::{LaunchOutput, execute};
use super::source::ArrayOperand;
use crate::device::Device;
use crate::device::stream::Transfer;
use crate::engine::Failure;
use crate::gpu::KeepAliveQueue;
use crate::tensor::{TensorMut, TensorRef};

/// Memory of the host in place of a view's.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    pub start: *mut u8,
}

// SAFETY: an address; who dereferences it answers for that.
unsafe impl Send for Staged {}

/// Enqueues an operation of the host.
///
/// # Safety
/// Until the operation is complete, the caller has the engine's permission to read or write the variables of all inputs and
/// to write those of all outputs, which do not overlap.
pub(super) unsafe fn staged(
    queue: &mut KeepAliveQueue<'_>,
    inputs: Vec<ArrayOperand>,
    outputs: Vec<LaunchOutput>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    queue.keep((inputs.clone(), outputs.clone()));
    let device = queue.device();
    let mut staged_inputs = vec![];
    for source in &inputs {
        let view = source.view().filter(|view| view.device() == device);
        staged_inputs.push(match view {
            None => None,
            Some(view) => {
                // SAFETY: passed on from the caller.
                let start = unsafe { view.chunk().address() };
                Some(fetch(queue, start.map(|start| start.wrapping_add(view.range().start)), view.bytes())?)
            }
        });
    }
    let mut staged_outputs = vec![];
    for target in &outputs {
        let view = target.view();
        staged_outputs.push(match view.device() == device {
            false => None,
            true => {
                // SAFETY: passed on from the caller.
                let old = unsafe { view.chunk().address() }.filter(|_| target.is_update());
                Some(fetch(queue, old.map(|start| start.wrapping_add(view.range().start)), view.bytes())?)
            }
        });
    }
    let (written, staging) = (outputs.clone(), staged_outputs.clone());
    queue.stream().enqueue(Box::new(move || {
        // SAFETY: passed on from the caller; the stream has filled the staging memory, which is kept.
        unsafe { execute(&inputs, &outputs, &staged_inputs, &staged_outputs, body) }
    }));
    for (target, staged) in written.iter().zip(staging) {
        let (view, Some(staged)) = (target.view(), staged) else { continue };
        // SAFETY: passed on from the caller; the view lies inside its chunk, and the staging memory is kept.
        unsafe {
            let start = super::enqueued::allocated(queue, target)?;
            let (target, bytes) = (start.wrapping_add(view.range().start), view.bytes() as usize);
            let from = Device::pinned(device.id);
            queue.stream().copy(Transfer { source: staged.start, from, target, to: device, bytes });
        }
    }
    Ok(())
}

/// Page-locked memory into which bytes of the device are copied; zeros if there are none.
fn fetch(queue: &mut KeepAliveQueue<'_>, source: Option<*mut u8>, bytes: u64) -> Result<Staged, Failure> {
    let (from, to) = (queue.device(), Device::pinned(queue.device().id));
    let mut block = queue.alloc(to, bytes)?;
    let start = block.as_mut_ptr();
    match source {
        // SAFETY: both ranges are kept until the stream has passed.
        Some(source) => unsafe {
            queue.stream().copy(Transfer { source, from, target: start, to, bytes: bytes as usize });
        },
        None => block.as_mut_slice().fill(0),
    }
    queue.keep(block);
    Ok(Staged { start })
}
