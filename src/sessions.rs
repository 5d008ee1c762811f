//! The sessions of a model, by what they are compiled for: those that were used last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Session, Tensor};

/// What a session is compiled for: element types and extents of a run's inputs, and values that branches may depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey {
    shapes: Vec<(u8, Vec<u64>)>,
    values: Vec<Vec<u8>>,
}

impl SessionKey {
    /// For inputs in signature order, and those among them whose values matter.
    pub fn new<'t>(inputs: &[Tensor], deciding: impl Iterator<Item = &'t Tensor>) -> SessionKey {
        let shapes = inputs.iter().map(|t| (t.dtype() as u8, t.dims().to_vec())).collect();
        SessionKey { shapes, values: deciding.map(|t| t.bytes().to_vec()).collect() }
    }
}

/// A session, once somebody has compiled it; others that need the same wait meanwhile.
pub type SessionSlot = Arc<Mutex<Option<Session>>>;

/// Whether a place holds no session and nobody is making one: its shapes did not compile.
fn is_vacant(slot: &SessionSlot) -> bool {
    Arc::strong_count(slot) == 1 && slot.try_lock().is_ok_and(|session| session.is_none())
}

pub struct Sessions {
    most: usize,
    kept: Mutex<CachedSession>,
}

#[derive(Default)]
struct CachedSession {
    slots: BTreeMap<SessionKey, (u64, SessionSlot)>,
    /// Counts uses.
    clock: u64,
}

impl Sessions {
    /// Sessions used before the last `most` go, but at least one stays. What did not compile goes first.
    pub fn new(most: usize) -> Sessions {
        Sessions { most: most.max(1), kept: Mutex::default() }
    }

    /// The place of a session. One that is in use when it goes lives until then.
    pub fn slot(&self, key: SessionKey) -> SessionSlot {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let now = kept.clock;
        if let Some((used, slot)) = kept.slots.get_mut(&key) {
            *used = now;
            return slot.clone();
        }
        if kept.slots.len() >= self.most {
            let first = kept.slots.iter().min_by_key(|(_, (used, slot))| (!is_vacant(slot), *used));
            let oldest = first.map(|(key, _)| key.clone());
            oldest.and_then(|key| kept.slots.remove(&key));
        }
        let slot = SessionSlot::default();
        kept.slots.insert(key, (now, slot.clone()));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn key(extent: u64) -> SessionKey {
        SessionKey { shapes: vec![(DType::F32 as u8, vec![extent])], values: vec![] }
    }

    #[test]
    fn the_session_that_was_not_used_longest_goes() {
        let sessions = Sessions::new(2);
        // In use, so that they count as sessions.
        let (a, b) = (sessions.slot(key(1)), sessions.slot(key(2)));
        assert!(Arc::ptr_eq(&a, &sessions.slot(key(1))));
        sessions.slot(key(3));
        assert!(Arc::ptr_eq(&a, &sessions.slot(key(1))), "it was used after the other");
        assert!(!Arc::ptr_eq(&b, &sessions.slot(key(2))));
    }

    #[test]
    fn what_did_not_compile_takes_no_place_of_what_did() {
        let sessions = Sessions::new(3);
        let (a, b) = (sessions.slot(key(1)), sessions.slot(key(2)));
        (10..20).for_each(|wrong| drop(sessions.slot(key(wrong))));
        assert!(Arc::ptr_eq(&a, &sessions.slot(key(1))));
        assert!(Arc::ptr_eq(&b, &sessions.slot(key(2))));
    }
}
