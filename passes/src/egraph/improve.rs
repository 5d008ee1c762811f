//! Improvement of an extraction with exact costs: each class that is needed takes the e-node that adds least to
//! what all others need anyway.
//!
//! This is the recovery of exact area in technology mapping: reference counts tell what a choice alone brings
//! in. A numbering in which every class is above its operands finds cycles without a search in most cases.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::problem::Problem;

/// Most passes over the classes.
const MAX_PASSES: usize = 8;

/// Most classes looked at to show that a choice makes no cycle; beyond, it counts as one.
const MAX_CYCLE_SEARCH: usize = 512;

/// Changes choices while that makes the total smaller; returns the total weight of what the roots need.
/// Every root must have a choice.
pub(super) fn improve(problem: &Problem, choice: &mut [Option<u32>]) -> u128 {
    let mut state = ImproveState::new(problem, choice);
    let mut total = 0;
    for root in &problem.roots {
        total += state.acquire(*root);
    }
    for _ in 0..MAX_PASSES {
        let mut gained = 0;
        for class in state.by_level() {
            gained += state.reconsider(class);
        }
        total -= gained;
        if gained == 0 {
            break;
        }
    }
    total
}

struct ImproveState<'a> {
    problem: &'a Problem,
    choice: &'a mut [Option<u32>],
    /// Uses of each class by roots and by chosen e-nodes of used classes.
    uses: Vec<u32>,
    /// Above the levels of the chosen e-node's operands.
    level: Vec<u32>,
    /// Marks of the search for cycles: the number of the search that came by last.
    seen: Vec<u32>,
    searches: u32,
    /// Memory of walks.
    stack: Vec<u32>,
    /// How many choices have changed, and how many had when each class was looked at last.
    changes: u32,
    looked: Vec<u32>,
}

impl<'a> ImproveState<'a> {
    fn new(problem: &'a Problem, choice: &'a mut [Option<u32>]) -> ImproveState<'a> {
        let n = problem.classes.len();
        let (uses, level, seen, looked) = (vec![0; n], vec![0; n], vec![0; n], vec![u32::MAX; n]);
        let (searches, changes, stack) = (0, 0, vec![]);
        let mut state = ImproveState { problem, choice, uses, level, seen, searches, stack, changes, looked };
        let mut waiting: Vec<u32> = (0..n as u32).map(|c| state.operands(c).len() as u32).collect();
        let mut ready: Vec<u32> = (0..n as u32).filter(|c| waiting[*c as usize] == 0).collect();
        while let Some(class) = ready.pop() {
            for &(user, at) in &problem.users[class as usize] {
                if state.choice[user as usize] == Some(at) {
                    let above = state.level[class as usize] + 1;
                    state.level[user as usize] = state.level[user as usize].max(above);
                    waiting[user as usize] -= 1;
                    if waiting[user as usize] == 0 {
                        ready.push(user);
                    }
                }
            }
        }
        state
    }

    fn operands(&self, class: u32) -> &'a [u32] {
        match self.choice[class as usize] {
            Some(at) => &self.problem.candidate(class, at).operands,
            None => &[],
        }
    }

    fn weight(&self, class: u32) -> u128 {
        self.choice[class as usize].map_or(0, |at| self.problem.candidate(class, at).weight)
    }

    /// Lifts the chosen users of a class above it, and theirs.
    fn raise(&mut self, class: u32) {
        // Lowest first, so that a class is rarely lifted twice.
        let mut queue = BinaryHeap::from([Reverse((self.level[class as usize], class))]);
        while let Some(Reverse((level, class))) = queue.pop() {
            for &(user, at) in &self.problem.users[class as usize] {
                let reads = self.choice[user as usize] == Some(at);
                if self.level[class as usize] == level && reads && self.level[user as usize] <= level {
                    self.level[user as usize] = level + 1;
                    queue.push(Reverse((level + 1, user)));
                }
            }
        }
    }

    /// Used classes, operands first.
    fn by_level(&self) -> Vec<u32> {
        let mut used: Vec<u32> = (0..self.uses.len() as u32).filter(|c| self.uses[*c as usize] > 0).collect();
        used.sort_by_key(|c| (self.level[*c as usize], *c));
        used
    }

    /// Adds a use; returns the weight of the classes that were not used before.
    fn acquire(&mut self, class: u32) -> u128 {
        let mut added = 0;
        self.stack.push(class);
        while let Some(class) = self.stack.pop() {
            self.uses[class as usize] += 1;
            if self.uses[class as usize] == 1 {
                added += self.weight(class);
                let operands = self.operands(class);
                self.stack.extend_from_slice(operands);
            }
        }
        added
    }

    /// Takes a use away; returns the weight of the classes that are not used any more.
    fn release(&mut self, class: u32) -> u128 {
        let mut freed = 0;
        self.stack.push(class);
        while let Some(class) = self.stack.pop() {
            self.uses[class as usize] -= 1;
            if self.uses[class as usize] == 0 {
                freed += self.weight(class);
                let operands = self.operands(class);
                self.stack.extend_from_slice(operands);
            }
        }
        freed
    }

    fn acquire_all(&mut self, classes: &[u32]) -> u128 {
        classes.iter().map(|class| self.acquire(*class)).sum()
    }

    fn release_all(&mut self, classes: &[u32]) -> u128 {
        classes.iter().map(|class| self.release(*class)).sum()
    }

    /// Chooses anew for a class; returns by how much the total fell.
    fn reconsider(&mut self, class: u32) -> u128 {
        let (problem, candidates) = (self.problem, &self.problem.classes[class as usize]);
        let Some(old) = self.choice[class as usize].filter(|_| candidates.len() > 1) else { return 0 };
        // What nothing has changed for since is as good as it was.
        if self.uses[class as usize] == 0 || self.looked[class as usize] == self.changes {
            return 0;
        }
        let (mut best, mut gained) = (old, 0);
        for (at, candidate) in (0u32..).zip(candidates).filter(|(at, _)| *at != old) {
            if !self.is_acyclic(class, &candidate.operands) {
                continue;
            }
            let there = problem.candidate(class, best);
            // What both need is never given up, so that the cost of a comparison is what they differ in.
            let cost = candidate.weight + self.acquire_all(&candidate.operands);
            let saved = there.weight + self.release_all(&there.operands);
            if cost < saved {
                gained += saved - cost;
                best = at;
            } else {
                self.acquire_all(&there.operands);
                self.release_all(&candidate.operands);
            }
        }
        match best == old {
            true => self.looked[class as usize] = self.changes,
            false => self.changes += 1,
        }
        self.choice[class as usize] = Some(best);
        let operands = &problem.candidate(class, best).operands;
        if let Some(top) = operands.iter().map(|o| self.level[*o as usize]).max()
            && top >= self.level[class as usize]
        {
            self.level[class as usize] = top + 1;
            self.raise(class);
        }
        gained
    }

    /// Whether all operands have a form, and none of them needs `class`.
    fn is_acyclic(&mut self, class: u32, operands: &[u32]) -> bool {
        if operands.iter().any(|o| self.choice[*o as usize].is_none()) {
            return false;
        }
        let floor = self.level[class as usize];
        self.searches += 1;
        let (mut stack, mut looked) = (operands.to_vec(), 0);
        while let Some(next) = stack.pop() {
            if next == class || looked == MAX_CYCLE_SEARCH {
                return false;
            }
            // Only what is above the class can need it.
            let above = self.level[next as usize] > floor;
            if above && std::mem::replace(&mut self.seen[next as usize], self.searches) != self.searches {
                looked += 1;
                stack.extend(self.operands(next));
            }
        }
        true
    }
}
