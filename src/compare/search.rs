//! The first node that differs, found by looking at few values.
//!
//! Known is a node that differs. Of all that it depends on, some values spread over the order of data flow are observed. What
//! agrees is cut off with all that only it depends on; of what differs the first takes the place of the node. That is
//! repeated until nothing is left between the node and what agrees. A chain of `n` nodes takes `log(n) / log(k + 1)` rounds of
//! `k` values; where branches keep a round from taking away half, the next looks at twice as many.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::graph::{NodeId, NodeKind};

use super::{Difference, NodeError, Side, Tolerance, op_text};
use crate::error::Error;

/// Values observed in the first round, and at most.
const FIRST_PROBES: usize = 15;
const MAX_PROBES: usize = 240;

/// What is known of the values of both sides.
pub(super) struct Search<'s> {
    a: &'s Side,
    b: &'s Side,
    tolerance: Tolerance,
    /// Nodes of the first side that can be compared.
    pairs: BTreeMap<NodeId, NodeId>,
    /// Position of each node of the first side in the order of data flow.
    order: BTreeMap<NodeId, usize>,
    known: BTreeMap<NodeId, Difference>,
    pub compilations: usize,
}

impl<'s> Search<'s> {
    pub fn new(a: &'s Side, b: &'s Side, tolerance: Tolerance, mut pairs: BTreeMap<NodeId, NodeId>) -> Search<'s> {
        let order: BTreeMap<NodeId, usize> = a.graph.order().into_iter().zip(0..).collect();
        // What depends on no input is computed by the compiler alone, and what no output needs is not computed.
        let (live, varying) = (a.graph.live(), varying(a));
        pairs.retain(|node, _| live.contains(node) && varying.contains(node));
        Search { a, b, tolerance, pairs, order, known: BTreeMap::new(), compilations: 0 }
    }

    /// The first node that differs, given nodes of outputs that do.
    ///
    /// # Errors
    /// A side does not compile or run.
    pub fn first(&mut self, differing: Vec<(NodeId, Difference)>) -> Result<Option<NodeError>, Error> {
        self.known.extend(differing.iter().cloned());
        let Some(mut found) = differing.into_iter().map(|(node, _)| node).min_by_key(|node| self.order[node]) else {
            return Ok(None);
        };
        let mut probes = FIRST_PROBES;
        loop {
            let open = self.open(found);
            if open.is_empty() {
                break;
            }
            let chosen = spread(&open, probes);
            self.observe(&chosen)?;
            let differs = |node: &&NodeId| self.known.get(*node).is_some_and(|d| !d.is_within());
            if let Some(first) = chosen.iter().find(differs) {
                found = *first;
            }
            if self.open(found).len() * 2 > open.len() {
                probes = (2 * probes).min(MAX_PROBES);
            }
        }
        Ok(self.known.get(&found).map(|difference| self.error(found, difference)))
    }

    /// Observes as many more values, spread over what can be compared.
    ///
    /// # Errors
    /// As [`Search::first`].
    pub fn spread(&mut self, count: usize) -> Result<(), Error> {
        let mut rest: Vec<NodeId> = self.pairs.keys().copied().filter(|node| !self.known.contains_key(node)).collect();
        rest.sort_by_key(|node| self.order[node]);
        let chosen = spread(&rest, count);
        if chosen.is_empty() { Ok(()) } else { self.observe(&chosen) }
    }

    /// All that was seen, in the order of data flow.
    pub fn seen(&self) -> Vec<NodeError> {
        let mut all: Vec<_> = self.known.iter().collect();
        all.sort_by_key(|(node, _)| self.order[node]);
        all.into_iter().map(|(node, difference)| self.error(*node, difference)).collect()
    }

    fn error(&self, node: NodeId, difference: &Difference) -> NodeError {
        let graph = &self.a.graph;
        NodeError { node: graph.node(node).name.to_string(), op: op_text(graph, node), difference: difference.clone() }
    }

    /// What a node depends on that can be compared and is not known, in the order of data flow: not beyond what agrees.
    fn open(&self, node: NodeId) -> Vec<NodeId> {
        let args = |node: NodeId| self.a.graph.args(node).into_iter().map(|v| v.node);
        let (mut reached, mut stack) = (BTreeSet::new(), args(node).collect::<Vec<_>>());
        while let Some(next) = stack.pop() {
            let agrees = self.known.get(&next).is_some_and(Difference::is_within);
            if !agrees && reached.insert(next) {
                stack.extend(args(next));
            }
        }
        let mut open: Vec<NodeId> = reached
            .into_iter()
            .filter(|node| self.pairs.contains_key(node) && !self.known.contains_key(node))
            .collect();
        open.sort_by_key(|node| self.order[node]);
        open
    }

    /// Compares the values of nodes. Those that turn out to have different types are not compared again.
    fn observe(&mut self, nodes: &[NodeId]) -> Result<(), Error> {
        let others: Vec<NodeId> = nodes.iter().filter_map(|node| self.pairs.get(node).copied()).collect();
        let ((_, of_a), (_, of_b)) = (self.a.observe(nodes)?, self.b.observe(&others)?);
        self.compilations += 2;
        for (node, (x, y)) in nodes.iter().zip(of_a.iter().zip(&of_b)) {
            if x.iter().zip(y).any(|(x, y)| x.data().ty != y.data().ty) {
                self.pairs.remove(node);
                continue;
            }
            let differences = x.iter().zip(y).map(|(x, y)| Difference::of(x.data(), y.data(), self.tolerance));
            let worst = differences.reduce(|a, b| if worse(&b, &a) { b } else { a });
            self.known.extend(worst.map(|worst| (*node, worst)));
        }
        Ok(())
    }
}

/// Whether a difference is the greater one.
fn worse(a: &Difference, b: &Difference) -> bool {
    (!a.is_within(), a.relative) > (!b.is_within(), b.relative)
}

/// So many of a list at even distances, all if there are fewer.
fn spread(all: &[NodeId], count: usize) -> Vec<NodeId> {
    match all.len() <= count {
        true => all.to_vec(),
        false => (1..=count).map(|i| all[i * all.len() / (count + 1)]).collect(),
    }
}

/// The nodes that depend on an input.
fn varying(side: &Side) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    for id in side.graph.order() {
        let depends = side.graph.args(id).iter().any(|v| found.contains(&v.node));
        if depends || matches!(side.graph.node(id).kind, NodeKind::Input) {
            found.insert(id);
        }
    }
    found
}
