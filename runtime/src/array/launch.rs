//! One operation over views: the only place where the memory of chunks is touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::driven::Driven;
use super::enqueued::{brought, enqueued};
use super::source::Source;
use super::space::{Space, Worker};
use super::staged::{Staged, staged};
use super::uses::Touched;
use super::view::View;
use crate::device::stream::{Stream, StreamError};
use crate::engine::{EngineError, Failure, Name, Op, Property, Var, WaitError};
use crate::gpu::{CollectiveError, DriverError, Queue};
use crate::plan::DeviceTensor;
use crate::pool::TaskPanic;
use crate::storage::{AllocError, Block};
use crate::{Device, TensorMut, TensorRef};

/// An operation to push.
pub struct Launch<'a> {
    pub name: &'a Name,
    /// Whose queue runs it.
    pub device: Device,
    pub property: Property,
    pub priority: i32,
    pub inputs: Vec<Source>,
    /// They do not overlap. Whether they overlap inputs does not matter.
    pub outputs: Vec<Target>,
}

/// A result of an operation.
#[derive(Clone, Debug)]
pub struct Target {
    view: View,
    /// The operation changes a part and keeps the rest.
    update: bool,
}

impl Target {
    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// Whether the operation finds the old elements.
    pub(super) fn is_update(&self) -> bool {
        self.update
    }

    /// Every element of the view is written.
    pub fn write(view: View) -> Target {
        Target { view, update: false }
    }

    /// The operation finds the old elements in place, zeros where no one wrote, and an error of
    /// theirs is an error of the result. It works in the chunk's own memory unless that is an input
    /// as well, so a state of a plan is passed as a target only.
    pub fn update(view: View) -> Target {
        Target { view, update: true }
    }

    /// Whether nothing of the chunk's old contents remains.
    pub(super) fn overwrites(&self) -> bool {
        !self.update && self.view.is_whole()
    }
}

/// An operation that was not pushed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("`{op}`: results {first} and {second} share memory")]
    Overlap { op: String, first: usize, second: usize },
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// GPUs that cannot exchange these elements.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
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
    space: &Space,
    launch: Launch<'_>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    launch_with(space, launch, None, move |inputs, outputs, _| body(inputs, outputs))
}

/// [`launch`] of a body that tells by its last argument which outputs are final, by their positions, while it goes on. What
/// waits for such an output begins, and finds no error there whatever comes of the operation, if the output covers its
/// whole chunk and the operation does not find the old elements, neither there nor as an input. All other outputs become
/// available when the operation ends, as do those of operations on streams and on a driver's device, and of operations that
/// the engine has joined.
///
/// # Errors
/// As [`launch`].
///
/// # Safety
/// The body neither reads nor writes an output after it has told that it is final.
pub unsafe fn launch_releasing(
    space: &Space,
    launch: Launch<'_>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>], Tell<'_>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    launch_with(space, launch, None, body)
}

/// How the body of [`launch_releasing`] tells that an output is final.
pub type Tell<'a> = &'a mut dyn FnMut(usize);

