//! What a window computes: which results go together, and the graph of each group.

use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayOperand, ArrayView, Chunk};
use tensorc_runtime::engine::OpName;

use super::inline::inline;
use super::program::{ArrayProgram, KeyKind, Programs};
use crate::error::Error;
use tensorc::{ProgramFamily, ProgramKey};

/// A deferred call.
pub(super) struct BatchNode {
    pub program: Arc<ArrayProgram>,
    pub operands: SmallVec<[BatchOperand; 3]>,
    /// The memory whose elements the result becomes, unless a later node overwrites it.
    pub chunk: Option<Arc<Chunk>>,
}

/// Where an operand comes from.
#[derive(Clone, Copy)]
pub(super) enum BatchOperand {
    Node(usize),
    Input(usize),
}

impl BatchNode {
    pub fn ty(&self) -> &DenseType {
        &self.program.outputs[0]
    }
}

/// Divides results into operations, in the order in which they must be pushed.
///
/// Results are together if they depend on the same arrays: then an error of one of these is an error
/// of all of them. What reads an array's old elements comes before what overwrites it; results that
/// overwrite what the other reads are together as well.
pub(super) fn groups(
    nodes: &[BatchNode],
    inputs: &[ArrayOperand],
    results: Vec<(usize, ArrayView)>,
) -> Vec<Vec<(usize, ArrayView)>> {
    let arrays: u32 = (0..inputs.len()).filter(|i| inputs[*i].view().is_some()).fold(0, |set, i| set | 1 << i);
    let mut reads: Vec<u32> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let set = node.operands.iter().fold(0, |set, slot| match *slot {
            BatchOperand::Node(i) => set | reads[i],
            BatchOperand::Input(i) => set | 1 << i,
        });
        reads.push(set & arrays);
    }
    let mut waiting: Vec<ResultGroup> = vec![];
    for (node, view) in results {
        let of_chunk = |i: &usize| inputs[*i].view().is_some_and(|v| Arc::ptr_eq(v.chunk(), view.chunk()));
        let writes = (0..inputs.len()).filter(of_chunk).fold(0, |set, i| set | 1 << i);
        match waiting.iter_mut().find(|group| group.reads == reads[node]) {
            Some(group) => {
                group.writes |= writes;
                group.results.push((node, view));
            }
            None => waiting.push(ResultGroup { reads: reads[node], writes, results: vec![(node, view)] }),
        }
    }
    let mut ordered = vec![];
    while !waiting.is_empty() {
        let harmless = |at: &usize| {
            let others = waiting.iter().enumerate().filter(|(i, _)| i != at);
            others.fold(0, |set, (_, group)| set | group.reads) & waiting[*at].writes == 0
        };
        match (0..waiting.len()).find(harmless) {
            Some(next) => ordered.push(waiting.remove(next).results),
            None => {
                let last = waiting.swap_remove(waiting.len() - 1);
                waiting[0].reads |= last.reads;
                waiting[0].writes |= last.writes;
                waiting[0].results.extend(last.results);
            }
        }
    }
    ordered
}

/// Results of one operation. Sets have a bit for every input.
struct ResultGroup {
    /// Arrays that the results depend on.
    reads: u32,
    /// Arrays whose memory the results take.
    writes: u32,
    results: Vec<(usize, ArrayView)>,
}

/// The part of a window that one operation computes, described independently of arrays.
pub(super) struct BatchProgram<'a> {
    nodes: &'a [BatchNode],
    inputs: &'a [ArrayOperand],
    /// Results that operations pushed before compute.
    finished: &'a mut [Option<ArrayView>],
    /// Nodes of the part, in order.
    members: Vec<usize>,
    /// Position of a node among the members, and of a node or an input among the sources.
    member: Vec<Option<usize>>,
    of_node: Vec<Option<usize>>,
    of_input: Vec<Option<usize>>,
    results: Vec<usize>,
    /// What the part reads.
    pub sources: Vec<ArrayOperand>,
}

