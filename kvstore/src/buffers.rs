//! Memory of messages, used again by messages of the same length: those of training are the same in every step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Most bytes kept for later.
const MAX_POOLED_BYTES: usize = 1 << 30;

/// A store of memory; clones share it.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<Free>>);

#[derive(Default)]
struct Free {
    by_length: BTreeMap<usize, OfLength>,
    bytes: usize,
    /// Memory that somebody may still read.
    lent: Vec<Bytes>,
}

/// Memory of a length that was asked for.
#[derive(Default)]
struct OfLength {
    free: Vec<Vec<u8>>,
    /// Taken and not given back, and the most of these so far: more than that is not kept.
    out: usize,
    most: usize,
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
        let of_length = free.by_length.entry(length).or_default();
        of_length.out += 1;
        of_length.most = of_length.most.max(of_length.out);
        if let Some(found) = of_length.free.pop() {
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

    /// Takes memory back once nobody reads it. Of several handles of the same memory the longest counts.
    pub(crate) fn give_later(&self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let mut free = self.lock();
        let overlap = |other: &Bytes| {
            let (one, other) = (bytes.as_ptr_range(), other.as_ptr_range());
            one.start < other.end && other.start < one.end
        };
        match free.lent.iter_mut().find(|other| overlap(other)) {
            Some(known) if known.len() >= bytes.len() => {}
            Some(known) => *known = bytes,
            None => free.lent.push(bytes),
        }
    }
}

impl Free {
    fn keep(&mut self, buffer: Vec<u8>) {
        let Some(of_length) = self.by_length.get_mut(&buffer.len()) else { return };
        of_length.out = of_length.out.saturating_sub(1);
        if !buffer.is_empty() && of_length.free.len() < of_length.most && self.bytes + buffer.len() <= MAX_POOLED_BYTES
        {
            self.bytes += buffer.len();
            of_length.free.push(buffer);
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

    #[test]
    fn handles_of_the_same_memory_do_not_keep_each_other() {
        let buffers = Buffers::default();
        for _ in 0..3 {
            let whole = Bytes::from(buffers.take(64).unwrap());
            buffers.give_later(whole.slice(16..32));
            buffers.give_later(whole.clone());
            buffers.give_later(whole);
            buffers.give_later(Bytes::new());
            // Of a length that nobody asks for.
            buffers.give_later(Bytes::from(vec![0; 65]));
            let next = buffers.take(64).unwrap();
            assert!(buffers.lock().lent.is_empty() && buffers.lock().bytes == 0);
            buffers.give(next);
        }
        // Memory from elsewhere does not add up.
        (0..10).for_each(|_| buffers.give(vec![0; 64]));
        assert!(buffers.lock().bytes <= 2 * 64);
    }
}
