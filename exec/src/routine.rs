//! Library kernels, one by one: a program that names those it needs links no others.

use core::ops::Range;

use tensorc_abi::image::LIBRARIES;
use tensorc_abi::{Attention, BatchedGemm, Contraction, Conv2d, ConvVariant};
use tensorc_kernels::{
    EpilogueCall, LeftOperand, PrologueCall, attention_run, attention_scratch, attention_tasks, conv_affinity_by,
    conv_run_by, conv_scratch_by, conv_tasks_by, double_run, double_scratch, double_tasks, gemm_affinity, gemm_run,
    gemm_scratch, gemm_tasks, integer_run, integer_scratch, integer_tasks, quantised_run, quantised_scratch,
    quantised_tasks, rounded_affinity, rounded_run, rounded_scratch, rounded_tasks,
};

use crate::step::{LibraryCall, Routine};

/// Matrix products, of [`BatchedGemm`].
pub const GEMM: Routine = Routine {
    read: |words| words.first_chunk().map(|words| Contraction::Gemm(BatchedGemm::from_words(words))),
    tasks: |call| if let Contraction::Gemm(c) = call { gemm_tasks(c) } else { 0 },
    scratch: |call, _, prologue| if let Contraction::Gemm(c) = call { gemm_scratch(c, prologue) } else { 0 },
    affinity: |call, computed| match call {
        Contraction::Gemm(c) if computed => gemm_affinity(c),
        _ => 1,
    },
    run: run_gemm,
};

/// Products of f64, of [`BatchedGemm`].
pub const GEMM_F64: Routine = Routine {
    tasks: |call| if let Contraction::Gemm(c) = call { double_tasks(c) } else { 0 },
    scratch: |call, _, _| if let Contraction::Gemm(c) = call { double_scratch(c) } else { 0 },
    affinity: |_, _| 1,
    run: run_gemm_f64,
    ..GEMM
};

/// Products of bytes, of [`BatchedGemm`].
pub const GEMM_BYTES: Routine = Routine {
    tasks: |call| if let Contraction::Gemm(c) = call { integer_tasks(c) } else { 0 },
    scratch: |call, _, _| if let Contraction::Gemm(c) = call { integer_scratch(c) } else { 0 },
    affinity: |_, _| 1,
    run: run_gemm_bytes,
    ..GEMM
};

/// Products with blocked weights, of [`BatchedGemm`].
pub const GEMM_BLOCKED: Routine = Routine {
    tasks: |call| if let Contraction::Gemm(c) = call { quantised_tasks(c) } else { 0 },
    scratch: |call, _, _| if let Contraction::Gemm(c) = call { quantised_scratch(c) } else { 0 },
    affinity: |_, _| 1,
    run: run_gemm_blocked,
    ..GEMM
};

/// Products of operands that are rounded to bf16, of [`BatchedGemm`].
pub const GEMM_BF16: Routine = Routine {
    tasks: |call| if let Contraction::Gemm(c) = call { rounded_tasks(c) } else { 0 },
    scratch: |call, _, _| if let Contraction::Gemm(c) = call { rounded_scratch(c) } else { 0 },
    affinity: |call, computed| match call {
        Contraction::Gemm(c) if computed => rounded_affinity(c),
        _ => 1,
    },
    run: run_gemm_bf16,
    ..GEMM
};

/// Attention, of [`Attention`].
pub const ATTENTION: Routine = Routine {
    read: |words| words.first_chunk().map(|words| Contraction::Attention(Attention::from_words(words))),
    tasks: |call| if let Contraction::Attention(c) = call { attention_tasks(c) } else { 0 },
    scratch: |call, args, _| if let Contraction::Attention(c) = call { attention_scratch(c, args) } else { 0 },
    affinity: |_, _| 1,
    run: run_attention::<false>,
};

/// Attention of operands that are rounded to bf16, of [`Attention`].
pub const ATTENTION_BF16: Routine = Routine { run: run_attention::<true>, ..ATTENTION };

