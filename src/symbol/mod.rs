//! Symbols as users of the compiler see them: writing networks down, inferring their shapes and types,
//! and loading saved ones for inference.

mod infer;
mod load;

pub use infer::{Infer, Inferred, PartialShape, SymbolTypes, mxnet_shape};
pub use tensorc_frontend::symbol::*;

pub use infer::infer_with;
pub(crate) use load::{Inference, inference};
