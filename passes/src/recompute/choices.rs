//! Which values of the forward pass to keep for the backward pass.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind};
use tensorc_ir::prim::Prim;
use tensorc_ir::views::keeps_linear_order;
use tensorc_schedule::cost::{CostModel, alone};

use crate::results::result_types;

/// A value below this part of all that is kept is not worth recomputing.
const MIN_KEPT_FRACTION: u64 = 1000;

/// Numbers of segments that are tried: powers of the square root of two, about.
const SEGMENTS: [u64; 10] = [2, 3, 4, 6, 8, 11, 16, 23, 32, 64];

/// Numbers of element-wise steps in a row that are tried.
const CHAINS: [u64; 8] = [1, 2, 3, 4, 6, 9, 14, 1 << 20];

/// What is known of a primitive of the forward pass.
struct Fact {
    bytes: u64,
    /// Estimated picoseconds.
    cost: u64,
    kind: ChoiceKind,
    args: Vec<NodeId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChoiceKind {
    /// Contractions, reductions, gathers, kernels and functions of the user's.
    Expensive,
    /// Maps and copies.
    Cheap,
    /// Another name for the memory of its operand.
    Alias,
}

/// The forward pass: the first phase, or what the outputs need if there is one phase that updates
/// inputs.
pub struct Forward {
    /// Its primitives, operands first.
    order: Vec<NodeId>,
    facts: BTreeMap<NodeId, Fact>,
    /// Everything outside.
    backward: BTreeSet<NodeId>,
    /// Primitives whose values the backward pass reads.
    crossing: BTreeSet<NodeId>,
}

impl Forward {
    /// `None` if there is no backward pass.
    pub fn of(graph: &Graph, machine: &CostModel) -> Result<Option<Forward>> {
        let inside = match graph.first_phase() {
            Some(first) => first,
            None if graph.updates().is_empty() => return Ok(None),
            None => graph.ancestors(graph.outputs().iter().map(|(_, v)| v.node)),
        };
        let mut forward =
            Forward { order: vec![], facts: BTreeMap::new(), backward: BTreeSet::new(), crossing: BTreeSet::new() };
        for node in graph.order() {
            match &graph.node(node).kind {
                NodeKind::Prim(prim) if inside.contains(&node) => {
                    forward.order.push(node);
                    forward.facts.insert(node, fact(graph, node, prim, machine)?);
                }
                NodeKind::Input | NodeKind::Const(_) => {}
                _ if inside.contains(&node) => {}
                _ => drop(forward.backward.insert(node)),
            }
        }
        for node in &forward.backward {
            let read = graph.args(*node).into_iter().map(|v| v.node);
            forward.crossing.extend(read.filter(|n| forward.facts.contains_key(n)));
        }
        Ok((!forward.crossing.is_empty()).then_some(forward))
    }

    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// Whether this is a primitive of the forward pass.
    pub fn contains(&self, node: NodeId) -> bool {
        self.facts.contains_key(&node)
    }

    pub fn is_backward(&self, node: NodeId) -> bool {
        self.backward.contains(&node)
    }

    /// Estimated nanoseconds to compute a node again.
    pub fn cost(&self, node: NodeId) -> u64 {
        self.facts.get(&node).map_or(0, |fact| fact.cost)
    }

    /// Sets of nodes to keep.
    pub fn choices(&self) -> Vec<BTreeSet<NodeId>> {
        let total: u64 = self.crossing.iter().map(|n| self.facts[n].bytes).sum();
        let small =
            |fact: &Fact| fact.kind != ChoiceKind::Alias && fact.bytes.saturating_mul(MIN_KEPT_FRACTION) <= total;
        let always: BTreeSet<NodeId> = self.facts.iter().filter(|(_, f)| small(f)).map(|(n, _)| *n).collect();
        let expensive = self.facts.iter().filter(|(_, f)| f.kind == ChoiceKind::Expensive).map(|(n, _)| *n);
        let expensive: BTreeSet<NodeId> = expensive.chain(always.iter().copied()).collect();
        let mut choices: Vec<BTreeSet<NodeId>> =
            CHAINS.iter().flat_map(|length| [self.frugal_chains(*length), self.chains(&expensive, *length)]).collect();
        for segments in SEGMENTS {
            let checkpoints = self.checkpoints(total, segments);
            choices.push(&checkpoints | &expensive);
            choices.push(&checkpoints | &always);
        }
        choices
    }

