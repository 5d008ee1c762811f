//! Which nodes compute blocked results: a minimum cut between those that do and those that do not.
//!
//! A node on either side costs what its kernel takes there; a value that crosses costs one conversion,
//! however many users it has on the other side.

use std::collections::{BTreeMap, BTreeSet};

use crate::cost::Machine;
use tensorc_abi::{CHANNEL_BLOCK, Conv2d, DType};
use tensorc_ir::DenseType;
use tensorc_ir::contract::as_conv;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Method, Prim, Reduction, View};

use super::cut::{Network, UNBOUNDED};

/// How a node could compute its result in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    /// Operands must be blocked as well.
    Same,
    /// A dense convolution, which also reads planes.
    Dense(Conv2d),
    Depthwise(Conv2d),
}

/// A tensor whose axis 1 counts whole blocks of channels.
pub(super) fn has_blocks(ty: &DenseType) -> bool {
    ty.rank() >= 2 && ty.dims[1].is_multiple_of(CHANNEL_BLOCK) && !ty.is_empty()
}

/// The convolution a node computes, if a kernel for blocks could.
pub(super) fn convolution(graph: &Graph, node: NodeId) -> Result<Option<Conv2d>> {
    let NodeKind::Prim(Prim::Contract(c)) = &graph.node(node).kind else { return Ok(None) };
    let args = graph.args(node);
    let (lhs, rhs) = (graph.dense(args[0])?, graph.dense(args[1])?);
    if graph.constant(args[1]).is_none() || lhs.rank() != 4 || c.out_rank != 4 {
        return Ok(None);
    }
    Ok(as_conv(c, &lhs, &rhs).filter(|conv| conv.groups == 1 || conv.is_depthwise()))
}

fn candidate(graph: &Graph, node: NodeId) -> Result<Option<Candidate>> {
    let NodeKind::Prim(prim) = &graph.node(node).kind else { return Ok(None) };
    if graph.node(node).types.len() != 1 || !has_blocks(&graph.dense(Value { node, port: 0 })?) {
        return Ok(None);
    }
    let same = |fits: bool| Ok(fits.then_some(Candidate::Same));
    let mut operands = vec![];
    for v in graph.args(node) {
        operands.push(graph.dense(v)?);
    }
    match prim {
        Prim::Contract(_) => Ok(convolution(graph, node)?.map(|conv| match conv.is_depthwise() {
            true => Candidate::Depthwise(conv),
            false => Candidate::Dense(conv),
        })),
        Prim::Map(f) => same(!f.uses_coord()),
        Prim::View(view) => same(keeps_channels(view, &operands[0], &graph.dense(Value { node, port: 0 })?)),
        Prim::Reduce(r) => same(folds_pixels(r) && operands.iter().all(has_blocks)),
        Prim::Concat { axis } => same(*axis < operands[0].rank() && operands.iter().all(has_blocks)),
        _ => Ok(None),
    }
}

/// Whether a view leaves channels where they are.
fn keeps_channels(view: &View, from: &DenseType, to: &DenseType) -> bool {
    let elsewhere = |(axis, index): (usize, &Index)| axis == 1 || !index.mentions(1);
    from.rank() >= 2
        && from.dims[1] == to.dims[1]
        && view.map[1] == Index::var(1)
        && view.map.iter().enumerate().all(elsewhere)
}

/// Whether a reduction leaves the first two axes alone.
fn folds_pixels(r: &Reduction) -> bool {
    !r.axes.contains(&1) && (r.keep_dims || !r.axes.contains(&0)) && !r.map.uses_coord()
}

/// What kernels cost, with the methods that convolutions may be computed by.
#[derive(Clone, Copy)]
pub(super) struct Prices<'m> {
    pub machine: &'m Machine,
    pub methods: &'m [Method],
}

impl Prices<'_> {
    /// The fastest method for a dense convolution over blocks, and its picoseconds.
    fn method(self, conv: &Conv2d) -> (Method, u64) {
        let times = self.methods.iter().filter_map(|m| Some((*m, self.machine.blocked_convolution_time(conv, *m)?)));
        times.min_by_key(|(_, time)| *time).unwrap_or_default()
    }

    /// Picoseconds it takes a convolution to read x of type `ty` from planes: all methods but the sum copy it.
    fn planes(self, conv: &Conv2d, ty: &DenseType) -> u64 {
        if self.method(conv).0 == Method::Sum { 0 } else { self.conversion(ty) }
    }

    /// Picoseconds of moving a value between the layouts.
    fn conversion(self, ty: &DenseType) -> u64 {
        match ty.dims[2..].iter().product::<u64>() {
            // Both layouts are the same.
            1 => 0,
            _ => self.machine.conversion_time(ty.bytes()).max(1),
        }
    }

    /// Picoseconds over planes and over blocks.
    fn costs(self, candidate: Candidate) -> [u64; 2] {
        match candidate {
            Candidate::Same => [0, 0],
            Candidate::Dense(conv) => [self.machine.convolution_time(&conv), self.method(&conv).1],
            Candidate::Depthwise(conv) => {
                let [x, _, y] = conv.sizes().map(|size| size.unwrap_or(0) * DType::F32.size() as u64);
                self.machine.depthwise_time(x + y)
            }
        }
    }
}

