//! Which layout every image has: labels of nodes, found by minimum cuts.
//!
//! What labels cost is a sum over edges from a node to its users. First count the bytes that kernels move which do
//! nothing else: conversions between layouts, and views that are part of the graph and move elements. Then counts the
//! time convolutions take. Where all images are in planes there are no conversions, and no step makes the sum
//! larger, so a layout never costs a kernel that was not there before. Convolutions of one group read and write any
//! layout and so take the part of conversions.
//!
//! With more than two labels the minimum is hard to find. Expansions (Boykov, Veksler and Zabih, "Fast approximate
//! energy minimization via graph cuts", PAMI 2001) come near to it: each lets any number of nodes change to one layout,
//! and which ones is a minimum cut.

use std::collections::BTreeMap;

use tensorc_abi::{Conv2d, ImageLayout};
use tensorc_ir::diag::Result;
use tensorc_ir::extent::Example;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{ConvAlgorithm, Prim, Reduction, View};
use tensorc_ir::views::{compose, run_offset};
use tensorc_ir::{DenseType, Extent};
use tensorc_schedule::cost::CostModel;
use tensorc_schedule::recognise::contract::planar_convolution;

use super::cut::Network;
use super::forms::{coincide, form, from_planes, to_planes};

/// How a node is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The layout of the result.
    pub layout: ImageLayout,
    /// That of its operand, if it is a convolution or moves elements.
    pub data: ImageLayout,
    /// How a convolution is computed; none of what only moves elements.
    pub algorithm: Option<ConvAlgorithm>,
}

/// Bytes moved, then picoseconds.
type LayoutCost = u128;

fn moved(bytes: u64) -> LayoutCost {
    LayoutCost::from(bytes) << 64
}

/// Picoseconds for each byte of a result whose neighbours are read from places far from each other.
const APART: u64 = 125;

/// What it costs to move elements of an image in a layout as a view says.
fn moving(view: &View, from: &DenseType, a: ImageLayout, to: &DenseType, b: ImageLayout) -> LayoutCost {
    if lies_still(view, from, a, to, b) {
        return 0;
    }
    // Neighbours in a row of the result that are neighbours in a plane are a pixel apart in other layouts.
    let across = view.map.last().is_some_and(|column| to.rank() > 0 && column.mentions(to.rank() as u32 - 1));
    let apart = a != ImageLayout::Nchw && from.rank() > 2 && across;
    moved(to.bytes()) + if apart { LayoutCost::from(to.bytes().saturating_mul(APART)) } else { 0 }
}

/// What it costs to read an image in another layout, for a result of rank `rank`.
fn conversion(ty: &DenseType, rank: usize, from: ImageLayout, to: ImageLayout) -> LayoutCost {
    match coincide(ty, rank, from, to) {
        false => moved(ty.bytes()),
        // All else being equal, shapes stay the same.
        true => LayoutCost::from(from != to),
    }
}

/// A node that could compute its result in other layouts than planes.
#[derive(Clone, Debug)]
enum LayoutNode {
    /// In the layout of its operands, where that is one of blocks or has channels last, if it can be.
    Same {
        blocks: bool,
        last: bool,
    },
    /// A convolution of one group.
    Dense(Conv2d),
    Depthwise(Conv2d),
    /// A view of an image, or to one, that does not leave channels where they are.
    Moving(View),
}

/// The convolution a node computes, if a kernel for other layouts than planes could.
pub(super) fn convolution(graph: &Graph, node: NodeId) -> Result<Option<Conv2d<Extent>>> {
    let NodeKind::Prim(Prim::Contract(c)) = &graph.node(node).kind else { return Ok(None) };
    let args = graph.args(node);
    let (lhs, rhs) = (graph.dense(args[0])?, graph.dense(args[1])?);
    if graph.constant(args[1]).is_none() || lhs.rank() != 4 || c.out_rank != 4 {
        return Ok(None);
    }
    let found = planar_convolution(c, &lhs, &rhs);
    Ok(found.filter(|conv| conv.groups == 1 || conv.is_depthwise()))
}

