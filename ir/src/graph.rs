//! The tensor graph. petgraph stays private to this file.

mod bind;
mod effects;

use std::collections::BTreeSet;
use std::sync::Arc;

use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::{EdgeRef, NodeIndexable};
use smallvec::SmallVec;

pub use crate::demand::Check;
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::dim::DimTable;
use crate::flow::Flow;
use crate::op::OpRef;
use crate::params::Params;
use crate::prim::Prim;
pub use crate::recipe::FusionClass;
use crate::recipe::Recipe;
use crate::tensor::TensorData;
use crate::types::{DenseType, TensorType};

/// The position of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results, from 0.
    pub port: u16,
}

/// What a node computes.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A graph input.
    Input,
    /// A constant.
    Const(TensorData),
    /// An operator of the registry.
    Op(OpNode),
    /// A primitive.
    Prim(Prim),
    /// A cluster of primitives.
    Fused(FusedCluster),
}

/// An application of a registered operator.
#[derive(Clone, Debug)]
pub struct OpNode {
    /// The entry of the operator.
    pub def: OpRef,
    /// The parameters.
    pub params: Params,
    /// The formal position of each operand, ascending; optional operands leave gaps.
    pub slots: SmallVec<[u16; 4]>,
    /// Runs do not confirm what the operator demands of values: it is done already, or the result is not used where it would not
    /// hold.
    pub unchecked: bool,
}

/// A cluster of primitives compiled as one kernel. The body is a graph of [`NodeKind::Prim`],
/// [`NodeKind::Const`] and [`NodeKind::Input`] nodes; its inputs and outputs correspond to the
/// node's operands and ports.
#[derive(Clone, Debug)]
pub struct FusedCluster {
    /// What anchors the cluster.
    pub class: FusionClass,
    /// How it is computed, once that is decided.
    pub recipe: Option<Recipe>,
    /// The primitives of the cluster. Copies of a graph share them.
    pub body: Arc<Graph>,
}

impl FusedCluster {
    /// A cluster whose recipe is still to be decided.
    pub fn new(class: FusionClass, body: Graph) -> FusedCluster {
        FusedCluster { class, recipe: None, body: Arc::new(body) }
    }
}

/// A node of a graph.
#[derive(Clone, Debug)]
pub struct GraphNode {
    /// What it computes.
    pub kind: NodeKind,
    /// Name in the user's model, or derived from it.
    pub name: Arc<str>,
    /// Labels of the patches that made this node, in order.
    pub history: SmallVec<[&'static str; 2]>,
    /// The types of its results.
    pub types: SmallVec<[TensorType; 1]>,
}

#[derive(Clone, Copy, Debug)]
struct OperandEdge {
    from_port: u16,
    to_port: u16,
}

/// A directed acyclic graph of tensor computations.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The name of the graph.
    pub name: String,
    /// Dimension variables of the types in this graph.
    pub dims: DimTable,
    g: StableDiGraph<GraphNode, OperandEdge>,
    inputs: Vec<NodeId>,
    outputs: Vec<(Arc<str>, Value)>,
    /// Inputs that hold another value after the run.
    updates: Vec<(NodeId, Value)>,
    /// What a run confirms.
    checks: Vec<Check>,
    /// Outputs that the first of two phases delivers; `None`: there is one phase.
    boundary: Option<usize>,
    /// Nodes added since the last patch began. Ids of removed nodes are used again, so new nodes
    /// cannot be told by their id.
    made: Vec<NodeId>,
}

