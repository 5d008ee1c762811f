//! Memory of the system's own, from which buffers are taken one after the other.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

use super::pages::{self, HUGE_PAGE};
use super::{AlignedBuffer, Owner};

/// Buffers up to this size share a mapping of [`SHARED`] bytes.
const MAX_SHARED: usize = 16 << 20;
const SHARED: usize = 64 << 20;

/// Memory of the system's own. What a buffer had is not taken again; its pages go back to the system.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Its bytes are reached by `start` alone.
    _memory: MmapMut,
    start: NonNull<u8>,
}

// SAFETY: the bytes are reached through the buffers that were taken, which own theirs.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A buffer of a mapping that has room for it.
    pub(super) fn take(len: usize) -> Option<AlignedBuffer> {
        let (mapping, first) = Mapping::with_room(len)?;
        // SAFETY: the bytes from there on lie in the mapping, and no other buffer has them.
        let start = unsafe { mapping.start.add(first) };
        Some(AlignedBuffer { start, len, owner: Owner::Mapping(mapping) })
    }

    /// A mapping, and where in it are `len` bytes that no one else takes.
    fn with_room(len: usize) -> Option<(Arc<Mapping>, usize)> {
        /// The mapping that is shared, and where the next buffer begins.
        static LAST: Mutex<(Weak<Mapping>, usize)> = Mutex::new((Weak::new(), 0));
        if len > MAX_SHARED {
            return Some((Arc::new(Mapping::new(len)?), 0));
        }
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let (mapping, first) = match (last.0.upgrade(), last.1) {
            (Some(mapping), first) if len <= SHARED - first => (mapping, first),
            _ => (Arc::new(Mapping::new(SHARED)?), 0),
        };
        *last = (Arc::downgrade(&mapping), (first + len).next_multiple_of(AlignedBuffer::ALIGN));
        Some((mapping, first))
    }

    /// `len` bytes that begin with a huge page. What is never touched takes no memory.
    fn new(len: usize) -> Option<Mapping> {
        let mut memory = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        let start = NonNull::new(memory.as_mut_ptr())?;
        let skipped = start.addr().get().wrapping_neg() % HUGE_PAGE;
        // SAFETY: the mapping is a huge page longer than `len`.
        let start = unsafe { start.add(skipped) };
        Some(Mapping { _memory: memory, start })
    }

    /// Gives the pages of a buffer back, which nobody reads any more. The whole mapping goes with its last buffer.
    pub(super) fn give_back(self: &Arc<Mapping>, start: NonNull<u8>, len: usize) {
        if Arc::strong_count(self) > 1 {
            pages::release(start, len);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    #[test]
    fn buffers_of_a_mapping_keep_their_bytes_apart_and_alive() {
        // More than a shared mapping holds, by several threads.
        let fill = |thread: u8| {
            let buffers = (0..24).map(|i| {
                let mut buffer = AlignedBuffer::mapped((1 << 20) + 65 * u64::from(i), "test").unwrap();
                buffer.as_mut_slice().fill(24 * thread + i + 1);
                buffer
            });
            buffers.collect::<Vec<_>>()
        };
        let filled: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || fill(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        // Neighbours go first.
        let kept: Vec<_> = filled.into_iter().enumerate().filter(|(i, _)| i % 2 == 0).collect();
        for (i, buffer) in kept {
            assert!(buffer.as_slice().iter().all(|&b| usize::from(b) == i + 1));
        }
    }
}
