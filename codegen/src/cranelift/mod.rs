//! The Cranelift back end: KIR kernels to machine code, in this process or in object files for a
//! [`crate::isa::Isa`].
//!
//! Vectors are 128 bits wide; a vector loop of more lanes becomes several chunks, unless it is one of
//! [`crate::vector`]. On a target without vectors its iterations follow one another. Every result is
//! bit-equal to [`tensorc_ir::scalar::ScalarOp::eval`], except for the payload of NaNs.

mod code_blob;
mod dump;
mod freestanding;
mod function;
mod half;
pub(crate) mod isa;
pub(crate) mod jit;
mod kernel;
pub(crate) mod libcalls;
mod memory;
mod merge;
mod object;
mod scalar;
mod state;
mod types;
mod vector;
mod vector_loop;

pub use dump::dump;
pub use freestanding::emit_kernels;
pub(crate) use object::emit_object;
pub use object::{GpuCode, ObjectModel, kernel_name};