impl Graph {
    /// A graph without nodes.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    fn insert(&mut self, kind: NodeKind, name: Arc<str>, types: impl IntoIterator<Item = TensorType>) -> NodeId {
        let node = GraphNode { kind, name, history: SmallVec::new(), types: types.into_iter().collect() };
        let id = NodeId(self.g.add_node(node).index() as u32);
        self.made.push(id);
        id
    }

    /// Adds an input.
    pub fn add_input(&mut self, name: impl Into<Arc<str>>, ty: TensorType) -> Value {
        let node = self.insert(NodeKind::Input, name.into(), [ty]);
        self.inputs.push(node);
        Value { node, port: 0 }
    }

    /// Adds an input in front of the one at a position of the signature.
    pub fn insert_input(&mut self, at: usize, name: impl Into<Arc<str>>, ty: TensorType) -> Value {
        let value = self.add_input(name, ty);
        self.inputs.pop();
        self.inputs.insert(at.min(self.inputs.len()), value.node);
        value
    }

    /// Adds a constant.
    pub fn add_const(&mut self, name: impl Into<Arc<str>>, data: TensorData) -> Value {
        let ty = data.ty.clone().into();
        Value { node: self.insert(NodeKind::Const(data), name.into(), [ty]), port: 0 }
    }

    /// Adds an operator with operands at their formal positions; checks the arity and completes the
    /// parameters. Types start unknown.
    pub fn add_op(
        &mut self,
        name: impl Into<Arc<str>>,
        def: &OpRef,
        operands: &[Option<Value>],
        mut params: Params,
        outputs: usize,
    ) -> Result<NodeId> {
        let name = name.into();
        let fail = |code, why: String| Err(Diagnostic::new(code, format!("{}: {why}", def.name)).at(&name));
        if let Err(why) = params.complete(&def.params) {
            return fail(DiagnosticCode::Operands, why);
        }
        if let Err(why) = def.check_operands(operands) {
            return fail(DiagnosticCode::Operands, why);
        }
        let present = operands.iter().enumerate().filter_map(|(i, v)| v.map(|v| (i as u16, v)));
        let (slots, values): (SmallVec<[u16; 4]>, Vec<Value>) = present.unzip();
        let kind = NodeKind::Op(OpNode { def: def.clone(), params, slots, unchecked: false });
        let node = self.insert(kind, name, vec![TensorType::unknown(); outputs]);
        self.connect(node, &values);
        Ok(node)
    }

    /// Adds an operator as it is in another graph.
    ///
    /// # Errors
    /// As [`Graph::add_op`].
    pub fn add_op_like(
        &mut self,
        name: impl Into<Arc<str>>,
        op: &OpNode,
        operands: &[Option<Value>],
        outputs: usize,
    ) -> Result<NodeId> {
        let node = self.add_op(name, &op.def, operands, op.params.clone(), outputs)?;
        if op.unchecked {
            self.set_unchecked(node);
        }
        Ok(node)
    }

    /// Leaves out the checks of an operator's operands.
    pub fn set_unchecked(&mut self, node: NodeId) {
        if let NodeKind::Op(op) = &mut self.g[index(node)].kind {
            op.unchecked = true;
        }
    }

    /// Adds a primitive with known result types.
    pub fn add_prim(&mut self, name: impl Into<Arc<str>>, prim: Prim, inputs: &[Value], types: &[DenseType]) -> NodeId {
        let node = self.insert(NodeKind::Prim(prim), name.into(), types.iter().cloned().map(TensorType::from));
        self.connect(node, inputs);
        node
    }

    /// Adds a branch or loop whose result types need not be known.
    pub fn add_flow(
        &mut self,
        name: impl Into<Arc<str>>,
        flow: Flow,
        inputs: &[Value],
        types: impl IntoIterator<Item = TensorType>,
    ) -> NodeId {
        let node = self.insert(NodeKind::Prim(Prim::Flow(flow.into())), name.into(), types);
        self.connect(node, inputs);
        node
    }

    /// Adds a cluster with known result types.
    pub fn add_fused(
        &mut self,
        name: impl Into<Arc<str>>,
        fused: FusedCluster,
        inputs: &[Value],
        types: &[DenseType],
    ) -> NodeId {
        let node = self.insert(NodeKind::Fused(fused), name.into(), types.iter().cloned().map(TensorType::from));
        self.connect(node, inputs);
        node
    }

    fn connect(&mut self, node: NodeId, inputs: &[Value]) {
        for (to_port, v) in inputs.iter().enumerate() {
            let edge = OperandEdge { from_port: v.port, to_port: to_port as u16 };
            self.g.add_edge(index(v.node), index(node), edge);
        }
    }

    /// A node of the graph.
    pub fn node(&self, id: NodeId) -> &GraphNode {
        &self.g[index(id)]
    }

    /// A node of the graph, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut GraphNode {
        &mut self.g[index(id)]
    }

    /// Input nodes in signature order.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// Brings the inputs into an order; those that are left out, which nothing may use, are taken out of the graph.
    pub fn set_inputs(&mut self, order: &[NodeId]) {
        let left_out: Vec<NodeId> = self.inputs.iter().copied().filter(|node| !order.contains(node)).collect();
        left_out.into_iter().for_each(|node| self.remove_input(node));
        let kept: Vec<NodeId> = self.inputs.iter().copied().filter(|node| !order.contains(node)).collect();
        self.inputs = order.iter().copied().chain(kept).collect();
    }

    /// Takes an input that nothing uses out of the graph; one that is used stays.
    pub fn remove_input(&mut self, node: NodeId) {
        let used = !self.uses(node).is_empty() || self.is_output(Value { node, port: 0 });
        if !used && self.inputs.contains(&node) {
            self.inputs.retain(|n| *n != node);
            self.g.remove_node(index(node));
        }
    }

    /// Named results in signature order.
    pub fn outputs(&self) -> &[(Arc<str>, Value)] {
        &self.outputs
    }

    /// Adds an output.
    pub fn add_output(&mut self, name: impl Into<Arc<str>>, value: Value) {
        self.outputs.push((name.into(), value));
    }

    /// Makes these the only outputs, in this order.
    pub fn set_outputs(&mut self, outputs: impl IntoIterator<Item = (Arc<str>, Value)>) {
        self.outputs = outputs.into_iter().collect();
    }

    /// The given nodes and all they depend on.
    pub fn ancestors(&self, nodes: impl IntoIterator<Item = NodeId>) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut stack: Vec<NodeId> = nodes.into_iter().collect();
        while let Some(node) = stack.pop() {
            if found.insert(node) {
                stack.extend(self.args(node).iter().map(|v| v.node));
            }
        }
        found
    }

    /// What the graph is there for: the values of its outputs, updates and checks.
    pub fn roots(&self) -> impl Iterator<Item = Value> {
        let delivered = self.outputs.iter().map(|(_, v)| *v).chain(self.updates.iter().map(|(_, v)| *v));
        delivered.chain(self.checks.iter().map(|check| check.value))
    }

    /// The operands of a node, by port. For operators with absent optional operands see
    /// [`Graph::operands`].
    pub fn args(&self, node: NodeId) -> SmallVec<[Value; 4]> {
        let mut args: SmallVec<[(u16, Value); 4]> = self
            .g
            .edges_directed(index(node), Direction::Incoming)
            .map(|e| {
                let edge = e.weight();
                (edge.to_port, Value { node: NodeId(e.source().index() as u32), port: edge.from_port })
            })
            .collect();
        args.sort_by_key(|(port, _)| *port);
        args.into_iter().map(|(_, v)| v).collect()
    }

    /// Every incoming edge as (operand port, value), sorted: what the verifier checks.
    pub fn arg_ports(&self, node: NodeId) -> Vec<(u16, Value)> {
        let edges = self.g.edges_directed(index(node), Direction::Incoming);
        let mut ports: Vec<(u16, Value)> = edges
            .map(|e| {
                let edge = e.weight();
                (edge.to_port, Value { node: NodeId(e.source().index() as u32), port: edge.from_port })
            })
            .collect();
        ports.sort();
        ports
    }

    /// The operands of an operator by formal position, `None` where absent; of any other node, its
    /// arguments.
    pub fn operands(&self, node: NodeId) -> Vec<Option<Value>> {
        let args = self.args(node);
        match &self.node(node).kind {
            NodeKind::Op(op) => {
                let mut formal = vec![None; op.slots.last().map_or(0, |s| *s as usize + 1)];
                for (slot, v) in op.slots.iter().zip(args) {
                    formal[*slot as usize] = Some(v);
                }
                formal
            }
            _ => args.into_iter().map(Some).collect(),
        }
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> &TensorType {
        &self.node(v.node).types[v.port as usize]
    }

    /// The type with every dimension variable resolved.
    pub fn resolved(&self, v: Value) -> TensorType {
        self.dims.resolve_type(self.ty(v))
    }

    /// The type of a value, which must be fully known.
    pub fn dense(&self, v: Value) -> Result<DenseType> {
        self.resolved(v).dense().ok_or_else(|| {
            let name = &self.node(v.node).name;
            Diagnostic::new(DiagnosticCode::Unresolved, format!("the type of output {} is not fully known", v.port))
                .at(name)
        })
    }

    /// The value of a constant.
    pub fn constant(&self, v: Value) -> Option<&TensorData> {
        match &self.node(v.node).kind {
            NodeKind::Const(data) => Some(data),
            _ => None,
        }
    }

    /// Puts other data in the place of every constant, of the same type, up to one for which `f` fails; in bodies, too.
    pub fn map_constants<E>(&mut self, f: &mut dyn FnMut(&TensorData) -> Result<TensorData, E>) -> Result<(), E> {
        self.g.node_weights_mut().try_for_each(|node| {
            if let NodeKind::Const(data) = &mut node.kind {
                *data = f(data)?;
            }
            Ok(())
        })?;
        self.change_bodies(&mut |body| body.map_constants(f).map(|()| true)).map(drop)
    }

    /// Every use of any output of `node`: (user, operand port, value), ordered.
    pub fn uses(&self, node: NodeId) -> Vec<(NodeId, u16, Value)> {
        let mut uses: Vec<_> = self
            .g
            .edges_directed(index(node), Direction::Outgoing)
            .map(|e| {
                let edge = e.weight();
                (NodeId(e.target().index() as u32), edge.to_port, Value { node, port: edge.from_port })
            })
            .collect();
        uses.sort();
        uses
    }

    /// Whether an output, an update or a check has a value of this node.
    pub fn is_root(&self, node: NodeId) -> bool {
        self.roots().any(|v| v.node == node)
    }

    /// Whether an output, an update or a check has this value.
    pub fn is_output(&self, v: Value) -> bool {
        self.roots().any(|o| o == v)
    }

    /// Every node, ascending by id.
    pub fn node_ids(&self) -> Vec<NodeId> {
        self.g.node_indices().map(|i| NodeId(i.index() as u32)).collect()
    }

    /// The number of nodes.
    pub fn node_count(&self) -> usize {
        self.g.node_count()
    }

    /// Whether the node is in the graph.
    pub fn contains(&self, id: NodeId) -> bool {
        self.g.contains_node(index(id))
    }

    /// Every node once, operands first: inputs, then whatever the outputs need, depth first in
    /// operand order; then nodes no output needs.
    ///
    /// A cycle does not hang this function; the verifier finds it.
    pub fn order(&self) -> Vec<NodeId> {
        let mut seen = vec![false; self.g.node_bound()];
        let mut order = Vec::with_capacity(self.g.node_count());
        let roots = self.inputs.iter().copied().chain(self.roots().map(|v| v.node)).chain(self.node_ids());
        let mut stack = vec![];
        for root in roots {
            stack.push((root, false));
            while let Some((node, done)) = stack.pop() {
                if done {
                    order.push(node);
                } else if !std::mem::replace(&mut seen[node.0 as usize], true) {
                    stack.push((node, true));
                    stack.extend(self.args(node).iter().rev().map(|v| (v.node, false)));
                }
            }
        }
        order
    }

    /// Makes every user of `old` (outputs of the graph included) use `new`.
    pub fn replace_uses(&mut self, old: Value, new: Value) {
        for (user, to_port, v) in self.uses(old.node) {
            if v == old {
                self.set_arg(user, to_port, new);
            }
        }
        let delivered = self.outputs.iter_mut().map(|(_, v)| v).chain(self.updates.iter_mut().map(|(_, v)| v));
        let roots = delivered.chain(self.checks.iter_mut().map(|check| &mut check.value));
        roots.filter(|v| **v == old).for_each(|v| *v = new);
    }

    /// Replaces one operand.
    pub fn set_arg(&mut self, node: NodeId, to_port: u16, new: Value) {
        let old = self.g.edges_directed(index(node), Direction::Incoming).find(|e| e.weight().to_port == to_port);
        if let Some(id) = old.map(|e| e.id()) {
            self.g.remove_edge(id);
        }
        self.g.add_edge(index(new.node), index(node), OperandEdge { from_port: new.port, to_port });
    }

    /// The inputs, and the nodes that outputs, updates and checks need.
    pub fn live(&self) -> BTreeSet<NodeId> {
        self.ancestors(self.inputs.iter().copied().chain(self.roots().map(|v| v.node)))
    }

    /// Removes nodes that no output needs; inputs stay. Returns how many went.
    pub fn remove_dead(&mut self) -> usize {
        let mut live = vec![false; self.g.node_bound()];
        let mut stack: Vec<NodeId> = self.inputs.iter().copied().chain(self.roots().map(|v| v.node)).collect();
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut live[node.0 as usize], true) {
                let operands = self.g.neighbors_directed(index(node), Direction::Incoming);
                stack.extend(operands.map(|i| NodeId(i.index() as u32)));
            }
        }
        let before = self.g.node_count();
        self.g.retain_nodes(|_, i| live[i.index()]);
        before - self.g.node_count()
    }

    /// Starts a labelled edit.
    pub fn patch(&mut self, label: &'static str) -> Patch<'_> {
        self.made.clear();
        Patch { graph: self, label, replacements: vec![] }
    }
}

