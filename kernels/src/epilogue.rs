//! Calls of generated code on finished blocks of the output.

use core::mem::MaybeUninit;
use core::ops::Range;

use tensorc_abi::library::{GEMM_BATCH_RANK, epilogue_scalars};
use tensorc_abi::{KernelFn, MAX_SUM_ARGS, SUM_COLS, SUM_ROWS};

use crate::isa_levels::TILE_ROWS;

/// A generated kernel applied in place to each finished block of C, while it is in cache.
///
/// It is called as `f(args, epilogue_scalars(batch, rows, cols).as_ptr())`.
#[derive(Clone, Copy, Debug)]
pub struct EpilogueCall {
    /// The kernel.
    pub f: KernelFn,
    /// The buffers of the kernel.
    pub args: *const *mut u8,
    /// How many buffers there are, at most [`MAX_SUM_ARGS`], if the kernel takes a block of sums before them and makes the
    /// result of that; of sums in i32.
    pub apart: Option<usize>,
}

impl EpilogueCall {
    /// Calls the epilogue, if there is one, on a block.
    ///
    /// # Safety
    /// The arguments fit the code, and the block lies inside the output.
    pub(crate) unsafe fn finish(
        this: Option<Self>,
        batch: [u64; GEMM_BATCH_RANK],
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        if let Some(call) = this {
            let rows = (rows.start as u64, rows.end as u64);
            let scalars = epilogue_scalars(batch, rows, (cols.start as u64, cols.end as u64));
            // SAFETY: by the caller's contract; seven scalars are what an epilogue takes.
            unsafe { (call.f)(call.args, scalars.as_ptr()) };
        }
    }
}

/// Where sums in i32 of a block of C go: into C, or into memory of their own if an epilogue makes C of them.
#[repr(align(64))]
pub(crate) struct SumBlock {
    /// Whole lines of the cache.
    sums: [[MaybeUninit<i32>; Self::COLS]; Self::ROWS],
    epilogue: Option<EpilogueCall>,
    args: [*mut u8; 1 + MAX_SUM_ARGS],
}

impl SumBlock {
    /// Most rows of a block.
    pub const ROWS: usize = 2 * TILE_ROWS;
    /// Most columns of a block.
    pub const COLS: usize = SUM_COLS as usize;

    /// # Safety
    /// The epilogue has as many arguments as it says.
    pub unsafe fn new(epilogue: Option<EpilogueCall>) -> SumBlock {
        let mut args = [core::ptr::null_mut(); 1 + MAX_SUM_ARGS];
        if let Some(call) = &epilogue {
            for (i, to) in args[1..].iter_mut().enumerate().take(call.apart.unwrap_or(0)) {
                // SAFETY: by the caller's contract.
                *to = unsafe { *call.args.add(i) };
            }
        }
        SumBlock { sums: [[MaybeUninit::uninit(); Self::COLS]; Self::ROWS], epilogue, args }
    }

    /// Where the first sum of a block goes that begins at `c`, and the elements from one row to the next.
    pub fn place(&mut self, c: *mut i32, ldc: isize) -> (*mut i32, isize) {
        match self.epilogue {
            Some(EpilogueCall { apart: Some(_), .. }) => (self.sums.as_mut_ptr().cast(), Self::COLS as isize),
            _ => (c, ldc),
        }
    }

    /// Applies the epilogue to a block of at most [`SumBlock::ROWS`] rows whose sums are in their place.
    ///
    /// # Safety
    /// As for [`EpilogueCall::finish`].
    pub unsafe fn finish(&mut self, batch: [u64; GEMM_BATCH_RANK], rows: Range<usize>, cols: Range<usize>) {
        let Some(call) = self.epilogue.filter(|call| call.apart.is_some()) else {
            // SAFETY: passed on from the caller.
            return unsafe { EpilogueCall::finish(self.epilogue, batch, rows, cols) };
        };
        for first in rows.clone().step_by(SUM_ROWS as usize) {
            let part = first..rows.end.min(first + SUM_ROWS as usize);
            self.args[0] = self.sums[first - rows.start..].as_mut_ptr().cast();
            // SAFETY: passed on from the caller; the arguments begin with the sums of the part.
            unsafe {
                EpilogueCall::finish(Some(EpilogueCall { args: self.args.as_ptr(), ..call }), batch, part, cols.clone())
            };
        }
    }
}
