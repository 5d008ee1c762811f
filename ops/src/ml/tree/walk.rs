//! The kernel that walks a table of trees and adds up what leaves give.
//!
//! Several walks advance together, so that the reads of one overlap with those of the others: of neighbouring rows in one tree, or
//! of one row in neighbouring trees. Blocks of rows go through all trees, in the order of the trees, whatever the number of threads.

use super::table::{NODE_WORDS, Width};
use crate::prelude::*;

/// Walks that advance together.
const CHAINS: i64 = 8;
/// Rows that go through all trees together, if there are many: the more, the fewer times all trees are read.
const BLOCK: i64 = 256;
const MIN_BLOCK: i64 = 64;
/// Words of a row of the table of trees: first node, longest path, target.
pub(super) const TREE_WORDS: u64 = 3;

/// How what leaves give is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    Sum,
    Min,
    Max,
}

impl Combine {
    /// What combines with any number to that number.
    fn unit(self) -> f64 {
        match self {
            Combine::Sum => 0.0,
            Combine::Min => f64::INFINITY,
            Combine::Max => f64::NEG_INFINITY,
        }
    }

    fn op(self) -> ScalarOp {
        match self {
            Combine::Sum => ScalarOp::Add,
            Combine::Min => ScalarOp::Min,
            Combine::Max => ScalarOp::Max,
        }
    }
}

/// What a leaf gives, by the word in its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafForm {
    /// The bits of a number for the target of the tree.
    One,
    /// A row of a table of numbers for all targets.
    Row,
    /// An entry of a table of offsets into lists of targets and numbers.
    List,
}

/// A kernel over rows of keys.
pub(super) struct Walk {
    pub width: Width,
    pub form: LeafForm,
    pub combine: Combine,
    pub trees: u64,
    pub grain: Grain,
}

/// The tensors of the kernel.
struct Walking<'k> {
    k: &'k KernelScope,
    walk: &'k Walk,
    keys: KernelTensor<'k>,
    nodes: KernelTensor<'k>,
    trees: KernelTensor<'k>,
    leaves: Vec<KernelTensor<'k>>,
    scores: KernelTensor<'k>,
    targets: i64,
    /// Keys of a row.
    features: Extent,
}

impl Walk {
    /// The kernel of these operands, of which the first three are keys, nodes and trees.
    pub fn kernel(&self, operands: &[DenseType], scores: &DenseType) -> Result<Kernel, OpError> {
        let k = &KernelScope::new("tree_walk");
        let names = ["keys", "nodes", "trees", "leaves", "targets", "weights"];
        let tensors: Vec<KernelTensor<'_>> = names.iter().zip(operands).map(|(name, ty)| k.input(name, ty)).collect();
        let [keys, nodes, trees, leaves @ ..] = &tensors[..] else { return Err("operands are missing".into()) };
        let (rows, targets, features) = (scores.dims.at(0), scores.dims[1] as i64, operands[0].dims.at(1));
        let scores = k.output("scores", scores);
        let (keys, nodes, trees, leaves) = (*keys, *nodes, *trees, leaves.to_vec());
        let walking = Walking { k, walk: self, keys, nodes, trees, leaves, scores, targets, features };
        match self.grain {
            Grain::Fine => k.parallel_each("row", rows, |row| walking.row(row, 1)),
            Grain::Coarse => {
                let many = block_rows(rows);
                k.parallel_each("block", rows.div_ceil(many), |block| {
                    let first = k.bound("first", &block.scale(many));
                    let end = first.offset(many).minimum(&Index::constant(rows), &unbounded);
                    walking.block(&first, &k.bound("last", &end));
                });
            }
        }
        k.finish()
    }
}

/// Rows of a block: of few rows, fewer, so that there are some blocks for threads.
fn block_rows(rows: Extent) -> Extent {
    (rows.div_floor(4 * CHAINS) * CHAINS).greatest(MIN_BLOCK).least(BLOCK)
}

impl<'k> Walking<'k> {
    fn block(&self, first: &Index, last: &Index) {
        let k = self.k;
        let count = last.sub(first).floor_div(CHAINS, &unbounded).scale(CHAINS);
        let whole = k.bound("whole", &first.add(&count));
        k.range("row", (first, &whole), |row| self.clear(row));
        k.each("tree", self.walk.trees, |tree| {
            let (root, depth, target) = (self.root(tree), self.depth(tree), self.target(tree));
            let depth = depth.index();
            k.strided("row", (first, &whole, CHAINS), |row| {
                let rows: Vec<Index> = (0..CHAINS).map(|i| row.offset(i)).collect();
                let starts: Vec<_> = rows.iter().map(|row| (root, row.scale(self.features))).collect();
                let given = self.leaves_of(&starts, &depth);
                rows.iter().zip(given).for_each(|(row, given)| self.combine(row, &target, given));
            });
        });
        k.range("row", (&whole, last), |row| self.row(row, CHAINS));
    }