/// [`launch`] or [`launch_releasing`], writing one more variable.
fn launch_with(
    space: &Space,
    launch: Launch<'_>,
    done: Option<&Var>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>], Tell<'_>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    let property = launch.property;
    match space.worker(launch.device)? {
        Worker::Host => push(launch, done, |op, inputs, outputs| {
            space.engine().push(op, move |context| {
                // The engine gives up what is written and not read, which is what lies in its chunk from the first.
                let mut tell = |output: usize| _ = outputs.get(output).map(|o| context.release(o.view.chunk().var()));
                // SAFETY: called where the engine has given permission for every chunk of the lists.
                unsafe { execute(&inputs, &outputs, &[], &[], |inputs, outputs| body(inputs, outputs, &mut tell)) }
            })
        }),
        Worker::Streams(accelerator) => push(launch, done, |op, inputs, outputs| {
            space.engine().push_async(op, move |_, completion| {
                let stream = match property {
                    Property::CopyToDevice => &accelerator.copy_in,
                    Property::CopyFromDevice => &accelerator.copy_out,
                    Property::Normal | Property::Prioritized => &accelerator.compute,
                };
                // The result goes to the engine and not into the stream, which other operations share.
                stream.enqueue(Box::new(move || {
                    let body = at_the_end(body);
                    // SAFETY: as above, until the operation is complete.
                    let run = || unsafe { execute(&inputs, &outputs, &[], &[], body) };
                    let result = catch_unwind(AssertUnwindSafe(run));
                    completion.complete(result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into())));
                    Ok(())
                }));
            })
        }),
        Worker::Driver(driven) => push(launch, done, |op, inputs, outputs| {
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
    space: &Space,
    launch: Launch<'_>,
    body: impl FnOnce(&mut Queue<'_>, &[DeviceTensor<'_>], &[DeviceTensor<'_>]) -> Result<(), Failure> + Send + 'static,
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
pub(super) fn bring(space: &Space, launch: Launch<'_>) -> Result<(), LaunchError> {
    enqueue_with(space, launch, |queue, inputs, outputs| match (&inputs[..], &outputs[..]) {
        // SAFETY: as for `enqueue`.
        ([Source::View(source)], [target]) => unsafe { brought(queue, source, target) },
        _ => Err("a copy of one tensor to another".into()),
    })
}

/// `stage` enqueues the operation where the engine has given permission for every chunk of the lists, until it is complete.
fn enqueue_with(
    space: &Space,
    launch: Launch<'_>,
    stage: impl FnOnce(&mut Queue<'_>, Vec<Source>, Vec<Target>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), LaunchError> {
    let (device, property) = (launch.device, launch.property);
    let Some(driven) = space.driven(device)? else {
        let message = "the device has no driver".into();
        return Err(LaunchError::Driver(DriverError { device, message }));
    };
    push(launch, None, |op, inputs, outputs| enqueue_on(space, driven, op, inputs, outputs, property, stage))
}

/// Hands an operation to the engine that is enqueued on a driver's device.
fn enqueue_on(
    space: &Space,
    driven: Arc<Driven>,
    op: Op<'_>,
    inputs: Vec<Source>,
    outputs: Vec<Target>,
    property: Property,
    stage: impl FnOnce(&mut Queue<'_>, Vec<Source>, Vec<Target>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), EngineError> {
    let (storage, touched) = (space.storage().clone(), Touched::new(&inputs, &outputs));
    space.engine().push_enqueued(op, move |_, completion| {
        driven.operate(property, &storage, touched, completion, |queue| stage(queue, inputs, outputs));
    })
}

/// Checks a request and hands it to the engine through `to`. The operation may use the chunks of the sources, and write
/// those of the targets; `done` is one more variable that it writes.
pub(super) fn push(
    launch: Launch<'_>,
    done: Option<&Var>,
    to: impl FnOnce(Op<'_>, Vec<Source>, Vec<Target>) -> Result<(), EngineError>,
) -> Result<(), LaunchError> {
    let Launch { name, device, property, priority, inputs, outputs } = launch;
    for (second, b) in outputs.iter().enumerate() {
        if let Some(first) = outputs[..second].iter().position(|a| a.view.overlaps(&b.view)) {
            return Err(LaunchError::Overlap { op: name.to_string(), first, second });
        }
    }
    let partial = outputs.iter().filter(|target| !target.overwrites()).map(|target| &target.view);
    let sources = inputs.iter().filter_map(Source::view);
    // The list owns its views so that variables can be borrowed while the operation moves them.
    let read: SmallVec<[View; 4]> = sources.chain(partial).cloned().collect();
    let written: SmallVec<[View; 2]> = outputs.iter().map(|target| target.view.clone()).collect();
    let reads: SmallVec<[&Var; 4]> = read.iter().map(|view| view.chunk().var()).collect();
    let writes: SmallVec<[&Var; 2]> = written.iter().map(|view| view.chunk().var()).chain(done).collect();
    let bytes = inputs.iter().map(source_bytes).chain(written.iter().map(View::bytes)).sum();
    let staged_bytes = inputs.iter().filter(|source| source.view().is_none()).map(source_bytes).sum();
    let op = Op { device, reads: &reads, writes: &writes, priority, property, bytes, staged_bytes, ..Op::new(name) };
    Ok(to(op, inputs, outputs)?)
}

fn source_bytes(source: &Source) -> u64 {
    match source {
        Source::View(view) => view.bytes(),
        Source::Inline(value) => value.bytes().len() as u64,
        Source::Host { data, .. } => data.len() as u64,
    }
}

/// Where an output is computed.
enum Place {
    /// In its chunk, or in memory that is copied there later.
    Direct(*mut u8),
    /// In a block of its own that becomes the chunk's memory, or is copied there.
    Apart(Block),
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
    inputs: &[Source],
    outputs: &[Target],
    staged_inputs: &[Option<Staged>],
    staged_outputs: &[Option<Staged>],
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let staging = |list: &[Option<Staged>], i: usize| list.get(i).copied().flatten();
    // What is read must have memory, and a chunk that no one wrote has none.
    let mut zeros: SmallVec<[Option<Block>; 4]> = SmallVec::new();
    for (i, source) in inputs.iter().enumerate() {
        zeros.push(match source {
            // SAFETY: passed on from the caller.
            Source::View(view) if staging(staged_inputs, i).is_none() => match unsafe { written(view) }? {
                true => None,
                false => Some(unwritten(view)?),
            },
            _ => None,
        });
    }
    let mut places: SmallVec<[Place; 2]> = SmallVec::new();
    for (i, target) in outputs.iter().enumerate() {
        places.push(match staging(staged_outputs, i) {
            Some(staged) => Place::Direct(staged.start),
            // SAFETY: passed on from the caller.
            None => unsafe { place(target, inputs) }?,
        });
    }
    let mut refs: SmallVec<[TensorRef<'_>; 4]> = SmallVec::new();
    for (i, (source, zeros)) in inputs.iter().zip(&zeros).enumerate() {
        refs.push(match (source, zeros, staging(staged_inputs, i)) {
            (Source::Inline(value), ..) => value.as_ref(),
            (Source::Host { dtype, dims, data }, ..) => TensorRef::new(*dtype, dims, data),
            (Source::View(view), _, Some(staged)) => {
                // SAFETY: passed on from the caller.
                let data = unsafe { std::slice::from_raw_parts(staged.start.cast_const(), view.bytes() as usize) };
                TensorRef::new(view.dtype(), view.dims(), data)
            }
            (Source::View(view), Some(block), _) => TensorRef::new(view.dtype(), view.dims(), block.as_slice()),
            (Source::View(view), None, _) => {
                // SAFETY: passed on from the caller; no output is computed in memory that is read.
                let data = unsafe { view.chunk().data() };
                TensorRef::new(view.dtype(), view.dims(), &data[view.range()])
            }
        });
    }
    let mut muts: SmallVec<[TensorMut<'_>; 2]> = SmallVec::new();
    for (Target { view, .. }, place) in outputs.iter().zip(&mut places) {
        let data = match place {
            Place::Apart(block) => &mut block.as_mut_slice()[..view.bytes() as usize],
            // SAFETY: `place` made the pointer for these bytes of the chunk, which the operation
            // alone may access; neither inputs nor other outputs overlap them.
            Place::Direct(start) => unsafe { std::slice::from_raw_parts_mut(*start, view.bytes() as usize) },
        };
        muts.push(TensorMut::new(view.dtype(), view.dims(), data));
    }
    body(&refs, &mut muts)?;
    drop((refs, muts));
    for (Target { view, .. }, place) in outputs.iter().zip(places) {
        if let Place::Apart(block) = place {
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
unsafe fn written(view: &View) -> Result<bool, Elsewhere> {
    // SAFETY: passed on from the caller.
    let (data, address) = unsafe { (view.chunk().data(), view.chunk().address()) };
    match data.len() < view.range().end {
        true if address.is_some() => Err(Elsewhere(view.device())),
        short => Ok(!short),
    }
}

fn unwritten(view: &View) -> Result<Block, AllocError> {
    let mut block = view.chunk().storage().alloc(view.device(), view.bytes())?;
    block.as_mut_slice().fill(0);
    Ok(block)
}

/// # Safety
/// As for [`execute`].
unsafe fn place(target: &Target, inputs: &[Source]) -> Result<Place, Failure> {
    let Target { view, update } = target;
    let chunk = view.chunk();
    let read = inputs.iter().filter_map(Source::view).any(|v| Arc::ptr_eq(v.chunk(), chunk));
    if read {
        let mut block = chunk.storage().alloc(view.device(), view.bytes())?;
        // SAFETY: passed on from the caller.
        match unsafe { chunk.data() }.get(view.range()) {
            Some(old) if *update => block.as_mut_slice()[..old.len()].copy_from_slice(old),
            None if *update => block.as_mut_slice().fill(0),
            _ => {}
        }
        return Ok(Place::Apart(block));
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
    Ok(Place::Direct(unsafe { start.add(view.range().start) }))
}

/// # Safety
/// As for [`execute`], and no reference to the chunk's memory is left.
unsafe fn commit(view: &View, block: Block) -> Result<(), Failure> {
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
pub fn read(space: &Space, name: &Name, view: &View) -> Result<Vec<u8>, ReadError> {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let into = bytes.clone();
    let done = space.engine().new_var();
    let request = Launch {
        name,
        device: view.device(),
        property: Property::CopyFromDevice,
        priority: 0,
        inputs: vec![Source::View(view.clone())],
        outputs: vec![],
    };
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
