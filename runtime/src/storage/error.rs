//! Why there was no memory.

use crate::Device;

/// What stood against an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocCause {
    #[error("the device's limit is {0} bytes")]
    Limit(u64),
    #[error("the system has no more memory")]
    System,
    #[error("no device has so much memory")]
    Size,
    #[error("the failure was asked for by the configuration")]
    Injected,
    #[error("a free block had been written to")]
    Corrupted,
}

/// A request for memory that failed, after unused memory had been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {wanted} bytes on {device}: {cause} ({in_use} bytes are in use, {held} held unused)")]
pub struct AllocError {
    pub device: Device,
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes in blocks that are alive.
    pub in_use: u64,
    /// Bytes the pool holds unused.
    pub held: u64,
    pub cause: AllocCause,
}
