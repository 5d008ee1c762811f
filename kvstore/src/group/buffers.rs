//! Memory of messages, used again by messages of the same length: those of training are the same in every step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Most bytes kept for later.
const KEPT: usize = 1 << 30;

/// A store of memory; clones share it.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<Free>>);

#[derive(Default)]
struct Free {
    by_length: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
    /// Memory that somebody may still read.
    lent: Vec<Bytes>,
}

/// The system has no memory of this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for a message of {0} bytes")]
pub struct NoMemory(pub u64);

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of a length, with any content.
    ///
    /// # Errors
    /// There is none.
    pub fn take(&self, length: usize) -> Result<Vec<u8>, NoMemory> {
        let mut free = self.lock();
        free.collect();
        if let Some(found) = free.by_length.get_mut(&length).and_then(Vec::pop) {
            free.bytes -= length;
            return Ok(found);
        }
        drop(free);
        let mut made = vec![];
        made.try_reserve_exact(length).map_err(|_| NoMemory(length as u64))?;
        made.resize(length, 0);
        Ok(made)
    }

    /// Takes memory back.
    pub fn give(&self, buffer: Vec<u8>) {
        self.lock().keep(buffer);
    }

    /// Takes memory back once nobody reads it.
    pub fn give_later(&self, bytes: Bytes) {
        self.lock().lent.push(bytes);
    }
}

impl Free {
    fn keep(&mut self, buffer: Vec<u8>) {
        if !buffer.is_empty() && self.bytes + buffer.len() <= KEPT {
            self.bytes += buffer.len();
            self.by_length.entry(buffer.len()).or_default().push(buffer);
        }
    }

    fn collect(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        for bytes in lent {
            match bytes.try_into_mut() {
                Ok(unique) => self.keep(unique.into()),
                Err(shared) => self.lent.push(shared),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_same_length_is_used_again() {
        let buffers = Buffers::default();
        let first = buffers.take(100).unwrap();
        let address = first.as_ptr();
        buffers.give(first);
        let shared = Bytes::from(buffers.take(100).unwrap());
        assert_eq!(shared.as_ptr(), address);
        buffers.give_later(shared.clone());
        let other = buffers.take(100).unwrap();
        assert_ne!(other.as_ptr(), address, "somebody still reads it");
        drop(shared);
        let again = buffers.take(100).unwrap();
        assert_eq!(again.as_ptr(), address);
        assert_eq!(buffers.take(usize::MAX).unwrap_err(), NoMemory(u64::MAX));
    }
}
