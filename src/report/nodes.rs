//! The nodes of the user's model: names, operators, types, and what became of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use tensorc_ir::flow::{Flow, FlowKind};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

use super::strings::{Names, Strings};
use crate::inspect::type_text;

/// What became of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// Part of kernels.
    Computed = 0,
    /// Its value is known when the model is compiled.
    Constant = 1,
    /// It has no code of its own: a view, equal to another node, or rewritten away.
    Vanished = 2,
    /// Computed by the host between parts.
    Host = 3,
    /// An input or output of the model.
    Edge = 4,
    /// Of a model that is not imported.
    Unknown = 5,
    /// Not supported.
    Unsupported = 6,
    /// Of a branch or loop that the host runs: compiled by itself, when it comes up.
    Nested = 7,
}

/// Nodes in the order of data flow, in columns.
#[derive(Default, Serialize)]
pub(super) struct Nodes {
    names: Names,
    /// By position in the table of texts.
    ops: Vec<u32>,
    types: Vec<u32>,
    /// The nodes that it reads, as distances back in the order.
    args: Vec<Vec<u32>>,
    /// Types of the constants that it reads.
    constants: Vec<Vec<u32>>,
    fates: Vec<u8>,
    /// Body of each node, counted from 1; 0 for a node of the main graph.
    within: Vec<u32>,
    /// The bodies of branches and loops.
    bodies: Vec<BodyRecord>,
}

/// A graph that a branch or loop runs.
#[derive(Clone, Serialize)]
pub(super) struct BodyRecord {
    /// The branch or loop, by position.
    flow: u32,
    /// Which of its bodies.
    label: &'static str,
    /// The body around the branch or loop, as in [`Nodes::within`].
    within: u32,
}

/// A node before it becomes a row.
pub(super) struct NodeRow {
    pub name: Arc<str>,
    pub op: String,
    pub ty: String,
    /// Positions of the nodes that it reads.
    pub args: Vec<u32>,
    /// Types of the constants that it reads.
    pub constants: Vec<String>,
    pub fate: Fate,
    /// As [`Nodes::within`].
    pub within: u32,
}

impl NodeRow {
    fn new(name: Arc<str>, op: &str, args: Vec<u32>, within: u32) -> NodeRow {
        let (op, ty, constants) = (op.to_owned(), String::new(), vec![]);
        NodeRow { name, op, ty, args, constants, fate: Fate::Vanished, within }
    }
}

impl Nodes {
    /// The table of rows, which belong to the graph or to these bodies.
    pub fn of(rows: &[NodeRow], bodies: &[BodyRecord], strings: &mut Strings) -> Nodes {
        let names = rows.iter().map(|row| &row.name).collect();
        let mut nodes = Nodes { names, bodies: bodies.to_vec(), ..Nodes::default() };
        for (i, row) in (0..).zip(rows) {
            nodes.ops.push(strings.of(&row.op));
            nodes.types.push(strings.of(&row.ty));
            nodes.args.push(row.args.iter().filter_map(|arg| u32::checked_sub(i, *arg)).collect());
            nodes.constants.push(row.constants.iter().map(|ty| strings.of(ty)).collect());
            nodes.fates.push(row.fate as u8);
            nodes.within.push(row.within);
        }
        nodes
    }
}

/// The user's graph as rows. Nodes of a body come before the branch or loop that runs it, which reads their results.
pub(super) struct UserGraph {
    pub rows: Vec<NodeRow>,
    pub bodies: Vec<BodyRecord>,
    /// Positions of nodes by name, which need not tell them apart.
    by_name: BTreeMap<Arc<str>, Vec<u32>>,
    /// Positions of the nodes of the graph itself.
    by_id: BTreeMap<NodeId, u32>,
}

/// Positions of the rows that a value comes from.
type Sources = BTreeMap<NodeId, Vec<u32>>;

