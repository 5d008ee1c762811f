//! Graph transformations: inference, decomposition, simplification, fusion and memory planning.
//!
//! Passes see operators through their registry entries and, after decomposition, primitives only;
//! no operator is known here by name.

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
pub mod simplify;
mod slices;
pub mod template;
pub mod values;
mod write_out;

pub use differentiate::differentiate;
pub use manager::{Pass, PassCx, PrintWhen, Printer, Rewrite, Timing, Unit};
pub use options::{Budget, FusionStrategy, Label, Options};
pub use pipeline::{CompilePhase, End, Pipeline};
