//! The Cranelift back end: KIR kernels to machine code, in this process or in object files.
//!
//! Vectors are 128 bits wide; a vector loop of more lanes becomes several chunks. Every result is
//! bit-equal to [`tensorc_ir::scalar::ScalarOp::eval`], except for the payload of NaNs.

mod analysis;
mod function;
mod half;
mod index;
mod isa;
mod jit;
mod kernel;
mod memory;
mod object;
mod scalar;
mod symbols;
mod vector;

pub use jit::{Dump, JitModule, KernelCache, compile_kernels, dump};
pub use object::{MANIFEST_SECTION, ObjectModel, emit_object, entry_points};
