//! Handles of variables.

use std::sync::Arc;

use super::inbox::OpBody;
use super::sched::Shared;
use super::state::{AccessKind, VarAccess, VarId};

/// A token for something that operations read and write. Dropping it deletes the variable after all
/// uses that were pushed before.
#[derive(derive_more::Debug)]
#[debug("Var({})", id.0)]
pub struct Var {
    pub(super) shared: Arc<Shared>,
    pub(super) id: VarId,
    /// See [`super::Engine::new_stream_var`].
    pub(super) on_streams: bool,
    /// Nothing is left to delete.
    pub(super) deleted: bool,
}

impl Drop for Var {
    fn drop(&mut self) {
        if !self.deleted {
            self.shared.post(OpBody::Delete(None), &[VarAccess::new(self.id, AccessKind::Delete)]);
        }
    }
}
