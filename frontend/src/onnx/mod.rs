//! Import of ONNX models.
//!
//! A model file is mapped and decoded without copying its weights ([`load`]), model-local
//! functions are expanded ([`functions`]), nodes are brought into their newest form ([`upgrade`])
//! and become operators of a graph ([`import()`]). Branches are taken or computed both.

mod attribute;
mod control;
pub mod error;
pub mod external;
mod flex_attention;
pub mod functions;
mod import;
pub mod load;
mod order;
pub mod proto;
pub mod tensor;
pub(crate) mod unsupported;
pub mod upgrade;

pub use error::OnnxError;
pub use import::{Analysis, ImportOptions, Imported, ImportedValue, import, signature};
pub use load::OnnxModel;
