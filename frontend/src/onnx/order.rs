//! The order of data flow among nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{OnnxError, describe_node};
use super::functions::ScopedNode;
use super::proto::{GraphProto, ValueInfoProto};

/// Positions of `nodes` such that every value is computed before it is used; `available` ones are there before.
///
/// The order given is kept where it is one already, as the format demands. Where it is not, the
/// first node that can run is next.
///
/// # Errors
/// A value is used or returned that nothing computes, is computed twice, or depends on itself.
pub fn data_flow_order<'a>(
    nodes: &'a [ScopedNode],
    available: impl Fn(&str) -> bool,
    outputs: &'a [ValueInfoProto],
) -> Result<Vec<usize>, OnnxError> {
    let mut producer: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, scoped) in nodes.iter().enumerate() {
        for output in scoped.node.output.iter().filter(|o| !o.is_empty()) {
            if available(output) || producer.insert(output, index).is_some() {
                return Err(OnnxError::DefinedTwice { value: output.clone(), by: describe_node(&scoped.node) });
            }
        }
    }
    let undefined = |value: &str, user: String| OnnxError::Undefined { value: value.to_owned(), user };
    let mut waiting_for = vec![0usize; nodes.len()];
    let mut users: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (index, scoped) in nodes.iter().enumerate() {
        for input in scoped.node.input.iter().filter(|i| !i.is_empty() && !available(i)) {
            let Some(&from) = producer.get(input.as_str()) else {
                return Err(undefined(input, describe_node(&scoped.node)));
            };
            waiting_for[index] += 1;
            users[from].push(index);
        }
        // Nested graphs read values around them.
        for from in scoped.node.nested().flat_map(read_around).filter_map(|name| producer.get(name).copied()) {
            if from != index {
                waiting_for[index] += 1;
                users[from].push(index);
            }
        }
    }
    if let Some(output) = outputs.iter().find(|o| !available(o.name()) && !producer.contains_key(o.name())) {
        return Err(undefined(output.name(), "the graph's outputs".to_owned()));
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&i| waiting_for[i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(next) = ready.pop_first() {
        order.push(next);
        for &user in &users[next] {
            waiting_for[user] -= 1;
            if waiting_for[user] == 0 {
                ready.insert(user);
            }
        }
    }
    match (0..nodes.len()).find(|&i| waiting_for[i] > 0) {
        Some(stuck) => Err(OnnxError::Cycle(describe_node(&nodes[stuck].node))),
        None => Ok(order),
    }
}

/// The names that a nested graph reads and does not define.
fn read_around(graph: &GraphProto) -> BTreeSet<&str> {
    let mut read: BTreeSet<&str> = graph.output.iter().map(ValueInfoProto::name).collect();
    for node in &graph.node {
        read.extend(node.input.iter().map(String::as_str));
        read.extend(node.nested().flat_map(read_around));
    }
    let made = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let given = graph.input.iter().map(ValueInfoProto::name);
    let stored = graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref());
    for name in made.chain(given).chain(stored) {
        read.remove(name);
    }
    read
}
