//! Two compilations on the same inputs: whether their results differ, and where their values begin to.
//!
//! Values between nodes exist only where kernels end. To see one it is made an output, which may end a kernel: so as few as
//! possible are, and they are chosen by bisection ([`search`]).

mod difference;
mod search;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

pub use difference::{Difference, Tolerance};

use crate::compiler::Compiler;
use crate::error::Error;
use crate::model::Model;
use crate::session::Session;
use crate::tensor::Tensor;

/// A model with inputs, and how it is compiled.
pub struct Side {
    compiler: Compiler,
    graph: Graph,
    inputs: Vec<Tensor>,
}

/// How far the values of a node are apart.
#[derive(Clone, Debug)]
pub struct NodeError {
    /// The name of the node.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// The difference of that result which differs most.
    pub difference: Difference,
}

/// What comparing two sides found.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The outputs of both.
    pub outputs: Vec<(String, Difference)>,
    /// The first node that differs, if outputs do: what it reads, as far as both sides have it, agrees.
    pub first: Option<NodeError>,
    /// Values that were looked at, in the order of data flow.
    pub seen: Vec<NodeError>,
    /// How many times a side was compiled.
    pub compilations: usize,
}

/// One line: the first node that differs and by how much, or by how much outputs differ at most.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(NodeError { node, op, difference: d }) = &self.first else {
            let worst = self.outputs.iter().max_by(|a, b| a.1.relative.total_cmp(&b.1.relative));
            return match worst {
                Some((name, d)) if d.absolute > 0.0 => {
                    let (absolute, relative) = (d.absolute, d.relative);
                    write!(f, "outputs agree: largest difference {absolute:.3e}, relative {relative:.3e}, in `{name}`")
                }
                _ => f.write_str("outputs agree: no difference"),
            };
        };
        let at: Vec<String> = d.at.iter().map(u64::to_string).collect();
        let (absolute, relative, [a, b]) = (d.absolute, d.relative, d.values);
        write!(
            f,
            "`{node}` ({op}) differs first: by {absolute:.3e} at [{}] ({a} against {b}), relative {relative:.3e}, {} of {} elements \
             beyond the tolerance; {} values seen, {} compilations",
            at.join(", "),
            d.beyond,
            d.elements,
            self.seen.len(),
            self.compilations
        )
    }
}

/// What is to be compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct ComparisonRequest {
    /// What may differ.
    pub tolerance: Tolerance,
    /// How many more values are looked at besides those that the search takes, spread over the model.
    pub layers: usize,
}

impl Side {
    /// A model on named inputs.
    ///
    /// # Errors
    /// An input is missing or unknown, or the model cannot be imported for inputs of these types.
    pub fn of(model: &Model, inputs: &[(&str, Tensor)]) -> Result<Side, Error> {
        let inputs = model.ordered(inputs)?;
        Ok(Side { compiler: model.compiler().clone(), graph: model.graph_like(&inputs)?, inputs })
    }

    /// The graph for the inputs.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The outputs, and the results of some nodes that anything reads.
    fn observe(&self, nodes: &[NodeId]) -> Result<(Vec<Tensor>, Vec<Vec<Tensor>>), Error> {
        let mut graph = self.graph.clone();
        let ports: Vec<Vec<u16>> = nodes.iter().map(|node| read_ports(&graph, *node)).collect();
        for (i, (node, ports)) in nodes.iter().zip(&ports).enumerate() {
            for port in ports {
                graph.add_output(format!("observed.{i}.{port}"), Value { node: *node, port: *port });
            }
        }
        let mut outputs = Session::new(&self.compiler, graph)?.run(&self.inputs)?;
        let mut rest = outputs.split_off(self.graph.outputs().len()).into_iter();
        let seen = ports.iter().map(|ports| rest.by_ref().take(ports.len()).collect()).collect();
        Ok((outputs, seen))
    }
}

/// The results of a node that something reads; the first if nothing does.
fn read_ports(graph: &Graph, node: NodeId) -> Vec<u16> {
    let used = graph.uses(node).into_iter().map(|(_, _, v)| v.port);
    let delivered = graph.outputs().iter().filter(|(_, v)| v.node == node).map(|(_, v)| v.port);
    let mut ports: Vec<u16> = used.chain(delivered).collect();
    ports.sort_unstable();
    ports.dedup();
    if ports.is_empty() { vec![0] } else { ports }
}

/// What nodes compute, in words.
fn op_text(graph: &Graph, node: NodeId) -> String {
    match &graph.node(node).kind {
        NodeKind::Op(op) => op.def.name.to_owned(),
        NodeKind::Prim(Prim::Flow(_)) => "control flow".to_owned(),
        NodeKind::Prim(_) => "primitive".to_owned(),
        NodeKind::Fused(_) => "cluster".to_owned(),
        NodeKind::Input => "input".to_owned(),
        NodeKind::Const(_) => "constant".to_owned(),
    }
}

/// Runs both sides on their inputs and finds the first node whose values differ by more than is allowed, if results do.
///
/// Nodes of two models are told by their names; those that only one model has, or whose results have different types, are not
/// compared.
///
/// # Errors
/// A side does not compile or run; the models have no output in common, or one of different types.
pub fn compare(a: &Side, b: &Side, request: &ComparisonRequest) -> Result<Comparison, Error> {
    let ((of_a, _), (of_b, _)) = (a.observe(&[])?, b.observe(&[])?);
    let (mut outputs, mut differing) = (vec![], vec![]);
    for ((name, v), x) in a.graph.outputs().iter().zip(&of_a) {
        let Some(at) = b.graph.outputs().iter().position(|(other, _)| other == name) else { continue };
        let y = &of_b[at];
        if x.data().ty != y.data().ty {
            let (a, b) = (&x.data().ty, &y.data().ty);
            return Err(Error::Compare(format!("output `{name}` is {a} on one side and {b} on the other")));
        }
        let difference = Difference::of(x.data(), y.data(), request.tolerance);
        if !difference.is_within() {
            differing.push((v.node, difference.clone()));
        }
        outputs.push((name.to_string(), difference));
    }
    if outputs.is_empty() {
        return Err(Error::Compare("the models have no output of the same name".to_owned()));
    }
    let mut search = search::Search::new(a, b, request.tolerance, pairs(&a.graph, &b.graph));
    let first = search.first(differing)?;
    search.spread(request.layers)?;
    let compilations = 2 + search.compilations;
    Ok(Comparison { outputs, first, seen: search.seen(), compilations })
}

/// The nodes of one graph that another has, too: by name, where that tells nodes apart, and with as many results.
fn pairs(a: &Graph, b: &Graph) -> BTreeMap<NodeId, NodeId> {
    let named = |graph: &Graph| {
        let mut all: BTreeMap<Arc<str>, Vec<NodeId>> = BTreeMap::new();
        for id in graph.node_ids() {
            let node = graph.node(id);
            if !matches!(node.kind, NodeKind::Const(_) | NodeKind::Input) {
                all.entry(node.name.clone()).or_default().push(id);
            }
        }
        all
    };
    let others = named(b);
    let pair = |(name, ids): (Arc<str>, Vec<NodeId>)| match (&ids[..], others.get(&name).map(Vec::as_slice)) {
        ([x], Some([y])) if read_ports(a, *x) == read_ports(b, *y) => Some((*x, *y)),
        _ => None,
    };
    named(a).into_iter().filter_map(pair).collect()
}
