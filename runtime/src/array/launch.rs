//! One operation over views: the only place where the memory of chunks is touched.

use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::driven::Driven;
use super::enqueued::{brought, enqueued};
use super::source::ArrayOperand;
use super::space::ArraySpace;
use super::staged::{Staged, staged};
use super::uses::Touched;
use super::view::ArrayView;
use crate::device::Device;
use crate::engine::{EngineError, Failure, Op, OpName, Property, Var, WaitError};
use crate::gpu::{CollectiveError, DriverError, KeepAliveQueue};
use crate::plan::DeviceTensor;
use crate::storage::{AllocError, MemoryBlock};
use crate::tensor::{TensorMut, TensorRef};

/// An operation to push.
pub struct ArrayLaunch<'a> {
    /// The operator's name, for errors and the profiler.
    pub name: &'a OpName,
    /// Whose queue runs it.
    pub device: Device,
    /// Kind of work, which chooses the queue.
    pub property: Property,
    /// As [`Op::priority`].
    pub priority: i32,
    /// What is read.
    pub inputs: Vec<ArrayOperand>,
    /// They do not overlap. Whether they overlap inputs does not matter.
    pub outputs: Vec<LaunchOutput>,
}

impl<'a> ArrayLaunch<'a> {
    /// The usual work of a device, no more urgent than other.
    pub fn new(
        name: &'a OpName,
        device: Device,
        inputs: Vec<ArrayOperand>,
        outputs: Vec<LaunchOutput>,
    ) -> ArrayLaunch<'a> {
        ArrayLaunch { name, device, property: Property::Normal, priority: 0, inputs, outputs }
    }
}

/// A result of an operation.
#[derive(Clone, Debug)]
pub struct LaunchOutput {
    view: ArrayView,
    /// The operation changes a part and keeps the rest.
    update: bool,
}

impl LaunchOutput {
    pub(super) fn view(&self) -> &ArrayView {
        &self.view
    }

    /// Whether the operation finds the old elements.
    pub(super) fn is_update(&self) -> bool {
        self.update
    }

    /// Every element of the view is written.
    pub fn write(view: ArrayView) -> LaunchOutput {
        LaunchOutput { view, update: false }
    }

    /// The operation finds the old elements in place, zeros where no one wrote, and an error of
    /// theirs is an error of the result. It works in the chunk's own memory unless that is an input
    /// as well, so a state of a plan is passed as a target only.
    pub fn update(view: ArrayView) -> LaunchOutput {
        LaunchOutput { view, update: true }
    }

    /// Whether nothing of the chunk's old contents remains.
    pub(super) fn overwrites(&self) -> bool {
        !self.update && self.view.is_whole()
    }
}

/// An operation that was not pushed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Two results have memory in common.
    #[error("`{op}`: results {first} and {second} share memory")]
    Overlap {
        /// Name of the operator.
        op: String,
        /// Index of one in [`ArrayLaunch::outputs`].
        first: usize,
        /// Index of the other.
        second: usize,
    },
    /// The device is a GPU without a driver, or its driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// GPUs that cannot exchange these elements.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The engine refused the operation.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Pushes an operation of the host; returns before it ran. On a driver's device it works on copies: what it reads is
/// brought to the host, and what it writes back.
///
/// The outputs are written only if `body` succeeds where they are inputs as well; an output that
/// covers its whole chunk is a pure overwrite unless the chunk is an input.
///
/// # Errors
/// The request is wrong; what goes wrong while running stays with the outputs.
pub fn launch(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    launch_with(space, launch, None, move |inputs, outputs, _| body(inputs, outputs))
}

/// [`launch`] of a body that tells by its last argument which outputs are final, by their positions, while it goes on. What
/// waits for such an output begins, and finds no error there whatever comes of the operation, if the output covers its
/// whole chunk and the operation does not find the old elements, neither there nor as an input. All other outputs become
/// available when the operation ends, as do those of operations on a driver's device, and of operations that the engine
/// has joined.
///
/// # Errors
/// As [`launch`].
///
/// # Safety
/// The body neither reads nor writes an output after it has told that it is final.
pub unsafe fn launch_releasing(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>], Tell<'_>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    launch_with(space, launch, None, body)
}

/// How the body of [`launch_releasing`] tells that an output is final.
pub type Tell<'a> = &'a mut dyn FnMut(usize);

