//! Fusion: groups primitives into clusters that compile to one kernel each.

use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;

use crate::manager::{Pass, PassCx};

/// Groups primitives into [`tensorc_ir::graph::Fused`] clusters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fuse {
    /// Overrides [`crate::Options::fuse`]; without fusion every primitive is a cluster of its own.
    pub enabled: Option<bool>,
}

impl Pass for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn run(&self, _graph: &mut Graph, _cx: &mut PassCx<'_>) -> Result<bool> {
        Ok(false)
    }
}
