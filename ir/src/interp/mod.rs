//! The reference interpreter: what a program means, computed the simplest way.
//!
//! Scalar operations are exact, so element-wise results and kernels are bit-exact references for
//! compiled code. Reductions and contractions of the graph level fold in row-major order, which is
//! one of the orders the language allows.

mod flow;
mod graph;
mod kernel;
mod open;
mod prim;
mod reads;

pub use flow::run_flow;
pub use graph::{confirm, eval_graph, eval_node, eval_step};
pub use kernel::run_kernel;
pub use open::eval as eval_open;
pub use prim::eval_prim;