fn index(id: NodeId) -> NodeIndex {
    NodeIndex::new(id.0 as usize)
}

/// A labelled edit of a graph: add nodes through [`Patch::graph`], announce replacements, commit.
///
/// On commit the users of each replaced value are redirected, nodes that became dead are removed,
/// and new nodes carry the label in their history.
pub struct Patch<'g> {
    /// The graph that is patched.
    pub graph: &'g mut Graph,
    label: &'static str,
    replacements: Vec<(Value, Value)>,
}

impl Patch<'_> {
    /// `new` will take the place of `old`.
    pub fn replace(&mut self, old: Value, new: Value) {
        self.replacements.push((old, new));
    }

    /// Keeps the changes.
    pub fn commit(self) {
        let Patch { graph, label, replacements } = self;
        let made: BTreeSet<NodeId> = std::mem::take(&mut graph.made).into_iter().collect();
        for (old, new) in &replacements {
            let (name, history) = {
                let old = graph.node(old.node);
                (old.name.clone(), old.history.clone())
            };
            let node = graph.node_mut(new.node);
            if made.contains(&new.node) && node.history.is_empty() {
                node.history = history;
                node.history.push(label);
                node.name = name;
            }
        }
        for (old, new) in &replacements {
            graph.replace_uses(*old, *new);
        }
        for (old, _) in replacements {
            graph.remove_if_dead(old.node);
        }
    }
}

impl Graph {
    /// Removes `node` and then its operands as far as nothing uses them.
    pub fn remove_if_dead(&mut self, node: NodeId) {
        let mut stack = vec![node];
        while let Some(node) = stack.pop() {
            let unused = self.contains(node)
                && !matches!(self.node(node).kind, NodeKind::Input)
                && self.g.edges_directed(index(node), Direction::Outgoing).next().is_none()
                && !self.is_root(node);
            if unused {
                stack.extend(self.args(node).iter().map(|v| v.node));
                self.g.remove_node(index(node));
            }
        }
    }
}
