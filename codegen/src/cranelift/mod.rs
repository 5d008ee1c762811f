//! The Cranelift back end: KIR kernels to machine code in this process.
//!
//! Vectors are 128 bits wide; a vector loop of more lanes becomes several chunks. Every result is
//! bit-equal to [`tensorc_ir::scalar::ScalarOp::eval`], except for the payload of NaNs.

mod half;
mod index;
pub(crate) mod jit;
mod kernel;
mod memory;
mod scalar;
mod vector;

pub use jit::{Dump, dump};
