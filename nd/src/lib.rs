//! MXNet's arrays on compiled operators: imperative arrays with gradients, and executors of symbols.
//!
//! [`NDArray`] is an asynchronous array of a [`Runtime`], [`autograd`] records calls and differentiates them, and [`executor`] binds
//! a symbol to arrays and runs it forward and backward.
//!
//! ```
//! use tensorc_nd::{Runtime, RuntimeOptions};
//!
//! let rt = Runtime::new(RuntimeOptions::default())?;
//! let x = rt.array(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
//! assert_eq!(x.matmul(&x)?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod error;
pub mod executor;
mod grad_req;
mod ndarray;

pub use error::Error;
pub use ndarray::{
    Call, CallOperand, CompiledFunction, JoinedGpus, NDArray, Runtime, RuntimeOptions, Seed, Slice, autograd,
};
