//! Compiled kernels against interpreted ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod jit;
mod llvm;
mod math_library;
mod ptx;
mod random_kernels;
mod scalar_ops;
mod stored;
mod strips;
mod targets;
mod vector_loops;
