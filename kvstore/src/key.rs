//! Names of values: numbers or texts, of one kind in each store.

use std::fmt;
use std::sync::Arc;

/// The name of a value. Numbers come before texts, and are ordered by size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A number.
    Int(i64),
    /// A text.
    Str(Arc<str>),
}

impl Key {
    pub(crate) fn kind(&self) -> &'static str {
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