/// [`launch`] or [`launch_releasing`], writing one more variable.
fn launch_with(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    done: Option<&Var>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>], Tell<'_>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    let property = launch.property;
    match space.driven(launch.device)? {
        None => push(launch, done, |op, inputs, outputs| {
            space.engine().push(op, move |context| {
                // The engine gives up what is written and not read, which is what lies in its chunk from the first.
                let mut tell = |output: usize| _ = outputs.get(output).map(|o| context.release(o.view.chunk().var()));
                // SAFETY: called where the engine has given permission for every chunk of the lists.
                unsafe { execute(&inputs, &outputs, &[], &[], |inputs, outputs| body(inputs, outputs, &mut tell)) }
            })
        }),
        Some(driven) => push(launch, done, |op, inputs, outputs| {
            enqueue_on(space, driven, op, inputs, outputs, property, |queue, inputs, outputs| {
                // SAFETY: as above, until the operation is complete.
                unsafe { staged(queue, inputs, outputs, at_the_end(body)) }
            })
        }),
    }
}

/// A body whose outputs all become available when it ends.
fn at_the_end(
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>], Tell<'_>) -> Result<(), Failure> + Send + 'static,
) -> impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure> + Send + 'static {
    move |inputs, outputs| body(inputs, outputs, &mut |_| ())
}

