//! What was compiled, by program keys: that which was used last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::key::ProgramKey;

/// Handles of what was compiled. Those used before the last few go; what is in use when it goes lives until then.
pub struct ProgramCache<V> {
    most: usize,
    kept: Mutex<Kept<V>>,
}

struct Kept<V> {
    positions: HashMap<Arc<[u8]>, usize>,
    entries: Vec<CacheEntry<V>>,
    /// Counts uses.
    clock: u64,
}

struct CacheEntry<V> {
    key: Arc<[u8]>,
    used: u64,
    slot: Arc<Slot<V>>,
}

/// A value, once somebody has made it; others that need the same wait meanwhile.
struct Slot<V> {
    value: OnceLock<V>,
    making: Mutex<()>,
}

impl<V: Clone> ProgramCache<V> {
    /// At least one stays. What did not compile goes first.
    pub fn new(most: usize) -> ProgramCache<V> {
        let kept = Kept { positions: HashMap::new(), entries: vec![], clock: 0 };
        ProgramCache { most: most.max(1), kept: Mutex::new(kept) }
    }

    /// What a key describes, made at the first use.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn get_or_make<E>(&self, key: &ProgramKey, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let slot = match self.find(key.bytes()) {
            Ok(found) => return Ok(found),
            Err(slot) => slot,
        };
        let _making = lock(&slot.making);
        match slot.value.get() {
            Some(found) => Ok(found.clone()),
            None => make().map(|made| slot.value.get_or_init(|| made).clone()),
        }
    }

    /// The value, or its place.
    fn find(&self, key: &[u8]) -> Result<V, Arc<Slot<V>>> {
        let Kept { positions, entries, clock } = &mut *lock(&self.kept);
        *clock += 1;
        if let Some(at) = positions.get(key) {
            let CacheEntry { used, slot, .. } = &mut entries[*at];
            *used = *clock;
            return slot.value.get().cloned().ok_or_else(|| slot.clone());
        }
        let key: Arc<[u8]> = key.into();
        let slot = Arc::new(Slot { value: OnceLock::new(), making: Mutex::default() });
        let entry = CacheEntry { key: key.clone(), used: *clock, slot: slot.clone() };
        let oldest = || entries.iter().enumerate().min_by_key(|(_, entry)| (!is_vacant(&entry.slot), entry.used));
        let at = match if entries.len() < self.most { None } else { oldest().map(|(at, _)| at) } {
            Some(at) => {
                positions.remove(&std::mem::replace(&mut entries[at], entry).key);
                at
            }
            None => {
                entries.push(entry);
                entries.len() - 1
            }
        };
        positions.insert(key, at);
        Err(slot)
    }
}

/// Whether a place holds nothing and nobody is making it: it did not compile.
fn is_vacant<V>(slot: &Arc<Slot<V>>) -> bool {
    Arc::strong_count(slot) == 1 && slot.value.get().is_none()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a number is made anew.
    fn makes(cache: &ProgramCache<u64>, n: u64) -> bool {
        let mut made = false;
        let found = cache.get_or_make(&key(n), || {
            made = true;
            Ok::<_, ()>(n)
        });
        assert_eq!(found, Ok(n));
        made
    }

    fn key(n: u64) -> ProgramKey {
        let mut key = ProgramKey::of("");
        key.number(n);
        key
    }

    #[test]
    fn what_was_not_used_longest_goes() {
        let cache = ProgramCache::new(2);
        assert!(makes(&cache, 1) && makes(&cache, 2) && !makes(&cache, 1) && makes(&cache, 3));
        assert!(!makes(&cache, 1), "it was used after the other");
        assert!(makes(&cache, 2));
    }

    #[test]
    fn what_did_not_compile_takes_no_place_of_what_did() {
        let cache = ProgramCache::new(3);
        assert!(makes(&cache, 1) && makes(&cache, 2));
        (10..20).for_each(|wrong| assert_eq!(cache.get_or_make(&key(wrong), || Err(())), Err(())));
        assert!(!makes(&cache, 1) && !makes(&cache, 2));
    }
}
