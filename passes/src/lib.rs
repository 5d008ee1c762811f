//! Graph transformations: inference, decomposition, simplification, fusion and memory planning.
//!
//! Passes see operators through their registry entries and, after decomposition, primitives only;
//! no operator is known here by name.

pub mod algebra;
pub mod decompose;
pub mod differentiate;
pub mod egraph;
pub mod fold_constants;
pub mod fuse;
pub mod infer;
pub mod layout;
pub mod manager;
pub mod pipeline;
pub mod recompute;
pub mod simplify;
pub mod slices;
pub mod stage;
pub mod values;

pub use differentiate::differentiate;
pub use manager::{Options, Pass, PassCx, PrintWhen, Printer, Rewrite, Timing, Unit};
pub use pipeline::{Phase, Pipeline, default_pipeline, phase_passes};
pub use recompute::Budget;
