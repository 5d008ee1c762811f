//! Decision trees as their operators describe them, checked: every branch has two children and is reached once.

use crate::prelude::*;

/// A test of one feature x.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Test {
    /// x ≤ t.
    AtMost(f64),
    /// x < t.
    Below(f64),
    /// x ≥ t.
    AtLeast(f64),
    /// x > t.
    Above(f64),
    /// x = t.
    Equal(f64),
    /// x ≠ t.
    Unequal(f64),
    /// x is one of these.
    Member(Vec<f64>),
}

/// A branch of a tree.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub feature: usize,
    pub test: Test,
    /// Whether NaN passes the test.
    pub nan_passes: bool,
    /// Where to go if the test holds, and if it does not.
    pub children: [u32; 2],
}

#[derive(Clone, Debug)]
pub(super) enum TreeNode {
    Branch(Branch),
    /// Positions in [`Forest::weights`].
    Leaf(std::ops::Range<u32>),
}

/// What a leaf adds to a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafWeight {
    pub target: u32,
    pub value: f64,
}

/// Trees over one list of nodes.
#[derive(Clone, Debug)]
pub(super) struct Forest {
    pub nodes: Vec<TreeNode>,
    pub weights: Vec<LeafWeight>,
    /// The first node of each tree.
    pub roots: Vec<u32>,
    /// Number of targets or classes.
    pub targets: usize,
}

/// On which rows leaves add something to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Never,
    Sometimes,
    Always,
}

/// The nodes of one tree, parents before children.
pub(super) struct Walked(pub Vec<u32>);

/// Most trees and nodes: positions in tables are 32-bit words.
const MAX_NODES: usize = 1 << 28;

impl Forest {
    /// Checks the trees; the nodes of each one.
    ///
    /// # Errors
    /// A child does not exist, or a branch is reached twice.
    pub fn walk(&self) -> Result<Vec<Walked>, OpError> {
        reject_if(self.nodes.len() > MAX_NODES, || format!("{} nodes are too many", self.nodes.len()))?;
        let mut reached = vec![false; self.nodes.len()];
        self.roots.iter().map(|root| self.walk_tree(*root, &mut reached)).collect()
    }

    fn walk_tree(&self, root: u32, reached: &mut [bool]) -> Result<Walked, OpError> {
        let mut order = vec![root];
        let mut at = 0;
        while let Some(&number) = order.get(at) {
            at += 1;
            let Some(TreeNode::Branch(branch)) = self.nodes.get(number as usize) else { continue };
            if std::mem::replace(&mut reached[number as usize], true) {
                return Err(OpError(format!("node {number} of the list is the child of two nodes, or of itself")));
            }
            for child in branch.children {
                reject_if(child as usize >= self.nodes.len(), || format!("node {number} has no child {child}"))?;
                order.push(child);
            }
        }
        Ok(Walked(order))
    }

    /// The weights of a leaf; none of a branch.
    pub fn leaf(&self, node: u32) -> &[LeafWeight] {
        match &self.nodes[node as usize] {
            TreeNode::Leaf(range) => &self.weights[range.start as usize..range.end as usize],
            TreeNode::Branch(_) => &[],
        }
    }

    /// The leaves of a tree.
    pub fn leaves<'f>(&'f self, tree: &'f Walked) -> impl Iterator<Item = &'f [LeafWeight]> {
        let is_leaf = |node: &&u32| matches!(self.nodes[**node as usize], TreeNode::Leaf(_));
        tree.0.iter().filter(is_leaf).map(|node| self.leaf(*node))
    }

    /// For each target, on which rows a leaf adds something to it.
    pub fn reached_targets(&self, trees: &[Walked]) -> Vec<Reached> {
        let mut all = vec![Reached::Never; self.targets];
        for tree in trees {
            let (mut counts, mut leaves) = (vec![0u64; self.targets], 0);
            for weights in self.leaves(tree) {
                leaves += 1;
                let mut seen: Vec<u32> = weights.iter().map(|w| w.target).collect();
                seen.sort_unstable();
                seen.dedup();
                seen.iter().for_each(|target| counts[*target as usize] += 1);
            }
            for (reached, count) in all.iter_mut().zip(counts) {
                *reached = match (*reached, count) {
                    (Reached::Always, _) => Reached::Always,
                    (_, count) if count == leaves => Reached::Always,
                    (before, 0) => before,
                    _ => Reached::Sometimes,
                };
            }
        }
        all
    }
}