/// The library kernel of the convolutions that are computed in one way.
macro_rules! convolution {
    ($way:ident) => {
        Routine {
            read: |words| words.first_chunk().and_then(Conv2d::from_words).map(Contraction::Conv),
            tasks: |call| if let Contraction::Conv(c) = call { conv_tasks_by(ConvVariant::$way, c) } else { 0 },
            scratch: |call, _, prologue| match call {
                Contraction::Conv(c) => conv_scratch_by(ConvVariant::$way, c, prologue),
                _ => 0,
            },
            affinity: |call, computed| match call {
                Contraction::Conv(c) => conv_affinity_by(ConvVariant::$way, c, computed),
                _ => 1,
            },
            run: {
                unsafe fn run(call: &LibraryCall, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
                    let Contraction::Conv(conv) = &call.contraction else { return };
                    // SAFETY: passed on from the caller.
                    unsafe {
                        let (a, b, c, epilogue) = operands(call, arguments);
                        conv_run_by(ConvVariant::$way, conv, a, b, c, epilogue, tasks, scratch);
                    }
                }
                run
            },
        }
    };
}

/// Convolutions by [`ConvVariant::Windows`].
pub const CONV_WINDOWS: Routine = convolution!(Windows);
/// Convolutions by [`ConvVariant::Planar`].
pub const CONV_PLANAR: Routine = convolution!(Planar);
/// Convolutions by [`ConvVariant::Correlate`].
pub const CONV_CORRELATE: Routine = convolution!(Correlate);
/// Convolutions by [`ConvVariant::Blocked`].
pub const CONV_BLOCKED: Routine = convolution!(Blocked);
/// Convolutions by [`ConvVariant::BlockedDepthwise`].
pub const CONV_BLOCKED_DEPTHWISE: Routine = convolution!(BlockedDepthwise);
/// Convolutions by [`ConvVariant::Winograd`].
pub const CONV_WINOGRAD: Routine = convolution!(Winograd);
/// Convolutions by [`ConvVariant::Grouped`].
pub const CONV_GROUPED: Routine = convolution!(Grouped);
/// Convolutions by [`ConvVariant::Rows`].
pub const CONV_ROWS: Routine = convolution!(Rows);
/// Convolutions by [`ConvVariant::Rounded`].
pub const CONV_BF16: Routine = convolution!(Rounded);

/// Convolutions by [`ConvVariant::Bytes`].
pub const CONV_BYTES: Routine = convolution!(Bytes);

/// Hands a macro the symbols and names of all routines, in the order of [`LIBRARIES`].
#[macro_export]
macro_rules! library_routines {
    ($consumer:ident) => {
        $consumer! {
            tc_rt_gemm = GEMM;
            tc_rt_attention = ATTENTION;
            tc_rt_conv_windows = CONV_WINDOWS;
            tc_rt_conv_planar = CONV_PLANAR;
            tc_rt_conv_correlate = CONV_CORRELATE;
            tc_rt_conv_blocked = CONV_BLOCKED;
            tc_rt_conv_blocked_depthwise = CONV_BLOCKED_DEPTHWISE;
            tc_rt_conv_winograd = CONV_WINOGRAD;
            tc_rt_conv_grouped = CONV_GROUPED;
            tc_rt_gemm_f64 = GEMM_F64;
            tc_rt_conv_rows = CONV_ROWS;
            tc_rt_gemm_bytes = GEMM_BYTES;
            tc_rt_gemm_blocked = GEMM_BLOCKED;
            tc_rt_gemm_bf16 = GEMM_BF16;
            tc_rt_conv_bf16 = CONV_BF16;
            tc_rt_attention_bf16 = ATTENTION_BF16;
            tc_rt_conv_bytes = CONV_BYTES;
        }
    };
}

macro_rules! all {
    ($($symbol:ident = $routine:ident;)*) => {
        /// All of them. Whoever names this links all.
        pub static ALL: [Routine; LIBRARIES.len()] = [$($routine),*];

        #[cfg(test)]
        const SYMBOLS: [&str; LIBRARIES.len()] = [$(stringify!($symbol)),*];
    };
}

