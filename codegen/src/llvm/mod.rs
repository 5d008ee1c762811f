//! The LLVM back end: KIR kernels to machine code, in this process or as object files.
//!
//! What [`crate::walk`] writes with (`kernel`, `scalar`, `half`, `memory` over the instructions of `ir`) is the same for every
//! processor, but for what `Machine` says; `machine` knows the processors, `module` makes objects of IR,
//! `jit` loads them. `gpu` and `group` have the statements of kernels for a GPU, `nvptx` makes PTX of them. Every result is bit-equal to [`tensorc_ir::scalar::ScalarOp::eval`], except for the
//! payload of NaNs: no instruction carries fast-math flags, and none is contracted.

mod gpu;
mod group;
mod half;
mod ir;
pub(crate) mod jit;
mod kernel;
mod machine;
mod memory;
mod module;
mod nvptx;
mod scalar;
mod state;

pub(crate) use jit::version;
pub(crate) use machine::scales;
pub(crate) use module::objects;
pub use module::{assembly, emit_object, ir_text};
pub(crate) use nvptx::ptx;
