//! The extraction problem: classes numbered from 0, the e-nodes that may be chosen for each, and their weights.

use egg::{Analysis, EGraph, Id, Language};

/// Fractional bits of weights: the cost of an e-node is shifted by them, and one is added, so that every
/// weight is positive and of two choices of equal cost the one with fewer e-nodes wins.
const FRACTION: u32 = 32;

/// One e-node that may be chosen.
pub(super) struct Candidate {
    /// Classes it needs, ascending, each once.
    pub operands: Vec<u32>,
    pub weight: u128,
    pub cost: u64,
    /// Its place among the e-nodes of its class.
    pub node: u32,
}

/// The e-graph below the roots, with classes numbered from 0.
pub(super) struct Problem {
    pub ids: Vec<Id>,
    pub classes: Vec<Vec<Candidate>>,
    /// For each class the candidates (class, position) that need it.
    pub users: Vec<Vec<(u32, u32)>>,
    pub roots: Vec<u32>,
}

impl Problem {
    pub fn new<L: Language, N: Analysis<L>>(
        egraph: &EGraph<L, N>,
        roots: &[Id],
        mut cost: impl FnMut(Id, &L) -> Option<u64>,
    ) -> Problem {
        let mut number = vec![u32::MAX; egraph.nodes().len()];
        let mut ids: Vec<Id> = vec![];
        let mut meet = |id: Id, ids: &mut Vec<Id>| {
            let id = egraph.find(id);
            let slot = &mut number[usize::from(id)];
            if *slot == u32::MAX {
                *slot = ids.len() as u32;
                ids.push(id);
            }
            *slot
        };
        let mut starts: Vec<u32> = roots.iter().map(|r| meet(*r, &mut ids)).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut classes = vec![];
        while classes.len() < ids.len() {
            let (class, own) = (ids[classes.len()], classes.len() as u32);
            let mut candidates = vec![];
            for (node, enode) in egraph[class].nodes.iter().enumerate() {
                let Some(cost) = cost(class, enode) else { continue };
                let mut operands: Vec<u32> = enode.children().iter().map(|c| meet(*c, &mut ids)).collect();
                operands.sort_unstable();
                operands.dedup();
                if !operands.contains(&own) {
                    let weight = (u128::from(cost) << FRACTION) + 1;
                    candidates.push(Candidate { operands, weight, cost, node: node as u32 });
                }
            }
            classes.push(candidates);
        }
        let mut users = vec![vec![]; classes.len()];
        for (class, candidates) in classes.iter().enumerate() {
            for (at, candidate) in candidates.iter().enumerate() {
                candidate.operands.iter().for_each(|o| users[*o as usize].push((class as u32, at as u32)));
            }
        }
        Problem { ids, classes, users, roots: starts }
    }

    pub fn candidate(&self, class: u32, at: u32) -> &Candidate {
        &self.classes[class as usize][at as usize]
    }
}