fn candidate(graph: &Graph, node: NodeId) -> Result<Option<LayoutNode>> {
    let NodeKind::Prim(prim) = &graph.node(node).kind else { return Ok(None) };
    let is_image = |ty: &DenseType| ty.rank() >= 2 && !ty.is_empty();
    if graph.node(node).types.len() != 1 || !is_image(&graph.dense(Value { node, port: 0 })?) {
        return Ok(None);
    }
    let out = graph.dense(Value { node, port: 0 })?;
    let mut operands = vec![];
    for v in graph.args(node) {
        operands.push(graph.dense(v)?);
    }
    let same = |fits: bool| Ok(fits.then_some(LayoutNode::Same { blocks: true, last: true }));
    match prim {
        // Costs are estimated at the example extents.
        Prim::Contract(_) => {
            Ok(convolution(graph, node)?.map(|conv| conv.convert(&Example)).map(|conv| match conv.is_depthwise() {
                true => LayoutNode::Depthwise(conv),
                false => LayoutNode::Dense(conv),
            }))
        }
        Prim::Map(f) => same(!f.uses_coord()),
        Prim::View(view) if keeps_channels(view, &operands[0], &out) => same(true),
        Prim::View(view) if graph.constant(graph.args(node)[0]).is_none() => {
            Ok(Some(LayoutNode::Moving(view.as_ref().clone())))
        }
        Prim::Reduce(r) => same(folds_pixels(r) && operands.iter().all(is_image)),
        Prim::Concat { axis } if *axis < out.rank() && operands.iter().all(is_image) => {
            // Whole blocks are joined; with channels last, parts of a pixel do not lie in one place.
            let blocks = operands.iter().all(|ty| ImageLayout::Nchw16c.holds(ty.dims[1]));
            Ok(Some(LayoutNode::Same { blocks, last: *axis != 1 }))
        }
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

/// What kernels cost, with the algorithms that convolutions may be computed by.
#[derive(Clone, Copy)]
pub(super) struct Prices<'m> {
    pub machine: &'m CostModel,
    pub algorithms: &'m [ConvAlgorithm],
}

impl Prices<'_> {
    /// The fastest algorithm for a dense convolution between two layouts, and its picoseconds.
    fn algorithm(self, conv: &Conv2d, layouts: [ImageLayout; 2]) -> Option<(ConvAlgorithm, u64)> {
        let call = Conv2d { layouts, ..*conv };
        let times = self.algorithms.iter().filter_map(|a| Some((*a, self.machine.convolution_time(&call, *a)?)));
        times.min_by_key(|(_, time)| *time)
    }

    /// The fastest way to a convolution whose data can be read in some layouts at some cost.
    fn convolution(
        self,
        conv: &Conv2d,
        layout: ImageLayout,
        read: impl Fn(ImageLayout) -> LayoutCost,
    ) -> Option<(LayoutCost, Choice)> {
        let times = ImageLayout::ALL.into_iter().filter_map(|data| {
            let (algorithm, time) = self.algorithm(conv, [data, layout])?;
            Some((read(data) + LayoutCost::from(time), Choice { layout, data, algorithm: Some(algorithm) }))
        });
        times.min_by_key(|(cost, _)| *cost)
    }
}

/// An operand: from a node's result, or a value in planes, to a node, or something that reads planes.
struct LayoutEdge {
    nodes: [Option<usize>; 2],
    /// By the layouts of both.
    costs: [[LayoutCost; 3]; 3],
}

impl LayoutEdge {
    fn cost(&self, labels: &[ImageLayout]) -> LayoutCost {
        let [from, to] = self.nodes.map(|node| node.map_or(ImageLayout::Nchw, |node| labels[node]) as usize);
        self.costs[from][to]
    }
}

/// Layouts to choose from, and what they cost.
struct LayoutProblem<'g> {
    graph: &'g Graph,
    prices: Prices<'g>,
    nodes: Vec<(NodeId, LayoutNode)>,
    at: BTreeMap<NodeId, usize>,
    edges: Vec<LayoutEdge>,
}

/// The nodes that are not computed as they are written, in topological order.
pub(super) fn choices(
    graph: &Graph,
    prices: Prices<'_>,
    everywhere: Option<ImageLayout>,
) -> Result<Vec<(NodeId, Choice)>> {
    let mut nodes = vec![];
    for node in graph.order() {
        nodes.extend(candidate(graph, node)?.map(|candidate| (node, candidate)));
    }
    if nodes.iter().all(|(_, c)| matches!(c, LayoutNode::Same { .. } | LayoutNode::Moving(_))) {
        return Ok(vec![]);
    }
    let at = nodes.iter().enumerate().map(|(i, (node, _))| (*node, i)).collect();
    let mut problem = LayoutProblem { graph, prices, nodes, at, edges: vec![] };
    problem.add_edges()?;
    let mut labels = vec![ImageLayout::Nchw; problem.nodes.len()];
    match everywhere {
        Some(layout) => {
            for (i, label) in labels.iter_mut().enumerate().filter(|(i, _)| problem.allows(*i, layout)) {
                *label = if matches!(problem.nodes[i].1, LayoutNode::Moving(_)) { *label } else { layout };
            }
        }
        None => problem.expand_all(&mut labels),
    }
    problem.chosen(&labels)
}

