//! What pools hold, and where they get it.

use std::ptr::NonNull;
use std::sync::Arc;

use super::AllocCause;
use crate::driver::{Driver, Memory};
use tensorc_abi::memory::AlignedBuffer;

/// Where the memory of a pool comes from.
#[derive(Clone, Debug)]
pub(super) enum Supply {
    System,
    /// Memory of a driver's device.
    Device(Arc<dyn Driver>),
    /// Memory of the host that a driver locks.
    Pinned(Arc<dyn Driver>),
    /// A GPU without a driver.
    Missing,
}

/// One allocation.
#[derive(Debug)]
pub(super) enum Raw {
    Host(AlignedBuffer),
    Device(Box<dyn Memory>, usize),
    Pinned(Box<dyn Memory>, usize),
}

impl Supply {
    pub fn alloc(&self, bytes: u64) -> Result<Raw, AllocCause> {
        let len = usize::try_from(bytes).map_err(|_| AllocCause::Size)?;
        match self {
            Supply::System => AlignedBuffer::zeroed(bytes, "storage").map(Raw::Host).map_err(|_| AllocCause::System),
            Supply::Device(driver) => driver.alloc(bytes).map(|m| Raw::Device(m, len)).map_err(|_| AllocCause::System),
            Supply::Pinned(driver) => {
                let mut raw =
                    driver.alloc_pinned(bytes).map(|m| Raw::Pinned(m, len)).map_err(|_| AllocCause::System)?;
                // Blocks are initialised.
                // SAFETY: the memory is this function's own, and has these bytes.
                unsafe { raw.start_mut().write_bytes(0, len) };
                Ok(raw)
            }
            Supply::Missing => Err(AllocCause::NoDriver),
        }
    }
}

impl Raw {
    pub fn len(&self) -> usize {
        match self {
            Raw::Host(buffer) => buffer.len(),
            Raw::Device(_, len) | Raw::Pinned(_, len) => *len,
        }
    }

    pub fn start(&self) -> NonNull<u8> {
        match self {
            Raw::Host(buffer) => buffer.start(),
            Raw::Device(memory, _) | Raw::Pinned(memory, _) => {
                NonNull::new(memory.address()).unwrap_or(AlignedBuffer::dangling())
            }
        }
    }

    fn start_mut(&mut self) -> *mut u8 {
        self.start().as_ptr()
    }

    pub fn is_addressable(&self) -> bool {
        !matches!(self, Raw::Device(..))
    }

    /// The bytes, if the host can address them.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Raw::Host(buffer) => buffer.as_slice(),
            Raw::Device(..) => &[],
            // SAFETY: the memory has these bytes, which `Supply::alloc` has written, as long as this lives.
            Raw::Pinned(memory, len) => unsafe { std::slice::from_raw_parts(memory.address(), *len) },
        }
    }

    /// As [`Raw::as_slice`].
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Raw::Host(buffer) => buffer.as_mut_slice(),
            Raw::Device(..) => &mut [],
            // SAFETY: as above, and `&mut self` makes the access exclusive.
            Raw::Pinned(memory, len) => unsafe { std::slice::from_raw_parts_mut(memory.address(), *len) },
        }
    }
}
