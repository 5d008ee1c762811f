//! MXNet's arrays on compiled operators: imperative arrays with gradients, and executors of symbols.
//!
//! [`NDArray`] is an asynchronous array of a [`Runtime`], [`autograd`] records calls and differentiates them, and [`executor`] binds
//! a symbol to arrays and runs it forward and backward.

#![warn(missing_docs)]

mod error;
pub mod executor;
mod grad_req;
mod ndarray;

pub use error::Error;
pub use ndarray::{
    Call, CallOperand, CompiledFunction, JoinedGpus, NDArray, Runtime, RuntimeOptions, Seed, Slice, autograd,
};
