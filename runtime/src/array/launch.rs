//! One operation over views: the only place where the memory of chunks is touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::source::Source;
use super::space::Space;
use super::view::View;
use crate::device::stream::{Stream, StreamError};
use crate::engine::{EngineError, Failure, Name, Op, Property, Var, WaitError};
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
    fn overwrites(&self) -> bool {
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
    Engine(#[from] EngineError),
}

/// Pushes an operation; returns before it ran.
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
    launch_with(space, launch, None, body)
}

/// [`launch`], writing one more variable.
fn launch_with(
    space: &Space,
    launch: Launch<'_>,
    done: Option<&Var>,
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure> + Send + 'static,
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
    // SAFETY: called where the engine has given permission for every chunk of the lists above.
    let run = move || unsafe { execute(&inputs, &outputs, body) };
    match space.accelerator(device)? {
        None => space.engine().push(op, move |_| run())?,
        Some(accelerator) => space.engine().push_async(op, move |_, completion| {
            let stream = match property {
                Property::CopyToDevice => &accelerator.copy_in,
                Property::CopyFromDevice => &accelerator.copy_out,
                Property::Normal | Property::Prioritized => &accelerator.compute,
            };
            // The result goes to the engine and not into the stream, which other operations share.
            stream.enqueue(Box::new(move || {
                let result = catch_unwind(AssertUnwindSafe(run));
                completion.complete(result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into())));
                Ok(())
            }));
        })?,
    }
    Ok(())
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
    /// In its chunk.
    Direct(*mut u8),
    /// In a block of its own that becomes the chunk's memory, or is copied there.
    Apart(Block),
}

/// A view whose memory cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the memory of the result belongs to another library and is read-only")]
struct ReadOnly;

/// # Safety
/// The caller is inside an operation that reads or writes the variables of all inputs and writes
/// those of all outputs, which do not overlap.
unsafe fn execute(
    inputs: &[Source],
    outputs: &[Target],
    body: impl FnOnce(&[TensorRef<'_>], &mut [TensorMut<'_>]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // What is read must have memory, and a chunk that no one wrote has none.
    let mut zeros: SmallVec<[Option<Block>; 4]> = SmallVec::new();
    for source in inputs {
        zeros.push(match source {
            // SAFETY: passed on from the caller.
            Source::View(view) if unsafe { view.chunk().data() }.len() < view.range().end => Some(unwritten(view)?),
            _ => None,
        });
    }
    let mut places: SmallVec<[Place; 2]> = SmallVec::new();
    for target in outputs {
        // SAFETY: passed on from the caller.
        places.push(unsafe { place(target, inputs) }?);
    }
    let mut refs: SmallVec<[TensorRef<'_>; 4]> = SmallVec::new();
    for (source, zeros) in inputs.iter().zip(&zeros) {
        refs.push(match (source, zeros) {
            (Source::Inline(value), _) => value.as_ref(),
            (Source::Host { dtype, dims, data }, _) => TensorRef::new(*dtype, dims, data),
            (Source::View(view), Some(block)) => TensorRef::new(view.dtype(), view.dims(), block.as_slice()),
            (Source::View(view), None) => {
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
        unsafe { chunk.exchange(block) };
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
    launch_with(space, request, Some(&done), move |inputs, _| {
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
