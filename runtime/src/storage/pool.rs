//! The pool of one device: free memory by size, and what is counted.
//!
//! One short lock protects all of it, so that figures and limits are exact. The system is asked for
//! memory, and given memory back, while the lock is free.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};

use super::raw::{Raw, Supply};
use super::{AllocCause, MemoryBlock, POISON, PoolConfig, Pooling, lock};
use crate::device::Device;

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
    memory: Vec<Raw>,
    /// Fewest entries since the pool was last trimmed. As many were not needed in all that time.
    idle: usize,
}

#[derive(Debug, Default)]
struct State {
    lists: BTreeMap<u64, FreeList>,
    stats: StorageStats,
    /// Bytes being asked of the system.
    pending: u64,
    /// Requests so far.
    requests: u64,
}

#[derive(Debug)]
pub(super) struct MemoryPool {
    device: Device,
    config: PoolConfig,
    supply: Supply,
    state: Mutex<State>,
}

impl State {
    fn reuse(&mut self, size: u64) -> Option<Raw> {
        let list = self.lists.get_mut(&size)?;
        let memory = list.memory.pop()?;
        list.idle = list.idle.min(list.memory.len());
        self.stats.reuses += 1;
        self.stats.held -= size;
        self.hand_out(size);
        Some(memory)
    }

    fn hand_out(&mut self, size: u64) {
        let stats = &mut self.stats;
        stats.allocations += 1;
        stats.in_use += size;
        stats.peak = stats.peak.max(stats.in_use);
    }

    /// Bytes the device provides once `size` more are allocated.
    fn with(&self, size: u64) -> u128 {
        [self.stats.in_use, self.stats.held, self.pending, size].map(u128::from).iter().sum()
    }

    /// Takes out memory until no more than `target` bytes are held: what was not needed since the
    /// last time, then the largest.
    fn trim(&mut self, target: u64) -> Vec<Raw> {
        let mut excess = vec![];
        for list in self.lists.values_mut() {
            excess.extend(list.memory.drain(..list.idle));
            list.idle = list.memory.len();
        }
        self.stats.held -= bytes(&excess);
        for (&size, list) in self.lists.iter_mut().rev() {
            let count = self.stats.held.saturating_sub(target).div_ceil(size);
            let count = usize::try_from(count).map_or(list.memory.len(), |count| count.min(list.memory.len()));
            excess.extend(list.memory.drain(..count));
            list.idle = list.memory.len();
            self.stats.held -= size * count as u64;
        }
        excess
    }
}

fn bytes(memory: &[Raw]) -> u64 {
    memory.iter().map(|memory| memory.len() as u64).sum()
}

impl MemoryPool {
    pub fn new(device: Device, config: PoolConfig, supply: Supply) -> MemoryPool {
        MemoryPool { device, config, supply, state: Mutex::default() }
    }

    /// A block of `bytes` bytes, more than 0.
    pub fn alloc(self: &Arc<Self>, bytes: u64) -> Result<MemoryBlock, AllocCause> {
        let len = usize::try_from(bytes).map_err(|_| AllocCause::Size)?;
        let size = self.config.pooling.round(bytes).filter(|&size| i64::try_from(size).is_ok());
        let size = size.ok_or(AllocCause::Size)?;
        let memory = {
            let mut state = lock(&self.state);
            if let Some(period) = self.config.fail_every {
                state.requests += 1;
                if state.requests.is_multiple_of(period.get()) {
                    return Err(AllocCause::Injected);
                }
            }
            state.reuse(size)
        };
        let memory = memory.map_or_else(|| self.fresh(size), Ok)?;
        if self.config.poison && memory.as_slice().iter().any(|&byte| byte != POISON) {
            lock(&self.state).stats.in_use -= size;
            return Err(AllocCause::Corrupted);
        }
        Ok(MemoryBlock::new(memory, len, self.device, self.clone()))
    }

    /// Memory from the system, within the limit.
    fn fresh(&self, size: u64) -> Result<Raw, AllocCause> {
        self.charge(size)?;
        let memory = self.supply.alloc(size);
        let mut state = lock(&self.state);
        state.pending -= size;
        let mut memory = memory?;
        state.hand_out(size);
        drop(state);
        if self.config.poison {
            memory.as_mut_slice().fill(POISON);
        }
        Ok(memory)
    }

    /// Counts `size` bytes as pending, after releasing unused memory if the reserve needs that.
    fn charge(&self, size: u64) -> Result<(), AllocCause> {
        let mut state = lock(&self.state);
        if let Some(limit) = self.config.limit {
            let kept = u128::from(limit) * u128::from(100 - self.config.reserve.min(100)) / 100;
            if state.with(size) > kept && state.stats.held > 0 {
                drop(state);
                self.release();
                state = lock(&self.state);
            }
            if state.with(size) > u128::from(limit) {
                return Err(AllocCause::Limit(limit));
            }
        }
        state.pending += size;
        Ok(())
    }

    /// Takes memory that was in use.
    pub fn give_back(&self, mut memory: Raw) {
        let size = memory.len() as u64;
        if self.config.poison {
            memory.as_mut_slice().fill(POISON);
        }
        let mut state = lock(&self.state);
        state.stats.in_use -= size;
        let bound = self.config.max_held.max(state.stats.in_use);
        if self.config.pooling == Pooling::Unpooled || size > bound {
            drop(state);
            return;
        }
        state.lists.entry(size).or_default().memory.push(memory);
        state.stats.held += size;
        state.stats.peak_held = state.stats.peak_held.max(state.stats.held);
        if state.stats.held > bound {
            // Some room below the bound, so that not every block that follows comes here again.
            let excess = state.trim(bound - bound / 4);
            drop(state);
            drop(excess);
        }
    }

    /// Gives all unused memory back to the system; returns its bytes.
    pub fn release(&self) -> u64 {
        let lists = {
            let mut state = lock(&self.state);
            state.stats.held = 0;
            mem::take(&mut state.lists)
        };
        lists.into_values().map(|list| bytes(&list.memory)).sum()
    }

    pub fn stats(&self) -> StorageStats {
        lock(&self.state).stats
    }

    pub fn reset_peaks(&self) {
        let stats = &mut lock(&self.state).stats;
        (stats.peak, stats.peak_held) = (stats.in_use, stats.held);
    }
}
