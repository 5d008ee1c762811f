//! What streams still do with the memory of a chunk, so that what follows is ordered behind it on the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::chunk::Chunk;
use super::launch::LaunchOutput;
use super::source::ArrayOperand;
use crate::device::stream::Event;
use crate::gpu::LaunchStream;

/// An operation that was enqueued on a stream.
pub(super) struct Enqueued {
    /// The stream's number.
    pub lane: u64,
    /// Its end.
    pub event: Arc<dyn Event>,
    /// The host knows that it ended well.
    pub done: AtomicBool,
}

impl Enqueued {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// The last operation that writes a chunk, and those that read what it wrote, the last one of each stream.
#[derive(Default)]
pub(super) struct ChunkUses {
    written: Option<Arc<Enqueued>>,
    read: SmallVec<[Arc<Enqueued>; 2]>,
}

/// What an operation does with the chunks of a driver's device.
#[derive(Default)]
pub(super) struct Touched {
    reads: SmallVec<[Arc<Chunk>; 4]>,
    writes: SmallVec<[Arc<Chunk>; 2]>,
}

impl Touched {
    pub fn new(inputs: &[ArrayOperand], outputs: &[LaunchOutput]) -> Touched {
        let kept = outputs.iter().filter(|target| !target.overwrites()).map(LaunchOutput::view);
        let there = |chunk: &&Arc<Chunk>| chunk.uses().is_some();
        let reads = inputs.iter().filter_map(ArrayOperand::view).chain(kept).map(|view| view.chunk());
        let writes = outputs.iter().map(|target| target.view().chunk());
        Touched { reads: reads.filter(there).cloned().collect(), writes: writes.filter(there).cloned().collect() }
    }

    /// Lets the stream wait for what others do with the chunks. What is read must be right: if it is not, what follows
    /// on the stream fails.
    pub fn order(&self, lane: u64, stream: &dyn LaunchStream) {
        for uses in self.reads.iter().filter_map(|chunk| chunk.uses()) {
            if let Some(written) = lock(uses).written.as_ref().filter(|w| !w.is_done()) {
                stream.wait_event(&written.event);
            }
        }
        for uses in self.writes.iter().filter_map(|chunk| chunk.uses()) {
            let uses = lock(uses);
            for earlier in uses.written.iter().chain(&uses.read).filter(|e| e.lane != lane && !e.is_done()) {
                stream.follow(&earlier.event);
            }
        }
    }

    /// Notes that an operation uses the chunks so.
    pub fn note(&self, operation: &Arc<Enqueued>) {
        for uses in self.reads.iter().filter_map(|chunk| chunk.uses()) {
            let read = &mut lock(uses).read;
            read.retain(|earlier| earlier.lane != operation.lane && !earlier.is_done());
            read.push(operation.clone());
        }
        for uses in self.writes.iter().filter_map(|chunk| chunk.uses()) {
            *lock(uses) = ChunkUses { written: Some(operation.clone()), read: SmallVec::new() };
        }
    }
}

fn lock(uses: &Mutex<ChunkUses>) -> MutexGuard<'_, ChunkUses> {
    uses.lock().unwrap_or_else(PoisonError::into_inner)
}
