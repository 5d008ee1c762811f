//! Graph transformations: inference, decomposition, simplification, fusion and memory planning.
//!
//! Passes see operators through their registry entries and, after decomposition, primitives only;
//! no operator is known here by name.
//!
//! ```
//! use tensorc_ir::text::{PrintOptions, parse_module, print_graph};
//! use tensorc_passes::{CompilePhase, PassCx, Pipeline};
//!
//! let registry = tensorc_ops::registry()?;
//! let text = "graph @f(%x: f32[2, 3]) { %y = softplus(%x) %z = neg(%y) return %z }";
//! let mut graph = parse_module(text, &registry)?.graphs.remove(0);
//! Pipeline::to(CompilePhase::Fuse).run(&mut graph, &mut PassCx::new(&registry))?;
//! // Both operators are one kernel.
//! assert_eq!(print_graph(&graph, &PrintOptions::default()).matches("= fused.").count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod algebra;
mod bodies;
pub mod decompose;
pub mod differentiate;
mod egraph;
mod fold_constants;
pub mod fuse;
pub mod infer;
mod insert_checks;
pub mod layout;
pub mod manager;
mod options;
pub mod parts;
pub mod pipeline;
mod recipes;
pub mod recompute;
pub mod results;
mod round_products;
pub mod simplify;
mod slices;
mod tabulate;
pub mod template;
pub mod values;
mod write_out;

pub use differentiate::differentiate;
pub use manager::{Pass, PassCx, PrintWhen, Printer, Rewrite, Timing, Unit};
pub use options::{Budget, FusionStrategy, Label, Options, Precision};
pub use pipeline::{CompilePhase, End, Pipeline};
