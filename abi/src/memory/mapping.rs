//! Memory of the system's own, from which buffers are taken one after the other, and memory that is brought in ahead.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::MmapMut;

use super::pages::{self, HUGE_PAGE, PAGE};
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
    len: usize,
    /// Bytes that were taken; changed by whoever has locked [`last`].
    taken: AtomicUsize,
    /// Bytes that may be taken.
    ready: AtomicUsize,
}

// SAFETY: the bytes are reached through the buffers that were taken, which own theirs.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The mapping that buffers are taken from.
fn last() -> MutexGuard<'static, Weak<Mapping>> {
    static LAST: Mutex<Weak<Mapping>> = Mutex::new(Weak::new());
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mapping {
    /// A buffer of a mapping that has room for it.
    pub(super) fn take(len: usize) -> Option<AlignedBuffer> {
        let mut last = last();
        if let Some(buffer) = last.upgrade().and_then(|mapping| mapping.part(len)) {
            return Some(buffer);
        }
        let room = if len > MAX_SHARED { len } else { SHARED };
        let mapping = Arc::new(Mapping::new(room, room)?);
        if len <= MAX_SHARED {
            *last = Arc::downgrade(&mapping);
        }
        mapping.part(len)
    }

    /// A buffer of the last mapping.
    pub(super) fn at_hand(len: usize) -> Option<AlignedBuffer> {
        last().upgrade()?.part(len)
    }

    /// The next bytes, if there are so many that are ready. The caller has locked [`last`].
    fn part(self: Arc<Mapping>, len: usize) -> Option<AlignedBuffer> {
        let first = self.taken.load(Ordering::Relaxed);
        if len > self.ready.load(Ordering::Relaxed).saturating_sub(first) {
            return None;
        }
        self.taken.store((first + len).next_multiple_of(AlignedBuffer::ALIGN), Ordering::Relaxed);
        // SAFETY: the bytes from there on lie in the mapping, and no other buffer has them.
        let start = unsafe { self.start.add(first) };
        Some(AlignedBuffer { start, len, owner: Owner::Mapping(self) })
    }

    /// `len` bytes that begin with a huge page, of which `ready` may be taken. What is never touched takes no memory.
    fn new(len: usize, ready: usize) -> Option<Mapping> {
        let mut memory = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        let start = NonNull::new(memory.as_mut_ptr())?;
        let skipped = start.addr().get().wrapping_neg() % HUGE_PAGE;
        // SAFETY: the mapping is a huge page longer than `len`.
        let start = unsafe { start.add(skipped) };
        let (taken, ready) = (AtomicUsize::new(0), AtomicUsize::new(ready));
        Some(Mapping { _memory: memory, start, len, taken, ready })
    }

    /// Gives the pages of a buffer back, which nobody reads any more. The whole mapping goes with its last buffer.
    pub(super) fn give_back(self: &Arc<Mapping>, start: NonNull<u8>, len: usize) {
        if Arc::strong_count(self) > 1 {
            pages::release(start, len);
        }
    }
}

/// Memory that buffers of [`AlignedBuffer::mapped`] are taken from as long as it is there. A thread that has nothing else to
/// do brings its pages in, before somebody waits for them.
#[derive(Debug)]
pub struct Reserve(Arc<Mapping>);

impl Reserve {
    /// Room for buffers of so many bytes in all; `None` if the system does not have it.
    pub fn new(bytes: u64) -> Option<Reserve> {
        let mapping = Arc::new(Mapping::new(usize::try_from(bytes).ok()?, 0)?);
        *last() = Arc::downgrade(&mapping);
        Some(Reserve(mapping))
    }

    /// Brings pages in until all are there, or it is told to stop. To be called once.
    ///
    /// The system is not asked for many pages at once: other threads could not change their mappings meanwhile, which
    /// allocators do all the time.
    pub fn populate(&self, is_over: &AtomicBool) {
        let mapping = &*self.0;
        let mut at = mapping.ready.load(Ordering::Relaxed);
        while at < mapping.len && !is_over.load(Ordering::Relaxed) {
            // SAFETY: nobody takes bytes of the mapping that are not ready.
            unsafe { mapping.start.add(at).write_volatile(0) };
            at += PAGE;
            mapping.ready.store(at.min(mapping.len), Ordering::Relaxed);
        }
    }
}

impl Drop for Reserve {
    /// What nobody took goes back.
    fn drop(&mut self) {
        let mut last = last();
        if std::ptr::eq(last.as_ptr(), Arc::as_ptr(&self.0)) {
            *last = Weak::new();
        }
        let taken = self.0.taken.load(Ordering::Relaxed).min(self.0.len);
        // SAFETY: the bytes lie in the mapping.
        self.0.give_back(unsafe { self.0.start.add(taken) }, self.0.len - taken);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    /// One at a time: all take from one mapping.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn buffers_of_a_mapping_keep_their_bytes_apart_and_alive() {
        let _alone = ALONE.lock().unwrap();
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

    #[test]
    fn buffers_are_taken_of_what_is_reserved_while_it_is_there() {
        const MIB: usize = 1 << 20;
        let _alone = ALONE.lock().unwrap();
        let reserve = Reserve::new(40 * MIB as u64).unwrap();
        assert!(AlignedBuffer::at_hand(MIB).is_none(), "nothing is brought in yet");
        reserve.populate(&AtomicBool::new(true));
        assert!(AlignedBuffer::at_hand(MIB).is_none(), "it was told to stop");
        reserve.populate(&AtomicBool::new(false));
        let range = reserve.0.start.addr().get()..reserve.0.start.addr().get() + 40 * MIB;
        let is_inside = |buffer: &AlignedBuffer| range.contains(&buffer.start().addr().get());
        let mut first = AlignedBuffer::at_hand(20 * MIB).unwrap();
        first.as_mut_slice().fill(7);
        let second = AlignedBuffer::mapped(20 * MIB as u64 - 4096, "test").unwrap();
        assert!(is_inside(&first) && is_inside(&second) && second.as_slice().iter().all(|b| *b == 0));
        assert!(!is_inside(&AlignedBuffer::mapped(MIB as u64, "test").unwrap()), "it is used up");
        let other = Reserve::new(8 * MIB as u64).unwrap();
        drop((second, reserve, other));
        assert!(first.as_slice().iter().all(|b| *b == 7));
        assert!(AlignedBuffer::at_hand(MIB).is_none());
    }
}
