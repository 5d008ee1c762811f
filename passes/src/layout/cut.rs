//! Minimum cuts of small networks, by the algorithm of Dinic (Soviet Math. Doklady 11, 1970).

use std::collections::VecDeque;

/// A directed network with a source and a sink.
pub struct Network {
    /// Head, capacity left. The edge back is the neighbour in the list: `i ^ 1`.
    edges: Vec<(usize, u128)>,
    out: Vec<Vec<usize>>,
}

impl Network {
    pub const SOURCE: usize = 0;
    pub const SINK: usize = 1;

    pub fn new() -> Network {
        Network { edges: vec![], out: vec![vec![], vec![]] }
    }

    pub fn add_node(&mut self) -> usize {
        self.out.push(vec![]);
        self.out.len() - 1
    }

    /// What it costs if `from` is on the source's side and `to` is not.
    pub fn add_edge(&mut self, from: usize, to: usize, capacity: u128) {
        for (tail, head, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.out[tail].push(self.edges.len());
            self.edges.push((head, capacity));
        }
    }

    /// Which nodes are on the source's side of the minimum cut nearest to it.
    pub fn source_side(mut self) -> Vec<bool> {
        loop {
            let level = self.levels();
            if level[Network::SINK].is_none() {
                return level.iter().map(Option::is_some).collect();
            }
            let mut next = vec![0; self.out.len()];
            while self.augment(&level, &mut next) {}
        }
    }

    /// Distances from the source along edges with capacity left.
    fn levels(&self) -> Vec<Option<usize>> {
        let mut level = vec![None; self.out.len()];
        level[Network::SOURCE] = Some(0);
        let mut queue = VecDeque::from([(Network::SOURCE, 0)]);
        while let Some((node, distance)) = queue.pop_front() {
            for &e in &self.out[node] {
                let (head, capacity) = self.edges[e];
                if capacity > 0 && level[head].is_none() {
                    level[head] = Some(distance + 1);
                    queue.push_back((head, distance + 1));
                }
            }
        }
        level
    }

    /// Pushes what one shortest path takes; false if there is none left. `next` counts the edges of each node
    /// that lead nowhere any more.
    fn augment(&mut self, level: &[Option<usize>], next: &mut [usize]) -> bool {
        let mut path: Vec<usize> = vec![];
        let mut node = Network::SOURCE;
        while node != Network::SINK {
            let step = self.out[node][next[node]..].iter().position(|&e| {
                let (head, capacity) = self.edges[e];
                capacity > 0 && level[head].is_some() && level[head] == level[node].map(|l| l + 1)
            });
            match (step, path.last()) {
                (Some(skip), _) => {
                    next[node] += skip;
                    path.push(self.out[node][next[node]]);
                    node = self.edges[path[path.len() - 1]].0;
                }
                (None, Some(&last)) => {
                    next[node] = self.out[node].len();
                    path.pop();
                    node = self.edges[last ^ 1].0;
                    next[node] += 1;
                }
                (None, None) => return false,
            }
        }
        let flow = path.iter().map(|&e| self.edges[e].1).min().unwrap_or(0);
        for e in path {
            self.edges[e].1 -= flow;
            self.edges[e ^ 1].1 += flow;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_ir::testing::Rng;

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
