//! One allocation of one device, with the variable that orders its uses.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::space::ArraySpace;
use super::uses::ChunkUses;
use crate::device::Device;
use crate::dlpack::Imported;
use crate::engine::Var;
use crate::storage::{AllocError, MemoryBlock, Storage};

/// Memory that is allocated when it is first needed, and given back to its pool after its last use.
#[derive(derive_more::Debug)]
#[debug("Chunk({bytes} bytes on {device})")]
pub struct Chunk {
    storage: Storage,
    device: Device,
    bytes: u64,
    var: Var,
    memory: UnsafeCell<ChunkMemory>,
    /// If the memory is a driver's.
    uses: Option<Mutex<ChunkUses>>,
    /// The address must not change: someone outside knows it.
    pinned: AtomicBool,
    mark: AtomicU64,
    version: AtomicU64,
}

/// The address of a chunk's memory, and whether it may be written.
pub(super) struct Shared {
    pub start: *mut u8,
    pub writable: bool,
}

// SAFETY: an address; who dereferences it answers for that.
unsafe impl Send for Shared {}

enum ChunkMemory {
    /// Not allocated yet.
    None,
    Block(MemoryBlock),
    /// Memory of another library.
    Foreign(Imported),
}

// SAFETY: `memory` is accessed only through the unsafe functions below, whose callers hold the
// engine's permission to read or write `var`; everything else is Sync by itself.
unsafe impl Sync for Chunk {}
// SAFETY: blocks and imported memory may be used and dropped on any thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// A chunk whose contents are undefined (but initialised) until they are written.
    pub fn new(space: &ArraySpace, device: Device, bytes: u64) -> Arc<Chunk> {
        Chunk::with_memory(space, device, bytes, ChunkMemory::None)
    }

    /// A chunk of a device whose memory the host can address, holding a copy of bytes.
    ///
    /// # Errors
    /// Memory is short.
    pub fn copy_of(space: &ArraySpace, device: Device, data: &[u8]) -> Result<Arc<Chunk>, AllocError> {
        let mut block = space.storage().alloc(device, data.len() as u64)?;
        block.as_mut_slice().copy_from_slice(data);
        Ok(Chunk::with_memory(space, device, data.len() as u64, ChunkMemory::Block(block)))
    }

    /// A chunk in memory of another library, which gets it back when the chunk is dropped.
    pub fn foreign(space: &ArraySpace, device: Device, memory: Imported) -> Arc<Chunk> {
        let bytes = memory.as_slice().len() as u64;
        let chunk = Chunk::with_memory(space, device, bytes, ChunkMemory::Foreign(memory));
        chunk.pin();
        chunk
    }

    fn with_memory(space: &ArraySpace, device: Device, bytes: u64, memory: ChunkMemory) -> Arc<Chunk> {
        let driven = space.is_driven(device);
        Arc::new(Chunk {
            storage: space.storage().clone(),
            device,
            bytes,
            var: if driven { space.engine().new_stream_var() } else { space.engine().new_var() },
            uses: driven.then(Mutex::default),
            memory: UnsafeCell::new(memory),
            pinned: AtomicBool::new(false),
            mark: AtomicU64::new(0),
            version: AtomicU64::new(0),
        })
    }

    /// The storage that its memory comes from and goes back to.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The variable that operations on the memory read and write.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// What streams do with the memory, if it is a driver's.
    pub(super) fn uses(&self) -> Option<&Mutex<ChunkUses>> {
        self.uses.as_ref()
    }

    /// Keeps the address as it is from now on.
    pub(super) fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// A number for whoever defers operations on this chunk; 0 at first.
    pub fn mark(&self) -> u64 {
        self.mark.load(Ordering::Relaxed)
    }

    /// Sets [`Chunk::mark`].
    pub fn set_mark(&self, mark: u64) {
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// How often the contents were replaced, as its users counted with [`Chunk::touch`].
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Notes that an operation that changes the contents was called.
    pub fn touch(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether someone outside knows the address.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Allocates the memory if there is none.
    ///
    /// # Safety
    /// The caller is inside an operation that writes `var`.
    pub(super) unsafe fn allocate(&self) -> Result<(), AllocError> {
        // SAFETY: passed on from the caller.
        unsafe { self.allocate_by(|| self.storage.alloc(self.device, self.bytes)) }
    }

    /// As [`Chunk::allocate`], with memory that `make` makes.
    ///
    /// # Safety
    /// As for [`Chunk::allocate`]; on a driver's device, what uses the memory is ordered with the operation's stream.
    pub(super) unsafe fn allocate_by(
        &self,
        make: impl FnOnce() -> Result<MemoryBlock, AllocError>,
    ) -> Result<(), AllocError> {
        // SAFETY: writing `var` excludes every other access.
        let memory = unsafe { &mut *self.memory.get() };
        if let ChunkMemory::None = memory {
            *memory = ChunkMemory::Block(make()?);
        }
        Ok(())
    }

    /// Where the memory begins, whoever can address it; `None` if there is none.
    ///
    /// # Safety
    /// The caller is inside an operation that reads or writes `var`, and keeps what it does with the address inside it.
    pub(super) unsafe fn address(&self) -> Option<*mut u8> {
        // SAFETY: no operation writes `var` at the same time.
        match unsafe { &*self.memory.get() } {
            ChunkMemory::None => None,
            ChunkMemory::Block(block) => Some(block.start().as_ptr()),
            ChunkMemory::Foreign(memory) => Some(memory.start().as_ptr()),
        }
    }

    /// The bytes; empty if nothing was ever written, or the host cannot address them.
    ///
    /// # Safety
    /// The caller is inside an operation that reads or writes `var`, and drops the slice in it.
    pub(super) unsafe fn data(&self) -> &[u8] {
        // SAFETY: no operation writes `var` at the same time.
        match unsafe { &*self.memory.get() } {
            ChunkMemory::None => &[],
            ChunkMemory::Block(block) => block.as_slice(),
            ChunkMemory::Foreign(memory) => memory.as_slice(),
        }
    }

    /// The first byte, to write; `None` for memory that is not there or may only be read.
    ///
    /// # Safety
    /// The caller is inside an operation that writes `var`, and keeps the accesses through the
    /// pointer inside it.
    pub(super) unsafe fn data_mut(&self) -> Option<*mut u8> {
        // SAFETY: writing `var` excludes every other access.
        match unsafe { &*self.memory.get() } {
            ChunkMemory::None => None,
            ChunkMemory::Block(block) => Some(block.start().as_ptr()),
            ChunkMemory::Foreign(memory) => (!memory.is_read_only()).then(|| memory.start().as_ptr()),
        }
    }

    /// The memory, allocated and pinned, to be shared with another library.
    ///
    /// # Errors
    /// Memory is short.
    ///
    /// # Safety
    /// The caller is inside an operation that writes `var`.
    pub(super) unsafe fn share(&self) -> Result<Shared, AllocError> {
        self.pin();
        // SAFETY: passed on from the caller.
        unsafe {
            self.allocate()?;
            Ok(match self.data_mut() {
                Some(start) => Shared { start, writable: true },
                None => Shared { start: self.data().as_ptr().cast_mut(), writable: false },
            })
        }
    }

    /// Takes another block for the memory, and returns the old one if there was one.
    ///
    /// # Safety
    /// The caller is inside an operation that writes `var`, and not `is_pinned`.
    pub(super) unsafe fn exchange(&self, block: MemoryBlock) -> Option<MemoryBlock> {
        // SAFETY: writing `var` excludes every other access.
        match std::mem::replace(unsafe { &mut *self.memory.get() }, ChunkMemory::Block(block)) {
            ChunkMemory::Block(old) => Some(old),
            ChunkMemory::None | ChunkMemory::Foreign(_) => None,
        }
    }
}
