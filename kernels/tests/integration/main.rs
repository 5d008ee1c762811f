//! Kernels against what they are documented to compute, at every ISA level.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod conv;
mod copy;
mod double;
mod integer;
mod find;
mod gemm;
mod generate;
mod support;
mod vmath;
