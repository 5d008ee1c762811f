//! From clusters of primitives to kernels and machine code.

#![warn(missing_docs)]

mod analysis;
mod backend;
pub mod cranelift;
pub mod emit;
pub mod isa;
pub mod jit;
#[cfg(feature = "llvm")]
pub mod llvm;
mod loading;
pub mod lower;
pub mod object;
pub mod ptx;
pub mod sizes;
pub mod stored;
mod symbols;
mod vector;

mod walk;
