//! Library kernels as artifacts link them: a model names those it needs, and the linker drops the rest.

use core::ops::Range;

use tensorc_abi::{Attention, BatchedGemm, Conv2d, KernelFn};
use tensorc_kernels::{
    ConvWay, EpilogueCall, attention_run, attention_scratch, conv_run_by, conv_scratch_by, gemm_run, gemm_scratch,
};

/// A call of a library kernel: its parameters as words of the image, its epilogue with the number of its arguments.
#[derive(Clone, Copy)]
pub struct Call {
    pub words: &'static [u64],
    pub epilogue: Option<KernelFn>,
    pub args: usize,
}

/// A kind of library kernel.
pub struct Library {
    /// Bytes of working memory for each thread; `None` if the words are no call.
    pub scratch: fn(&Call) -> Option<usize>,
    /// Executes some of the tasks of a call that has scratch memory. The arguments are operands and result, then
    /// those of the epilogue.
    ///
    /// Safety: they address memory as large as the call says, nobody else executes the same tasks, and
    /// the scratch memory has the size that `scratch` gives.
    pub run: unsafe fn(&Call, *const *mut u8, Range<u64>, *mut u8),
}

// SAFETY: functions only.
unsafe impl Sync for Library {}

#[unsafe(no_mangle)]
pub static tc_rt_gemm: Library = Library { scratch: |call| gemm(call).map(|c| gemm_scratch(&c)), run: run_gemm };

#[unsafe(no_mangle)]
pub static tc_rt_attention: Library =
    Library { scratch: |call| attention(call).map(|c| attention_scratch(&c, call.args)), run: run_attention };

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

unsafe fn run_gemm(call: &Call, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Some(gemm) = gemm(call) else { return };
    // SAFETY: the table holds two operands and the result; the rest is the caller's promise.
    unsafe {
        let [a, b, c] = [0, 1, 2].map(|i| operand(arguments, i));
        gemm_run(&gemm, a, b, c, epilogue(call, arguments, 2), tasks, scratch);
    }
}

/// Defines the library kernels of convolutions, each for the calls that are computed in one way.
macro_rules! convolutions {
    ($($name:ident = $way:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub static $name: Library = Library {
                scratch: |call| conv(call).map(|c| conv_scratch_by(ConvWay::$way, &c)),
                run: {
                    unsafe fn run(call: &Call, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
                        let Some(conv) = conv(call) else { return };
                        let epilogue = epilogue(call, arguments, 2);
                        // SAFETY: the table holds two operands and the result; the rest is the caller's promise.
                        unsafe {
                            let [a, b, c] = [0, 1, 2].map(|i| operand(arguments, i));
                            conv_run_by(ConvWay::$way, &conv, a, b, c, epilogue, tasks, scratch);
                        }
                    }
                    run
                },
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
