//! A compilation unit: what one text file holds.

use tensorc_abi::Plan;

use crate::graph::Graph;
use crate::kir::Kernel;

#[derive(Clone, Debug, Default)]
pub struct Module {
    pub name: String,
    pub graphs: Vec<Graph>,
    pub kernels: Vec<Kernel>,
    pub plans: Vec<Plan>,
}
