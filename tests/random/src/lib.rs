//! Random programs for tests of every crate: valid by construction, reproducible by seed.

mod candidates;
mod graphs;
mod kernels;
mod plans;

pub use candidates::{Candidate, candidates, candidates_of, element_types, elementwise};
pub use graphs::{random_graph, random_scalar_fn};
pub use kernels::random_kernel;
pub use plans::random_plan;
pub use tensorc_ir::Rng;
