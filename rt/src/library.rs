//! Library kernels as artifacts link them: a model names those it needs, and the linker drops the rest.

use core::ops::Range;

use tensorc_abi::{Attention, BatchedGemm, Conv2d, KernelFn};
use tensorc_kernels::{
    ConvWay, EpilogueCall, LeftOperand, PrologueCall, attention_run, attention_scratch, conv_run_by, conv_scratch_by,
    conv_together_by, gemm_run, gemm_scratch, gemm_together,
};

/// A call of a library kernel: its parameters as words of the image, its epilogue and its prologue with the numbers of
/// their arguments.
#[derive(Clone, Copy)]
pub struct Call {
    pub words: &'static [u64],
    pub epilogue: Option<KernelFn>,
    pub args: usize,
    /// What computes the left operand, if that has no memory.
    pub prologue: Option<(KernelFn, usize)>,
}

impl Call {
    /// Arguments of the prologue.
    fn computed_from(&self) -> Option<usize> {
        self.prologue.map(|(_, count)| count)
    }
}

/// A kind of library kernel.
pub struct Library {
    /// Bytes of working memory for each thread; `None` if the words are no call.
    pub scratch: fn(&Call) -> Option<usize>,
    /// Executes some of the tasks of a call that has scratch memory. The arguments are operands and result, then
    /// those of the epilogue and of the prologue.
    ///
    /// Safety: they address memory as large as the call says, nobody else executes the same tasks, and
    /// the scratch memory has the size that `scratch` gives.
    pub run: unsafe fn(&Call, *const *mut u8, Range<u64>, *mut u8),
    /// Tasks in turn that share what they compute of the left operand.
    pub together: fn(&Call) -> u64,
}

// SAFETY: functions only.
unsafe impl Sync for Library {}

#[unsafe(no_mangle)]
pub static tc_rt_gemm: Library = Library {
    scratch: |call| gemm(call).map(|c| gemm_scratch(&c, call.computed_from())),
    run: run_gemm,
    together: |call| gemm(call).map_or(1, |c| gemm_together(&c)),
};

#[unsafe(no_mangle)]
pub static tc_rt_attention: Library = Library {
    scratch: |call| attention(call).map(|c| attention_scratch(&c, call.args)),
    run: run_attention,
    together: |_| 1,
};

fn gemm(call: &Call) -> Option<BatchedGemm> {
    call.words.first_chunk().map(BatchedGemm::from_words)
}

fn conv(call: &Call) -> Option<Conv2d> {
    call.words.first_chunk().and_then(Conv2d::from_words)
}

fn attention(call: &Call) -> Option<Attention> {
    call.words.first_chunk().map(Attention::from_words)
}

/// An operand or the result.
///
/// # Safety
/// The table has so many entries.
unsafe fn operand(arguments: *const *mut u8, i: usize) -> *mut f32 {
    // SAFETY: by the caller's contract.
    unsafe { *arguments.add(i) }.cast()
}

fn epilogue(call: &Call, arguments: *const *mut u8, result: usize) -> Option<EpilogueCall> {
    call.epilogue.map(|f| EpilogueCall { f, args: arguments.wrapping_add(result + 1) })
}

/// The operands of a product or convolution, the result and the epilogue.
///
/// # Safety
/// The table holds the operands that are in memory, the result, and the arguments of epilogue and prologue.
unsafe fn operands(
    call: &Call,
    arguments: *const *mut u8,
) -> (LeftOperand, *const f32, *mut f32, Option<EpilogueCall>) {
    let stored = if call.prologue.is_some() { 1 } else { 2 };
    // SAFETY: by the caller's contract.
    let [left, right, result] = [0, stored - 1, stored].map(|i| unsafe { operand(arguments, i) });
    let left = match call.prologue {
        None => LeftOperand::Memory(left),
        Some((f, count)) => {
            LeftOperand::Computed(PrologueCall { f, args: arguments.wrapping_add(stored + 1 + call.args), count })
        }
    };
    (left, right, result, epilogue(call, arguments, stored))
}

unsafe fn run_gemm(call: &Call, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Some(gemm) = gemm(call) else { return };
    // SAFETY: passed on from the caller.
    unsafe {
        let (a, b, c, epilogue) = operands(call, arguments);
        gemm_run(&gemm, a, b, c, epilogue, tasks, scratch);
    }
}

/// Defines the library kernels of convolutions, each for the calls that are computed in one way.
macro_rules! convolutions {
    ($($name:ident = $way:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub static $name: Library = Library {
                scratch: |call| conv(call).map(|c| conv_scratch_by(ConvWay::$way, &c, call.computed_from())),
                run: {
                    unsafe fn run(call: &Call, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
                        let Some(conv) = conv(call) else { return };
                        // SAFETY: passed on from the caller.
                        unsafe {
                            let (a, b, c, epilogue) = operands(call, arguments);
                            conv_run_by(ConvWay::$way, &conv, a, b, c, epilogue, tasks, scratch);
                        }
                    }
                    run
                },
                together: |call| conv(call).map_or(1, |c| conv_together_by(ConvWay::$way, &c)),
            };
        )*
    };
}

convolutions! {
    tc_rt_conv_windows = Windows;
    tc_rt_conv_planar = Planar;
    tc_rt_conv_correlate = Correlate;
    tc_rt_conv_blocked = Blocked;
    tc_rt_conv_blocked_depthwise = BlockedDepthwise;
    tc_rt_conv_winograd = Winograd;
}

unsafe fn run_attention(call: &Call, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Some(attention) = attention(call) else { return };
    // SAFETY: the table holds three operands and the result; the rest is the caller's promise.
    unsafe {
        let [q, k, v, out] = [0, 1, 2, 3].map(|i| operand(arguments, i));
        let epilogue = epilogue(call, arguments, 3).map(|e| (e, call.args));
        attention_run(&attention, [q, k, v], out, epilogue, tasks, scratch);
    }
}
