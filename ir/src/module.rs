//! A compilation unit: what one text file holds.

use tensorc_abi::Plan;

use crate::graph::Graph;
use crate::kir::Kernel;

/// What a text file holds: graphs, kernels and plans.
#[derive(Clone, Debug, Default)]
pub struct TextModule {
    /// The name of the module.
    pub name: String,
    /// Graphs, in order.
    pub graphs: Vec<Graph>,
    /// Kernels, in order.
    pub kernels: Vec<Kernel>,
    /// Plans, in order.
    pub plans: Vec<Plan>,
}
