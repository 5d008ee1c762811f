//! Left operands that are in no memory: generated code computes blocks of them where a kernel needs them.

use core::ops::Range;

use tensorc_abi::KernelFn;
use tensorc_abi::library::{GEMM_BATCH_RANK, epilogue_scalars};

use crate::isa_levels::LANES;

/// A generated kernel that computes blocks of a left operand ([`tensorc_abi::Prologue`]).
#[derive(Clone, Copy, Debug)]
pub struct PrologueCall {
    /// The kernel.
    pub f: KernelFn,
    /// The kernel's arguments but for the first, which is memory of the library's.
    pub args: *const *mut u8,
    /// Number of `args`.
    pub count: usize,
}

/// Where a library kernel finds its left operand.
#[derive(Clone, Copy, Debug)]
pub enum LeftOperand {
    /// A matrix in memory.
    Memory(*const f32),
    /// A kernel that computes panels of the matrix.
    Computed(PrologueCall),
}

impl From<*const f32> for LeftOperand {
    fn from(address: *const f32) -> LeftOperand {
        LeftOperand::Memory(address)
    }
}

/// Tasks of a chunk of a call whose tasks share what is made of its left operand, where another call would get `grain`: whole
/// runs of tasks that share it, unless that leaves threads without a chunk.
pub fn affinity_grain(grain: u64, affinity: u64, tasks: u64, threads: u64) -> u64 {
    grain.next_multiple_of(affinity.max(1)).min(tasks.div_ceil(threads.max(1))).max(grain)
}

/// Bytes of scratch for a table of arguments, the first of which changes from block to block.
pub(crate) fn table_bytes(args: usize) -> usize {
    (1 + args).next_multiple_of(LANES) * size_of::<*mut u8>()
}

impl LeftOperand {
    /// The operand's address, or what computes it; and the scratch that is left.
    ///
    /// # Safety
    /// `scratch` has [`table_bytes`] if the operand is computed, and the call's arguments exist.
    pub(crate) unsafe fn bind(self, scratch: *mut u8) -> (*const f32, Option<Computed>, *mut f32) {
        match self {
            LeftOperand::Memory(address) => (address, None, scratch.cast()),
            LeftOperand::Computed(PrologueCall { f, args, count }) => {
                let table: *mut *mut u8 = scratch.cast();
                // SAFETY: the table has room for them behind its first entry.
                unsafe { core::ptr::copy_nonoverlapping(args, table.wrapping_add(1), count) };
                let rest = scratch.wrapping_add(table_bytes(count)).cast();
                (core::ptr::null(), Some(Computed { f, table }), rest)
            }
        }
    }
}

/// A computed operand in one thread.
#[derive(Clone, Copy)]
pub(crate) struct Computed {
    f: KernelFn,
    table: *mut *mut u8,
}

impl Computed {
    /// Writes a block of the operand: element (i, j), of matrices whose rows are `ld` apart, goes to
    /// `to[(i - rows.start)·ld + j - cols.start]`.
    ///
    /// # Safety
    /// The block is one of the operand's, and `to` has room for it.
    pub(crate) unsafe fn block(
        self,
        batch: [u64; GEMM_BATCH_RANK],
        rows: Range<usize>,
        cols: Range<usize>,
        ld: usize,
        to: *mut f32,
    ) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let scalars =
            epilogue_scalars(batch, (rows.start as u64, rows.end as u64), (cols.start as u64, cols.end as u64));
        // SAFETY: the table is this thread's. The kernel writes element (i, j) at i·ld + j, which for those of the block
        // is in `to`.
        unsafe {
            *self.table = to.wrapping_sub(rows.start * ld + cols.start).cast();
            (self.f)(self.table, scalars.as_ptr());
        }
    }
}
