//! Running large clusters on part of the batch at a time, to save memory.
//!
//! Where a cluster at the peak of memory hands a large result to one reader, both are replaced by copies
//! for slices of the batch: the result is live one slice at a time, and often stays in cache. Operands are
//! read, and results written, in place, since a slice of the batch is one run of memory. Every sample is
//! computed as before, so no bit changes.
//!
//! The peak is that of the schedule; chains of up to [`MAX_CHAIN`] clusters around it are tried, and
//! the one that lowers it most is taken, until it sinks no further. Graphs that are trained are left alone:
//! there the backward pass reads most results.

mod body;

use tensorc_ir::DenseType;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusedCluster, Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_schedule::plan::{self, Forms};

use crate::manager::{Pass, PassCx};
use crate::options::FusionStrategy;
use crate::results::results;
use body::{batched, first, sliced};

/// Memory of fewer slices of the least size is not worth any more steps.
const MIN_SLICES: u64 = 32;
/// Clusters of a chain.
const MAX_CHAIN: usize = 4;
/// Chains replaced.
const MAX_CHAINS: usize = 12;
/// Slices are kept if they lower the peak below this share of it, in percent.
const MAX_PEAK_PERCENT: u64 = 98;

/// Clusters looked at in all trials together.
const WORK: usize = 20_000;

/// Slices chains of clusters while that lowers the peak of memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct SliceBatch {
    /// Overrides [`crate::Options::slice_bytes`].
    pub least: Option<u64>,
}

/// Clusters that hand their results on to the next, and their batch.
struct ClusterChain<'g> {
    graph: &'g Graph,
    nodes: Vec<NodeId>,
    batch: u64,
    least: u64,
}

impl Pass for SliceBatch {
    fn name(&self) -> &'static str {
        "slice-batch"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let trained = !graph.updates().is_empty() || graph.boundary().is_some();
        let least = self.least.unwrap_or(cx.options.slice_bytes).max(1);
        let is_gpu = cx.options.target.is_gpu();
        if trained || is_gpu || cx.options.fuse == FusionStrategy::Off || !has_links(graph, least)? {
            return Ok(false);
        }
        let mut changed = false;
        let choices = cx.options.choices();
        let forms = Forms::new(choices.target);
        let (mut kept, mut at) = plan::peak(graph, choices, &forms)?;
        // Several places may need nearly as much memory as the peak: only when all are sliced, it sinks.
        let (mut peak, mut current) = (kept, None);
        let mut work = 0;
        for _ in 0..MAX_CHAINS {
            let Some(middle) = at.filter(|_| peak >= MIN_SLICES * least && work < WORK) else { break };
            let mut best: Option<(u64, Option<NodeId>, Graph)> = None;
            for trial in trials(current.as_ref().unwrap_or(graph), middle, least)? {
                work += trial.node_count();
                let (lower, next) = plan::peak(&trial, choices, &forms)?;
                if best.as_ref().is_none_or(|(least, ..)| lower < *least) {
                    best = Some((lower, next, trial));
                }
            }
            let Some((lower, next, trial)) = best.filter(|(lower, ..)| *lower < peak) else { break };
            (peak, at) = (lower, next);
            if lower * 100 < kept * MAX_PEAK_PERCENT {
                (kept, *graph, current) = (lower, trial, None);
                changed = true;
            } else {
                current = Some(trial);
            }
        }
        Ok(changed)
    }
}

