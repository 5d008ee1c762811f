//! The integration tests of the workspace, as one program.
//!
//! They see tensorc from outside, through its public interface: test cases of other projects
//! ([`onnx`]), real models ([`models`]), rules about the sources ([`tidy`]).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod aot;
mod autograd;
mod branches;
mod callers;
mod code_cache;
mod compare;
mod contrib;
mod differential;
mod executor;
mod flow;
mod found;
mod gpu;
mod gpu_arrays;
mod gpu_open;
mod groups;
mod hosted;
mod interrupts;
mod kvstore;
mod libraries;
mod limits;
mod lists;
mod lists_in_run;
mod loops;
mod ml;
mod model_files;
mod models;
mod mxnet_ops;
mod narrow;
mod ndarray;
mod newest;
mod onnx;
mod open_flow;
mod open_operators;
mod open_shapes;
mod operators;
mod page;
mod parts;
mod positional;
mod precision;
mod products;
mod profiler;
mod ptx;
mod quantize;
mod random;
mod reports;
mod run_into;
mod several_gpus;
mod shapes;
mod stateful;
mod support;
mod symbols;
mod texts;
mod tidy;
mod training;
mod user_operators;
mod values;
mod weights;

/// Measures what calls take, for the tests that ask.
#[global_allocator]
static ALLOCATOR: tensorc_random::Meter = tensorc_random::Meter;
