//! Handles of variables and of reusable operators.

use std::sync::Arc;

use super::inbox::Body;
use super::op::Name;
use super::sched::Shared;
use super::state::{Access, AccessKind, VarId};
use crate::device::Device;

/// A token for something that operations read and write. Dropping it deletes the variable after all
/// uses that were pushed before.
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
            self.shared.post(Body::Delete(None), &[Access::new(self.id, AccessKind::Delete)]);
        }
    }
}

impl std::fmt::Debug for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Var({})", self.id.0)
    }
}

/// An operation that can be pushed many times. Dropping it is safe while pushes of it are pending.
pub struct Operator {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u32,
    pub(super) name: Name,
    pub(super) device: Device,
    pub(super) lane: u16,
    pub(super) priority: i32,
    pub(super) staged_bytes: u64,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.shared.post(Body::Retire(self.number), &[]);
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("name", &self.name).field("device", &self.device).finish()
    }
}
