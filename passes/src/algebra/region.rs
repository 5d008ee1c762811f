//! Regions: runs of primitives in topological order, each with an e-graph of its own.
//!
//! What a region reads from outside are leaves, what others read of it are its exports. Being runs, regions never
//! depend on each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egg::Id;
use tensorc_ir::TensorData;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;

use super::space::{Leaf, TensorSpace, TensorTerm};
use crate::egraph::Extraction;
use crate::options::Options;

/// Regions hold this many primitives, and more up to the next product.
const NODES: usize = 240;

/// Regions hold at most this many.
const MAX_NODES: usize = 320;

/// Constants up to this size are put into the graphs that are priced, larger ones stand in as inputs.
const MAX_INLINE_CONST_BYTES: u64 = 256;

/// Part of a graph.
pub(super) struct AlgebraRegion {
    /// In topological order.
    pub nodes: Vec<NodeId>,
    /// Values that others read.
    pub exports: Vec<Value>,
}

/// Whether a node can be in a region: it has one result and is not opaque.
fn belongs(graph: &Graph, node: NodeId) -> bool {
    let n = graph.node(node);
    n.types.len() == 1
        && matches!(&n.kind, NodeKind::Prim(p) if !matches!(p, Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_)))
}

pub(super) fn divide(graph: &Graph) -> Vec<AlgebraRegion> {
    let mut runs: Vec<Vec<NodeId>> = vec![];
    for node in graph.order().into_iter().filter(|n| belongs(graph, *n)) {
        // What follows a product stays with it.
        let begins = matches!(&graph.node(node).kind, NodeKind::Prim(Prim::Contract(_)));
        match runs.last_mut() {
            Some(run) if run.len() < NODES || run.len() < MAX_NODES && !begins => run.push(node),
            _ => runs.push(vec![node]),
        }
    }
    let homes = runs.iter().enumerate().flat_map(|(i, run)| run.iter().map(move |n| (*n, i)));
    let home: BTreeMap<NodeId, usize> = homes.collect();
    let roots: BTreeSet<Value> = graph.roots().collect();
    let region = |(i, nodes): (usize, Vec<NodeId>)| {
        let exported = |n: &NodeId| {
            let v = Value { node: *n, port: 0 };
            roots.contains(&v) || graph.uses(*n).iter().any(|(user, ..)| home.get(user) != Some(&i))
        };
        let exports = nodes.iter().filter(|n| exported(n)).map(|n| Value { node: *n, port: 0 }).collect();
        AlgebraRegion { nodes, exports }
    };
    runs.into_iter().enumerate().map(region).collect()
}

/// A region as a graph of its own, in which constants are inputs unless they are small.
pub(super) fn original(graph: &Graph, region: &AlgebraRegion) -> Result<Graph> {
    let mut alone = Graph::new("region");
    let mut values: BTreeMap<Value, Value> = BTreeMap::new();
    for node in &region.nodes {
        let NodeKind::Prim(prim) = &graph.node(*node).kind else { continue };
        let mut args = vec![];
        for v in graph.args(*node) {
            args.push(match (values.get(&v), graph.constant(v)) {
                (Some(known), _) => *known,
                (None, Some(data)) if data.ty.bytes() <= MAX_INLINE_CONST_BYTES => alone.add_const("c", data.clone()),
                _ => alone.add_input("x", graph.dense(v)?.into()),
            });
            values.insert(v, args[args.len() - 1]);
        }
        let v = Value { node: *node, port: 0 };
        let node = alone.add_prim("n", prim.clone(), &args, &[graph.dense(v)?]);
        values.insert(v, Value { node, port: 0 });
    }
    region.exports.iter().filter_map(|v| values.get(v)).for_each(|v| alone.add_output("y", *v));
    Ok(alone)
}

/// The e-graph of a region, and the classes of its values.
pub(super) struct RegionGraph {
    pub space: TensorSpace,
    pub classes: BTreeMap<Value, Id>,
    /// Nodes in the order of the region, by the e-node they were added as.
    originals: Vec<(TensorTerm, NodeId)>,
}

pub(super) fn build(graph: &Graph, region: &AlgebraRegion, options: Options) -> Result<RegionGraph> {
    let mut built = RegionGraph { space: TensorSpace::new(options), classes: BTreeMap::new(), originals: vec![] };
    for node in &region.nodes {
        let NodeKind::Prim(prim) = &graph.node(*node).kind else { continue };
        let mut args = vec![];
        for v in graph.args(*node) {
            args.push(match built.classes.get(&v) {
                Some(id) => *id,
                None => {
                    // What is computed from packed weights would not be packed.
                    let constant = graph.constant(v).is_some_and(|data| !data.is_packed());
                    let id = built.space.leaf(Leaf::Value(v), graph.dense(v)?, constant);
                    built.classes.insert(v, id);
                    id
                }
            });
        }
        let v = Value { node: *node, port: 0 };
        let id = built.space.prim(prim.clone(), graph.dense(v)?, &args);
        built.classes.insert(v, id);
        built.originals.push((built.space.egraph.id_to_node(id).clone(), *node));
    }
    Ok(built)
}

