//! The waist between the compiler half and the run-time half of tensorc.
//!
//! Plain data, and the memory that it lies in: element types, the compiled [`Plan`], the calling convention of generated
//! kernels and the parameters of library kernels. Neither half depends on the other; both depend
//! on this crate.
//!
//! Without the feature `plan` it is what the kernel library needs, and neither allocates nor needs the
//! standard library.
//!
//! ```
//! use tensorc_abi::DType;
//!
//! assert_eq!((DType::F32.name(), DType::F32.size()), ("f32", 4));
//! assert!(DType::BF16.is_float());
//! ```
#![cfg_attr(not(feature = "plan"), no_std)]
#![warn(missing_docs)]

#[macro_use]
mod named;

#[cfg(feature = "plan")]
mod args;
pub mod artifact;
mod blocked;
#[cfg(feature = "plan")]
pub mod check;
#[cfg(feature = "plan")]
pub mod content;
mod conv;
#[cfg(feature = "plan")]
mod convert;
mod dtype;
#[cfg(feature = "plan")]
mod external;
#[cfg(feature = "plan")]
pub mod fields;
mod find;
#[cfg(feature = "plan")]
pub mod flow;
pub mod image;
pub mod library;
#[cfg(feature = "plan")]
pub mod memory;
mod number;
#[cfg(feature = "plan")]
pub mod operand;
#[cfg(feature = "plan")]
mod part;
#[cfg(feature = "plan")]
pub mod plan;
#[cfg(feature = "plan")]
pub mod seal;
pub mod sizes;
#[cfg(feature = "plan")]
pub mod vendor;
mod words;

#[cfg(feature = "plan")]
pub use args::{Args, ArgsIter};
pub use blocked::{BlockedParts, BlockedWeights};
#[cfg(feature = "plan")]
pub use check::{BrokenRequirement, Requirement, ValueCheck};
pub use conv::{ConvAlgorithm, ConvPass, ConvVariant};
#[cfg(feature = "plan")]
pub use convert::Convert;
pub use dtype::DType;
#[cfg(feature = "plan")]
pub use external::{ExternCall, ExternError, ExternFn, panic_text};
pub use find::FindOp;
#[cfg(feature = "plan")]
pub use flow::{FlowKind, FlowPlan, Loop};
pub use library::{
    Attention, BYTE_TERMS, BatchedGemm, CHANNEL_BLOCK, Contraction, ContractionRef, Conv2d, GemmElements, ImageLayout,
    MAX_SUM_ARGS, MatrixLayout, PackedElements, Packing, SUM_COLS, SUM_ROWS,
};
pub use number::Number;
#[cfg(feature = "plan")]
pub use operand::{Arg, BufferId, Epilogue, KernelId, LeftOperand, Prologue};
#[cfg(feature = "plan")]
pub use part::SubBuffer;
#[cfg(feature = "plan")]
pub use plan::{
    Buffer, KernelSignature, LibraryOp, Parameter, Plan, Scratch, ScratchOfSteps, Step, StepOp, StorageClass, Weight,
    WorkingBytes,
};
#[cfg(feature = "plan")]
pub use vendor::{VendorCall, VendorContraction};

/// Entry point of every generated kernel.
///
/// `buffers[i]` is the address of the kernel's i-th buffer parameter; `scalars[j]` its j-th index
/// parameter. A kernel launched over a parallel extent takes two scalars, the half-open range of
/// iterations to execute; an epilogue takes the seven described at [`library::epilogue_scalars`].
/// Buffers need the alignment of their element type only.
pub type KernelFn = unsafe extern "C" fn(buffers: *const *mut u8, scalars: *const i64);
