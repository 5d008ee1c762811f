//! The runner of steps. The program on devices, which computes for long, is a program of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod killed;
mod runs;
mod steps;
mod support;
