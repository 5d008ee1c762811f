//! Work of a driver's device on arrays: the addresses it is given.

use std::sync::Arc;

use super::launch::{LaunchOutput, OutputStorage, ReadOnly};
use super::source::ArrayOperand;
use super::view::ArrayView;
use crate::device::stream::Transfer;
use crate::engine::Failure;
use crate::gpu::KeepAliveQueue;
use crate::plan::DeviceTensor;
use crate::storage::MemoryBlock;

/// Enqueues an operation of the device.
///
/// # Safety
/// As for [`super::staged::staged`].
pub(super) unsafe fn enqueued(
    queue: &mut KeepAliveQueue<'_>,
    inputs: Vec<ArrayOperand>,
    outputs: Vec<LaunchOutput>,
    body: impl FnOnce(&mut KeepAliveQueue<'_>, &[DeviceTensor<'_>], &[DeviceTensor<'_>]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    queue.keep((inputs.clone(), outputs.clone()));
    let mut reads = vec![];
    for source in &inputs {
        // SAFETY: passed on from the caller.
        let address = unsafe { read(queue, source) }?;
        reads.push(DeviceTensor { dtype: source.dtype(), dims: source.dims(), address });
    }
    let mut places = vec![];
    for target in &outputs {
        // SAFETY: passed on from the caller.
        places.push(unsafe { place(queue, target, &inputs) }?);
    }
    let tensor = |(target, place): (&'_ LaunchOutput, &OutputStorage)| {
        let address = match place {
            OutputStorage::Direct(start) => *start,
            OutputStorage::Apart(block) => block.start().as_ptr(),
        };
        (target.view().dtype(), address)
    };
    let addresses: Vec<_> = outputs.iter().zip(&places).map(tensor).collect();
    let writes: Vec<DeviceTensor<'_>> = outputs
        .iter()
        .zip(addresses)
        .map(|(target, (dtype, address))| DeviceTensor { dtype, dims: target.view().dims(), address })
        .collect();
    let outcome = body(queue, &reads, &writes);
    for (target, place) in outputs.iter().zip(places) {
        match place {
            OutputStorage::Direct(_) => {}
            // SAFETY: passed on from the caller.
            OutputStorage::Apart(block) if outcome.is_ok() => unsafe { commit(queue, target, block) }?,
            OutputStorage::Apart(block) => queue.give_up(block),
        }
    }
    outcome
}

fn is_aligned(address: *mut u8) -> bool {
    address.addr().is_multiple_of(DeviceTensor::ALIGN)
}

/// The address of an operand on the device, where kernels can read it.
///
/// # Safety
/// As for [`enqueued`].
unsafe fn read(queue: &mut KeepAliveQueue<'_>, source: &ArrayOperand) -> Result<*mut u8, Failure> {
    let device = queue.device();
    let data = match source {
        ArrayOperand::Inline(value) => value.bytes(),
        ArrayOperand::Host { data, .. } => data,
        ArrayOperand::View(view) if view.device() == device => {
            // SAFETY: passed on from the caller.
            let start = unsafe { view.chunk().address() };
            let at = start.map(|start| start.wrapping_add(view.range().start));
            if let Some(at) = at.filter(|at| is_aligned(*at)) {
                return Ok(at);
            }
            // SAFETY: as above.
            return unsafe { scratch_of(queue, view) };
        }
        // SAFETY: passed on from the caller.
        ArrayOperand::View(view) if view.chunk().uses().is_some() => return unsafe { scratch_of(queue, view) },
        // SAFETY: passed on from the caller.
        ArrayOperand::View(view) => match unsafe { view.chunk().data() } {
            // SAFETY: passed on from the caller.
            [] => return unsafe { unwritten(queue, view) },
            data => data.get(view.range()).unwrap_or_default(),
        },
    };
    let bytes = source.dims().iter().product::<u64>() * source.dtype().size() as u64;
    if data.len() as u64 != bytes {
        return Err(format!("an operand of {bytes} bytes has {} on the host", data.len()).into());
    }
    let there = queue.scratch(bytes)?;
    // SAFETY: the memory is kept until the operation is complete.
    unsafe { queue.upload(data, there)? };
    Ok(there)
}

/// Zeros for this operation in place of a view that no one wrote.
///
/// # Safety
/// As for [`enqueued`].
pub(super) unsafe fn unwritten(queue: &mut KeepAliveQueue<'_>, view: &ArrayView) -> Result<*mut u8, Failure> {
    let zeros = queue.scratch(view.bytes())?;
    // SAFETY: the memory is kept until the operation is complete.
    unsafe { queue.stream().fill(zeros, view.bytes() as usize, &[0]) };
    Ok(zeros)
}

/// A copy of a view for this operation.
///
/// # Safety
/// As for [`copy_view`].
unsafe fn scratch_of(queue: &mut KeepAliveQueue<'_>, view: &ArrayView) -> Result<*mut u8, Failure> {
    let copy = queue.scratch(view.bytes())?;
    // SAFETY: passed on from the caller; the copy is kept.
    unsafe { copy_view(queue, view, copy) };
    Ok(copy)
}

/// Copies a view to memory of the queue's device, zeros if no one wrote it.
///
/// # Safety
/// As for [`enqueued`]; the view is in the memory of a driver's device, and the target has its size.
unsafe fn copy_view(queue: &KeepAliveQueue<'_>, view: &ArrayView, target: *mut u8) {
    let (from, to, bytes) = (view.device(), queue.device(), view.bytes() as usize);
    // SAFETY: passed on from the caller; the view lies inside its chunk.
    unsafe {
        match view.chunk().address() {
            Some(start) => {
                let source = start.wrapping_add(view.range().start);
                queue.stream().copy(Transfer { source, from, target, to, bytes });
            }
            None => queue.stream().fill(target, bytes, &[0]),
        }
    }
}

/// Enqueues a copy of a view of another driver's device to a target of this one.
///
/// # Safety
/// As for [`super::staged::staged`].
pub(super) unsafe fn brought(
    queue: &mut KeepAliveQueue<'_>,
    source: &ArrayView,
    target: &LaunchOutput,
) -> Result<(), Failure> {
    queue.keep((source.clone(), target.clone()));
    let view = target.view();
    if source.bytes() != view.bytes() {
        return Err(format!("a copy of {} bytes to {}", source.bytes(), view.bytes()).into());
    }
    // SAFETY: passed on from the caller; the view lies inside its chunk.
    unsafe {
        let start = allocated(queue, target)?.add(view.range().start);
        copy_view(queue, source, start);
    }
    Ok(())
}

/// The first byte of a target's chunk, which has memory afterwards. Where the operation keeps a part of what no one wrote,
/// that is zero.
///
/// # Safety
/// As for [`enqueued`].
pub(super) unsafe fn allocated(queue: &KeepAliveQueue<'_>, target: &LaunchOutput) -> Result<*mut u8, Failure> {
    let chunk = target.view().chunk();
    // SAFETY: passed on from the caller.
    unsafe {
        let unwritten = target.is_update() && chunk.address().is_none();
        chunk.allocate_by(|| queue.alloc(chunk.device(), chunk.bytes()))?;
        let start = chunk.data_mut().ok_or(ReadOnly)?;
        if unwritten {
            queue.stream().fill(start, chunk.bytes() as usize, &[0]);
        }
        Ok(start)
    }
}

/// # Safety
/// As for [`enqueued`].
unsafe fn place(
    queue: &mut KeepAliveQueue<'_>,
    target: &LaunchOutput,
    inputs: &[ArrayOperand],
) -> Result<OutputStorage, Failure> {
    let (view, chunk) = (target.view(), target.view().chunk());
    if view.device() != queue.device() {
        return Err(format!("a result on {} of work on {}", view.device(), queue.device()).into());
    }
    let is_read = inputs.iter().filter_map(ArrayOperand::view).any(|v| Arc::ptr_eq(v.chunk(), chunk));
    let offset = view.range().start;
    if !is_read && offset.is_multiple_of(DeviceTensor::ALIGN) {
        // SAFETY: passed on from the caller; the view lies inside its chunk.
        return Ok(OutputStorage::Direct(unsafe { allocated(queue, target)?.add(offset) }));
    }
    let block = queue.alloc(view.device(), view.bytes())?;
    let (start, bytes) = (block.start().as_ptr(), view.bytes() as usize);
    if target.is_update() {
        // SAFETY: passed on from the caller; the block is used or kept by `enqueued`.
        unsafe {
            match chunk.address() {
                Some(old) => queue.copy(old.wrapping_add(offset), start, bytes),
                None => queue.stream().fill(start, bytes, &[0]),
            }
        }
    }
    Ok(OutputStorage::Apart(block))
}

/// Lets a block be the target's elements.
///
/// # Safety
/// As for [`enqueued`].
unsafe fn commit(queue: &mut KeepAliveQueue<'_>, target: &LaunchOutput, block: MemoryBlock) -> Result<(), Failure> {
    let view: &ArrayView = target.view();
    if view.is_whole() && !view.chunk().is_pinned() {
        // SAFETY: passed on from the caller; what other streams do with the old memory goes before the operation.
        let old = unsafe { view.chunk().exchange(block) };
        old.into_iter().for_each(|old| queue.give_up(old));
        return Ok(());
    }
    let source = block.as_ptr();
    queue.give_up(block);
    // SAFETY: passed on from the caller; the view lies inside its chunk.
    unsafe {
        let start = allocated(queue, target)?;
        queue.copy(source, start.add(view.range().start), view.bytes() as usize);
    }
    Ok(())
}
