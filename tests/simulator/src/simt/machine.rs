//! The state of a GPU: the memory of a block and of its threads, barriers, and operations under way.

use std::collections::VecDeque;

use tensorc_ir::kir::GroupMma;
use tensorc_ir::kir::{Buf, Kernel};
use tensorc_ir::scalar::Scalar;

use super::counts::LaunchCounts;
use super::shadow::{Cell, Clocks};
use super::values::ThreadValues;
use crate::simt::shadow::Times;

/// Shared memory of the block at hand.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedArray {
    /// Its first byte among those of the block.
    pub base: u64,
    pub values: Vec<Scalar>,
    pub cells: Vec<Cell>,
    /// Whether a copy that nobody waited for writes an element.
    pub pending: Vec<bool>,
}

/// An array of every thread: the first elements of all, the second ones, …
#[derive(Clone, Debug, Default)]
pub(super) struct Local {
    pub values: Vec<Scalar>,
    pub written: Vec<bool>,
}

/// An asynchronous copy that was begun: the elements of a shared buffer from a position on.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    pub buf: Buf,
    pub first: usize,
    pub len: usize,
}

/// The vector loop being interpreted.
#[derive(Clone, Copy)]
pub(super) struct VectorLoop {
    pub var: u32,
    pub lo: i64,
    pub lanes: i64,
    pub at: i64,
}

pub(super) struct SimtMachine<'a> {
    pub kernel: &'a Kernel,
    pub threads: usize,
    pub vars: Vec<ThreadValues>,
    pub params: &'a mut [Vec<u8>],
    /// Of parameters that are written.
    pub cells: Vec<Vec<Cell>>,
    pub shared: Vec<SharedArray>,
    pub locals: Vec<Local>,
    /// Of each thread: groups of copies that are ended, oldest first, then the open one.
    pub groups: Vec<VecDeque<Vec<Copied>>>,
    /// By buffer.
    pub barriers: Vec<Vec<Phases>>,
    /// Of each group of warps: products under way, oldest first; and how many there are for each array of sums.
    pub products: Vec<VecDeque<PendingProduct>>,
    pub busy: Vec<u32>,
    pub block: u32,
    pub clocks: Clocks,
    pub vector: Option<VectorLoop>,
    pub counts: LaunchCounts,
}

/// A barrier on which warps wait for each other or for the copy engine.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    pub arrivals: u32,
    /// Phases that are over, and arrivals that are due in the current one.
    pub over: i64,
    pub due: u32,
    /// Bytes announced that have not come.
    pub bytes: i64,
    /// What those that arrived in this phase tell, and what those that wait are told.
    pub gathered: Times,
    pub told: Times,
    /// Copies on their way.
    pub coming: Vec<Coming>,
    /// Who initialised it.
    pub begun: Cell,
}

/// What the copy engine writes when it comes to it: values by position.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    pub buf: Buf,
    pub values: Vec<(usize, Scalar)>,
    pub told: Times,
}

/// A product that a group of warps began.
#[derive(Clone, Debug)]
pub(super) struct PendingProduct {
    pub mma: GroupMma,
    /// Positions of the sums and of the tiles.
    pub acc: usize,
    pub a: usize,
    pub b: usize,
}
