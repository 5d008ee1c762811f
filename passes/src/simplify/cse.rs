//! Common subexpressions: equal primitives on equal operands, and equal constants, become one.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tensorc_abi::content::Place;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::{DenseType, TensorType};

use crate::results::results;

#[derive(PartialEq, Eq, Hash)]
enum NodeKey {
    Prim(Prim, SmallVec<[Value; 4]>, Vec<Option<DenseType>>),
    Small(DenseType, Vec<u8>),
    Large(DenseType, Place),
}

/// Constants up to this size are compared by value, larger ones by identity.
const MAX_COMPARED_BYTES: u64 = 4096;

/// Merges every node that computes what an earlier one does. Returns whether there was one.
pub fn run(graph: &mut Graph) -> bool {
    let mut seen: FxHashMap<NodeKey, Value> = FxHashMap::default();
    let mut changed = false;
    for node in graph.order() {
        let n = graph.node(node);
        let key = match &n.kind {
            NodeKind::Prim(prim) => {
                let types = n.types.iter().map(TensorType::dense).collect();
                NodeKey::Prim(prim.clone(), graph.args(node), types)
            }
            NodeKind::Const(data) if data.is_open() => continue,
            NodeKind::Const(data) if data.ty.bytes() <= MAX_COMPARED_BYTES => {
                NodeKey::Small(data.ty.clone(), data.bytes().to_vec())
            }
            NodeKind::Const(data) => NodeKey::Large(data.ty.clone(), data.content().place()),
            _ => continue,
        };
        match seen.get(&key) {
            Some(first) if first.node != node => {
                let first = first.node;
                for v in results(graph, node) {
                    graph.replace_uses(v, Value { node: first, ..v });
                }
                changed = true;
            }
            Some(_) => {}
            None => drop(seen.insert(key, Value { node, port: 0 })),
        }
    }
    if changed {
        graph.remove_dead();
    }
    changed
}