impl<'a> BatchProgram<'a> {
    pub fn new(
        nodes: &'a [BatchNode],
        inputs: &'a [ArrayOperand],
        finished: &'a mut [Option<ArrayView>],
    ) -> BatchProgram<'a> {
        BatchProgram {
            nodes,
            inputs,
            finished,
            members: vec![],
            member: vec![],
            of_node: vec![],
            of_input: vec![],
            results: vec![],
            sources: vec![],
        }
    }

    /// Makes the part that computes the given nodes.
    pub fn select(&mut self, group: &[(usize, ArrayView)]) {
        let count = self.nodes.len();
        let mut needed = vec![false; count];
        group.iter().for_each(|(node, _)| needed[*node] = true);
        for i in (0..count).rev().filter(|i| self.finished[*i].is_none()) {
            if needed[i] {
                for slot in &self.nodes[i].operands {
                    if let BatchOperand::Node(n) = slot {
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
            self.nodes[i].operands.iter().for_each(|slot| self.read(*slot));
            self.member[i] = Some(self.members.len());
            self.members.push(i);
        }
        self.results = group.iter().map(|(node, _)| *node).collect();
    }

    /// Adds an operand to the sources, unless a member of the part computes it.
    fn read(&mut self, slot: BatchOperand) {
        let (place, source) = match slot {
            BatchOperand::Node(i) => match (self.member[i], &self.finished[i]) {
                (None, Some(view)) => (&mut self.of_node[i], ArrayOperand::View(view.clone())),
                _ => return,
            },
            BatchOperand::Input(i) => (&mut self.of_input[i], self.inputs[i].clone()),
        };
        let at = *place.get_or_insert(self.sources.len());
        if at == self.sources.len() {
            self.sources.push(source);
        }
    }

    /// What tells the part from others. A program states the types of what it reads, so that positions are enough.
    pub fn key(&self, kind: KeyKind) -> ProgramKey {
        let mut key = ProgramKey::of("batch");
        for BatchNode { program, operands, .. } in self.members.iter().map(|i| &self.nodes[*i]) {
            kind.program(&mut key, program);
            for slot in operands {
                let member = |i: usize| self.member[i].map(|m| (0, m));
                let source = |at: Option<usize>| at.map(|at| (1, at));
                let place = match *slot {
                    BatchOperand::Node(i) => member(i).or(source(self.of_node[i])),
                    BatchOperand::Input(i) => source(self.of_input[i]),
                };
                let (from, at) = place.unwrap_or_default();
                key.small(from);
                key.number(at as u64);
            }
        }
        key.number(self.results.len() as u64);
        self.results.iter().for_each(|node| key.number(self.member[*node].map_or(0, |m| m as u64)));
        key
    }

    /// The program of the part, for a device.
    pub fn program(&self, programs: &Programs, device: Device) -> Result<ArrayProgram, Error> {
        let mut program = ArrayProgram::new(device, self.name(), self.graph()?);
        let types = self.sources.iter().map(|s| DenseType::new(s.dtype(), s.dims())).collect();
        let all_members = self.members.iter().all(|i| self.nodes[*i].program.member.is_some());
        program.member = programs.member(&self.key(KeyKind::Family), types, || {
            all_members.then(|| ProgramFamily::of(&program.graph)).flatten()
        });
        Ok(program)
    }

    /// Notes that a group was pushed: others read its results.
    pub fn finish(&mut self, group: Vec<(usize, ArrayView)>) {
        for (node, view) in group {
            self.finished[node] = Some(view);
        }
    }

    /// The operators in order; the first few of many.
    pub fn name(&self) -> OpName {
        const MAX_SHOWN_NAMES: usize = 4;
        let shown = self.members.iter().take(MAX_SHOWN_NAMES).map(|i| &*self.nodes[*i].program.name);
        let more = (self.members.len() > MAX_SHOWN_NAMES).then_some("…");
        OpName::from(shown.chain(more).collect::<Vec<_>>().join("+"))
    }

    /// The part as a graph of operators.
    fn graph(&self) -> Result<Graph, Error> {
        let mut graph = Graph::new(self.name().to_string());
        let given: Vec<Value> = self
            .sources
            .iter()
            .enumerate()
            .map(|(i, s)| graph.add_input(format!("in{i}"), DenseType::new(s.dtype(), s.dims()).into()))
            .collect();
        let mut made: Vec<Value> = vec![];
        for node in self.members.iter().map(|i| &self.nodes[*i]) {
            let value = |slot: &BatchOperand| match slot {
                BatchOperand::Node(n) => match self.member[*n] {
                    Some(member) => made.get(member).copied(),
                    None => self.of_node[*n].map(|source| given[source]),
                },
                BatchOperand::Input(n) => self.of_input[*n].map(|source| given[source]),
            };
            let operands: Vec<Option<Value>> = node.operands.iter().map(value).collect();
            let of = &node.program.graph;
            let roots: Vec<Value> = of.outputs().iter().map(|(_, v)| *v).collect();
            made.extend(inline(&mut graph, of, &roots, &operands)?);
        }
        for (i, node) in self.results.iter().enumerate() {
            if let Some(member) = self.member[*node] {
                graph.add_output(format!("out{i}"), made[member]);
            }
        }
        Ok(graph)
    }
}
