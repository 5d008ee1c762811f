//! The pool of one device: free memory by size, and what is counted.
//!
//! Free memory is divided among [`SHARDS`] locks by size, so that threads meet only when they ask for
//! the same sizes. `total` is what the system provided; the part not in use is held.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{AllocCause, Block, POISON, PoolConfig, Pooling, lock};
use crate::{AlignedBuffer, Device};

const SHARDS: usize = 16;

/// Figures of one device's pool. Bytes are those of whole size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageStats {
    /// Bytes in blocks that are alive.
    pub in_use: u64,
    /// Bytes kept to be handed out again.
    pub held: u64,
    /// Most bytes in use at any time.
    pub peak: u64,
    /// Most bytes held at any time.
    pub peak_held: u64,
    /// Blocks handed out, without empty ones.
    pub allocations: u64,
    /// Those among them whose memory had been held.
    pub reuses: u64,
}

/// Free memory of one size.
#[derive(Debug, Default)]
struct FreeList {
    /// The end was freed last.
    memory: Vec<AlignedBuffer>,
    /// Fewest entries since the pool was last trimmed. As many were not needed in all that time.
    idle: usize,
}

#[derive(Debug, Default)]
struct Shard {
    lists: BTreeMap<u64, FreeList>,
    reuses: u64,
}

/// A lock to a cache line, so that neighbours do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

#[derive(Debug)]
pub struct Pool {
    device: Device,
    config: PoolConfig,
    shards: [Line<Mutex<Shard>>; SHARDS],
    in_use: Line<AtomicU64>,
    total: AtomicU64,
    peak: AtomicU64,
    peak_held: AtomicU64,
    /// Blocks whose memory came from the system.
    fresh: AtomicU64,
    /// Requests so far, counted where failures are injected.
    requests: AtomicU64,
}

/// Raises a maximum, without writing when it stands.
fn raise(peak: &AtomicU64, value: u64) {
    if peak.load(Relaxed) < value {
        peak.fetch_max(value, Relaxed);
    }
}

