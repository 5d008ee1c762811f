//! Memory of operations that follow each other on a stream.
//!
//! What an operation needs on the device for itself alone is free for the next one as soon as that is enqueued behind it,
//! long before the host hears that the first is done. It goes back to its pool when nobody took it by then.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::storage::{AllocCause, AllocError, MemoryBlock, Storage};

/// Counts a device's operations that are enqueued and not done.
#[derive(Default)]
pub(crate) struct Flight {
    counts: Mutex<MemoryCounts>,
    ended: Condvar,
}

#[derive(Default)]
struct MemoryCounts {
    under_way: u64,
    ended: u64,
}

impl Flight {
    fn counts(&self) -> MutexGuard<'_, MemoryCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) {
        self.counts().under_way += 1;
    }

    pub(crate) fn end(&self) {
        let mut counts = self.counts();
        (counts.under_way, counts.ended) = (counts.under_way - 1, counts.ended + 1);
        self.ended.notify_all();
    }

    /// Waits until more than `seen` operations have ended; false if no other is under way.
    fn wait_beyond(&self, seen: u64) -> bool {
        let waits = |counts: &mut MemoryCounts| counts.ended == seen && counts.under_way > 0;
        let counts = self.ended.wait_while(self.counts(), waits).unwrap_or_else(PoisonError::into_inner);
        counts.ended > seen
    }
}

/// Memory of the device that operations on one stream hand on to each other.
#[derive(Default)]
pub struct StreamMemory {
    pub(crate) flight: Arc<Flight>,
    spare: Mutex<Spare>,
}

#[derive(Default)]
struct Spare {
    /// With the number of the last operation that uses it; the end is taken first.
    blocks: Vec<(u64, MemoryBlock)>,
    /// Operations that have ended their enqueuing.
    operations: u64,
}

impl StreamMemory {
    /// Of a stream of the device whose operations are counted there.
    pub(crate) fn new(flight: Arc<Flight>) -> StreamMemory {
        StreamMemory { flight, spare: Mutex::default() }
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of the stream's device for what is enqueued from now on.
    pub(crate) fn reuse(&self, storage: &Storage, device: Device, bytes: u64) -> Option<MemoryBlock> {
        let size = storage.size(device, bytes)?;
        let blocks = &mut self.spare().blocks;
        let at = blocks.iter().rposition(|(_, block)| block.capacity() as u64 == size)?;
        blocks.remove(at).1.of_len(bytes)
    }

    /// Memory from a pool. If it is short, operations that are under way are waited for, as what they use comes back.
    pub(crate) fn alloc(&self, storage: &Storage, device: Device, bytes: u64) -> Result<MemoryBlock, AllocError> {
        loop {
            let seen = self.flight.counts().ended;
            let error = match storage.alloc(device, bytes) {
                Err(e) if matches!(e.cause, AllocCause::Limit(_) | AllocCause::System) => e,
                other => return other,
            };
            if !self.flight.wait_beyond(seen) {
                return Err(error);
            }
        }
    }

    /// Ends the enqueuing of an operation, whose memory of the device the next ones may use; its number.
    pub(crate) fn leave(&self, blocks: Vec<MemoryBlock>) -> u64 {
        let mut spare = self.spare();
        spare.operations += 1;
        let number = spare.operations;
        // The first is taken first, so that an operation like this one gets its blocks in the same order and therefore
        // at the same addresses.
        spare.blocks.extend(blocks.into_iter().rev().map(|block| (number, block)));
        number
    }

    /// The stream has passed the operation of this number.
    pub fn passed(&self, number: u64) {
        let free: Vec<MemoryBlock> = {
            let blocks = &mut self.spare().blocks;
            blocks.extract_if(.., |(last, _)| *last <= number).map(|(_, block)| block).collect()
        };
        // In this order, for the reason above.
        drop(free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{PoolConfig, StorageConfig};

    /// Memory of the host stands in for that of a device.
    const GPU: Device = Device::cpu(0);

    fn storage(config: StorageConfig) -> Storage {
        Storage::new(config)
    }

    #[test]
    fn blocks_go_from_operation_to_operation_and_then_to_the_pool() {
        let storage = storage(StorageConfig::default());
        let memory = StreamMemory::new(Arc::default());
        let blocks: Vec<MemoryBlock> = (0..3).map(|_| memory.alloc(&storage, GPU, 100).unwrap()).collect();
        let addresses: Vec<_> = blocks.iter().map(MemoryBlock::as_ptr).collect();
        assert_eq!(memory.leave(blocks), 1);
        let again: Vec<MemoryBlock> = (0..2).map(|_| memory.reuse(&storage, GPU, 99).unwrap()).collect();
        assert_eq!(again.iter().map(MemoryBlock::as_ptr).collect::<Vec<_>>(), addresses[..2]);
        assert_eq!(again[0].len(), 99);
        assert!(memory.reuse(&storage, GPU, 1 << 20).is_none(), "another size");
        let in_use = || storage.stats(GPU).in_use / blocks_bytes(&again);
        assert_eq!((memory.leave(vec![]), in_use()), (2, 3));
        memory.passed(1);
        assert_eq!(in_use(), 2, "what the second has not taken is free");
    }

    fn blocks_bytes(blocks: &[MemoryBlock]) -> u64 {
        blocks[0].capacity() as u64
    }

    #[test]
    fn memory_that_is_short_is_waited_for() {
        let limited = PoolConfig { limit: Some(8192), ..PoolConfig::default() };
        let storage = storage(StorageConfig { devices: [(GPU, limited)].into(), ..StorageConfig::default() });
        let flight = Arc::<Flight>::default();
        let memory = StreamMemory::new(flight.clone());
        let first = memory.alloc(&storage, GPU, 6000).unwrap();
        assert!(memory.alloc(&storage, GPU, 6000).is_err(), "nothing is under way");
        flight.begin();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(first);
            flight.end();
        });
        assert!(memory.alloc(&storage, GPU, 6000).is_ok());
        ends.join().unwrap();
    }
}
