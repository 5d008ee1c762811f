//! Kernels against what they are documented to compute, at every ISA level.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod conv;
mod copy;
mod double;
mod find;
mod gemm;
mod generate;
mod integer;
mod quantised;
mod rounded;
mod support;
mod vmath;
