//! Front ends: programs in other formats become graphs of tensorc operators.
//!
//! ```
//! use tensorc_frontend::symbol::{Symbol, op};
//!
//! let x = Symbol::variable("x");
//! let y = op("Activation").input(&x).param("act_type", "relu").name("y").build()?;
//! assert_eq!((y.list_arguments(), y.list_outputs()), (vec!["x".to_owned()], vec!["y_output".to_owned()]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod file;
pub mod mxnet;
pub mod onnx;
mod read;
pub mod symbol;
