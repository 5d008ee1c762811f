//! The nodes of the user's model: names, operators, types, and what became of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use tensorc_ir::flow::FlowKind;
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
}

impl Nodes {
    /// The table of rows.
    pub fn of(rows: &[NodeRow], strings: &mut Strings) -> Nodes {
        let mut nodes = Nodes { names: rows.iter().map(|row| &row.name).collect(), ..Nodes::default() };
        for (i, row) in (0..).zip(rows) {
            nodes.ops.push(strings.of(&row.op));
            nodes.types.push(strings.of(&row.ty));
            nodes.args.push(row.args.iter().filter_map(|arg| u32::checked_sub(i, *arg)).collect());
            nodes.constants.push(row.constants.iter().map(|ty| strings.of(ty)).collect());
            nodes.fates.push(row.fate as u8);
        }
        nodes
    }
}

/// The user's graph as rows.
pub(super) struct UserGraph {
    pub rows: Vec<NodeRow>,
    /// Positions of nodes by name, which need not tell them apart.
    by_name: BTreeMap<Arc<str>, Vec<u32>>,
    by_id: BTreeMap<NodeId, u32>,
}

impl UserGraph {
    /// The nodes of a graph as it was imported, besides constants; outputs follow as nodes.
    pub fn of(graph: &Graph) -> UserGraph {
        let mut of = UserGraph { rows: vec![], by_name: BTreeMap::new(), by_id: BTreeMap::new() };
        let known = constants(graph);
        for id in graph.order() {
            let node = graph.node(id);
            let op = match &node.kind {
                NodeKind::Const(_) => continue,
                NodeKind::Input => "input".to_owned(),
                NodeKind::Op(op) => op.def.name.to_owned(),
                NodeKind::Prim(Prim::Flow(flow)) => {
                    let word = if flow.kind == FlowKind::If { "branch" } else { "loop" };
                    format!("{word} of {} nodes", flow.bodies.iter().map(Graph::total_nodes).sum::<usize>())
                }
                NodeKind::Prim(_) => "primitive".to_owned(),
                NodeKind::Fused(_) => "cluster".to_owned(),
            };
            let args = graph.args(id);
            let constant = |v: &&Value| matches!(graph.node(v.node).kind, NodeKind::Const(_));
            let constants = args.iter().filter(constant).map(|v| type_text(graph, &graph.resolved(*v))).collect();
            let fate = match &node.kind {
                NodeKind::Input => Fate::Edge,
                _ if known.contains(&id) => Fate::Constant,
                _ => Fate::Vanished,
            };
            let row =
                NodeRow { name: node.name.clone(), op, ty: String::new(), args: of.positions(&args), constants, fate };
            let position = of.rows.len() as u32;
            of.by_id.insert(id, position);
            of.by_name.entry(node.name.clone()).or_default().push(position);
            of.rows.push(row);
        }
        for (name, v) in graph.outputs() {
            let (name, args, op) = (name.clone(), of.positions(&[*v]), "output".to_owned());
            of.rows.push(NodeRow { name, op, ty: String::new(), args, constants: vec![], fate: Fate::Edge });
        }
        of
    }

    fn positions(&self, values: &[Value]) -> Vec<u32> {
        let mut all: Vec<u32> = values.iter().filter_map(|v| self.by_id.get(&v.node).copied()).collect();
        all.dedup();
        all
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
        for id in part.node_ids() {
            let node = part.node(id);
            if matches!(node.kind, NodeKind::Const(_)) || node.types.is_empty() {
                continue;
            }
            let text = type_text(part, &part.resolved(Value { node: id, port: 0 }));
            for position in self.by_name.get(&node.name).into_iter().flatten() {
                self.rows[*position as usize].ty.clone_from(&text);
            }
        }
        for i in 0..self.rows.len() {
            if self.rows[i].op == "output"
                && let Some(&from) = self.rows[i].args.first()
            {
                self.rows[i].ty = self.rows[from as usize].ty.clone();
            }
        }
    }

    /// What is part of kernels, or of the host's work, is.
    pub fn set_fate(&mut self, positions: impl IntoIterator<Item = u32>, fate: Fate) {
        for position in positions {
            let row = &mut self.rows[position as usize];
            if row.fate != Fate::Edge {
                row.fate = fate;
            }
        }
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
