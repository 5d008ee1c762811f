//! Calls of the kernel library with their epilogue resolved.

use std::ops::Range;

use tensorc_abi::{Attention, BatchedGemm, Conv2d, KernelFn};
use tensorc_kernels::{
    EpilogueCall, attention_run, attention_scratch, attention_tasks, conv_run, conv_scratch, conv_tasks, gemm_run,
    gemm_scratch, gemm_tasks,
};

/// A matrix product, a convolution or attention. Its arguments are the two or three operands and the result,
/// followed by those of the epilogue.
pub(super) struct Library {
    pub contraction: Contraction,
    pub epilogue: Option<KernelFn>,
    /// Number of arguments of the epilogue.
    pub args: usize,
}

pub(super) enum Contraction {
    Gemm(BatchedGemm),
    Conv(Conv2d),
    Attention(Attention),
}

impl Library {
    /// Independent pieces of work, numbered from 0.
    pub fn tasks(&self) -> u64 {
        match &self.contraction {
            Contraction::Gemm(call) => gemm_tasks(call),
            Contraction::Conv(call) => conv_tasks(call),
            Contraction::Attention(call) => attention_tasks(call),
        }
    }

    /// Bytes of working memory each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        match &self.contraction {
            Contraction::Gemm(call) => gemm_scratch(call),
            Contraction::Conv(call) => conv_scratch(call),
            Contraction::Attention(call) => attention_scratch(call, self.args),
        }
    }

    /// Executes some of the tasks.
    ///
    /// # Safety
    /// `arguments` points to the addresses of the step's buffers, as large as the verifier checked
    /// them to be; no other thread executes the same tasks or uses the same scratch memory, which
    /// has [`Library::scratch_bytes`].
    pub unsafe fn run(&self, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
        // SAFETY: the table holds the operands and the result, and the epilogue's arguments after them.
        let operand = |i: usize| unsafe { *arguments.add(i) }.cast::<f32>();
        let operands = match self.contraction {
            Contraction::Gemm(_) | Contraction::Conv(_) => 2,
            Contraction::Attention(_) => 3,
        };
        let [left, right] = [0, 1].map(|i| operand(i).cast_const());
        let result = operand(operands);
        let epilogue = self.epilogue.map(|f| EpilogueCall { f, args: arguments.wrapping_add(operands + 1) });
        match &self.contraction {
            // SAFETY: passed on from the caller.
            Contraction::Gemm(call) => unsafe { gemm_run(call, left, right, result, epilogue, tasks, scratch) },
            // SAFETY: passed on from the caller.
            Contraction::Conv(call) => unsafe { conv_run(call, left, right, result, epilogue, tasks, scratch) },
            Contraction::Attention(call) => {
                let epilogue = epilogue.map(|e| (e, self.args));
                let operands = [left, right, operand(2).cast_const()];
                // SAFETY: passed on from the caller.
                unsafe { attention_run(call, operands, result, epilogue, tasks, scratch) }
            }
        }
    }
}
