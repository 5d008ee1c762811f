//! Codes of gradients, and transports between threads. Groups with deadlines, and MPI, are programs of their own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod compress;
mod threads;
