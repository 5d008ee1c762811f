//! What a window computes: which results go together, and the graph of each group.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_runtime::array::{Source, View};
use tensorc_runtime::engine::Name;

use super::front::Signature;
use super::key::Key;
use super::window::{Node, Slot};
use crate::Error;

/// Divides results into operations, in the order in which they must be pushed.
///
/// Results are together if they depend on the same arrays, or if one overwrites what another still
/// reads.
pub(super) fn groups(nodes: &[Node], inputs: &[Source], results: Vec<(usize, View)>) -> Vec<Vec<(usize, View)>> {
    let arrays: u32 = (0..inputs.len()).filter(|i| inputs[*i].view().is_some()).fold(0, |set, i| set | 1 << i);
    let mut reads: Vec<u32> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let set = node.operands.iter().flatten().fold(0, |set, slot| match slot {
            Slot::Node(i) => set | reads[*i],
            Slot::Input(i) => set | 1 << i,
        });
        reads.push(set & arrays);
    }
    let mut groups: Vec<(u32, Vec<(usize, View)>)> = vec![];
    for (node, view) in results {
        let set = reads[node];
        match groups.iter_mut().find(|(other, _)| *other == set) {
            Some((_, group)) => group.push((node, view)),
            None => groups.push((set, vec![(node, view)])),
        }
    }
    let overwrites = |group: &[(usize, View)], set: u32| {
        let read = |view: &View| {
            (0..inputs.len())
                .filter(|i| set & 1 << i != 0)
                .filter_map(|i| inputs[i].view())
                .any(|v| Arc::ptr_eq(v.chunk(), view.chunk()))
        };
        group.iter().any(|(_, view)| read(view))
    };
    while let Some((first, second)) = (0..groups.len())
        .flat_map(|first| (first + 1..groups.len()).map(move |second| (first, second)))
        .find(|&(first, second)| overwrites(&groups[first].1, groups[second].0))
    {
        let (set, group) = groups.remove(second);
        groups[first].0 |= set;
        groups[first].1.extend(group);
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The part of a window that one operation computes, described independently of arrays.
pub(super) struct Form<'a> {
    nodes: &'a [Node],
    inputs: &'a [Source],
    /// Results that earlier groups computed.
    finished: Vec<Option<View>>,
    /// Nodes of the part, in order.
    members: Vec<usize>,
    /// Position of a node among the members, and of a node or an input among the sources.
    member: Vec<Option<usize>>,
    of_node: Vec<Option<usize>>,
    of_input: Vec<Option<usize>>,
    results: Vec<usize>,
    /// What the part reads.
    pub sources: Vec<Source>,
    pub key: Key,
}

impl<'a> Form<'a> {
    pub fn new(nodes: &'a [Node], inputs: &'a [Source]) -> Form<'a> {
        Form {
            nodes,
            inputs,
            finished: vec![None; nodes.len()],
            members: vec![],
            member: vec![],
            of_node: vec![],
            of_input: vec![],
            results: vec![],
            sources: vec![],
            key: Key::default(),
        }
    }

    /// Makes the part that computes the given nodes.
    pub fn select(&mut self, group: &[(usize, View)]) {
        let count = self.nodes.len();
        let mut needed = vec![false; count];
        group.iter().for_each(|(node, _)| needed[*node] = true);
        for i in (0..count).rev().filter(|i| self.finished[*i].is_none()) {
            if needed[i] {
                for slot in self.nodes[i].operands.iter().flatten() {
                    if let Slot::Node(n) = slot {
                        needed[*n] = true;
                    }
                }
            }
        }
        self.members.clear();
        self.sources.clear();
        (self.member, self.of_node, self.of_input) =
            (vec![None; count], vec![None; count], vec![None; self.inputs.len()]);
        let parts: Vec<usize> = (0..count).filter(|i| needed[*i] && self.finished[*i].is_none()).collect();
        for i in parts {
            let Node { signature, operands, .. } = &self.nodes[i];
            self.key.op(&signature.def);
            self.key.params(&signature.params);
            for slot in operands {
                self.describe(*slot);
            }
            self.member[i] = Some(self.members.len());
            self.members.push(i);
        }
        self.results = group.iter().map(|(node, _)| *node).collect();
        self.key.small(4);
        self.results.iter().for_each(|node| self.key.number(self.member[*node].map_or(0, |m| m as u64)));
    }

    fn describe(&mut self, slot: Option<Slot>) {
        let place = match slot {
            None => return self.key.small(0),
            Some(Slot::Node(i)) => match self.member[i] {
                Some(member) => {
                    self.key.small(1);
                    return self.key.number(member as u64);
                }
                None => &mut self.of_node[i],
            },
            Some(Slot::Input(i)) => &mut self.of_input[i],
        };
        if let Some(source) = place {
            self.key.small(2);
            return self.key.number(*source as u64);
        }
        let source = match slot {
            Some(Slot::Node(i)) => self.finished[i].clone().map(Source::View),
            Some(Slot::Input(i)) => Some(self.inputs[i].clone()),
            None => None,
        };
        if let Some(source) = source {
            *place = Some(self.sources.len());
            self.key.small(3);
            self.key.ty(source.dtype(), source.dims());
            self.sources.push(source);
        }
    }

    /// Notes that a group was pushed: later ones read its results.
    pub fn finish(&mut self, group: Vec<(usize, View)>) {
        for (node, view) in group {
            self.finished[node] = Some(view);
        }
    }

    /// The operators in order; the first few of many.
    pub fn name(&self) -> Name {
        const SHOWN: usize = 4;
        let shown = self.members.iter().take(SHOWN).map(|i| self.nodes[*i].signature.def.name);
        let more = (self.members.len() > SHOWN).then_some("…");
        Name::from(shown.chain(more).collect::<Vec<_>>().join("+"))
    }

    /// The part as a graph of operators.
    pub fn graph(&self) -> Result<Graph, Error> {
        let mut graph = Graph::new(self.name().to_string());
        let given: Vec<Value> = self
            .sources
            .iter()
            .enumerate()
            .map(|(i, s)| graph.add_input(format!("in{i}"), DenseType::new(s.dtype(), s.dims()).into()))
            .collect();
        let mut made: Vec<Value> = vec![];
        for (i, node) in self.members.iter().map(|i| &self.nodes[*i]).enumerate() {
            let value = |slot: &Option<Slot>| match slot {
                None => None,
                Some(Slot::Node(n)) => match self.member[*n] {
                    Some(member) => made.get(member).copied(),
                    None => self.of_node[*n].map(|source| given[source]),
                },
                Some(Slot::Input(n)) => self.of_input[*n].map(|source| given[source]),
            };
            let operands: Vec<Option<Value>> = node.operands.iter().map(value).collect();
            let Signature { def, params, .. } = &*node.signature;
            let id = graph.add_op(format!("{}{i}", def.name), def, &operands, params.clone(), 1)?;
            made.push(Value { node: id, port: 0 });
        }
        for (i, node) in self.results.iter().enumerate() {
            if let Some(member) = self.member[*node] {
                graph.add_output(format!("out{i}"), made[member]);
            }
        }
        Ok(graph)
    }
}