impl UserGraph {
    /// The nodes of a graph as it was imported, besides constants; outputs follow as nodes.
    pub fn of(graph: &Graph) -> UserGraph {
        let mut of = UserGraph { rows: vec![], bodies: vec![], by_name: BTreeMap::new(), by_id: BTreeMap::new() };
        let known = constants(graph);
        let inputs = graph.inputs().iter().map(|id| {
            let row = NodeRow { fate: Fate::Edge, ..NodeRow::new(graph.node(*id).name.clone(), "input", vec![], 0) };
            (*id, row)
        });
        let inputs: BTreeMap<NodeId, NodeRow> = inputs.collect();
        let sources = of.add_nodes(graph, inputs, Sources::new(), &known, 0);
        of.by_id = sources.iter().filter_map(|(id, rows)| Some((*id, *rows.first()?))).collect();
        for (name, v) in graph.outputs() {
            let row = NodeRow::new(name.clone(), "output", positions(&sources, &[*v]), 0);
            of.rows.push(NodeRow { fate: Fate::Edge, ..row });
        }
        of
    }

    /// Adds the nodes of a graph besides constants. Inputs have a row, or stand for rows that there are. Returns the row of each node.
    fn add_nodes(
        &mut self,
        graph: &Graph,
        mut inputs: BTreeMap<NodeId, NodeRow>,
        mut sources: Sources,
        known: &BTreeSet<NodeId>,
        within: u32,
    ) -> Sources {
        for id in graph.order() {
            let node = graph.node(id);
            let row = match &node.kind {
                NodeKind::Const(_) => continue,
                NodeKind::Input => match inputs.remove(&id) {
                    Some(row) => row,
                    None => continue,
                },
                kind => {
                    let args = graph.args(id);
                    let mut read = positions(&sources, &args);
                    if let NodeKind::Prim(Prim::Flow(flow)) = kind {
                        read.extend(self.add_bodies(flow, &args, &sources, within));
                    }
                    let constant = |v: &&Value| matches!(graph.node(v.node).kind, NodeKind::Const(_));
                    let types = args.iter().filter(constant).map(|v| type_text(graph, &graph.resolved(*v)));
                    let fate = if known.contains(&id) { Fate::Constant } else { Fate::Vanished };
                    let row = NodeRow::new(node.name.clone(), &operator(kind), read, within);
                    NodeRow { constants: types.collect(), fate, ..row }
                }
            };
            sources.insert(id, vec![self.push(row)]);
        }
        sources
    }

    /// Adds the nodes of the bodies of a branch or loop that will be the next row. Returns the rows of their results.
    fn add_bodies(&mut self, flow: &Flow, args: &[Value], sources: &Sources, within: u32) -> Vec<u32> {
        let mut results = vec![];
        let first = self.bodies.len();
        for (body, label) in flow.bodies.iter().zip(labels(&flow.kind)) {
            self.bodies.push(BodyRecord { flow: 0, label, within });
            let inside = self.bodies.len() as u32;
            let (mut given, mut made) = (Sources::new(), BTreeMap::new());
            for (at, id) in body.inputs().iter().enumerate() {
                let (what, operand) = body_input(&flow.kind, at);
                let read = operand.and_then(|at| args.get(at)).map_or_else(Vec::new, |v| positions(sources, &[*v]));
                match what {
                    Some(what) => {
                        let row = NodeRow::new(body.node(*id).name.clone(), what, read, inside);
                        made.insert(*id, NodeRow { fate: Fate::Edge, ..row });
                    }
                    None => drop(given.insert(*id, read)),
                }
            }
            // What the host runs is compiled by itself, so that nothing tells what became of its nodes.
            let before = self.rows.len();
            let of = self.add_nodes(body, made, given, &constants(body), inside);
            if flow.by_host {
                let nodes = self.rows[before..].iter_mut().filter(|row| row.fate != Fate::Edge);
                nodes.for_each(|row| row.fate = Fate::Nested);
            }
            let next = body.updates().iter().map(|(_, v)| *v);
            let values: Vec<Value> = body.outputs().iter().map(|(_, v)| *v).chain(next).collect();
            results.extend(positions(&of, &values));
        }
        let flow = self.rows.len() as u32;
        self.bodies[first..].iter_mut().filter(|body| body.within == within).for_each(|body| body.flow = flow);
        results
    }

    fn push(&mut self, row: NodeRow) -> u32 {
        let position = self.rows.len() as u32;
        self.by_name.entry(row.name.clone()).or_default().push(position);
        self.rows.push(row);
        position
    }

