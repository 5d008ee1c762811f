//! The intermediate representations of tensorc and what gives them meaning.
//!
//! Three levels share one text format: the tensor [`graph`], the loop-level [`kir`] and the
//! compiled plan ([`tensorc_abi::Plan`]). Nothing here knows a particular operator.
//!
//! ```
//! use tensorc_ir::TensorData;
//! use tensorc_ir::interp::eval_graph;
//! use tensorc_ir::text::parse_module;
//!
//! let text = "graph @f(%x: f32[2]) { %y = softplus(%x) %z = neg(%y) return %z }";
//! let registry = tensorc_ops::registry()?;
//! let module = parse_module(text, &registry)?;
//! let x = TensorData::f32s(&[2], &[0.0, 1.0]).ok_or("2 elements")?;
//! let results = eval_graph(&module.graphs[0], &registry, &[x])?;
//! assert!((results[0].to_f64s()[0] + 2f64.ln()).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod build;
pub mod data_files;
mod demand;
pub mod diag;
pub mod dim;
pub mod expand;
pub mod extent;
pub mod flow;
pub mod graph;
pub mod index;
pub mod infer;
pub mod interp;
pub mod interrupt;
pub mod kir;
mod module;
pub mod op;
pub mod parallel;
pub mod params;
pub mod prim;
pub mod recipe;
mod rng;
pub mod scalar;
mod tensor;
#[doc(hidden)]
pub mod text;
mod types;
pub mod verify;
pub mod views;

pub use demand::{Allowed, greatest_word};
pub use extent::{Extent, Extents};
pub use module::TextModule;
pub use rng::Rng;
pub use tensor::TensorData;
pub use tensorc_abi::DType;
pub use types::{DenseType, Dim, DimId, Dims, MAX_RANK, Shape, TensorType};
