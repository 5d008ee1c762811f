//! What the verifier of kernels knows at a statement.

use crate::extent::Extent;
use crate::index::Interval;
use crate::kir::{Kernel, LoopKind, Var};

/// An interval that says nothing.
pub(super) const UNKNOWN: Interval = (Extent::of(i64::MIN / 4), Extent::of(i64::MAX / 4));

/// What is known of a visible variable.
#[derive(Clone, Copy)]
pub(super) struct KnownVar {
    pub range: Interval,
    /// The loop that binds it, if one does.
    pub kind: Option<LoopKind>,
    /// Among which threads it may differ.
    pub spread: Spread,
}

impl KnownVar {
    /// Of a value that is not followed.
    pub fn plain(spread: Spread) -> KnownVar {
        KnownVar { range: UNKNOWN, kind: None, spread }
    }
}

pub(super) struct Verifier<'k> {
    pub k: &'k Kernel,
    /// Visible variables.
    pub vars: Vec<Option<KnownVar>>,
    pub bound: Vec<bool>,
    /// Visible buffers.
    pub buffers: Vec<bool>,
    pub allocated: Vec<bool>,
    /// The variable of the enclosing vector loop.
    pub vector: Option<Var>,
    /// Whether the statement at hand is executed whenever the kernel is.
    pub certain: bool,
    pub level: LaunchLevel,
    /// Among which threads it may differ whether the statement at hand is executed.
    pub control: Spread,
}

pub(super) type KernelCheck<T = ()> = std::result::Result<T, String>;

/// Which loop of a launch a statement stands in directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchLevel {
    /// None: the kernel is not for a GPU.
    Host,
    Grid,
    Threads,
    /// What some warps do for themselves.
    Role,
}

/// Among which threads of a block a value may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spread {
    /// It is one for the block.
    Block,
    /// It is one for each group of warps.
    Group,
    /// It is one for each warp.
    Warp,
    Thread,
}
