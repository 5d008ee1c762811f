//! Drivers made of the host, and kernels in the SIMT interpreter.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod host;
mod launches;
mod roles;
mod simt;
