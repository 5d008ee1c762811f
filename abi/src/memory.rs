//! Aligned memory with fallible allocation: constants, packed weights, arenas and scratch.
//!
//! Constants, packed weights and the bytes of model files are written once and live long. They have mappings of their own, in
//! huge pages where the system has them ([`populate`]): page faults would take more time than writing the bytes. Neighbours
//! share a mapping, which goes with the last of them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

use crate::plan::Plan;

/// The allocator could not provide the memory, or the size exceeds what can be addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError {
    /// Bytes asked for.
    pub bytes: u64,
    /// What the memory was wanted for, e.g. `arena`.
    pub purpose: &'static str,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot allocate {} bytes for {}", self.bytes, self.purpose)
    }
}

impl std::error::Error for AllocError {}

/// One zero-initialised allocation whose address is a multiple of [`AlignedBuffer::ALIGN`].
///
/// The bytes may be written through [`AlignedBuffer::as_mut_ptr`] by several threads; whoever hands
/// out that pointer keeps the accesses apart.
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Nobody: there are no bytes.
    None,
    /// The allocator, which gave this address, up to [`PADDING`] bytes before the start.
    Heap(NonNull<u8>),
    /// A mapping, in which no other buffer has these bytes.
    Mapping {
        #[expect(dead_code, reason = "it is there to be dropped")]
        mapping: Arc<Mapping>,
    },
}

/// Alignment that allocators give anyway. Asked for more, they clear memory that the system has just
/// cleared, and so touch all of it.
const NATURAL: usize = 16;
/// Bytes asked for in addition, to have an aligned start among them.
const PADDING: usize = AlignedBuffer::ALIGN - NATURAL;

/// The layout of the allocation for `len` bytes.
fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.checked_add(PADDING)?, NATURAL).ok()
}

