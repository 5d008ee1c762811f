//! Calls of the kernel library with their epilogue and prologue resolved.

use std::ops::Range;

use tensorc_abi::{Attention, BatchedGemm, Conv2d, KernelFn};
use tensorc_kernels::{
    EpilogueCall, LeftOperand, PrologueCall, attention_run, attention_scratch, attention_tasks, conv_run, conv_scratch,
    conv_tasks, conv_together, gemm_run, gemm_scratch, gemm_tasks, gemm_together,
};

/// A matrix product, a convolution or attention. Its arguments are the two or three operands, but for a left one that
/// is computed, and the result, followed by those of the epilogue and of the prologue.
pub(super) struct Library {
    pub contraction: Contraction,
    pub epilogue: Option<KernelFn>,
    /// Number of arguments of the epilogue.
    pub args: usize,
    /// What computes the left operand, and the number of its arguments.
    pub prologue: Option<(KernelFn, usize)>,
}

pub(super) enum Contraction {
    Gemm(BatchedGemm),
    Conv(Conv2d),
    Attention(Attention),
}

impl Contraction {
    /// Independent pieces of work, numbered from 0.
    pub fn tasks(&self) -> u64 {
        match self {
            Contraction::Gemm(call) => gemm_tasks(call),
            Contraction::Conv(call) => conv_tasks(call),
            Contraction::Attention(call) => attention_tasks(call),
        }
    }
}

impl Library {
    /// Independent pieces of work, numbered from 0.
    pub fn tasks(&self) -> u64 {
        self.contraction.tasks()
    }

    /// Tasks in turn that share what they compute of the left operand.
    pub fn together(&self) -> u64 {
        match &self.contraction {
            Contraction::Gemm(call) if self.prologue.is_some() => gemm_together(call),
            Contraction::Conv(call) if self.prologue.is_some() => conv_together(call),
            _ => 1,
        }
    }

    /// Bytes of working memory each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        match &self.contraction {
            Contraction::Gemm(call) => gemm_scratch(call, self.prologue.map(|p| p.1)),
            Contraction::Conv(call) => conv_scratch(call, self.prologue.map(|p| p.1)),
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
            Contraction::Gemm(_) | Contraction::Conv(_) => 2 - usize::from(self.prologue.is_some()),
            Contraction::Attention(_) => 3,
        };
        let result = operand(operands);
        let right = operand(operands - 1).cast_const();
        let after = arguments.wrapping_add(operands + 1);
        let epilogue = self.epilogue.map(|f| EpilogueCall { f, args: after });
        let left = match self.prologue {
            None => LeftOperand::Memory(operand(0).cast_const()),
            Some((f, count)) => LeftOperand::Computed(PrologueCall { f, args: after.wrapping_add(self.args), count }),
        };
        match &self.contraction {
            // SAFETY: passed on from the caller.
            Contraction::Gemm(call) => unsafe { gemm_run(call, left, right, result, epilogue, tasks, scratch) },
            // SAFETY: passed on from the caller.
            Contraction::Conv(call) => unsafe { conv_run(call, left, right, result, epilogue, tasks, scratch) },
            Contraction::Attention(call) => {
                let epilogue = epilogue.map(|e| (e, self.args));
                let operands = [0, 1, 2].map(|i| operand(i).cast_const());
                // SAFETY: passed on from the caller.
                unsafe { attention_run(call, operands, result, epilogue, tasks, scratch) }
            }
        }
    }
}
