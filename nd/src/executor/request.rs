//! What happens to the gradients of the arguments of a symbol.

use std::collections::BTreeMap;

use crate::grad_req::GradReq;

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
