//! From clusters of primitives to kernels and machine code.

pub mod cranelift;
pub mod emit;
pub mod lower;
pub mod target;
