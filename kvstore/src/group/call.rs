//! What a rank asks of the others: the description that all of them must agree on.

use std::fmt;

use tensorc_runtime::DType;

/// The kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Element-wise sum over all leaves of all ranks, in the order of [`crate::tree`].
    Sum,
    /// Every rank gets the bytes of every rank.
    Gather,
    /// Every rank gets the bytes of one.
    Broadcast {
        /// The rank whose data all get.
        root: u32,
    },
    /// Nothing but waiting for each other.
    Barrier,
}

/// A collective that every rank takes part in, at the same place of its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveCall {
    /// What the ranks do.
    pub kind: CallKind,
    /// What it is for; the name of an array, for example.
    pub key: String,
    /// The element type of the data.
    pub dtype: DType,
    /// Elements of each contribution; 0 where contributions have sizes of their own.
    pub count: u64,
    /// Leaves of the summation tree that each rank holds; 0 unless it is a sum.
    pub leaves: u32,
}

impl CollectiveCall {
    /// A sum of arrays of `count` elements, of which each rank has `leaves`.
    pub fn sum(key: impl Into<String>, dtype: DType, count: u64, leaves: u32) -> CollectiveCall {
        CollectiveCall { kind: CallKind::Sum, key: key.into(), dtype, count, leaves }
    }

    /// A gathering of bytes, of which every rank gives any number.
    pub fn gather(key: impl Into<String>) -> CollectiveCall {
        CollectiveCall { kind: CallKind::Gather, key: key.into(), dtype: DType::U8, count: 0, leaves: 0 }
    }

    /// A copy of the array of rank `root`, of `count` elements.
    pub fn broadcast(key: impl Into<String>, root: u32, dtype: DType, count: u64) -> CollectiveCall {
        CollectiveCall { kind: CallKind::Broadcast { root }, key: key.into(), dtype, count, leaves: 0 }
    }

    /// A point that no rank passes before all have reached it.
    pub fn barrier(key: impl Into<String>) -> CollectiveCall {
        CollectiveCall { kind: CallKind::Barrier, key: key.into(), dtype: DType::U8, count: 0, leaves: 0 }
    }

    /// Bytes of one contribution.
    pub fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size() as u64)
    }
}

impl fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CollectiveCall { kind, key, dtype, count, leaves } = self;
        match kind {
            CallKind::Sum => write!(f, "sum of `{key}` ({dtype} × {count}, {leaves} a rank)"),
            CallKind::Gather => write!(f, "gather of `{key}`"),
            CallKind::Broadcast { root } => write!(f, "broadcast of `{key}` ({dtype} × {count}) from rank {root}"),
            CallKind::Barrier => write!(f, "barrier `{key}`"),
        }
    }
}
