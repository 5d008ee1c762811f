//! Minimum cuts of small networks.

use petgraph::Direction::{Incoming, Outgoing};
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

/// A directed network with a source and a sink. Weights of edges are capacities.
pub struct Network(DiGraph<(), u128>);

impl Network {
    pub const SOURCE: usize = 0;
    pub const SINK: usize = 1;

    pub fn new() -> Network {
        let mut graph = DiGraph::new();
        graph.add_node(());
        graph.add_node(());
        Network(graph)
    }

    pub fn add_node(&mut self) -> usize {
        self.0.add_node(()).index()
    }

    /// What it costs if `from` is on the source's side and `to` is not.
    pub fn add_edge(&mut self, from: usize, to: usize, capacity: u128) {
        self.0.add_edge(NodeIndex::new(from), NodeIndex::new(to), capacity);
    }

    /// Which nodes are on the source's side of the minimum cut nearest to it: those that it reaches along edges with
    /// capacity left, or backwards along edges with a flow.
    pub fn source_side(&self) -> Vec<bool> {
        let source = NodeIndex::new(Network::SOURCE);
        let (_, flows) = dinics(&self.0, source, NodeIndex::new(Network::SINK));
        let mut reached = vec![false; self.0.node_count()];
        reached[Network::SOURCE] = true;
        let mut waiting = vec![source];
        while let Some(node) = waiting.pop() {
            let edges = self.0.edges_directed(node, Outgoing).chain(self.0.edges_directed(node, Incoming));
            for edge in edges {
                let flow = flows[edge.id().index()];
                let (next, open) = match edge.source() == node {
                    true => (edge.target(), flow < *edge.weight()),
                    false => (edge.source(), flow > 0),
                };
                if open && !std::mem::replace(&mut reached[next.index()], true) {
                    waiting.push(next);
                }
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_random::Rng;

    #[test]
    fn random_cuts_are_minimal() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let count = 2 + rng.below(7) as usize;
            let edges: Vec<(usize, usize, u128)> = (0..rng.below(24))
                .map(|_| (rng.below(count as u64) as usize, rng.below(count as u64) as usize, rng.below(10).into()))
                .collect();
            let mut network = Network::new();
            (2..count).for_each(|_| {
                network.add_node();
            });
            edges.iter().for_each(|&(from, to, capacity)| network.add_edge(from, to, capacity));
            let cost = |side: &[bool]| edges.iter().filter(|e| side[e.0] && !side[e.1]).map(|e| e.2).sum::<u128>();
            let found = cost(&network.source_side());
            let best = (0..1u32 << (count - 2)).map(|bits| {
                let side: Vec<bool> = (0..count).map(|i| i == 0 || i > 1 && bits >> (i - 2) & 1 == 1).collect();
                cost(&side)
            });
            assert_eq!(Some(found), best.min(), "seed {seed}");
        }
    }
}