/// The network: blocked is the source's side.
struct Problem<'g> {
    graph: &'g Graph,
    prices: Prices<'g>,
    network: Network,
    candidates: &'g BTreeMap<NodeId, Candidate>,
    at: BTreeMap<NodeId, usize>,
}

/// The nodes that should compute blocked results, in topological order, and the methods of convolutions.
pub(super) fn blocked(graph: &Graph, prices: Prices<'_>, everywhere: bool) -> Result<Vec<(NodeId, Method)>> {
    let mut candidates = BTreeMap::new();
    for node in graph.order() {
        if let Some(candidate) = candidate(graph, node)? {
            candidates.insert(node, candidate);
        }
    }
    if candidates.values().all(|c| *c == Candidate::Same) {
        return Ok(vec![]);
    }
    let with_method = |n: NodeId| match candidates.get(&n)? {
        Candidate::Dense(conv) => Some((n, prices.method(conv).0)),
        _ => Some((n, Method::Sum)),
    };
    if everywhere {
        return Ok(graph.order().into_iter().filter_map(with_method).collect());
    }
    let mut problem = Problem { graph, prices, network: Network::new(), at: BTreeMap::new(), candidates: &candidates };
    problem.add_nodes();
    problem.add_values()?;
    let side = std::mem::replace(&mut problem.network, Network::new()).source_side();
    let cut = problem.at.iter().filter(|(_, i)| side[**i]).map(|(node, _)| *node).collect();
    let blocked = problem.with_epilogues(cut)?;
    Ok(graph.order().into_iter().filter(|n| blocked.contains(n)).filter_map(with_method).collect())
}

impl Problem<'_> {
    /// Also the maps that compute with blocks at no greater cost: a conversion behind them, rather than before, leaves
    /// them to the kernel of the convolution.
    fn with_epilogues(&self, mut blocked: BTreeSet<NodeId>) -> Result<BTreeSet<NodeId>> {
        for node in self.graph.order() {
            let is_map = matches!(self.graph.node(node).kind, NodeKind::Prim(Prim::Map(_)));
            if !is_map || !self.candidates.contains_key(&node) {
                continue;
            }
            let bytes = self.graph.dense(Value { node, port: 0 })?.bytes();
            let mut spares_conversion = false;
            let mut fits = true;
            for v in self.graph.args(node) {
                let converted = blocked.contains(&v.node);
                fits &= converted || self.graph.constant(v).is_some();
                let only_here = self.graph.uses(v.node).len() == 1 && !self.graph.is_root(v.node);
                spares_conversion |= converted && only_here && self.graph.dense(v)?.bytes() >= bytes;
            }
            if fits && spares_conversion {
                blocked.insert(node);
            }
        }
        Ok(blocked)
    }

    fn add_nodes(&mut self) {
        for (&node, &candidate) in self.candidates {
            let [planar, blocked] = self.prices.costs(candidate);
            let i = self.network.add_node();
            self.at.insert(node, i);
            self.network.add_edge(Network::SOURCE, i, planar);
            self.network.add_edge(i, Network::SINK, blocked);
        }
    }

    /// What each value costs if it has users on the other side.
    fn add_values(&mut self) -> Result<()> {
        for node in self.graph.order() {
            let v = Value { node, port: 0 };
            let constant = self.graph.constant(v).is_some();
            if constant || self.graph.node(node).types.len() != 1 || !has_blocks(&self.graph.dense(v)?) {
                continue;
            }
            let ty = self.graph.dense(v)?;
            let cost = self.prices.conversion(&ty);
            let own = self.at.get(&node).copied();
            let mut planar = if self.graph.is_root(node) { vec![Network::SINK] } else { vec![] };
            let mut blocked = vec![];
            for (user, ..) in self.graph.uses(node) {
                match (self.at.get(&user), self.candidates.get(&user)) {
                    (Some(&i), Some(candidate)) => {
                        planar.push(i);
                        blocked.push((
                            i,
                            match candidate {
                                Candidate::Dense(conv) => self.prices.planes(conv, &ty),
                                _ => UNBOUNDED,
                            },
                        ));
                    }
                    _ => planar.push(Network::SINK),
                }
            }
            if let Some(own) = own {
                let crossing = self.network.add_node();
                self.network.add_edge(own, crossing, cost);
                planar.into_iter().for_each(|user| self.network.add_edge(crossing, user, UNBOUNDED));
            }
            let crossing = self.network.add_node();
            self.network.add_edge(crossing, own.unwrap_or(Network::SINK), cost);
            blocked.into_iter().for_each(|(user, loss)| self.network.add_edge(user, crossing, loss));
        }
        Ok(())
    }
}
