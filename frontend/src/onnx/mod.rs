//! Import of ONNX models.
//!
//! A model file is mapped and decoded without copying its weights ([`load`]), model-local
//! functions are expanded ([`functions`]), and tensors are read where they lie ([`tensor`],
//! [`external`]).

pub mod error;
pub mod external;
pub mod functions;
pub mod load;
pub mod proto;
pub mod tensor;

pub use error::OnnxError;
pub use load::OnnxModel;
