//! Calls of the kernel library with their epilogue resolved.

use std::ops::Range;

use tensorc_abi::{BatchedGemm, Conv2d, KernelFn};
use tensorc_kernels::{EpilogueCall, conv_run, conv_scratch, conv_tasks, gemm_run, gemm_scratch, gemm_tasks};

/// A matrix product or convolution. Its arguments are the two operands and the result, followed by
/// those of the epilogue.
pub(super) struct Library {
    pub contraction: Contraction,
    pub epilogue: Option<KernelFn>,
}

pub(super) enum Contraction {
    Gemm(BatchedGemm),
    Conv(Conv2d),
}

impl Library {
    const OPERANDS: usize = 3;

    /// Independent pieces of work, numbered from 0.
    pub fn tasks(&self) -> u64 {
        match &self.contraction {
            Contraction::Gemm(call) => gemm_tasks(call),
            Contraction::Conv(call) => conv_tasks(call),
        }
    }

    /// Bytes of working memory each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        match &self.contraction {
            Contraction::Gemm(call) => gemm_scratch(call),
            Contraction::Conv(call) => conv_scratch(call),
        }
    }

    /// Executes some of the tasks.
    ///
    /// # Safety
    /// `arguments` points to the addresses of the step's buffers, as large as the verifier checked
    /// them to be; no other thread executes the same tasks or uses the same scratch memory, which
    /// has [`Library::scratch_bytes`].
    pub unsafe fn run(&self, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
        // SAFETY: the table holds the operands, and the epilogue's arguments after them.
        let ([left, right, result], rest) =
            unsafe { (*arguments.cast::<[*mut u8; Self::OPERANDS]>(), arguments.add(Self::OPERANDS)) };
        let (left, right, result) = (left.cast::<f32>().cast_const(), right.cast::<f32>().cast_const(), result.cast());
        let epilogue = self.epilogue.map(|f| EpilogueCall { f, args: rest });
        match &self.contraction {
            // SAFETY: passed on from the caller.
            Contraction::Gemm(call) => unsafe { gemm_run(call, left, right, result, epilogue, tasks, scratch) },
            // SAFETY: passed on from the caller.
            Contraction::Conv(call) => unsafe { conv_run(call, left, right, result, epilogue, tasks, scratch) },
        }
    }
}
