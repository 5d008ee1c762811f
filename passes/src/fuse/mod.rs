//! Fusion: groups primitives into clusters that compile to one kernel each.
//!
//! The baseline is a deterministic greedy: first attention becomes one cluster where it is found
//! ([`attention`]), then each contraction takes the element-wise work on its
//! result ([`contract`]), then each reduction takes what shares its rows ([`reduce`]), then every
//! cluster, last to first, takes the producers it can compute on the fly ([`absorb`]). What remains are
//! clusters of maps, views and gathers. A cluster belongs to one phase of the run; one of the second
//! may compute cheap values of the first anew.
//!
//! Then, region by region ([`regions`]), other choices are weighed by the cost model: what
//! [`alternatives`] finds in an e-graph, and merged clusters ([`operands`], [`siblings`]). One is taken where it costs
//! less time and neither more kernels nor more bytes ([`choose`]).

mod absorb;
mod alternatives;
mod attention;
mod choose;
mod contract;
mod emit;
mod legal;
mod operands;
mod plan;
mod price;
mod reduce;
mod regions;
mod siblings;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{Graph, NodeId, NodeKind};
use tensorc_ir::prim::Prim;

use crate::manager::{Pass, PassCx};
use crate::options::FusionStrategy;
use plan::FusionPlan;

/// Groups primitives into [`tensorc_ir::graph::Fused`] clusters. Afterwards every node is an input,
/// a constant, a cluster, a concatenation, an operator's own kernel, or a view that keeps linear
/// order. Requires a decomposed graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fuse {
    /// Overrides [`crate::Options::fuse`].
    pub by: Option<FusionStrategy>,
}

impl Pass for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        graph.remove_dead();
        let fusible = |n: &NodeId| matches!(&graph.node(*n).kind, NodeKind::Prim(p) if !matches!(p, Prim::Concat { .. } | Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_)));
        if !graph.node_ids().iter().any(fusible) {
            return Ok(false);
        }
        let by = self.by.unwrap_or(cx.options.fuse);
        // Whatever is grouped, the graph computes the same.
        *graph = advice(|| fused(graph, by, cx))?;
        Ok(true)
    }
}

fn fused(graph: &Graph, by: FusionStrategy, cx: &PassCx<'_>) -> Result<Graph> {
    let enabled = by != FusionStrategy::Off;
    let mut plan = FusionPlan::new(graph, !cx.options.target.is_gpu())?;
    if enabled && cx.options.reassociate {
        attention::form(&mut plan, &cx.options.target);
    }
    contract::form(&mut plan, enabled);
    reduce::form(&mut plan, enabled);
    absorb::form(&mut plan, enabled);
    if by == FusionStrategy::Alternatives {
        choose::improve(&mut plan, &cx.options.target.machine(), !cx.options.reassociate, cx.threads);
    }
    emit::emit(&plan)
}
