//! The rules of each representation, checked: what a pass may rely on and must keep.
//!
//! Every violation is a [`Diagnostic`](crate::diag::Diagnostic) with [`Code::Verify`](crate::diag::Code::Verify)
//! that names the node, the kernel or the step.

mod graph;
mod kernel;
mod prim;

pub use graph::{Stage, verify_graph};
pub use kernel::verify_kernel;
pub(crate) use prim::{broadcasts, reads_inside};