    fn clear(&self, row: &Index) {
        self.k.each("target", self.targets, |target| self.scores.set([row, target], self.walk.combine.unit()));
    }

    /// One row in all trees, so many at a time.
    fn row(&self, row: &Index, chains: i64) {
        let (k, trees) = (self.k, self.walk.trees as i64);
        self.clear(row);
        let keys = k.bound("keys", &row.scale(self.features));
        let some = |trees: Vec<Index>| {
            let starts: Vec<_> = trees.iter().map(|tree| (self.root(tree), keys.clone())).collect();
            let depths = trees.iter().map(|tree| self.depth(tree)).reduce(|a, b| a.max(b));
            let given = self.leaves_of(&starts, &depths.unwrap_or(k.int(0)).index());
            trees.iter().zip(given).for_each(|(tree, given)| self.combine(row, &self.target(tree), given));
        };
        let (zero, whole) = (Index::default(), Index::constant(trees / chains * chains));
        k.strided("tree", (&zero, &whole, chains), |tree| some((0..chains).map(|i| tree.offset(i)).collect()));
        if chains > 1 {
            k.range("tree", (&whole, &Index::constant(trees)), |tree| some(vec![tree.clone()]));
        }
    }

    fn tree_word(&self, tree: &Index, word: i64) -> KernelValue<'k> {
        self.trees.get_as(&tree.scale(TREE_WORDS as i64).offset(word), DType::I64)
    }

    fn root(&self, tree: &Index) -> KernelValue<'k> {
        self.tree_word(tree, 0)
    }

    fn depth(&self, tree: &Index) -> KernelValue<'k> {
        self.tree_word(tree, 1)
    }

    /// The target of a tree whose leaves give one number; any is a position.
    fn target(&self, tree: &Index) -> Index {
        match (self.walk.form, self.targets) {
            (LeafForm::One, 2..) => self.tree_word(tree, 2).index(),
            _ => Index::default(),
        }
    }

    /// What the leaves give at which walks from some nodes, over keys from some position on, end.
    fn leaves_of(&self, starts: &[(KernelValue<'k>, Index)], depth: &Index) -> Vec<KernelValue<'k>> {
        let k = self.k;
        let at = k.memory("at", DType::I64, [starts.len() as u64], MemorySpace::Register);
        let walks = || starts.iter().enumerate().map(|(i, start)| (Index::constant(i as i64), start));
        walks().for_each(|(i, (root, _))| at.set(&i, *root));
        k.range("step", (&Index::default(), depth), |_| {
            for (i, (_, keys)) in walks() {
                let node = at.get(&i).index();
                let feature = self.nodes.get_as(&node, DType::I64).index();
                let (cut, left) = (self.nodes.get(&node.offset(1)), self.nodes.get_as(&node.offset(2), DType::I64));
                let above = self.keys.get(&keys.add(&feature)).gt(cut);
                at.set(&i, left + above.cast(DType::I64) * NODE_WORDS);
            }
        });
        walks().map(|(i, _)| self.nodes.get(&at.get(&i).index().offset(3))).collect()
    }

    /// Adds what a leaf gives to the scores of a row.
    fn combine(&self, row: &Index, target: &Index, given: KernelValue<'k>) {
        let k = self.k;
        let add = |target: &Index, number: KernelValue<'k>| {
            let before = self.scores.get([row, target]);
            self.scores.set([row, target], before.binary(self.walk.combine.op(), number));
        };
        match (self.walk.form, &self.leaves[..]) {
            (LeafForm::Row, [table, ..]) => {
                let first = k.bound("weights", &given.cast(DType::I64).index().scale(self.targets));
                k.each("target", self.targets, |target| add(target, table.get(&first.add(target))));
            }
            (LeafForm::List, [offsets, targets, numbers]) => {
                let leaf = given.cast(DType::I64).index();
                let [first, last] = [0, 1].map(|i| offsets.get_as(&leaf.offset(i), DType::I64).index());
                k.range("entry", (&first, &last), |entry| {
                    add(&targets.get_as(entry, DType::I64).index(), numbers.get(entry));
                });
            }
            _ => {
                let [number] = k.eval(&[given], |a| [a[0].bitcast(self.walk.width.number())]);
                add(target, number);
            }
        }
    }
}
