//! Tests of the public interface. What counts allocations, measures the process or runs under Miri is a program of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/random_programs.rs"]
mod random_programs;

mod array;
mod array_release;
mod collective;
mod device;
mod device_resources;
mod engine;
mod engine_errors;
mod engine_profile;
mod engine_queues;
mod engine_release;
mod engine_state;
mod engine_waits;
mod finals;
mod plan;
mod states;
mod streams;
mod verify;
mod verify_calls;
