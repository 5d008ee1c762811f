//! The keys of one store, which are all numbers or all texts.

use crate::error::KvError;
use crate::key::Key;

/// The kind of the keys of a store: that of the first one.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    kind: Option<&'static str>,
}

impl Keys {
    /// Remembers the kind of the first key.
    ///
    /// # Errors
    /// The key is of another kind than those before it.
    pub fn check(&mut self, key: &Key) -> Result<(), KvError> {
        let (found, expected) = (key.kind(), *self.kind.get_or_insert(key.kind()));
        match found == expected {
            true => Ok(()),
            false => Err(KvError::KeyKind { key: key.clone(), found, expected }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_keys_of_one_kind() {
        let mut keys = Keys::default();
        keys.check(&3.into()).unwrap();
        keys.check(&Key::from(-1i64)).unwrap();
        assert_eq!(
            keys.check(&"w".into()).unwrap_err().to_string(),
            "key `w` is a text, the keys of this store are a number"
        );
        assert!(Key::from(10) < Key::from("1") && Key::from(2) < Key::from(10));
    }
}
