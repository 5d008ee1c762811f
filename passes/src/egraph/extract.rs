//! Extraction by the cost of a DAG: one e-node for each class that the roots reach, each paid once.
//!
//! Two starts, then an improvement. A start settles classes in ascending order of what it charges, from settled operands
//! only (Knuth, *A generalization of Dijkstra's algorithm*, 1977), so it never chooses a cycle. The first start
//! charges trees; the second divides the cost of a class among the classes that could read it ("area flow" of
//! technology mapping), so it does not explode where graphs share. Both are improved with exact reference
//! counts (`improve`), and the cheaper is taken. Optimal extraction is NP-hard.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use egg::{Analysis, EGraph, Id, Language};

use super::improve::improve;
use super::problem::Problem;

/// The chosen e-nodes.
#[derive(Clone, Debug)]
pub struct Extraction<'a, L> {
    nodes: Vec<(Id, &'a L)>,
    /// Position in `nodes` by class id; `u32::MAX` where nothing was chosen.
    position: Vec<u32>,
    cost: u64,
}

impl<'a, L> Extraction<'a, L> {
    /// The classes that the roots reach through the choices, operands first, each with its e-node. Children of
    /// e-nodes are ids of the e-graph; [`Extraction::position`] finds them after [`EGraph::find`].
    pub fn nodes(&self) -> &[(Id, &'a L)] {
        &self.nodes
    }

    /// The position in [`Extraction::nodes`] of a canonical class.
    pub fn position(&self, class: Id) -> Option<usize> {
        let found = *self.position.get(usize::from(class))?;
        (found != u32::MAX).then_some(found as usize)
    }

    /// The sum of the costs of the chosen e-nodes.
    pub fn cost(&self) -> u64 {
        self.cost
    }
}

/// Chooses an e-node for each class that is needed to build all `roots`, so that the sum of their costs is
/// small. `cost` gives what an e-node adds to the costs of its operands, or `None` if it cannot be chosen; its
/// first argument is the class. Ties go to fewer e-nodes, then to the first e-node of the class.
///
/// `None` if some root has no form without a cycle of allowed e-nodes. The e-graph must be rebuilt. Time is near
/// linear in the number of e-nodes; nothing recurses.
pub fn extract<'a, L: Language, N: Analysis<L>>(
    egraph: &'a EGraph<L, N>,
    roots: &[Id],
    cost: impl FnMut(Id, &L) -> Option<u64>,
) -> Option<Extraction<'a, L>> {
    let problem = Problem::new(egraph, roots, cost);
    let mut starts = [Start::Tree, Start::Flow].map(|start| problem.start(start)).to_vec();
    // From equal choices both come to the same.
    starts.dedup();
    let complete = |choice: &Vec<Option<u32>>| problem.roots.iter().all(|r| choice[*r as usize].is_some());
    let improved = |mut choice: Vec<Option<u32>>| (improve(&problem, &mut choice), choice);
    let best = starts.into_iter().filter(complete).map(improved).reduce(|a, b| if b.0 < a.0 { b } else { a })?;
    problem.extraction(egraph, &best.1)
}

/// How a start charges for operands.
#[derive(Clone, Copy)]
enum Start {
    Tree,
    Flow,
}

impl Problem {
    /// The position of a candidate for every class that has a finite form; the choices have no cycle.
    fn start(&self, start: Start) -> Vec<Option<u32>> {
        let distinct = |users: &Vec<(u32, u32)>| users.chunk_by(|a, b| a.0 == b.0).count().max(1) as u128;
        let readers: Vec<u128> = match start {
            Start::Tree => vec![1; self.users.len()],
            Start::Flow => self.users.iter().map(distinct).collect(),
        };
        let mut settled: Vec<Option<u128>> = vec![None; self.classes.len()];
        let mut choice: Vec<Option<u32>> = vec![None; self.classes.len()];
        let mut missing: Vec<Vec<usize>> =
            self.classes.iter().map(|c| c.iter().map(|n| n.operands.len()).collect()).collect();
        let mut queue: BinaryHeap<Reverse<(u128, u32, u32)>> = BinaryHeap::new();
        for (class, candidates) in self.classes.iter().enumerate() {
            let leaves = candidates.iter().enumerate().filter(|(_, n)| n.operands.is_empty());
            queue.extend(leaves.map(|(at, n)| Reverse((n.weight / readers[class], class as u32, at as u32))));
        }
        while let Some(Reverse((share, class, at))) = queue.pop() {
            if settled[class as usize].is_some() {
                continue;
            }
            settled[class as usize] = Some(share);
            choice[class as usize] = Some(at);
            for &(user, at) in &self.users[class as usize] {
                let waiting = &mut missing[user as usize][at as usize];
                *waiting -= 1;
                if *waiting == 0 && settled[user as usize].is_none() {
                    let n = self.candidate(user, at);
                    let operands = n.operands.iter().filter_map(|o| settled[*o as usize]);
                    let total = operands.fold(n.weight, u128::saturating_add);
                    queue.push(Reverse((total / readers[user as usize], user, at)));
                }
            }
        }
        choice
    }

    fn extraction<'a, L: Language, N: Analysis<L>>(
        &self,
        egraph: &'a EGraph<L, N>,
        choice: &[Option<u32>],
    ) -> Option<Extraction<'a, L>> {
        let mut out = Extraction { nodes: vec![], position: vec![u32::MAX; egraph.nodes().len()], cost: 0 };
        let mut seen = vec![false; self.classes.len()];
        let mut stack: Vec<(u32, bool)> = self.roots.iter().rev().map(|r| (*r, false)).collect();
        while let Some((class, done)) = stack.pop() {
            let chosen = self.candidate(class, choice[class as usize]?);
            if done {
                let id = self.ids[class as usize];
                out.position[usize::from(id)] = out.nodes.len() as u32;
                out.nodes.push((id, &egraph[id].nodes[chosen.node as usize]));
                out.cost = out.cost.saturating_add(chosen.cost);
            } else if !std::mem::replace(&mut seen[class as usize], true) {
                stack.push((class, true));
                stack.extend(chosen.operands.iter().rev().map(|o| (*o, false)));
            }
        }
        Some(out)
    }
}
