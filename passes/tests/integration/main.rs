//! Passes on graphs built in code, and properties of every operator that passes rely on.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod algebra;
mod algebra_rules;
mod common;
mod differentiate;
mod fuse;
mod gradients;
mod infer;
mod layout;
mod scalar_rules;
mod simplify;
