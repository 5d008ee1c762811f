//! Library kernels: dense matrix products of f32 and f64, two-dimensional convolutions and their gradients.
//!
//! A call is cut into tasks by its shape alone. Tasks are independent, each finishes its part of
//! the output and applies the epilogue to it, so results do not depend on the number of threads.
//!
//! # Order of summation
//! Every element of the result is one chain of fused multiply-adds in its type, starting from zero, over
//! ascending k (for a convolution: input channel, then filter row, then filter column; for its
//! gradients see [`tensorc_abi::ConvPass`]). No ISA level,
//! blocking or packing changes it, so all ISA levels give the same bits. Taps of a convolution that
//! fall into the padding contribute a multiply-add with zero, or, for depthwise convolutions over blocks of
//! channels, nothing; the two differ for weights that are not finite.
//!
//! Attention ([`tensorc_abi::Attention`]) has an order of its own, equally the same in all ISA levels; so have products of few
//! rows with blocked weights ([`tensorc_abi::BlockedWeights`]): lanes that add neighbouring terms, with the scale of a block
//! applied to the sums of a run of terms. Only where operands are
//! rounded to bf16 do bits depend on the processor.
//!
//! Nothing here allocates or needs the standard library: kernels become part of programs compiled ahead of time.
//!
//! ```
//! use tensorc_abi::{DType, FindOp};
//! use tensorc_kernels::{FindOperand, find, find_words};
//!
//! let x = FindOperand { dtype: DType::U8, dims: &[4], bytes: &[0, 7, 0, 1] };
//! let mut words = vec![0; find_words(FindOp::NonZero, &[Some(x.dims)]) as usize];
//! let found = find(FindOp::NonZero, &[Some(x)], &mut words).map_err(|error| format!("{error:?}"))?;
//! let mut positions = vec![0; found.bytes(0) as usize];
//! found.write(0, &mut positions);
//! assert_eq!(positions, [1i64, 3].map(i64::to_le_bytes).concat());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]
#![no_std]

mod attention;
mod blocking;
mod conv;
mod copy;
mod double;
mod epilogue;
mod find;
mod fused;
mod gemm;
mod grouped;
mod integer;
mod isa;
mod isa_levels;
mod math64;
mod prologue;
mod quantised;
mod rounded;
mod soft_libcalls;
pub mod vmath;
mod weights;

pub use attention::{attention_run, attention_run_with, attention_scratch, attention_tasks};
pub use conv::{
    conv_affinity, conv_affinity_by, conv_run, conv_run_by, conv_run_with, conv_scratch, conv_scratch_by, conv_tasks,
    conv_tasks_by, conv_variant,
};
pub use copy::{NON_TEMPORAL_COPY, copy_non_temporal};
pub use double::{double_run, double_run_with, double_scratch, double_tasks};
pub use epilogue::EpilogueCall;
pub use find::{FindError, FindOperand, Found, find, find_words};
pub use gemm::{gemm_affinity, gemm_run, gemm_run_with, gemm_scratch, gemm_tasks};
pub use integer::{integer_run, integer_run_with, integer_scratch, integer_tasks};
pub use isa::{Isa, has_bf16_products, isa};
pub use prologue::{LeftOperand, PrologueCall, affinity_grain};
pub use quantised::{quantised_run, quantised_run_with, quantised_scratch, quantised_tasks};
pub use rounded::{rounded_affinity, rounded_run, rounded_run_with, rounded_scratch, rounded_tasks};
pub use weights::{pack, pack_part, pack_source, pack_units, packed_len};

/// Address of the function called `name` for generated code to call: of [`math64`], [`soft_libcalls`] or [`vmath`].
pub fn symbol(name: &str) -> Option<*const u8> {
    math64::symbol(name).or_else(|| soft_libcalls::symbol(name)).or_else(|| vmath::symbol(name))
}