/// Pushes an operation on the memory of a driver's device; returns before it ran. `body` enqueues it: it is given the
/// tensors' addresses, also those of operands that come from elsewhere and are copied there first.
///
/// # Errors
/// The request is wrong, or the device is no driver's; what goes wrong while running stays with the outputs.
pub fn enqueue(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    body: impl FnOnce(&mut KeepAliveQueue<'_>, &[DeviceTensor<'_>], &[DeviceTensor<'_>]) -> Result<(), Failure>
    + Send
    + 'static,
) -> Result<(), LaunchError> {
    enqueue_with(space, launch, |queue, inputs, outputs| {
        // SAFETY: called where the engine has given permission for every chunk of the lists, until the operation is
        // complete.
        unsafe { enqueued(queue, inputs, outputs, body) }
    })
}

/// Pushes a copy of the only input, in the memory of another driver's device, to the only output, which has its size; returns
/// before it ran.
///
/// # Errors
/// As [`enqueue`].
pub(super) fn bring(space: &ArraySpace, launch: ArrayLaunch<'_>) -> Result<(), LaunchError> {
    enqueue_with(space, launch, |queue, inputs, outputs| match (&inputs[..], &outputs[..]) {
        // SAFETY: as for `enqueue`.
        ([ArrayOperand::View(source)], [target]) => unsafe { brought(queue, source, target) },
        _ => Err("a copy of one tensor to another".into()),
    })
}

/// `stage` enqueues the operation where the engine has given permission for every chunk of the lists, until it is complete.
fn enqueue_with(
    space: &ArraySpace,
    launch: ArrayLaunch<'_>,
    stage: impl FnOnce(&mut KeepAliveQueue<'_>, Vec<ArrayOperand>, Vec<LaunchOutput>) -> Result<(), Failure>
    + Send
    + 'static,
) -> Result<(), LaunchError> {
    let (device, property) = (launch.device, launch.property);
    let driven = space.streams_of(device)?;
    push(launch, None, |op, inputs, outputs| enqueue_on(space, driven, op, inputs, outputs, property, stage))
}

/// Hands an operation to the engine that is enqueued on a driver's device.
fn enqueue_on(
    space: &ArraySpace,
    driven: Arc<Driven>,
    op: Op<'_>,
    inputs: Vec<ArrayOperand>,
    outputs: Vec<LaunchOutput>,
    property: Property,
    stage: impl FnOnce(&mut KeepAliveQueue<'_>, Vec<ArrayOperand>, Vec<LaunchOutput>) -> Result<(), Failure>
    + Send
    + 'static,
) -> Result<(), EngineError> {
    let (storage, touched) = (space.storage().clone(), Touched::new(&inputs, &outputs));
    space.engine().push_enqueued(op, move |_, completion| {
        driven.operate(property, &storage, touched, completion, |queue| stage(queue, inputs, outputs));
    })
}

/// Checks a request and hands it to the engine through `to`. The operation may use the chunks of the sources, and write
/// those of the targets; `done` is one more variable that it writes.
pub(super) fn push(
    launch: ArrayLaunch<'_>,
    done: Option<&Var>,
    to: impl FnOnce(Op<'_>, Vec<ArrayOperand>, Vec<LaunchOutput>) -> Result<(), EngineError>,
) -> Result<(), LaunchError> {
    let ArrayLaunch { name, device, property, priority, inputs, outputs } = launch;
    for (second, b) in outputs.iter().enumerate() {
        if let Some(first) = outputs[..second].iter().position(|a| a.view.overlaps(&b.view)) {
            return Err(LaunchError::Overlap { op: name.to_string(), first, second });
        }
    }
    let partial = outputs.iter().filter(|target| !target.overwrites()).map(|target| &target.view);
    let sources = inputs.iter().filter_map(ArrayOperand::view);
    // The list owns its views so that variables can be borrowed while the operation moves them.
    let read: SmallVec<[ArrayView; 4]> = sources.chain(partial).cloned().collect();
    let written: SmallVec<[ArrayView; 2]> = outputs.iter().map(|target| target.view.clone()).collect();
    let reads: SmallVec<[&Var; 4]> = read.iter().map(|view| view.chunk().var()).collect();
    let writes: SmallVec<[&Var; 2]> = written.iter().map(|view| view.chunk().var()).chain(done).collect();
    let bytes = inputs.iter().map(source_bytes).chain(written.iter().map(ArrayView::bytes)).sum();
    let staged_bytes = inputs.iter().filter(|source| source.view().is_none()).map(source_bytes).sum();
    let op = Op { device, reads: &reads, writes: &writes, priority, property, bytes, staged_bytes, ..Op::new(name) };
    Ok(to(op, inputs, outputs)?)
}

fn source_bytes(source: &ArrayOperand) -> u64 {
    match source {
        ArrayOperand::View(view) => view.bytes(),
        ArrayOperand::Inline(value) => value.bytes().len() as u64,
        ArrayOperand::Host { data, .. } => data.len() as u64,
    }
}

/// Where an output is computed.
pub(super) enum OutputStorage {
    /// In its chunk, or in memory that is copied there later.
    Direct(*mut u8),
    /// In a block of its own that becomes the chunk's memory, or is copied there.
    Apart(MemoryBlock),
}

/// A view whose memory cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the memory of the result belongs to another library and is read-only")]
pub(super) struct ReadOnly;

/// A view whose memory the host cannot address.
#[derive(Debug, thiserror::Error)]
#[error("the memory of {0} is not the host's")]
struct Elsewhere(Device);

/// Some of the inputs and outputs may be in memory of the host apart from their chunks.
///
/// # Safety
/// The caller is inside an operation that reads or writes the variables of all inputs and writes
/// those of all outputs, which do not overlap. Staging memory is used by nobody else.
pub(super) unsafe fn execute(
    inputs: &[ArrayOperand],
    outputs: &[LaunchOutput],
    staged_inputs: &[Option<Staged>],
    staged_outputs: &[Option<Staged>],
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let staging = |list: &[Option<Staged>], i: usize| list.get(i).copied().flatten();
    // What is read must have memory, and a chunk that no one wrote has none.
    let mut zeros: SmallVec<[Option<MemoryBlock>; 4]> = SmallVec::new();
    for (i, source) in inputs.iter().enumerate() {
        zeros.push(match source {
            // SAFETY: passed on from the caller.
            ArrayOperand::View(view) if staging(staged_inputs, i).is_none() => match unsafe { written(view) }? {
                true => None,
                false => Some(unwritten(view)?),
            },
            _ => None,
        });
    }
    let mut places: SmallVec<[OutputStorage; 2]> = SmallVec::new();
    for (i, target) in outputs.iter().enumerate() {
        places.push(match staging(staged_outputs, i) {
            Some(staged) => OutputStorage::Direct(staged.start),
            // SAFETY: passed on from the caller.
            None => unsafe { place(target, inputs) }?,
        });
    }
    let mut refs: SmallVec<[TensorRef<'_>; 4]> = SmallVec::new();
    for (i, (source, zeros)) in inputs.iter().zip(&zeros).enumerate() {
        refs.push(match (source, zeros, staging(staged_inputs, i)) {
            (ArrayOperand::Inline(value), ..) => value.as_ref(),
            (ArrayOperand::Host { dtype, dims, data }, ..) => TensorRef::new(*dtype, dims, data),
            (ArrayOperand::View(view), _, Some(staged)) => {
                // SAFETY: passed on from the caller.
                let data = unsafe { std::slice::from_raw_parts(staged.start.cast_const(), view.bytes() as usize) };
                TensorRef::new(view.dtype(), view.dims(), data)
            }
            (ArrayOperand::View(view), Some(block), _) => TensorRef::new(view.dtype(), view.dims(), block.as_slice()),
            (ArrayOperand::View(view), None, _) => {
                // SAFETY: passed on from the caller; no output is computed in memory that is read.
                let data = unsafe { view.chunk().data() };
                TensorRef::new(view.dtype(), view.dims(), &data[view.range()])
            }
        });
    }
    let mut muts: SmallVec<[TensorMut<'_>; 2]> = SmallVec::new();
    for (LaunchOutput { view, .. }, place) in outputs.iter().zip(&mut places) {
        let data = match place {
            OutputStorage::Apart(block) => &mut block.as_mut_slice()[..view.bytes() as usize],
            // SAFETY: `place` made the pointer for these bytes of the chunk, which the operation
            // alone may access; neither inputs nor other outputs overlap them.
            OutputStorage::Direct(start) => unsafe { std::slice::from_raw_parts_mut(*start, view.bytes() as usize) },
        };
        muts.push(TensorMut::new(view.dtype(), view.dims(), data));
    }
    body(&refs, &mut muts)?;
    drop((refs, muts));
    for (LaunchOutput { view, .. }, place) in outputs.iter().zip(places) {
        if let OutputStorage::Apart(block) = place {
            // SAFETY: passed on from the caller; nothing borrows the chunk's memory any more.
            unsafe { commit(view, block) }?;
        }
    }
    Ok(())
}

/// Whether the host can read the view's elements: someone wrote them.
///
/// # Safety
/// As for [`execute`].
unsafe fn written(view: &ArrayView) -> Result<bool, Elsewhere> {
    // SAFETY: passed on from the caller.
    let (data, address) = unsafe { (view.chunk().data(), view.chunk().address()) };
    match data.len() < view.range().end {
        true if address.is_some() => Err(Elsewhere(view.device())),
        short => Ok(!short),
    }
}

fn unwritten(view: &ArrayView) -> Result<MemoryBlock, AllocError> {
    let mut block = view.chunk().storage().alloc(view.device(), view.bytes())?;
    block.as_mut_slice().fill(0);
    Ok(block)
}

/// # Safety
/// As for [`execute`].
unsafe fn place(target: &LaunchOutput, inputs: &[ArrayOperand]) -> Result<OutputStorage, Failure> {
    let LaunchOutput { view, update } = target;
    let chunk = view.chunk();
    let read = inputs.iter().filter_map(ArrayOperand::view).any(|v| Arc::ptr_eq(v.chunk(), chunk));
    if read {
        let mut block = chunk.storage().alloc(view.device(), view.bytes())?;
        // SAFETY: passed on from the caller.
        match unsafe { chunk.data() }.get(view.range()) {
            Some(old) if *update => block.as_mut_slice()[..old.len()].copy_from_slice(old),
            None if *update => block.as_mut_slice().fill(0),
            _ => {}
        }
        return Ok(OutputStorage::Apart(block));
    }
    // SAFETY: passed on from the caller.
    let start = unsafe {
        let unwritten = *update && chunk.data().is_empty();
        chunk.allocate()?;
        let start = chunk.data_mut().ok_or(ReadOnly)?;
        if unwritten {
            // The operation reads it, and what no one wrote is zero.
            start.write_bytes(0, chunk.bytes() as usize);
        }
        start
    };
    // SAFETY: the view's range lies inside its chunk.
    Ok(OutputStorage::Direct(unsafe { start.add(view.range().start) }))
}

/// # Safety
/// As for [`execute`], and no reference to the chunk's memory is left.
unsafe fn commit(view: &ArrayView, block: MemoryBlock) -> Result<(), Failure> {
    let chunk = view.chunk();
    if view.is_whole() && !chunk.is_pinned() {
        // SAFETY: passed on from the caller.
        drop(unsafe { chunk.exchange(block) });
        return Ok(());
    }
    // SAFETY: passed on from the caller; the view's range lies inside the chunk, and the block is
    // memory of its own.
    unsafe {
        chunk.allocate()?;
        let start = chunk.data_mut().ok_or(ReadOnly)?.add(view.range().start);
        std::ptr::copy_nonoverlapping(block.as_slice().as_ptr(), start, view.bytes() as usize);
    }
    Ok(())
}

/// Elements that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The reading was not pushed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The operation that was to compute or read them failed, or cannot be waited for.
    #[error(transparent)]
    Failed(#[from] WaitError),
}

/// The host has no memory for a copy.
#[derive(Debug, thiserror::Error)]
#[error("cannot allocate {0} bytes of host memory")]
struct HostMemory(usize);

/// Waits for everything that writes the view and returns a copy of its bytes.
///
/// # Errors
/// What computed them failed, memory is short, or the engine cannot run.
pub fn read(space: &ArraySpace, name: &OpName, view: &ArrayView) -> Result<Vec<u8>, ReadError> {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let into = bytes.clone();
    let done = space.engine().new_var();
    let inputs = vec![ArrayOperand::View(view.clone())];
    let property = Property::CopyFromDevice;
    let request = ArrayLaunch { property, ..ArrayLaunch::new(name, view.device(), inputs, vec![]) };
    launch_with(space, request, Some(&done), move |inputs, _, _| {
        let data = inputs[0].data;
        let mut copy = Vec::new();
        copy.try_reserve_exact(data.len()).map_err(|_| HostMemory(data.len()))?;
        copy.extend_from_slice(data);
        *into.lock().unwrap_or_else(PoisonError::into_inner) = copy;
        Ok(())
    })?;
    // The variable tells whether the reading itself went well, whatever the array holds by then.
    space.engine().wait_to_read(&done)?;
    let copy = std::mem::take(&mut *bytes.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(copy)
}