/// Whether some cluster hands on enough for two slices.
fn has_links(graph: &Graph, least: u64) -> Result<bool> {
    for node in graph.node_ids() {
        if let Some(ty) = link(graph, node)?
            && ty.dims.first().is_some_and(|batch| *batch > 1)
            && ty.bytes() >= 2 * least
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The type of a cluster's only result if one other cluster alone reads it, once.
fn link(graph: &Graph, node: NodeId) -> Result<Option<DenseType>> {
    let v = Value { node, port: 0 };
    let n = graph.node(node);
    let uses = graph.uses(node);
    let alone = matches!(n.kind, NodeKind::Fused(_)) && n.types.len() == 1 && uses.len() == 1 && !graph.is_root(node);
    match alone && matches!(graph.node(uses[0].0).kind, NodeKind::Fused(_)) {
        true => Ok(Some(graph.dense(v)?)),
        false => Ok(None),
    }
}

/// Graphs in which a chain with the node is sliced. Only its last cluster may have several results.
fn trials(graph: &Graph, middle: NodeId, least: u64) -> Result<Vec<Graph>> {
    if !matches!(graph.node(middle).kind, NodeKind::Fused(_)) {
        return Ok(vec![]);
    }
    let Some(batch) = graph.dense(Value { node: middle, port: 0 })?.dims.first().copied().filter(|b| *b > 1) else {
        return Ok(vec![]);
    };
    let mut nodes = vec![middle];
    while nodes.len() < MAX_CHAIN {
        // The largest operand that this cluster alone reads.
        let mut largest: Option<(u64, NodeId)> = None;
        for v in graph.args(nodes[0]) {
            if let Some(ty) = link(graph, v.node)?.filter(|ty| ty.dims.first() == Some(&batch))
                && largest.is_none_or(|(bytes, _)| ty.bytes() > bytes)
            {
                largest = Some((ty.bytes(), v.node));
            }
        }
        let Some((_, before)) = largest else { break };
        nodes.insert(0, before);
    }
    let at = nodes.len() - 1;
    while nodes.len() < at + MAX_CHAIN {
        let last = nodes[nodes.len() - 1];
        let after = graph.uses(last).first().map(|(user, ..)| *user);
        match (link(graph, last)?, after) {
            (Some(_), Some(after)) => nodes.push(after),
            _ => break,
        }
    }
    let mut all = vec![];
    for length in 2..=MAX_CHAIN {
        for first in (at + 1).saturating_sub(length)..=at {
            if first + length <= nodes.len() {
                let chain = ClusterChain { graph, nodes: nodes[first..first + length].to_vec(), batch, least };
                all.extend(chain.sliced()?);
            }
        }
    }
    Ok(all)
}

impl ClusterChain<'_> {
    /// The graph with this chain sliced, if it can be.
    fn sliced(&self) -> Result<Option<Graph>> {
        let mut read = vec![];
        for (i, &node) in self.nodes.iter().enumerate() {
            let NodeKind::Fused(fused) = &self.graph.node(node).kind else { return Ok(None) };
            let Some(batched) = batched(&fused.body, self.batch)? else { return Ok(None) };
            let args = self.graph.args(node);
            let handed_on = |v: &Value| i > 0 && v.node == self.nodes[i - 1];
            if args.iter().zip(&batched).any(|(v, along)| handed_on(v) && !along) {
                return Ok(None);
            }
            read.push((node, batched, fused));
        }
        let Some(size) = self.size(&read)? else { return Ok(None) };
        let mut clusters = vec![];
        for (node, batched, fused) in read {
            let Some(body) = sliced(&fused.body, self.batch, size)? else { return Ok(None) };
            clusters.push((node, batched, FusedCluster::new(fused.class, body)));
        }
        let mut graph = self.graph.clone();
        let mut last = vec![];
        for slice in 0..self.batch / size {
            let mut before: Option<(NodeId, Value)> = None;
            for (node, batched, fused) in &clusters {
                let mut args = vec![];
                for (v, along) in self.graph.args(*node).into_iter().zip(batched) {
                    args.push(match before {
                        Some((of, new)) if of == v.node => new,
                        _ if *along => take(&mut graph, v, slice * size, size)?,
                        _ => v,
                    });
                }
                let types = results(self.graph, *node).map(|v| Ok(first(&self.graph.dense(v)?, size)));
                let types = types.collect::<Result<Vec<_>>>()?;
                let id = graph.add_fused(self.graph.node(*node).name.clone(), fused.clone(), &args, &types);
                before = Some((*node, Value { node: id, port: 0 }));
            }
            last.extend(before.map(|(_, v)| v.node));
        }
        for v in self.nodes.last().into_iter().flat_map(|node| results(self.graph, *node)) {
            let parts: Vec<Value> = last.iter().map(|node| Value { node: *node, port: v.port }).collect();
            let name = self.graph.node(v.node).name.clone();
            let joined = graph.add_prim(name, Prim::Concat { axis: 0 }, &parts, &[self.graph.dense(v)?]);
            graph.replace_uses(v, Value { node: joined, port: 0 });
        }
        graph.remove_dead();
        Ok(Some(graph))
    }

    /// Samples of a slice: as few as fill it, as long as what every slice reads anew is no more than that.
    fn size(&self, clusters: &[(NodeId, Vec<bool>, &FusedCluster)]) -> Result<Option<u64>> {
        let (mut least, mut weights) = (u64::MAX, 0);
        for (i, (node, batched, _)) in clusters.iter().enumerate() {
            if i + 1 < clusters.len() {
                least = least.min(self.graph.dense(Value { node: *node, port: 0 })?.bytes() / self.batch);
            }
            for (v, along) in self.graph.args(*node).into_iter().zip(batched) {
                if !along {
                    weights += self.graph.dense(v)?.bytes();
                }
            }
        }
        let needed = self.least.max(weights);
        Ok((1..self.batch).find(|size| self.batch.is_multiple_of(*size) && least * size >= needed))
    }
}

/// Samples `begin..begin + size` of a value.
fn take(graph: &mut Graph, v: Value, begin: u64, size: u64) -> Result<Value> {
    let ty = graph.dense(v)?;
    let shift = |axis: usize| Index::var(axis as u32).offset(if axis == 0 { begin as i64 } else { 0 });
    let view = View { map: (0..ty.rank()).map(shift).collect(), fill: None };
    let name = graph.node(v.node).name.clone();
    let node = graph.add_prim(name, Prim::View(view.into()), &[v], &[first(&ty, size)]);
    Ok(Value { node, port: 0 })
}
