//! Why there was no memory.

use crate::device::Device;

/// What stood against an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocCause {
    /// [`PoolConfig::limit`](super::PoolConfig::limit) in bytes would be exceeded.
    #[error("the device's limit is {0} bytes")]
    Limit(u64),
    /// The system or the driver has no more memory.
    #[error("the system has no more memory")]
    System,
    /// The device is an accelerator that has no driver in this [`Storage`](super::Storage).
    #[error("there is no driver for it")]
    NoDriver,
    /// The size is beyond what can be addressed.
    #[error("no device has so much memory")]
    Size,
    /// [`PoolConfig::fail_every`](super::PoolConfig::fail_every) asked for it.
    #[error("the failure was asked for by the configuration")]
    Injected,
    /// [`PoolConfig::poison`](super::PoolConfig::poison) found a free block changed.
    #[error("a free block had been written to")]
    Corrupted,
}

/// A request for memory that failed, after unused memory had been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {wanted} bytes on {device}: {cause} ({in_use} bytes are in use, {held} held unused)")]
pub struct AllocError {
    /// The device that was asked.
    pub device: Device,
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes in blocks that are alive.
    pub in_use: u64,
    /// Bytes the pool holds unused.
    pub held: u64,
    /// What stood against it.
    pub cause: AllocCause,
}
