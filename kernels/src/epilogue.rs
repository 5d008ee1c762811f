//! Calls of generated code on finished blocks of the output.

use core::ops::Range;

use tensorc_abi::KernelFn;
use tensorc_abi::library::{GEMM_BATCH_RANK, epilogue_scalars};

/// A generated kernel applied in place to each finished block of C, while it is in cache.
///
/// It is called as `f(args, epilogue_scalars(batch, rows, cols).as_ptr())`.
#[derive(Clone, Copy, Debug)]
pub struct EpilogueCall {
    /// The kernel.
    pub f: KernelFn,
    /// The buffers of the kernel.
    pub args: *const *mut u8,
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
