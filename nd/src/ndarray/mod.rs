//! Imperative arrays: every operator of the registry, run asynchronously.
//!
//! A [`Runtime`] owns an engine, memory pools, random streams and compiled operators. An [`NDArray`]
//! is a handle to memory of it. Calling an operator checks shapes and types at once, pushes the work
//! and returns; reading an array waits for what it depends on and reports what went wrong there.
//!
//! ```
//! # fn main() -> Result<(), tensorc_nd::Error> {
//! use tensorc_nd::{Runtime, RuntimeOptions};
//!
//! let rt = Runtime::new(RuntimeOptions::default())?;
//! let a = rt.array(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let b = rt.array(&[3], &[10f32, 20.0, 30.0])?;
//! let mut c = ((&a + &b)? * 2.0)?;
//! c += 1.0;
//! assert_eq!(c.to_vec::<f32>()?, [23.0, 45.0, 67.0, 29.0, 51.0, 73.0]);
//!
//! let p = rt.op("softmax")?.arg(&a).param("axis", -1).invoke()?;
//! assert_eq!(p.dims(), [2, 3]);
//! # Ok(())
//! # }
//! ```
//!
//! Operator, parameters and operand types of a call name a compiled program, made at the first use.
//! Element-wise calls are deferred: they collect
//! in a window and become one kernel when someone reads a result, another operator needs it, or the
//! window is full.

mod array;
pub mod autograd;
mod batch_program;
mod call;
mod common;
mod convert;
mod create;
mod divided;
mod files;
mod front;
mod function;
mod gpus;
mod index;
mod inline;
mod lazy_batch;
mod mode;
mod operators;
mod program;
mod random;
mod recording;
mod resolved_call;
mod runtime;
mod tape;
mod views;

pub use array::NDArray;
pub use call::{Call, CallOperand};
pub use function::CompiledFunction;
pub use gpus::JoinedGpus;
pub use index::Slice;
pub use runtime::{Runtime, RuntimeOptions, Seed};
