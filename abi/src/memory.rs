//! Aligned memory with fallible allocation: constants, packed weights, arenas and scratch.
//!
//! Constants, packed weights and the bytes of model files are written once and live long. They have mappings of their own, in
//! huge pages where the system has them ([`populate`]): page faults would take more time than writing the bytes. Neighbours
//! share a mapping, which goes with the last of them.

mod mapping;
mod pages;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::plan::Plan;
use mapping::Mapping;
pub use pages::populate;

/// The allocator could not provide the memory, or the size exceeds what can be addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes for {purpose}")]
pub struct AllocError {
    /// Bytes asked for.
    pub bytes: u64,
    /// What the memory was wanted for, e.g. `arena`.
    pub purpose: &'static str,
}

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
    Mapping(Arc<Mapping>),
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
        match (&self.owner, layout(self.len)) {
            (&Owner::Heap(base), Some(layout)) => {
                // SAFETY: `zeroed` made this allocation with the layout of the same length.
                unsafe { dealloc(base.as_ptr(), layout) }
            }
            (Owner::Mapping(mapping), _) => mapping.give_back(self.start, self.len),
            _ => {}
        }
    }
}

/// Buffers below this size are the allocator's.
pub(crate) const MIN_MAPPED: usize = 64 << 10;

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
}
