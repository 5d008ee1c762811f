//! Owned memory of one device.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::MemoryPool;
use super::raw::Raw;
use crate::device::Device;
use tensorc_abi::memory::AlignedBuffer;

/// Memory of one device, given back to its pool when dropped.
///
/// The first byte's address is a multiple of [`AlignedBuffer::ALIGN`]. The bytes are initialised but
/// undefined: they may be those of an earlier block. Those of a device with a driver are the driver's to use.
#[derive(Debug)]
pub struct MemoryBlock {
    memory: Raw,
    len: usize,
    device: Device,
    /// None for a block without memory.
    pool: Option<Arc<MemoryPool>>,
}

impl MemoryBlock {
    pub(super) fn new(memory: Raw, len: usize, device: Device, pool: Arc<MemoryPool>) -> MemoryBlock {
        debug_assert!(len <= memory.len());
        MemoryBlock { memory, len, device, pool: Some(pool) }
    }

    pub(super) fn empty(device: Device) -> MemoryBlock {
        MemoryBlock { memory: Raw::Host(AlignedBuffer::empty()), len: 0, device, pool: None }
    }

    /// The same memory as a block of another length; none if it has not as many bytes.
    pub(crate) fn of_len(mut self, bytes: u64) -> Option<MemoryBlock> {
        self.len = usize::try_from(bytes).ok().filter(|len| *len <= self.memory.len())?;
        Some(self)
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes the block takes from its device, at least [`MemoryBlock::len`].
    pub(crate) fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Address of the first byte, to read from.
    pub fn as_ptr(&self) -> *const u8 {
        self.start().as_ptr()
    }

    /// Address of the first byte, to write to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start().as_ptr()
    }

    /// The first byte, for owners that share the block and keep accesses apart themselves: the bytes
    /// may be written through this pointer while no reference to them exists. The host must not follow it into
    /// memory that it cannot address.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Whether the host can address the bytes.
    pub fn is_addressable(&self) -> bool {
        self.memory.is_addressable()
    }

    /// The bytes; none of memory that the host cannot address.
    pub fn as_slice(&self) -> &[u8] {
        self.memory.as_slice().get(..self.len).unwrap_or_default()
    }

    /// As [`MemoryBlock::as_slice`], to write to.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.as_mut_slice().get_mut(..self.len).unwrap_or_default()
    }
}

impl Drop for MemoryBlock {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(mem::replace(&mut self.memory, Raw::Host(AlignedBuffer::empty())));
        }
    }
}