library_routines!(all);

/// An operand or the result.
///
/// # Safety
/// The table has so many entries.
unsafe fn operand(arguments: *const *mut u8, i: usize) -> *mut f32 {
    // SAFETY: by the caller's contract.
    unsafe { *arguments.add(i) }.cast()
}

/// The operands of a product or convolution, the result and the epilogue.
///
/// # Safety
/// The table holds the operands that are in memory, the result, and the arguments of epilogue and prologue.
unsafe fn operands(
    call: &LibraryCall,
    arguments: *const *mut u8,
) -> (LeftOperand, *const f32, *mut f32, Option<EpilogueCall>) {
    let stored = if call.prologue.is_some() { 1 } else { 2 };
    // SAFETY: by the caller's contract.
    let [left, right, result] = [0, stored - 1, stored].map(|i| unsafe { operand(arguments, i) });
    let after = arguments.wrapping_add(stored + 1);
    let left = match call.prologue {
        None => LeftOperand::Memory(left),
        Some((f, count)) => LeftOperand::Computed(PrologueCall { f, args: after.wrapping_add(call.args), count }),
    };
    let apart = call.apart.then_some(call.args);
    (left, right, result, call.epilogue.map(|f| EpilogueCall { f, args: after, apart }))
}

unsafe fn run_gemm(call: &LibraryCall, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Contraction::Gemm(gemm) = &call.contraction else { return };
    // SAFETY: passed on from the caller.
    unsafe {
        let (a, b, c, epilogue) = operands(call, arguments);
        gemm_run(gemm, a, b, c, epilogue, tasks, scratch);
    }
}

unsafe fn run_gemm_f64(call: &LibraryCall, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Contraction::Gemm(gemm) = &call.contraction else { return };
    // SAFETY: passed on from the caller.
    unsafe {
        let (a, b, c, epilogue) = operands(call, arguments);
        if let LeftOperand::Memory(a) = a {
            double_run(gemm, [a.cast(), b.cast()], c.cast(), epilogue, tasks, scratch);
        }
    }
}

unsafe fn run_gemm_bytes(call: &LibraryCall, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Contraction::Gemm(gemm) = &call.contraction else { return };
    // SAFETY: passed on from the caller.
    unsafe {
        let (a, b, c, epilogue) = operands(call, arguments);
        if let LeftOperand::Memory(a) = a {
            integer_run(gemm, [a.cast(), b.cast()], c.cast(), epilogue, tasks, scratch);
        }
    }
}

unsafe fn run_gemm_blocked(call: &LibraryCall, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Contraction::Gemm(gemm) = &call.contraction else { return };
    // SAFETY: passed on from the caller.
    unsafe {
        let (a, b, c, epilogue) = operands(call, arguments);
        if let LeftOperand::Memory(a) = a {
            quantised_run(gemm, a, b.cast(), c, epilogue, tasks, scratch);
        }
    }
}

unsafe fn run_gemm_bf16(call: &LibraryCall, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    let Contraction::Gemm(gemm) = &call.contraction else { return };
    // SAFETY: passed on from the caller.
    unsafe {
        let (a, b, c, epilogue) = operands(call, arguments);
        if let LeftOperand::Memory(a) = a {
            rounded_run(gemm, [a, b], c, epilogue, tasks, scratch);
        }
    }
}

unsafe fn run_attention<const ROUNDED: bool>(
    call: &LibraryCall,
    arguments: *const *mut u8,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let Contraction::Attention(attention) = &call.contraction else { return };
    // SAFETY: the table holds three operands and the result; the rest is the caller's promise.
    unsafe {
        let [q, k, v, out] = [0, 1, 2, 3].map(|i| operand(arguments, i));
        let args = arguments.wrapping_add(4);
        let epilogue = call.epilogue.map(|f| (EpilogueCall { f, args, apart: None }, call.args));
        attention_run::<ROUNDED>(attention, [q, k, v], out, epilogue, tasks, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_in_the_order_of_images() {
        assert_eq!(SYMBOLS, LIBRARIES);
    }
}