impl Pool {
    pub fn new(device: Device, config: PoolConfig) -> Pool {
        Pool {
            device,
            config,
            shards: Default::default(),
            in_use: Line::default(),
            total: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            peak_held: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// A block of `bytes` bytes, more than 0.
    pub fn alloc(self: &Arc<Self>, bytes: u64) -> Result<Block, AllocCause> {
        if let Some(period) = self.config.fail_every
            && (self.requests.fetch_add(1, Relaxed) + 1).is_multiple_of(period.get())
        {
            return Err(AllocCause::Injected);
        }
        let len = usize::try_from(bytes).map_err(|_| AllocCause::Size)?;
        let size = self.config.pooling.round(bytes).filter(|&size| i64::try_from(size).is_ok());
        let size = size.ok_or(AllocCause::Size)?;
        let memory = match self.reuse(size) {
            Some(memory) => memory,
            None => self.fresh(size)?,
        };
        raise(&self.peak, self.in_use.0.fetch_add(size, Relaxed) + size);
        if self.config.poison && memory.as_slice().iter().any(|&byte| byte != POISON) {
            self.discard(memory);
            return Err(AllocCause::Corrupted);
        }
        Ok(Block::new(memory, len, self.device, self.clone()))
    }

    fn reuse(&self, size: u64) -> Option<AlignedBuffer> {
        let mut shard = lock(self.shard(size));
        let list = shard.lists.get_mut(&size)?;
        let memory = list.memory.pop()?;
        list.idle = list.idle.min(list.memory.len());
        shard.reuses += 1;
        Some(memory)
    }

    /// Memory from the system, within the limit.
    fn fresh(&self, size: u64) -> Result<AlignedBuffer, AllocCause> {
        let limit = self.config.limit.unwrap_or(u64::MAX);
        if let Some(limit) = self.config.limit {
            let free = u128::from(limit) * u128::from(self.config.reserve.min(100)) / 100;
            if u128::from(self.total.load(Relaxed)) + u128::from(size) + free > u128::from(limit) {
                self.release();
            }
        }
        let charge = |total: u64| total.checked_add(size).filter(|&total| total <= limit);
        self.total.try_update(Relaxed, Relaxed, charge).map_err(|_| AllocCause::Limit(limit))?;
        let Ok(mut memory) = AlignedBuffer::zeroed(size, "storage") else {
            self.total.fetch_sub(size, Relaxed);
            return Err(AllocCause::System);
        };
        if self.config.poison {
            memory.as_mut_slice().fill(POISON);
        }
        self.fresh.fetch_add(1, Relaxed);
        Ok(memory)
    }

    /// Takes memory that was in use.
    pub fn give_back(&self, mut memory: AlignedBuffer) {
        let size = memory.len() as u64;
        if self.config.pooling == Pooling::Unpooled || size > self.bound(self.in_use.0.load(Relaxed) - size) {
            return self.discard(memory);
        }
        if self.config.poison {
            memory.as_mut_slice().fill(POISON);
        }
        let in_use = self.in_use.0.fetch_sub(size, Relaxed) - size;
        lock(self.shard(size)).lists.entry(size).or_default().memory.push(memory);
        let held = self.total.load(Relaxed).saturating_sub(in_use);
        raise(&self.peak_held, held);
        let bound = self.bound(in_use);
        if held > bound {
            // Some room below the bound, so that not every block that follows comes here again.
            self.trim(bound - bound / 4);
        }
    }

    /// Most bytes to hold.
    fn bound(&self, in_use: u64) -> u64 {
        self.config.max_held.max(in_use)
    }

    /// Gives memory that was in use back to the system.
    fn discard(&self, memory: AlignedBuffer) {
        let size = memory.len() as u64;
        self.in_use.0.fetch_sub(size, Relaxed);
        drop(memory);
        self.total.fetch_sub(size, Relaxed);
    }

    fn shard(&self, size: u64) -> &Mutex<Shard> {
        // Multiplicative hashing: sizes differ in high bits or in low ones.
        let hash = size.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.ilog2());
        &self.shards[hash as usize].0
    }

    fn held(&self) -> u64 {
        self.total.load(Relaxed).saturating_sub(self.in_use.0.load(Relaxed))
    }

    /// Gives memory back until no more than `target` bytes are held: what was not needed since the
    /// last time, then the largest.
    fn trim(&self, target: u64) {
        let mut sizes = vec![];
        for shard in &self.shards {
            let mut idle = vec![];
            for (&size, list) in &mut lock(&shard.0).lists {
                idle.extend(list.memory.drain(..list.idle));
                list.idle = list.memory.len();
                sizes.push(size);
            }
            self.forget(idle);
        }
        sizes.sort_unstable();
        for &size in sizes.iter().rev() {
            let excess = self.held().saturating_sub(target).div_ceil(size);
            if excess == 0 {
                return;
            }
            let freed: Vec<AlignedBuffer> = {
                let mut shard = lock(self.shard(size));
                let Some(list) = shard.lists.get_mut(&size) else { continue };
                let count = list.memory.len().min(usize::try_from(excess).unwrap_or(usize::MAX));
                list.idle = list.idle.saturating_sub(count);
                list.memory.drain(..count).collect()
            };
            self.forget(freed);
        }
    }

    /// Gives all unused memory back to the system; returns its bytes.
    pub fn release(&self) -> u64 {
        let empty = |shard: &Line<Mutex<Shard>>| {
            let lists = std::mem::take(&mut lock(&shard.0).lists);
            self.forget(lists.into_values().flat_map(|list| list.memory).collect())
        };
        self.shards.iter().map(empty).sum()
    }

    /// Gives memory that was held back to the system; returns its bytes.
    fn forget(&self, memory: Vec<AlignedBuffer>) -> u64 {
        let bytes = memory.iter().map(|memory| memory.len() as u64).sum();
        drop(memory);
        self.total.fetch_sub(bytes, Relaxed);
        bytes
    }

    pub fn stats(&self) -> StorageStats {
        let reuses = self.shards.iter().map(|shard| lock(&shard.0).reuses).sum();
        StorageStats {
            in_use: self.in_use.0.load(Relaxed),
            held: self.held(),
            peak: self.peak.load(Relaxed),
            peak_held: self.peak_held.load(Relaxed),
            allocations: self.fresh.load(Relaxed) + reuses,
            reuses,
        }
    }

    pub fn reset_peaks(&self) {
        self.peak.store(self.in_use.0.load(Relaxed), Relaxed);
        self.peak_held.store(self.held(), Relaxed);
    }
}