    /// The positions of nodes of a name.
    pub fn named(&self, name: &str) -> &[u32] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// The position of a node.
    pub fn position(&self, node: NodeId) -> Option<u32> {
        self.by_id.get(&node).copied()
    }

    /// Takes types from a part of the graph that is typed.
    pub fn learn_types(&mut self, part: &Graph) {
        self.learn_within(part, 0);
        for i in 0..self.rows.len() {
            if self.rows[i].op == "output"
                && let Some(&from) = self.rows[i].args.first()
            {
                self.rows[i].ty = self.rows[from as usize].ty.clone();
            }
        }
    }

    /// Takes the types of a graph, and of the bodies in it, for the rows of a body.
    fn learn_within(&mut self, typed: &Graph, within: u32) {
        for id in typed.node_ids() {
            let node = typed.node(id);
            if matches!(node.kind, NodeKind::Const(_)) || node.types.is_empty() {
                continue;
            }
            let text = type_text(typed, &typed.resolved(Value { node: id, port: 0 }));
            let mut named = self.by_name.get(&node.name).cloned().unwrap_or_default();
            named.retain(|at| self.rows[*at as usize].within == within);
            for position in named {
                self.rows[position as usize].ty.clone_from(&text);
                let Some(flow) = typed.flow(id) else { continue };
                let of_flow = |body: &BodyRecord| body.flow == position && body.within == within;
                let bodies: Vec<u32> = (1..).zip(&self.bodies).filter(|(_, b)| of_flow(b)).map(|(at, _)| at).collect();
                flow.bodies.iter().zip(bodies).for_each(|(body, at)| self.learn_within(body, at));
            }
        }
    }

    /// What is part of kernels, or of the host's work, is.
    pub fn set_fate(&mut self, positions: impl IntoIterator<Item = u32>, fate: Fate) {
        for position in positions {
            let row = &mut self.rows[position as usize];
            if row.fate != Fate::Edge && row.fate != Fate::Nested {
                row.fate = fate;
            }
        }
    }
}

/// The rows that values come from.
fn positions(sources: &Sources, values: &[Value]) -> Vec<u32> {
    let mut all: Vec<u32> = values.iter().filter_map(|v| sources.get(&v.node)).flatten().copied().collect();
    all.dedup();
    all
}

/// What a node does, in words.
fn operator(kind: &NodeKind) -> String {
    match kind {
        NodeKind::Input => "input".to_owned(),
        NodeKind::Op(op) => op.def.name.to_owned(),
        NodeKind::Prim(Prim::Flow(flow)) if flow.kind == FlowKind::If => "branch".to_owned(),
        NodeKind::Prim(Prim::Flow(_)) => "loop".to_owned(),
        NodeKind::Prim(_) => "primitive".to_owned(),
        NodeKind::Const(_) => "constant".to_owned(),
        NodeKind::Fused(_) => "cluster".to_owned(),
    }
}

/// What the bodies of a branch or loop are called.
fn labels(kind: &FlowKind) -> &'static [&'static str] {
    match kind {
        FlowKind::If => &["then", "else"],
        FlowKind::Loop(_) => &["body"],
    }
}

/// What an input of a body is, unless it is an operand as it stands; and the operand that it comes from ([`FlowKind`] has the order).
fn body_input(kind: &FlowKind, at: usize) -> (Option<&'static str>, Option<usize>) {
    let FlowKind::Loop(repeat) = kind else { return (None, Some(at + 1)) };
    // The number of the iteration is no operand, the condition no input.
    let operand = (at + usize::from(repeat.conditional)).checked_sub(1);
    match at {
        0 => (Some("number of the iteration"), None),
        _ if at <= repeat.carried => (Some("carried from one iteration to the next"), operand),
        _ if at < repeat.own_inputs() => (Some("row of this iteration"), operand),
        _ => (None, operand),
    }
}

/// The nodes that depend on no input.
fn constants(graph: &Graph) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    for id in graph.order() {
        let node = graph.node(id);
        let follows = || graph.args(id).iter().all(|v| found.contains(&v.node));
        if matches!(node.kind, NodeKind::Const(_)) || !matches!(node.kind, NodeKind::Input) && follows() {
            found.insert(id);
        }
    }
    found
}
