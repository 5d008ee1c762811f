//! Handles of variables and of reusable operators.

use std::sync::Arc;

use super::error::Failure;
use super::inbox::{Body, Job};
use super::op::{Name, RunContext};
use super::sched::Shared;
use super::state::{Access, AccessKind, VarId};
use crate::device::Device;

/// A token for something that operations read and write. Dropping it deletes the variable after all
/// uses that were pushed before.
pub struct Var {
    pub(super) shared: Arc<Shared>,
    pub(super) id: VarId,
    /// Nothing is left to delete.
    pub(super) deleted: bool,
}

impl Drop for Var {
    fn drop(&mut self) {
        if !self.deleted {
            self.shared.post(Body::Delete(None), &[Access { var: self.id, kind: AccessKind::Delete }]);
        }
    }
}

impl std::fmt::Debug for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Var({})", self.id.0)
    }
}

/// The function of a reusable operator.
type Function = dyn Fn(&RunContext<'_>) -> Result<(), Failure> + Send + Sync;

/// Aligned, so that its reference count, which workers write, shares no cache line with what pushing
/// threads read.
#[repr(align(128))]
pub struct OperatorBody {
    pub name: Name,
    pub f: Box<Function>,
}

/// An operation that can be pushed many times. Dropping it is safe while pushes of it are pending.
pub struct Operator {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u32,
    pub(super) accesses: Box<[Access]>,
    pub(super) name: Name,
    pub(super) device: Device,
    pub(super) lane: u16,
    pub(super) priority: i32,
    pub(super) bytes: u64,
    pub(super) staged_bytes: u64,
}

impl Operator {
    pub(super) fn job(&self) -> Job {
        Job {
            body: Body::Operator(self.number),
            name: Name::from_static(""),
            bytes: self.bytes,
            staged_bytes: self.staged_bytes,
            priority: self.priority,
            accesses: self.accesses.len() as u32,
            device: self.device,
            lane: self.lane,
            nested: false,
        }
    }
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
