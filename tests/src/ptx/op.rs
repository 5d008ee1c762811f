//! Instructions as they are executed. Registers, constants and special registers are all *slots* of a thread.

use super::alu::{F1, F2, F3, Try2};
use super::convert::Conversion;

pub(super) type Slot = u32;

/// Where memory is (PTX ISA, "State spaces").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// An address: what a slot holds, and a distance from there.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub base: Slot,
    pub offset: i64,
}

/// Some of the slots in [`Program::lists`].
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub first: u32,
    pub count: u32,
}

/// Elements that one instruction moves between memory and registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub space: Space,
    pub at: At,
    /// Bytes of an element.
    pub bytes: u8,
    /// Whether loaded elements that are shorter than registers are extended by their sign.
    pub signed: bool,
    /// Bits of each register.
    pub bits: u8,
    /// A load past the nearest cache, of what nothing may write.
    pub constant: bool,
    pub registers: List,
}

/// What an atomic operation makes of memory and its operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Update {
    Function(F2),
    Exchange,
    /// The new value, where memory holds the operand.
    CompareExchange(Slot),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    F16,
    BF16,
    TF32,
}

impl Factor {
    /// Bytes of an element in memory.
    pub fn bytes(self) -> usize {
        if self == Factor::TF32 { 4 } else { 2 }
    }

    /// Terms of an instruction of a group of warps: 32 bytes.
    pub fn group_terms(self) -> usize {
        32 / self.bytes()
    }
}

/// A product of matrices by a warp, 16 rows and 8 columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct WarpProduct {
    pub factor: Factor,
    pub terms: usize,
    /// Registers of the result, both operands and the sum, one behind the other.
    pub registers: List,
}

/// A product of tiles in shared memory by a group of warps, 64 rows and 16 terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupProduct {
    pub factor: Factor,
    pub columns: usize,
    pub sums: List,
    pub a: Slot,
    pub b: Slot,
    /// Whether sums are added to.
    pub adds: Slot,
    /// Whether the operands are negated, and whether their rows are terms.
    pub negated: [bool; 2],
    pub transposed: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceKind {
    /// Orders accesses of threads.
    Threads,
    /// Orders accesses of threads with those of the copy engine and of matrix units.
    Proxy,
    /// Shows barriers that were set up to the copy engine.
    BarrierInit,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    One {
        f: F1,
        to: Slot,
        a: Slot,
    },
    Two {
        f: F2,
        to: Slot,
        a: Slot,
        b: Slot,
    },
    Partial {
        f: Try2,
        to: Slot,
        a: Slot,
        b: Slot,
    },
    Three {
        f: F3,
        to: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    OneHalves {
        f: F1,
        to: Slot,
        a: Slot,
    },
    TwoHalves {
        f: F2,
        to: Slot,
        a: Slot,
        b: Slot,
    },
    ThreeHalves {
        f: F3,
        to: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Insert {
        bits: u32,
        to: Slot,
        args: List,
    },
    Table {
        table: u8,
        to: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Convert {
        conversion: Conversion,
        bits: u32,
        to: Slot,
        a: Slot,
    },
    Pack {
        conversion: Conversion,
        to: Slot,
        a: Slot,
        b: Slot,
    },
    Move {
        to: Slot,
        a: Slot,
    },
    /// Registers of so many bits side by side in one, the first lowest.
    Join {
        to: Slot,
        parts: List,
        bits: u32,
    },
    Split {
        parts: List,
        a: Slot,
        bits: u32,
    },
    Branch {
        to: u32,
    },
    Exit,
    Load(Access),
    Store(Access),
    Atomic {
        space: Space,
        at: At,
        bytes: u8,
        update: Update,
        operand: Slot,
        to: Slot,
    },
    Fence(FenceKind),
    /// The threads of a block, or so many, wait for each other; or they only say that they have come.
    Barrier {
        number: Slot,
        count: Option<Slot>,
        waits: bool,
        aligned: bool,
    },
    WarpBarrier {
        members: Slot,
    },
    Shuffle {
        direction: Direction,
        to: Slot,
        inside: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        members: Slot,
    },
    Vote {
        vote: Vote,
        to: Slot,
        a: Slot,
        members: Slot,
    },
    Elect {
        leader: Slot,
        is_leader: Slot,
        members: Slot,
    },
    LoadMatrix {
        at: At,
        registers: List,
        transposed: bool,
    },
    Mma(WarpProduct),
    CopyAsync {
        to: At,
        from: At,
        bytes: u8,
        size: Option<Slot>,
    },
    CommitCopies,
    AwaitCopies {
        pending: u32,
    },
    PhaseInit {
        at: At,
        count: Slot,
    },
    PhaseInvalidate {
        at: At,
    },
    /// Announces bytes, and arrives so many times.
    PhaseArrive {
        at: At,
        bytes: Slot,
        count: Slot,
    },
    PhaseTest {
        at: At,
        parity: Slot,
        done: Slot,
        waits: bool,
    },
    CopyTile {
        to: At,
        map: At,
        coordinates: List,
        barrier: At,
    },
    GroupFence,
    GroupMma(GroupProduct),
    GroupCommit,
    GroupWait {
        pending: u32,
    },
    /// Registers go from one group of warps to another.
    Registers,
}

impl Op {
    /// Whether the threads of a warp do it together.
    pub fn is_collective(&self) -> bool {
        use Op::*;
        matches!(self, WarpBarrier { .. } | Shuffle { .. } | Vote { .. } | Elect { .. } | LoadMatrix { .. } | Mma(_))
            || matches!(self, GroupFence | GroupMma(_) | GroupCommit | GroupWait { .. } | Registers)
    }
}

/// An instruction with its guard: a predicate, and whether it is executed where that does not hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub op: Op,
    pub guard: Option<(Slot, bool)>,
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
    Warp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    Register { bits: u32 },
    Constant(u64),
    Special(Special),
}

/// A parameter: its place among the bytes of all.
#[derive(Clone, Debug)]
pub(super) struct Param {
    pub offset: u64,
    pub bytes: u64,
    pub align: u64,
}

/// An entry, decoded.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub params: Vec<Param>,
    pub slots: Vec<SlotKind>,
    pub lists: Vec<Slot>,
    pub steps: Vec<Step>,
    /// The slots that a step names, by step.
    pub uses: Vec<List>,
    /// Where dynamic shared memory begins, behind the rest.
    pub shared: u64,
    pub local: u64,
    /// Bytes of the smallest element accessed, in shared and in global memory: accesses are remembered so finely.
    pub granules: [usize; 2],
    /// Most threads of a block.
    pub threads: Option<u64>,
}

impl Program {
    pub fn list(&self, list: List) -> &[Slot] {
        &self.lists[list.first as usize..(list.first + list.count) as usize]
    }
}
