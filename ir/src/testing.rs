//! Random programs for tests of every crate: valid by construction, reproducible by seed.

mod graphs;
mod kernels;
mod plans;
mod rng;

pub use graphs::{random_graph, random_scalar_fn};
pub use kernels::random_kernel;
pub use plans::random_plan;
pub use rng::Rng;
