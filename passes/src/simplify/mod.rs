//! Local simplification of primitives, repeated until nothing changes.

use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;

use crate::manager::{Pass, PassCx};

/// Simplifies primitives. Requires a decomposed graph.
#[derive(Clone, Copy, Debug)]
pub struct Simplify {
    /// Overrides [`crate::Options::reassociate`].
    pub reassociate: Option<bool>,
    /// Most repetitions.
    pub rounds: u32,
}

impl Default for Simplify {
    fn default() -> Simplify {
        Simplify { reassociate: None, rounds: 8 }
    }
}

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn run(&self, graph: &mut Graph, _cx: &mut PassCx<'_>) -> Result<bool> {
        Ok(graph.remove_dead() > 0)
    }
}
