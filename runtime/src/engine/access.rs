//! What operations do with variables.

/// Number of a variable; numbers of deleted variables are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarId(pub u32);

/// What an operation does with a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Shared with other reads. An operation that reads an error does not run.
    Read,
    /// Pure overwrite: runs whatever the variable held, and success clears an error.
    Write,
    /// Read-modify-write: as a read and a write.
    Update,
    /// Waits for all uses and changes nothing; meets the error of the variable as a read does.
    Barrier,
    /// Ends the variable, with or without an error.
    Delete,
}

impl AccessKind {
    #[inline]
    pub(super) fn exclusive(self) -> bool {
        self != AccessKind::Read
    }

    /// Whether an error of the variable stops the operation.
    #[inline]
    pub(super) fn observes(self) -> bool {
        matches!(self, AccessKind::Read | AccessKind::Update | AccessKind::Barrier)
    }

    /// The one access that stands for two of the same operation to the same variable.
    pub(super) fn join(self, other: AccessKind) -> AccessKind {
        match (self, other) {
            (a, b) if a == b => a,
            (AccessKind::Delete, _) | (_, AccessKind::Delete) => AccessKind::Delete,
            (AccessKind::Barrier, AccessKind::Read) | (AccessKind::Read, AccessKind::Barrier) => AccessKind::Barrier,
            _ => AccessKind::Update,
        }
    }
}

/// One entry of an operation's list of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VarAccess {
    /// The variable.
    pub var: VarId,
    /// What is done with it.
    pub kind: AccessKind,
    /// Streams order it behind such accesses that are issued. The same for all accesses of an operation to a variable.
    pub ahead: bool,
}

impl VarAccess {
    /// One that waits until what is before it is finished.
    pub fn new(var: VarId, kind: AccessKind) -> VarAccess {
        VarAccess { var, kind, ahead: false }
    }
}