impl LayoutProblem<'_> {
    fn result(&self, node: NodeId) -> Result<DenseType> {
        self.graph.dense(Value { node, port: 0 })
    }

    /// Whether a node can have its result in a layout.
    fn allows(&self, i: usize, layout: ImageLayout) -> bool {
        let (node, candidate) = &self.nodes[i];
        let Some(ty) = self.graph.dense(Value { node: *node, port: 0 }).ok() else { return false };
        let able = match candidate {
            LayoutNode::Same { blocks, last } => match layout {
                ImageLayout::Nchw => true,
                ImageLayout::Nchw16c => *blocks,
                ImageLayout::Nhwc => *last,
            },
            LayoutNode::Dense(_) | LayoutNode::Moving(_) => true,
            LayoutNode::Depthwise(conv) => [ImageLayout::Nchw16c, ImageLayout::Nhwc]
                .map(|x| Conv2d { layouts: [x, layout], ..*conv })
                .iter()
                .any(|call| self.prices.machine.convolution_time(call, ConvAlgorithm::Direct).is_some()),
        };
        layout == ImageLayout::Nchw || able && layout.holds(ty.dims[1])
    }

    fn add_edges(&mut self) -> Result<()> {
        for node in self.graph.order() {
            let v = Value { node, port: 0 };
            let is_data = |ty: &DenseType| ty.rank() >= 2 && !ty.is_empty();
            if self.graph.constant(v).is_some() || self.graph.node(node).types.len() != 1 {
                continue;
            }
            let (from, ty) = (self.at.get(&node).copied(), self.graph.dense(v)?);
            let mut users: Vec<(Option<usize>, usize)> = vec![];
            for (user, port, _) in self.graph.uses(node) {
                users.push((self.at.get(&user).copied(), port as usize));
            }
            if self.graph.is_root(node) {
                users.push((None, 0));
            }
            for (to, port) in users {
                if from.is_none() && to.is_none() || from.is_some() && !is_data(&ty) {
                    continue;
                }
                let costs = self.costs(from, &ty, to, port)?;
                if costs.iter().flatten().any(|cost| *cost != 0) {
                    self.edges.push(LayoutEdge { nodes: [from, to], costs });
                }
            }
        }
        Ok(())
    }

    /// What it costs a node to read a value, by the layouts of both.
    fn costs(
        &self,
        from: Option<usize>,
        ty: &DenseType,
        to: Option<usize>,
        port: usize,
    ) -> Result<[[LayoutCost; 3]; 3]> {
        let mut costs = [[0; 3]; 3];
        for a in ImageLayout::ALL.into_iter().filter(|a| from.map_or(*a == ImageLayout::Nchw, |i| self.allows(i, *a))) {
            for b in ImageLayout::ALL.into_iter().filter(|b| to.map_or(*b == ImageLayout::Nchw, |i| self.allows(i, *b)))
            {
                costs[a as usize][b as usize] = self.cost(a, ty, to, b, port)?;
            }
        }
        Ok(costs)
    }

    fn cost(
        &self,
        a: ImageLayout,
        ty: &DenseType,
        to: Option<usize>,
        b: ImageLayout,
        port: usize,
    ) -> Result<LayoutCost> {
        let convert = |from, to| conversion(ty, ty.rank(), from, to);
        let Some(to) = to else { return Ok(convert(a, ImageLayout::Nchw)) };
        let (node, candidate) = &self.nodes[to];
        let out = self.result(*node)?;
        Ok(match candidate {
            LayoutNode::Dense(conv) | LayoutNode::Depthwise(conv) if port == 0 => {
                self.prices.convolution(conv, b, |x| convert(a, x)).map_or(0, |(cost, _)| cost)
            }
            LayoutNode::Dense(_) | LayoutNode::Depthwise(_) => 0,
            LayoutNode::Moving(view) => moving(view, ty, a, &out, b),
            LayoutNode::Same { .. }
                if ty.rank() == out.rank() || !matches!(self.graph.node(*node).kind, NodeKind::Prim(Prim::Map(_))) =>
            {
                convert(a, b)
            }
            // The operand of a map broadcasts to its result: channels are another axis of it.
            LayoutNode::Same { .. } => {
                let back = if a == ImageLayout::Nchw || ty.rank() < 2 { 0 } else { convert(a, ImageLayout::Nchw) };
                back + conversion(ty, out.rank(), ImageLayout::Nchw, b)
            }
        })
    }

    fn energy(&self, labels: &[ImageLayout]) -> LayoutCost {
        self.edges.iter().map(|edge| edge.cost(labels)).sum()
    }

    /// Expands one layout after the other as long as that pays.
    fn expand_all(&self, labels: &mut Vec<ImageLayout>) {
        let mut energy = self.energy(labels);
        let mut useless = 0;
        for layout in [ImageLayout::Nchw16c, ImageLayout::Nhwc, ImageLayout::Nchw].into_iter().cycle() {
            let expanded = self.expand(labels, layout);
            let found = self.energy(&expanded);
            useless += 1;
            if found < energy {
                (*labels, energy, useless) = (expanded, found, 0);
            }
            if useless == ImageLayout::ALL.len() {
                return;
            }
        }
    }

    /// Labels of which some have become `layout`.
    fn expand(&self, labels: &[ImageLayout], layout: ImageLayout) -> Vec<ImageLayout> {
        let mut network = Network::new();
        let change = |i: usize| labels[i] != layout && self.allows(i, layout);
        let places: Vec<Option<usize>> = (0..labels.len()).map(|i| change(i).then(|| network.add_node())).collect();
        // What it costs more if a node changes.
        let mut linear = vec![0i128; labels.len()];
        let mut add = |i: Option<usize>, cost: i128| i.into_iter().for_each(|i| linear[i] += cost);
        for edge in &self.edges {
            let [from, to] = edge.nodes;
            let options = |node: Option<usize>| {
                let label = node.map_or(ImageLayout::Nchw, |i| labels[i]) as usize;
                let changes = node.filter(|i| places[*i].is_some());
                (changes, [label, changes.map_or(label, |_| layout as usize)])
            };
            let ((from, a), (to, b)) = (options(from), options(to));
            let cost = |x: usize, y: usize| edge.costs[a[x]][b[y]] as i128;
            // What it costs more if one of the two changes alone. A cut sees no gain in that: of one, the smaller, it
            // is taken away.
            let alone = cost(0, 1) + cost(1, 0) - cost(0, 0) - cost(1, 1);
            let source = cost(1, 0) - if cost(0, 1) < cost(1, 0) { alone.min(0) } else { 0 };
            add(from, source - cost(0, 0));
            add(to, cost(1, 1) - source);
            if let (Some(from), Some(to)) = (from.and_then(|i| places[i]), to.and_then(|i| places[i])) {
                network.add_edge(to, from, alone.max(0).unsigned_abs());
            }
        }
        for (place, cost) in places.iter().zip(&linear) {
            let Some(place) = *place else { continue };
            match u128::try_from(*cost) {
                Ok(cost) => network.add_edge(place, Network::SINK, cost),
                Err(_) => network.add_edge(Network::SOURCE, place, cost.unsigned_abs()),
            }
        }
        let side = network.source_side();
        let changed = |place: &Option<usize>| place.is_some_and(|place| side[place]);
        labels.iter().zip(&places).map(|(old, place)| if changed(place) { layout } else { *old }).collect()
    }

    /// The layout of a value.
    fn label(&self, v: Value, labels: &[ImageLayout]) -> ImageLayout {
        self.at.get(&v.node).map_or(ImageLayout::Nchw, |i| labels[*i])
    }

    /// How nodes are computed that are not computed as they are written.
    fn chosen(&self, labels: &[ImageLayout]) -> Result<Vec<(NodeId, Choice)>> {
        let mut out = vec![];
        for (i, (node, candidate)) in self.nodes.iter().enumerate() {
            let layout = labels[i];
            let choice = match candidate {
                LayoutNode::Moving(_) => {
                    let data = self.label(self.graph.args(*node)[0], labels);
                    Choice { layout: ImageLayout::Nchw, data, algorithm: None }
                }
                LayoutNode::Same { .. } => Choice { layout, data: layout, algorithm: Some(ConvAlgorithm::Direct) },
                LayoutNode::Dense(conv) | LayoutNode::Depthwise(conv) => {
                    let x = self.graph.args(*node)[0];
                    let ty = self.graph.dense(x)?;
                    let from = self.label(x, labels);
                    let found = self.prices.convolution(conv, layout, |data| conversion(&ty, ty.rank(), from, data));
                    let as_written = Choice { layout, data: ImageLayout::Nchw, algorithm: Some(ConvAlgorithm::Direct) };
                    found.map_or(as_written, |(_, choice)| choice)
                }
            };
            let planes = ImageLayout::Nchw;
            if [choice.layout, choice.data] != [planes; 2]
                || !matches!(choice.algorithm, None | Some(ConvAlgorithm::Direct))
            {
                out.push((*node, choice));
            }
        }
        Ok(out)
    }
}

/// Whether a view of an image in one layout, seen in another, needs no kernel.
fn lies_still(view: &View, from: &DenseType, a: ImageLayout, to: &DenseType, b: ImageLayout) -> bool {
    let (source, result) = (form(from, from.rank(), a), form(to, to.rank(), b));
    let (before, after) = (to_planes(from, a), from_planes(to, to.rank(), b));
    let composed = compose(&before, &source.dims, view, &from.dims, &to.dims)
        .and_then(|both| compose(&both, &source.dims, &after, &to.dims, &result.dims));
    composed.is_some_and(|view| run_offset(&view, &source, &result.dims).is_some())
}