// SAFETY: the buffer owns plain bytes; shared access is read-only and mutation needs `&mut self`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Alignment of the first byte: a cache line, and the widest vector register.
    pub const ALIGN: usize = Plan::ALIGN as usize;

    /// `bytes` zeroed bytes; zero is allowed and allocates nothing. `purpose` is for the error.
    ///
    /// # Errors
    /// Memory is short, or so many bytes cannot be addressed.
    pub fn zeroed(bytes: u64, purpose: &'static str) -> Result<AlignedBuffer, AllocError> {
        let error = AllocError { bytes, purpose };
        let len = usize::try_from(bytes).map_err(|_| error)?;
        if len == 0 {
            return Ok(AlignedBuffer::empty());
        }
        let layout = layout(len).ok_or(error)?;
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(error)?;
        let padding = base.addr().get().wrapping_neg() % Self::ALIGN;
        // SAFETY: `base` is a multiple of `NATURAL`, so the padding is at most `PADDING`, and the
        // allocation is `len + PADDING` bytes long.
        let start = unsafe { base.add(padding) };
        Ok(AlignedBuffer { start, len, owner: Owner::Heap(base) })
    }

    /// As [`AlignedBuffer::zeroed`], for what is written whole and lives long.
    ///
    /// # Errors
    /// As for [`AlignedBuffer::zeroed`].
    pub fn mapped(bytes: u64, purpose: &'static str) -> Result<AlignedBuffer, AllocError> {
        match usize::try_from(bytes) {
            Ok(len) if len >= MIN_MAPPED => Mapping::take(len).ok_or(AllocError { bytes, purpose }),
            _ => AlignedBuffer::zeroed(bytes, purpose),
        }
    }

    /// A buffer of no bytes.
    pub fn empty() -> AlignedBuffer {
        AlignedBuffer { start: Self::dangling(), len: 0, owner: Owner::None }
    }

    /// An aligned address for an empty buffer.
    pub fn dangling() -> NonNull<u8> {
        NonNull::without_provenance(std::num::NonZero::<usize>::MIN.saturating_add(Self::ALIGN - 1))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte, to read; aligned also if the buffer is empty.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte, to write; aligned also if the buffer is empty.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The first byte, for owners that share the buffer and keep accesses apart themselves.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Makes it larger, with its contents if they are to be kept: then an error changes nothing.
    pub fn grow(&mut self, bytes: u64, purpose: &'static str, keep: bool) -> Result<(), AllocError> {
        if !keep {
            // The old memory goes first: nothing in it is needed, and both may not fit.
            *self = AlignedBuffer::empty();
        }
        let mut new = AlignedBuffer::zeroed(bytes, purpose)?;
        let len = self.len.min(new.len);
        new.as_mut_slice()[..len].copy_from_slice(&self.as_slice()[..len]);
        *self = new;
        Ok(())
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes for the life of `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The buffer as f32 values; trailing bytes short of one value are left out.
    pub fn as_mut_f32(&mut self) -> &mut [f32] {
        // SAFETY: the start is 64-byte aligned, every bit pattern is an f32, and access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / size_of::<f32>()) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let (&Owner::Heap(base), Some(layout)) = (&self.owner, layout(self.len)) {
            // SAFETY: `zeroed` made this allocation with the layout of the same length.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

/// Buffers below this size are the allocator's.
pub(crate) const MIN_MAPPED: usize = 64 << 10;

/// Buffers up to this size share a mapping of [`SHARED`] bytes.
const MAX_SHARED: usize = 16 << 20;
const SHARED: usize = 64 << 20;

/// A huge page of most processors.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of the system's own, from which buffers are taken one after the other. None is given back alone.
#[derive(Debug)]
struct Mapping {
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
    fn take(len: usize) -> Option<AlignedBuffer> {
        let (mapping, first) = Mapping::with_room(len)?;
        // SAFETY: the bytes from there on lie in the mapping, and no other buffer has them.
        let start = unsafe { mapping.start.add(first) };
        Some(AlignedBuffer { start, len, owner: Owner::Mapping { mapping } })
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

    /// `len` bytes that begin with a huge page. What is never touched takes none.
    fn new(len: usize) -> Option<Mapping> {
        let mut memory = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        let start = NonNull::new(memory.as_mut_ptr())?;
        let skipped = start.addr().get().wrapping_neg() % HUGE_PAGE;
        // SAFETY: the mapping is a huge page longer than `len`.
        let start = unsafe { start.add(skipped) };
        Some(Mapping { _memory: memory, start })
    }
}

/// Has the pages of a part of mapped memory there at once, which takes less time than a fault for each: huge ones as long as
/// the system has them at hand. Hosts of virtual machines take back what lies free in large blocks, and are slow to give it
/// again.
///
/// A system that does not follow such advice leaves the pages to faults.
pub fn populate(part: &mut [u8]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    populate::pages(part);
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = part;
}

#[cfg(all(target_os = "linux", not(miri)))]
mod populate {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Instant;

    use super::HUGE_PAGE;

    /// Nanoseconds that huge pages may still take.
    static CREDIT: AtomicI64 = AtomicI64::new(2_000_000);

    /// What small pages take, about, in nanoseconds for a KiB.
    const SMALL_PAGES: i64 = 300;

    /// Bytes of small pages that are asked for at once. Other threads that change mappings wait meanwhile.
    const SMALL_STEP: usize = 256 << 10;

    pub(super) fn pages(part: &mut [u8]) {
        const PAGE: usize = 4096;
        let start = part.as_ptr().addr();
        let end = start + part.len();
        let mut at = start.next_multiple_of(PAGE);
        let mut huge = CREDIT.load(Ordering::Relaxed) > 0;
        match huge {
            true => advise(part, at, end, libc::MADV_HUGEPAGE),
            false => refuse(part, at, end),
        }
        while at < end {
            let step = if huge { HUGE_PAGE } else { SMALL_STEP };
            let next = end.min((at + 1).next_multiple_of(step));
            let begun = Instant::now();
            advise(part, at, next, libc::MADV_POPULATE_WRITE);
            if huge {
                let taken = i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
                let gained = (next - at) as i64 * SMALL_PAGES / 1024 - taken;
                huge = CREDIT.fetch_add(gained, Ordering::Relaxed) + gained > 0;
                if !huge {
                    advise(part, next, end, libc::MADV_NOHUGEPAGE);
                }
            }
            at = next;
        }
    }

    /// Advice against huge pages where they come without being asked for. Other threads that populate memory wait for it.
    fn refuse(part: &mut [u8], from: usize, to: usize) {
        static ALWAYS: OnceLock<bool> = OnceLock::new();
        let setting = || std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if *ALWAYS.get_or_init(|| setting().is_ok_and(|modes| modes.contains("[always]"))) {
            advise(part, from, to, libc::MADV_NOHUGEPAGE);
        }
    }

    /// Advice on the pages that begin in a range of the part's addresses.
    fn advise(part: &mut [u8], from: usize, to: usize, advice: libc::c_int) {
        let Some(len) = to.checked_sub(from) else { return };
        // SAFETY: none of the advice changes what the pages hold, and the range begins in the part and ends in its last page.
        unsafe { libc::madvise(part.as_mut_ptr().with_addr(from).cast(), len, advice) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    #[test]
    fn zero_bytes_allocate_nothing_and_stay_aligned() {
        let mut buffer = AlignedBuffer::zeroed(0, "test").unwrap();
        assert!(buffer.is_empty());
        assert_eq!(buffer.as_ptr() as usize % AlignedBuffer::ALIGN, 0);
        assert!(buffer.as_mut_slice().is_empty());
    }

    #[test]
    fn memory_is_aligned_and_zeroed() {
        for bytes in [1, 63, 64, 65, 4096, 1 << 20, 5 << 20] {
            for buffer in [AlignedBuffer::zeroed(bytes, "test"), AlignedBuffer::mapped(bytes, "test")] {
                let buffer = buffer.unwrap();
                assert_eq!((buffer.as_ptr() as usize % AlignedBuffer::ALIGN, buffer.len() as u64), (0, bytes));
                assert!(buffer.as_slice().iter().all(|&b| b == 0));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter ends the process when memory runs out")]
    fn impossible_sizes_are_errors() {
        for bytes in [u64::MAX, i64::MAX as u64, i64::MAX as u64 - 63, 1 << 60] {
            for buffer in [AlignedBuffer::zeroed(bytes, "arena"), AlignedBuffer::mapped(bytes, "arena")] {
                let error = buffer.unwrap_err();
                assert_eq!(error, AllocError { bytes, purpose: "arena" });
                assert_eq!(error.to_string(), format!("cannot allocate {bytes} bytes for arena"));
            }
        }
    }

    #[test]
    fn buffers_of_a_mapping_keep_their_bytes_apart_and_alive() {
        // More than a shared mapping holds, by several threads.
        let fill = |thread: u8| {
            let buffers = (0..8).map(|i| {
                let mut buffer = AlignedBuffer::mapped((1 << 20) + 65 * u64::from(i), "test").unwrap();
                buffer.as_mut_slice().fill(8 * thread + i + 1);
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
