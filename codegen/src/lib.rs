//! From clusters of primitives to kernels and machine code.

mod analysis;
pub mod cranelift;
pub mod emit;
pub mod jit;
#[cfg(feature = "llvm")]
pub mod llvm;
pub mod lower;
pub mod object;
pub mod ptx;
pub mod stored;
mod symbols;
pub mod target;
mod walk;
