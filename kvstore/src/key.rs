//! Names of values: numbers or texts, of one kind in each store.

use std::fmt;
use std::sync::Arc;

use crate::error::KvError;

/// The name of a value. Numbers come before texts, and are ordered by size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Int(i64),
    Str(Arc<str>),
}

impl Key {
    fn kind(&self) -> &'static str {
        match self {
            Key::Int(_) => "a number",
            Key::Str(_) => "a text",
        }
    }
}

impl From<i64> for Key {
    fn from(key: i64) -> Key {
        Key::Int(key)
    }
}

impl From<i32> for Key {
    fn from(key: i32) -> Key {
        Key::Int(key.into())
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Key {
        Key::Str(key.into())
    }
}

impl From<String> for Key {
    fn from(key: String) -> Key {
        Key::Str(key.into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Int(key) => key.fmt(f),
            Key::Str(key) => f.write_str(key),
        }
    }
}

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
