//! The memory of GPUs made of the host.
//!
//! As on machines with several GPUs, every device has a range of addresses of its own, so that devices can copy from each
//! other. The addresses are of no use to the host.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::arena::{AlignedBuffer, AllocError};
use crate::device::Device;
use crate::driver::Memory;

/// Addresses that processors refuse to use, so that no access of the host goes unnoticed.
const FIRST_ADDRESS: usize = 0x5dea_0000_0000_0000;
/// Addresses of a device: more than it will ever use.
const RANGE: usize = 1 << 40;
const ALIGN: usize = 256;
/// What new memory holds: NaN in every floating-point type.
const UNDEFINED: u8 = 0xff;

/// A device's memory.
pub(super) struct DeviceMemory {
    device: Device,
    /// The number of its range.
    range: usize,
    blocks: Mutex<Blocks>,
}

/// What is allocated, by address.
struct Blocks {
    buffers: BTreeMap<usize, AlignedBuffer>,
    /// The end of what was ever allocated.
    next: usize,
}

/// Work used memory that is not there: given back too early, or never allocated.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not inside memory of {device} that is allocated")]
pub(super) struct NoMemory {
    device: Device,
    address: usize,
    bytes: usize,
}

/// The memories of the devices that are there, by range.
static MEMORIES: Mutex<BTreeMap<usize, Weak<DeviceMemory>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceMemory {
    pub fn new(device: Device) -> Arc<DeviceMemory> {
        static RANGES: AtomicUsize = AtomicUsize::new(0);
        let range = RANGES.fetch_add(1, Ordering::Relaxed);
        let blocks = Blocks { buffers: BTreeMap::new(), next: FIRST_ADDRESS + range * RANGE };
        let memory = Arc::new(DeviceMemory { device, range, blocks: Mutex::new(blocks) });
        lock(&MEMORIES).insert(range, Arc::downgrade(&memory));
        memory
    }

    /// The memory in which an address of a device lies.
    pub fn of(device: Device, address: usize) -> Option<Arc<DeviceMemory>> {
        let range = address.checked_sub(FIRST_ADDRESS)? / RANGE;
        let memory = lock(&MEMORIES).get(&range)?.upgrade()?;
        (memory.device == device).then_some(memory)
    }

    pub fn alloc(self: &Arc<Self>, bytes: u64) -> Result<Box<dyn Memory>, AllocError> {
        let mut buffer = AlignedBuffer::zeroed(bytes, "device memory")?;
        buffer.as_mut_slice().fill(UNDEFINED);
        let mut blocks = lock(&self.blocks);
        let address = blocks.next;
        // A gap between blocks makes what goes beyond one an error.
        blocks.next += (buffer.len() + 1).next_multiple_of(ALIGN);
        blocks.buffers.insert(address, buffer);
        Ok(Box::new(Allocated { address, memory: self.clone() }))
    }

    /// Does something with allocated bytes.
    pub fn with<R>(&self, address: usize, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, NoMemory> {
        if bytes == 0 {
            return Ok(f(&mut []));
        }
        let mut blocks = lock(&self.blocks);
        let block = blocks.buffers.range_mut(..=address).next_back();
        let found = block.and_then(|(start, buffer)| {
            let at = address - start;
            buffer.as_mut_slice().get_mut(at..at.checked_add(bytes)?)
        });
        found.map(f).ok_or(NoMemory { device: self.device, address, bytes })
    }

    /// A copy of allocated bytes.
    pub fn read(&self, address: usize, bytes: usize) -> Result<Vec<u8>, NoMemory> {
        self.with(address, bytes, |data| data.to_vec())
    }

    pub fn write(&self, address: usize, data: &[u8]) -> Result<(), NoMemory> {
        self.with(address, data.len(), |into| into.copy_from_slice(data))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        lock(&MEMORIES).remove(&self.range);
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)
    }
}

/// A block, given back when it is dropped.
#[derive(Debug)]
struct Allocated {
    address: usize,
    memory: Arc<DeviceMemory>,
}

impl Memory for Allocated {
    fn address(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.address)
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        lock(&self.memory.blocks).buffers.remove(&self.address);
    }
}
