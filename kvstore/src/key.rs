//! Names of values: numbers or texts, of one kind in each store.

use std::sync::Arc;

use derive_more::{Display, From};

/// The name of a value. Numbers come before texts, and are ordered by size.
#[derive(Clone, Debug, Display, From, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A number.
    #[from(i32, i64)]
    Int(i64),
    /// A text.
    #[from(&str, String)]
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
