//! tensorc: a compiler and runtime for tensor graphs.
//!
//! A [`Compiler`] loads a [`Model`] (ONNX, the text IR, or a [`Graph`] built in Rust). A model is
//! compiled to machine code for the shapes it is run with, once per combination of shapes:
//!
//! ```no_run
//! use tensorc::{Compiler, Options, Tensor};
//! # fn main() -> Result<(), tensorc::Error> {
//! let compiler = Compiler::new(Options::default())?;
//! let model = compiler.load("model.onnx")?;
//! let image = Tensor::from_f32(&[1, 3, 224, 224], &vec![0.5; 3 * 224 * 224])?;
//! let outputs = model.run(&[("x", image)])?;
//! println!("{}: {:?}", outputs[0].0, outputs[0].1.dims());
//! # Ok(())
//! # }
//! ```
//!
//! The text IR ([`ir::text`]) writes a graph down:
//!
//! ```
//! use tensorc::{Compiler, Options, Tensor, ir::text::parse_module};
//!
//! let compiler = Compiler::new(Options::default())?;
//! let text = "graph @f(%x: f32[?n, 2], %w: f32[2, 1]) { %y = matmul(%x, %w) %z = relu(%y) return %z }";
//! let model = compiler.model(parse_module(text, compiler.registry())?.graphs.remove(0));
//! let w = Tensor::from_f32(&[2, 1], &[1.0, -1.0])?;
//! for n in 1..3 {
//!     let x = Tensor::from_f32(&[n, 2], &vec![0.5; 2 * n as usize])?;
//!     let outputs = model.run(&[("x", x), ("w", w.clone())])?;
//!     assert_eq!(outputs[0].1.dims(), [n, 1]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod aot;
pub mod binding;
mod bounded_pool;
mod branches;
pub mod build;
mod cache;
mod code_cache;
pub mod compare;
mod compile;
mod compiler;
mod divided;
mod error;
mod error_kind;
mod family;
pub mod gpu;
mod gpu_kernels;
mod host_flows;
mod hot_session;
pub mod inspect;
mod key;
mod limits;
mod lists;
mod load;
mod model;
pub mod op;
mod open_plan;
mod open_run;
mod open_shape;
mod outputs;
mod part_code;
mod parts;
mod program;
pub mod quantize;
pub mod report;
pub mod samples;
mod session;
mod source;
mod stateful;
pub mod symbol;
mod templates;
mod tensor;
mod texts;

pub use cache::ProgramCache;
pub use compile::{Report, lower};
pub use compiler::{Compiler, Options, Specialize};
pub use divided::{DividedModel, DividedPart};
pub use error::Error;
pub use error_kind::ErrorKind;
pub use family::ProgramFamily;
pub use key::ProgramKey;
pub use limits::Limits;
pub use model::{Model, Signature};
pub use outputs::Output;
pub use parts::{Derive, DividedRun, RanPart};
pub use program::Program;
pub use quantize::quantize;
pub use session::Session;
pub use stateful::{State, StatefulModel, States};
pub use tensor::Tensor;
pub use texts::{Array, ModelTexts};

pub use tensorc_abi as abi;
pub use tensorc_abi::DType;
pub use tensorc_codegen::isa::Isa;
pub use tensorc_codegen::jit::Backend;
pub use tensorc_frontend::file::write_file;
pub use tensorc_frontend::onnx::{MapKeys, Replacements};
pub use tensorc_ir as ir;
pub use tensorc_ir::graph::Graph;
pub use tensorc_ops as ops;
pub use tensorc_ops::texts::TextArray;
pub use tensorc_passes as passes;
pub use tensorc_runtime as runtime;
pub use tensorc_schedule as schedule;
pub use tensorc_schedule::target::VendorLibraries;
