//! The Cranelift back end: KIR kernels to machine code, in this process or in object files for a
//! [`crate::target::Target`].
//!
//! Vectors are 128 bits wide; a vector loop of more lanes becomes several chunks. On a
//! target without vectors its iterations follow one another. Every result is
//! bit-equal to [`tensorc_ir::scalar::ScalarOp::eval`], except for the payload of NaNs.

mod bare;
mod dump;
mod function;
mod graft;
mod half;
pub(crate) mod isa;
pub(crate) mod jit;
mod kernel;
pub(crate) mod libcalls;
mod memory;
mod object;
mod piece;
mod scalar;
mod vector;

pub use bare::emit_kernels;
pub use dump::{Dump, dump};
pub(crate) use object::emit_object;
pub use object::{GpuCode, ObjectModel, kernel_name};
