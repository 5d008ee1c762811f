//! Memory for intermediate tensors that contexts share by taking turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{AlignedBuffer, AllocError};

/// An arena of several contexts. It is as large as the largest of them needs, and holds what the last
/// one left there. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct SharedArena(Arc<Mutex<Turn>>);

/// The memory, in the hands of the context that runs.
#[derive(Debug)]
pub(super) struct Turn {
    memory: AlignedBuffer,
    /// Numbers given to contexts so far.
    contexts: u64,
    /// The context that ran last.
    last: u64,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { memory: AlignedBuffer::empty(), contexts: 0, last: 0 }
    }
}

impl SharedArena {
    /// Bytes at present.
    pub fn bytes(&self) -> usize {
        self.turn().memory.len()
    }

    /// A number for another context that uses the arena.
    pub(super) fn register(&self) -> u64 {
        let mut turn = self.turn();
        turn.contexts += 1;
        turn.contexts
    }

    /// Waits until no other context runs.
    pub(super) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Hands the memory to a context that needs `bytes`. Returns the first byte, and whether the memory
    /// still holds what this context left there.
    pub fn take(&mut self, context: u64, bytes: u64) -> Result<(*mut u8, bool), AllocError> {
        let kept = self.last == context;
        if (self.memory.len() as u64) < bytes {
            // The old memory goes first: nothing in it is needed, and both may not fit.
            self.memory = AlignedBuffer::empty();
            self.memory = AlignedBuffer::zeroed(bytes, "shared arena")?;
        }
        self.last = context;
        Ok((self.memory.as_mut_ptr(), kept))
    }
}