    /// The given nodes, and every node behind more than `length` cheap ones in a row.
    fn chains(&self, given: &BTreeSet<NodeId>, length: u64) -> BTreeSet<NodeId> {
        let mut kept = given.clone();
        let mut level: BTreeMap<NodeId, u64> = BTreeMap::new();
        for node in &self.order {
            let fact = &self.facts[node];
            let behind = fact.args.iter().filter_map(|n| level.get(n)).max().copied().unwrap_or(0);
            let own = match fact.kind {
                ChoiceKind::Alias => behind,
                _ if kept.contains(node) => 0,
                _ if behind == length => {
                    kept.insert(*node);
                    0
                }
                _ => behind + 1,
            };
            level.insert(*node, own);
        }
        kept
    }

    /// What the backward pass reads, except for cheap nodes behind no more than `length` of them in a
    /// row from inputs or from other values it reads. So nothing is kept that would not be otherwise.
    fn frugal_chains(&self, length: u64) -> BTreeSet<NodeId> {
        let mut kept = self.crossing.clone();
        // Of nodes that are kept or can be computed again: the longest way there.
        let mut level: BTreeMap<NodeId, u64> = BTreeMap::new();
        for node in &self.order {
            let fact = &self.facts[node];
            let mut args = fact.args.iter().filter(|n| self.contains(**n)).map(|n| level.get(n).copied());
            let behind = args.try_fold(0, |most, own| own.map(|own| most.max(own)));
            let own = match (fact.kind, behind) {
                (ChoiceKind::Alias, Some(behind)) => Some(behind),
                (ChoiceKind::Cheap, Some(behind)) if behind < length => Some(behind + 1),
                _ => kept.contains(node).then_some(0),
            };
            if let Some(own) = own {
                level.insert(*node, own);
                if own > 0 || fact.kind == ChoiceKind::Alias {
                    kept.remove(node);
                }
            }
        }
        kept
    }

    /// The values that cross from one segment of the forward pass to the next. The cuts divide what
    /// would have to be kept about equally, and lie where little is live.
    fn checkpoints(&self, total: u64, segments: u64) -> BTreeSet<NodeId> {
        let position: BTreeMap<NodeId, usize> = self.order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        let mut last_use = vec![0; self.order.len()];
        for (i, node) in self.order.iter().enumerate() {
            self.facts[node].args.iter().filter_map(|n| position.get(n)).for_each(|at| last_use[*at] = i);
        }
        // Bytes that are live after each node, and what would be kept up to there.
        let (mut live, mut kept) = (vec![0u64; self.order.len()], vec![0u64; self.order.len()]);
        let mut dies = vec![0u64; self.order.len() + 1];
        let (mut now, mut sum) = (0, 0);
        for (i, node) in self.order.iter().enumerate() {
            let fact = &self.facts[node];
            let bytes = if fact.kind == ChoiceKind::Alias { 0 } else { fact.bytes };
            if last_use[i] > i {
                now += bytes;
                dies[last_use[i]] += bytes;
            }
            now -= dies[i];
            sum += if self.crossing.contains(node) { bytes } else { 0 };
            (live[i], kept[i]) = (now, sum);
        }
        let mut found = BTreeSet::new();
        let window = total / (4 * segments);
        for cut in 1..segments {
            let target = (u128::from(total) * u128::from(cut) / u128::from(segments)) as u64;
            let near = |i: &usize| kept[*i].abs_diff(target) <= window;
            let Some(at) = (0..self.order.len()).filter(near).min_by_key(|i| (live[*i], *i)) else { continue };
            found.extend((0..=at).filter(|i| last_use[*i] > at).map(|i| self.order[i]));
        }
        found
    }
}

fn fact(graph: &Graph, node: NodeId, prim: &Prim, machine: &CostModel) -> Result<Fact> {
    let args = graph.args(node);
    let types = result_types(graph, node)?;
    let kind = match prim {
        Prim::View(view) if keeps_linear_order(view, &graph.dense(args[0])?, &types[0].dims) => ChoiceKind::Alias,
        Prim::Map(_) | Prim::View(_) | Prim::Concat { .. } => ChoiceKind::Cheap,
        Prim::Contract(_) | Prim::Reduce(_) | Prim::Gather(_) => ChoiceKind::Expensive,
        Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_) => ChoiceKind::Expensive,
    };
    let cost = match kind {
        ChoiceKind::Alias => 1,
        ChoiceKind::Cheap | ChoiceKind::Expensive => machine.time(&alone(graph, node, prim)?),
    };
    let bytes = types.iter().map(|t| t.bytes()).sum();
    Ok(Fact { bytes, cost, kind, args: args.into_iter().map(|v| v.node).collect() })
}
