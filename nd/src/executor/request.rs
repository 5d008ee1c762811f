//! What happens to the gradient of an argument.

use std::collections::BTreeMap;

/// What a backward pass does with the gradient of one argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradReq {
    /// It is not computed, and there is no array for it.
    Null,
    /// It overwrites the gradient array.
    #[default]
    Write,
    /// It is added to what the gradient array holds, over any number of backward passes.
    Add,
}

/// Requests for all arguments of a symbol.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    pub default: GradReq,
    pub by_name: BTreeMap<String, GradReq>,
}

impl Requests {
    pub fn of(&self, name: &str) -> GradReq {
        self.by_name.get(name).copied().unwrap_or(self.default)
    }
}
