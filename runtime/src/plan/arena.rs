//! Memory for intermediate tensors and working memory that contexts share by taking turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::RunError;
use crate::device::stream::Event;
use crate::gpu::{Driver, Memory};
use tensorc_abi::memory::{AlignedBuffer, AllocError};

/// An arena of several contexts, which run on one device. It is as large as the largest of them needs, and holds
/// what the last one left there. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct SharedArena(Arc<Mutex<Turn>>);

/// The number of no context.
const NOBODY: u64 = 0;

/// The memory, in the hands of the context that runs.
#[derive(derive_more::Debug)]
#[debug("Turn({} bytes)", self.bytes())]
pub(super) struct Turn {
    memory: AlignedBuffer,
    /// The memory if it is a device's, and its bytes.
    there: Option<(Box<dyn Memory>, u64)>,
    /// The end of the last run on a device.
    pub ended: Option<Arc<dyn Event>>,
    /// Numbers given to contexts so far.
    contexts: u64,
    /// The context that ran last, or [`NOBODY`] if what it left is lost.
    last: u64,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { memory: AlignedBuffer::empty(), there: None, ended: None, contexts: 0, last: NOBODY }
    }
}

impl SharedArena {
    /// Bytes at present.
    pub fn bytes(&self) -> usize {
        self.turn().bytes()
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
    fn bytes(&self) -> usize {
        self.there.as_ref().map_or(self.memory.len(), |(_, bytes)| *bytes as usize)
    }

    /// As [`Turn::take`], in the memory of a device.
    pub fn take_there(&mut self, driver: &dyn Driver, context: u64, bytes: u64) -> Result<(*mut u8, bool), RunError> {
        let kept = self.last == context;
        match &self.there {
            Some((memory, size)) if *size >= bytes => {
                self.last = context;
                Ok((memory.address(), kept))
            }
            _ => {
                self.last = NOBODY;
                if let Some(ended) = self.ended.take() {
                    // Whoever ran has been told of a failure, or will be.
                    let _ = ended.synchronize();
                }
                self.there = None;
                let memory = driver.alloc(bytes)?;
                let address = memory.address();
                self.there = Some((memory, bytes));
                self.last = context;
                Ok((address, false))
            }
        }
    }

    /// Hands the memory to a context that needs `bytes`. Returns the first byte, and whether the memory
    /// still holds what this context left there.
    pub fn take(&mut self, context: u64, bytes: u64) -> Result<(*mut u8, bool), AllocError> {
        let kept = self.last == context;
        if (self.memory.len() as u64) < bytes {
            if !kept {
                self.last = NOBODY;
            }
            self.memory.grow(bytes, "shared arena", kept)?;
        }
        self.last = context;
        Ok((self.memory.as_mut_ptr(), kept))
    }
}
