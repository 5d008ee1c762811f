//! Front ends: programs in other formats become graphs of tensorc operators.

#![warn(missing_docs)]

pub mod mxnet;
pub mod onnx;
mod read;
pub mod symbol;
