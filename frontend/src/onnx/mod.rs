//! Import of ONNX models.
//!
//! A model file is read and decoded without its weights, which stay where they are ([`load`], [`files`]), checked against the rules of ONNX ([`check`]),
//! model-local functions are expanded ([`functions`]), nodes are brought into their newest form ([`upgrade`]) and become
//! operators of a graph ([`import()`]), whose types are compared with those that the model declares ([`declared`]).
//! Branches are taken ([`control`]), loops written out ([`unroll`]), or both stay in the graph ([`flow`]) or are run by the host
//! ([`hosted`]); sequences and optional values are known by their elements ([`lists`]).
//!
//! Models are also changed and written again ([`edit`]).
//!
//! Nothing in a file is trusted: whatever its bytes, the result is a graph or a typed error, in memory that is bounded by the
//! size of the file ([`limits`]).

mod attribute;
mod below_byte;
mod beneath;
mod carried;
mod check;
mod contrib;
mod control;
mod declared;
pub mod edit;
pub mod error;
pub mod files;
mod flex_attention;
mod flow;
mod format;
pub mod functions;
mod hosted;
mod import;
mod inputs;
pub mod limits;
mod lists;
pub mod load;
mod meaning;
mod order;
mod packed;
pub mod proto;
mod quantised;
mod replace;
mod scope;
mod skeleton;
mod sketch;
pub mod tensor;
mod texts;
mod unroll;
pub(crate) mod unsupported;
pub mod upgrade;
mod weight;
mod wire;
mod writer;

pub use error::OnnxError;
pub use files::ReadOptions;
pub use import::{Analysis, Decision, ImportOptions, Imported, ImportedValue, import, signature};
pub use limits::ImportLimits;
pub use lists::{ListInput, list_inputs};
pub use load::OnnxModel;
pub use replace::Replacements;
pub use sketch::{SketchedNode, sketch};
pub use texts::{ImportedTexts, MapKeys, TextCall, stated_texts};
