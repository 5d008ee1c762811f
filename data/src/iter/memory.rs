//! The memory of batches, which is used again once nobody reads a batch any more.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tensorc_runtime::{AlignedBuffer, AllocError};

/// Buffers that are free, at most a certain number of them.
#[derive(Debug)]
pub struct Recycled {
    free: Mutex<Vec<AlignedBuffer>>,
    most: usize,
}

/// A buffer that goes back when it is dropped.
pub struct Lease {
    buffer: AlignedBuffer,
    home: Arc<Recycled>,
}

impl Recycled {
    /// Keeps at most so many buffers.
    pub fn new(most: usize) -> Arc<Recycled> {
        Arc::new(Recycled { free: Mutex::default(), most })
    }

    /// A buffer of so many bytes with any contents.
    ///
    /// # Errors
    /// Memory is short.
    pub fn lease(self: &Arc<Self>, bytes: usize) -> Result<Lease, AllocError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let known = free.iter().position(|buffer| buffer.len() == bytes).map(|at| free.swap_remove(at));
        drop(free);
        let buffer = known.map_or_else(|| AlignedBuffer::zeroed(bytes as u64, "a batch"), Ok)?;
        Ok(Lease { buffer, home: self.clone() })
    }
}

impl Lease {
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.buffer.as_mut_slice()
    }

    /// The bytes, shared by all that read them; the last one gives the buffer back.
    pub fn share(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_slice()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let buffer = std::mem::replace(&mut self.buffer, AlignedBuffer::empty());
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.home.most {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_when_the_last_reader_is_gone() {
        let memory = Recycled::new(2);
        let shared = memory.lease(100).unwrap().share();
        let address = shared.as_ptr();
        let part = shared.slice(10..20);
        drop(shared);
        assert_ne!(memory.lease(100).unwrap().as_ref().as_ptr(), address, "a part is still read");
        drop(part);
        assert_eq!(memory.free.lock().unwrap().len(), 2);
        let leases: Vec<Lease> = (0..4).map(|_| memory.lease(100).unwrap()).collect();
        assert!(leases.iter().any(|lease| lease.as_ref().as_ptr() == address));
        drop(leases);
        assert_eq!(memory.free.lock().unwrap().len(), 2, "no more are kept");
    }
}
