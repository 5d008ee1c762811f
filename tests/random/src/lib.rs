//! Random programs for tests of every crate: valid by construction, reproducible by seed. And damaged files, which are
//! not valid, with the memory that reading them takes.

mod candidates;
mod damage;
mod graphs;
mod kernels;
mod meter;
mod plans;

pub use candidates::{Candidate, candidates, candidates_of, element_types, elementwise};
pub use damage::{DamageCounts, damage, each_damaged};
pub use graphs::{random_graph, random_scalar_fn};
pub use kernels::random_kernel;
pub use meter::{Meter, measured};
pub use plans::random_plan;
pub use tensorc_ir::Rng;
