//! Memory of devices, pooled.
//!
//! [`Storage::alloc`] hands out [`MemoryBlock`]s; a dropped block goes back to the pool of its device and
//! is handed out again, the one dropped last first, to a request of the same size class
//! ([`Pooling`]). A pool keeps a bounded amount of unused memory ([`PoolConfig::max_held`]) and gives
//! all of it back on [`Storage::release`], when its device's limit is near, and when the system has
//! no more memory. The pools of a driver's device and of page-locked memory for it get theirs from the driver.

mod block;
mod config;
mod error;
mod pool;
mod raw;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use block::MemoryBlock;
pub use config::{Cutoff, CutoffError, ParsePoolingError, PoolConfig, Pooling, StorageConfig};
pub use error::{AllocCause, AllocError};
pub use pool::StorageStats;

use crate::device::DeviceTable;
use crate::device::{Device, DeviceKind};
use crate::driver::Driver;
use pool::MemoryPool;
use raw::Supply;

/// What every byte of unused memory holds where [`PoolConfig::poison`] is set.
pub(crate) const POISON: u8 = 0xCB;

/// Acquires the lock; no update of what these locks protect can stop halfway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the allocator of the process give up what it keeps of freed memory.
fn return_to_system() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: the function may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The pools of all devices. A handle: clones share the pools.
#[derive(Clone, Debug)]
pub struct Storage {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: StorageConfig,
    drivers: Vec<Arc<dyn Driver>>,
    pools: DeviceTable<Arc<MemoryPool>>,
}

impl Storage {
    /// Pools without drivers: of the host's memory only.
    pub fn new(config: StorageConfig) -> Storage {
        Storage::with_drivers(config, vec![])
    }

    /// With the memory of a GPU, for its device and for [`Device::pinned`] of the same number.
    pub fn with_drivers(config: StorageConfig, drivers: Vec<Arc<dyn Driver>>) -> Storage {
        Storage { shared: Arc::new(Shared { config, drivers, pools: DeviceTable::new() }) }
    }

    /// A block of `bytes` bytes whose contents are undefined; none are needed for 0 bytes.
    ///
    /// When the device's limit or the system refuses, unused memory is released and the request
    /// made once more.
    ///
    /// # Errors
    /// It was refused again, or for another reason ([`AllocCause`]).
    pub fn alloc(&self, device: Device, bytes: u64) -> Result<MemoryBlock, AllocError> {
        if bytes == 0 {
            return Ok(MemoryBlock::empty(device));
        }
        let pool = self.pool(device);
        let block = pool.alloc(bytes).or_else(|cause| {
            match cause {
                AllocCause::Limit(_) => pool.release(),
                AllocCause::System => self.release_all(),
                AllocCause::Size | AllocCause::NoDriver | AllocCause::Injected | AllocCause::Corrupted => {
                    return Err(cause);
                }
            };
            pool.alloc(bytes)
        });
        block.map_err(|cause| {
            let StorageStats { in_use, held, .. } = pool.stats();
            AllocError { device, wanted: bytes, in_use, held, cause }
        })
    }

    /// Figures of a device's pool, all zero if it was never asked for memory.
    pub fn stats(&self, device: Device) -> StorageStats {
        self.shared.pools.get(device).map(|pool| pool.stats()).unwrap_or_default()
    }

    /// Starts the peaks of a device afresh from what is in use and held now.
    pub fn reset_peaks(&self, device: Device) {
        if let Some(pool) = self.shared.pools.get(device) {
            pool.reset_peaks();
        }
    }

    /// Gives the unused memory of a device back to the system; returns the number of bytes.
    pub fn release(&self, device: Device) -> u64 {
        let bytes = self.shared.pools.get(device).map_or(0, |pool| pool.release());
        return_to_system();
        bytes
    }

    /// [`Storage::release`] for every device.
    pub fn release_all(&self) -> u64 {
        let bytes = self.shared.pools.values().map(|pool| pool.release()).sum();
        return_to_system();
        bytes
    }

    /// Bytes that a block takes from a device; none for one that cannot be.
    pub fn size(&self, device: Device, bytes: u64) -> Option<u64> {
        self.config(device).pooling.round(bytes)
    }

    /// The settings of a device's pool.
    pub fn config(&self, device: Device) -> &PoolConfig {
        self.shared.config.pool(device)
    }

    fn pool(&self, device: Device) -> &Arc<MemoryPool> {
        let make = || Arc::new(MemoryPool::new(device, self.config(device).clone(), self.supply(device)));
        self.shared.pools.get_or_init(device, make)
    }

    fn supply(&self, device: Device) -> Supply {
        let of = |device: Device| self.shared.drivers.iter().find(|driver| driver.device() == device).cloned();
        match device.kind {
            DeviceKind::Accelerator => of(device).map_or(Supply::Missing, Supply::Device),
            DeviceKind::CpuPinned => of(Device::accelerator(device.id)).map_or(Supply::System, Supply::Pinned),
            DeviceKind::Cpu => Supply::System,
        }
    }
}

impl Default for Storage {
    fn default() -> Storage {
        Storage::new(StorageConfig::default())
    }
}