impl RegionGraph {
    pub fn canonical(&self, term: &TensorTerm) -> TensorTerm {
        egg::Language::map_children(term.clone(), |c| self.space.find(c))
    }

    /// The nodes behind e-nodes.
    pub fn nodes(&self) -> BTreeMap<TensorTerm, NodeId> {
        self.originals.iter().rev().map(|(term, node)| (self.canonical(term), *node)).collect()
    }

    /// Names for the results of classes: of a value that is in the class, or of what a rule was applied to.
    fn names(&self, graph: &Graph) -> BTreeMap<Id, Arc<str>> {
        let own = self.classes.iter().rev().map(|(v, id)| (self.space.find(*id), graph.node(v.node).name.clone()));
        let own: BTreeMap<Id, Arc<str>> = own.collect();
        let mut names = own.clone();
        for (term, origin) in &self.space.origins {
            if let (Some(name), Some(class)) =
                (own.get(&self.space.find(origin.site)), self.space.egraph.lookup(term.clone()))
            {
                names.entry(self.space.find(class)).or_insert_with(|| name.clone());
            }
        }
        names
    }

    /// Puts what was chosen into the graph and makes it the exports of the region. New nodes carry the label of
    /// their e-node.
    pub fn replace(
        &self,
        graph: &mut Graph,
        chosen: &Extraction<'_, TensorTerm>,
        labels: &BTreeMap<TensorTerm, &'static str>,
        region: &AlgebraRegion,
    ) {
        let (there, names) = (self.nodes(), self.names(graph));
        let mut values: Vec<Value> = vec![];
        for (class, term) in chosen.nodes() {
            let name = || names.get(class).cloned().unwrap_or_else(|| "weights".into());
            values.push(match self.space.of(term) {
                Some((prim, ty)) => {
                    let args = operands(self, chosen, &values, term);
                    let kept = there.get(term).filter(|n| graph.args(**n)[..] == args[..]);
                    let node = kept.copied().unwrap_or_else(|| {
                        let new = graph.add_prim(name(), prim.clone(), &args, std::slice::from_ref(ty));
                        let history = there.get(term).map(|n| graph.node(*n).history.clone()).unwrap_or_default();
                        let node = graph.node_mut(new);
                        node.history = history;
                        node.history.extend(labels.get(term).copied());
                        new
                    });
                    Value { node, port: 0 }
                }
                None => match self.leaf(term) {
                    Leaf::Value(v) => *v,
                    Leaf::New(data) => graph.add_const(name(), data.clone()),
                },
            });
        }
        for v in &region.exports {
            let id = self.classes.get(v).map(|id| self.space.find(*id));
            if let Some(new) = id.and_then(|id| chosen.position(id)).map(|i| values[i]).filter(|new| new != v) {
                graph.replace_uses(*v, new);
            }
        }
    }

    /// The leaf behind an e-node that is no primitive.
    fn leaf(&self, term: &TensorTerm) -> &Leaf {
        let (TensorTerm::Given(i) | TensorTerm::Prim(i, _)) = term;
        &self.space.egraph.analysis.leaves[*i as usize].0
    }

    /// The choice as a graph of its own, in which constants are inputs unless they are small.
    pub fn alone(&self, graph: &Graph, chosen: &Extraction<'_, TensorTerm>, exports: &[Id]) -> Graph {
        let mut alone = Graph::new("region");
        let mut values: Vec<Value> = vec![];
        for (class, term) in chosen.nodes() {
            let known = self.small_constant(graph, term);
            values.push(match (self.space.of(term), known) {
                (_, Some(data)) => alone.add_const("c", data),
                (Some((prim, ty)), _) if !self.space.is_constant(*class) => {
                    let args = operands(self, chosen, &values, term);
                    let node = alone.add_prim("n", prim.clone(), &args, std::slice::from_ref(ty));
                    Value { node, port: 0 }
                }
                _ => alone.add_input("x", self.space.ty(*class).clone().into()),
            });
        }
        for id in exports {
            if let Some(i) = chosen.position(self.space.find(*id)) {
                alone.add_output("y", values[i]);
            }
        }
        alone
    }

    fn small_constant(&self, graph: &Graph, term: &TensorTerm) -> Option<TensorData> {
        let data = match term {
            TensorTerm::Prim(..) => return None,
            TensorTerm::Given(_) => match self.leaf(term) {
                Leaf::Value(v) => graph.constant(*v)?,
                Leaf::New(data) => data,
            },
        };
        (data.ty.bytes() <= MAX_INLINE_CONST_BYTES).then(|| data.clone())
    }
}

fn operands(
    built: &RegionGraph,
    chosen: &Extraction<'_, TensorTerm>,
    values: &[Value],
    term: &TensorTerm,
) -> Vec<Value> {
    let position = |a: &Id| chosen.position(built.space.find(*a));
    term.args().iter().filter_map(position).map(|i| values[i]).collect()
}
