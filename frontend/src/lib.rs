//! Front ends: programs in other formats become graphs of tensorc operators.

pub mod mxnet;
pub mod onnx;
pub mod symbol;
