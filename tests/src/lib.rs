//! What the integration tests in `tests/tests` and the tests on a device in `tests/gpu` share: programs for GPUs, cases of ONNX, real
//! models, trials of every operator, and an interpreter of PTX.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

pub mod cache;
pub mod compare;
pub mod corpus;
pub mod imaginary;
pub mod launches;
pub mod models;
pub mod onnx;
pub mod opened;
pub mod operators;
pub mod ptx;
