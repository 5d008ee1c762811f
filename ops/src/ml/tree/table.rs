//! Trees as a table of nodes of four words that a kernel walks without branches.
//!
//! Every test is `key ≤ cut`: keys are integers that order floats ([`cut`]), so all tests of one feature, NaN among them, come down
//! to comparisons of integers. A node has the position of a feature's key, the cut, where its left child lies, with the right one
//! behind it, and what a leaf gives. A leaf is its own left child and its cut is above all keys, so a walk may take more steps than
//! a path has. Tests for members of a set are searches among their cuts.

use super::forest::{Branch, Forest, Test, TreeNode, Walked};
use crate::prelude::*;

/// Words of a node.
pub(super) const NODE_WORDS: i64 = 4;

/// Type of thresholds and sums, and of the words of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ml) enum Width {
    F32,
    F64,
}

impl Width {
    pub fn number(self) -> DType {
        if self == Width::F32 { DType::F32 } else { DType::F64 }
    }

    pub fn word(self) -> DType {
        if self == Width::F32 { DType::I32 } else { DType::I64 }
    }

    /// The least and the greatest integer, which are no keys of numbers. NaN has the first where it goes left, the second where it goes right.
    pub fn ends(self) -> [i64; 2] {
        if self == Width::F32 { [i32::MIN.into(), i32::MAX.into()] } else { [i64::MIN, i64::MAX] }
    }

    /// The bits of a number of this width.
    pub fn bits(self, x: f64) -> i64 {
        if self == Width::F32 { i64::from((x as f32).to_bits() as i32) } else { x.to_bits() as i64 }
    }

    /// The key of a number: integers in its order, -0 right below 0.
    pub fn key(self, x: f64) -> i64 {
        let bits = self.bits(x);
        let magnitude = if self == Width::F32 { i64::from(i32::MAX) } else { i64::MAX };
        if bits < 0 { bits ^ magnitude } else { bits }
    }

    /// [`Width::key`] of a number that a formula computes; `nan` for NaN.
    pub fn key_of(self, s: &ScalarBuilder, x: &Ex, nan: &Ex) -> Ex {
        let number = |n: i64| s.constant(Scalar::from_i64(self.word(), n));
        let bits = x.bitcast(self.word());
        let mirrored = s.op(ScalarOp::Xor, &[&bits, &number(self.ends()[1])]);
        x.ne(x).select(nan, &bits.lt(&number(0)).select(&mirrored, &bits))
    }

    /// The greatest key of numbers that are at most `x`.
    fn at_most(self, x: f64) -> i64 {
        if x == 0.0 { 0 } else { self.key(x) }
    }

    /// The greatest key of numbers below `x`; both zeros are equal.
    fn below(self, x: f64) -> i64 {
        if x == 0.0 { -2 } else { self.key(x) - 1 }
    }
}

/// What tests of a branch come down to: cuts in ascending order, and whether numbers up to the first one pass. From one cut to the
/// next the answer changes.
struct Cuts {
    at: Vec<i64>,
    first_passes: bool,
}

fn cuts(test: &Test, width: Width) -> Cuts {
    let [least, _] = width.ends();
    let member = |set: &[f64], within: bool| {
        let mut at: Vec<i64> =
            set.iter().filter(|x| !x.is_nan()).flat_map(|x| [width.below(*x), width.at_most(*x)]).collect();
        at.sort_unstable();
        // Where one element ends and the next begins, or where one is given twice, nothing changes.
        let mut alternating: Vec<i64> = vec![];
        for cut in at {
            match alternating.last() {
                Some(last) if *last == cut => drop(alternating.pop()),
                _ => alternating.push(cut),
            }
        }
        Cuts { at: alternating, first_passes: !within }
    };
    let one = |x: f64, at: i64, first_passes: bool| match x.is_nan() {
        // Nothing is at most NaN, or above it.
        true => Cuts { at: vec![least], first_passes: true },
        false => Cuts { at: vec![at], first_passes },
    };
    match test {
        Test::AtMost(x) => one(*x, width.at_most(*x), true),
        Test::Below(x) => one(*x, width.below(*x), true),
        Test::AtLeast(x) => one(*x, width.below(*x), false),
        Test::Above(x) => one(*x, width.at_most(*x), false),
        Test::Equal(x) => member(&[*x], true),
        Test::Unequal(x) => member(&[*x], false),
        Test::Member(set) => {
            let mut set = set.clone();
            set.sort_by(f64::total_cmp);
            set.dedup();
            member(&set, true)
        }
    }
}

/// What a node of the table stands for.
#[derive(Clone, Copy)]
enum Item {
    Node(u32),
    /// A search among cuts `first..last` of a branch.
    Search {
        branch: u32,
        first: u32,
        last: u32,
    },
}

/// The table under construction.
pub(super) struct Table<'f> {
    forest: &'f Forest,
    width: Width,
    pub words: Vec<i64>,
    /// Where the children of a branch lie, once they have a place.
    placed: Vec<Option<i64>>,
    /// Cuts of branches that have several, by branch.
    searches: std::collections::BTreeMap<u32, Cuts>,
    /// Whether NaN goes left in any test; then each feature has two keys, for NaN on the way to the right and to the left.
    pub sided: bool,
    /// The greatest feature that is tested.
    pub last_feature: Option<usize>,
}

/// A tree in the table.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    /// The first word of its first node.
    pub root: i64,
    /// Steps of the longest path.
    pub depth: i64,
}

/// Steps of a search among so many cuts.
fn search_steps(cuts: usize) -> i64 {
    i64::from((cuts + 1).next_power_of_two().trailing_zeros())
}

impl<'f> Table<'f> {
    pub fn new(forest: &'f Forest, trees: &[Walked], width: Width) -> Table<'f> {
        let nodes = trees.iter().flat_map(|tree| &tree.0);
        let branches = nodes.clone().filter_map(|node| branch(forest, *node));
        let sided = branches.clone().any(|branch| goes_left(branch, &cuts(&branch.test, width)));
        let last_feature = branches.map(|branch| branch.feature).max();
        let placed = vec![None; forest.nodes.len()];
        Table { forest, width, words: vec![], placed, searches: std::collections::BTreeMap::new(), sided, last_feature }
    }

    /// The two words of a test of a feature: where its key lies, and the cut.
    fn test(&self, feature: usize, nan_left: bool, cut: i64) -> [i64; 2] {
        let at = if self.sided { 2 * feature + usize::from(nan_left) } else { feature };
        [at as i64, cut]
    }

    /// Adds a tree; `payload` is what a leaf gives.
    pub fn add(&mut self, tree: &Walked, payload: &mut dyn FnMut(u32) -> i64) -> Placed {
        let root = self.words.len() as i64;
        self.words.extend([0; NODE_WORDS as usize]);
        let mut open = std::collections::VecDeque::from([(root, Item::Node(tree.0[0]))]);
        while let Some((at, item)) = open.pop_front() {
            let (test, children) = match item {
                Item::Node(node) => match branch(self.forest, node) {
                    None => {
                        let words = [0, self.width.ends()[1], at, payload(node)];
                        self.words[at as usize..at as usize + 4].copy_from_slice(&words);
                        continue;
                    }
                    Some(branch) => match self.placed[node as usize] {
                        Some(children) => {
                            let test = self.branch_items(node, branch).0;
                            self.fill(at, test, children);
                            continue;
                        }
                        None => {
                            self.placed[node as usize] = Some(self.words.len() as i64);
                            self.branch_items(node, branch)
                        }
                    },
                },
                Item::Search { branch, first, last } => self.search_items(branch, first, last),
            };
            let left = self.words.len() as i64;
            self.words.extend([0; 2 * NODE_WORDS as usize]);
            self.fill(at, test, left);
            open.extend([(left, children[0]), (left + NODE_WORDS, children[1])]);
        }
        Placed { root, depth: self.depth(tree) }
    }

    fn fill(&mut self, at: i64, [key, cut]: [i64; 2], left: i64) {
        self.words[at as usize..at as usize + 4].copy_from_slice(&[key, cut, left, 0]);
    }

    /// The first test of a branch, and what lies to its left and right.
    fn branch_items(&mut self, node: u32, branch: &Branch) -> ([i64; 2], [Item; 2]) {
        let cuts = cuts(&branch.test, self.width);
        let [passing, failing] = branch.children.map(Item::Node);
        if let [cut] = cuts.at[..] {
            let test = self.test(branch.feature, goes_left(branch, &cuts), cut);
            return (test, if cuts.first_passes { [passing, failing] } else { [failing, passing] });
        }
        // All numbers are below the last key, NaN is not.
        let test = self.test(branch.feature, false, self.width.ends()[1] - 1);
        // NaN is unequal to every number.
        let nan_passes = branch.nan_passes || matches!(branch.test, Test::Unequal(_));
        let nan = if nan_passes { passing } else { failing };
        let search = Item::Search { branch: node, first: 0, last: cuts.at.len() as u32 };
        self.searches.entry(node).or_insert(cuts);
        (test, [search, nan])
    }

    /// A test in the middle of cuts, and what lies to its left and right.
    fn search_items(&self, node: u32, first: u32, last: u32) -> ([i64; 2], [Item; 2]) {
        let (Some(branch), Some(cuts)) = (branch(self.forest, node), self.searches.get(&node)) else {
            return ([0, self.width.ends()[1]], [Item::Node(node); 2]);
        };
        let part = |first: u32, last: u32| match first == last {
            true => Item::Node(branch.children[usize::from(first.is_multiple_of(2) != cuts.first_passes)]),
            false => Item::Search { branch: node, first, last },
        };
        if first == last {
            return (self.test(branch.feature, false, self.width.ends()[1] - 1), [part(first, last); 2]);
        }
        let middle = first.midpoint(last);
        let test = self.test(branch.feature, false, cuts.at[middle as usize]);
        (test, [part(first, middle), part(middle + 1, last)])
    }

    /// Steps of the longest path of a tree.
    fn depth(&self, tree: &Walked) -> i64 {
        let mut below = std::collections::BTreeMap::new();
        for node in tree.0.iter().rev() {
            let steps = branch(self.forest, *node).map_or(0, |branch| {
                let deepest = branch.children.iter().filter_map(|child| below.get(child)).max().copied().unwrap_or(0);
                let own = self.searches.get(node).map_or(1, |cuts| 1 + search_steps(cuts.at.len()).max(1));
                deepest + own
            });
            below.insert(*node, steps);
        }
        tree.0.first().and_then(|root| below.get(root)).copied().unwrap_or(0)
    }
}

fn branch(forest: &Forest, node: u32) -> Option<&Branch> {
    match &forest.nodes[node as usize] {
        TreeNode::Branch(branch) => Some(branch),
        TreeNode::Leaf(_) => None,
    }
}

/// Whether NaN goes to the left of the only cut of a test.
fn goes_left(branch: &Branch, cuts: &Cuts) -> bool {
    cuts.at.len() == 1 && branch.nan_passes == cuts.first_passes
}

/// A table as a tensor.
pub(super) fn words(width: Width, words: &[i64], columns: u64) -> Option<TensorData> {
    let bytes: Vec<u8> = match width {
        Width::F32 => words.iter().flat_map(|word| (*word as i32).to_le_bytes()).collect(),
        Width::F64 => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
    };
    let rows = words.len() as u64 / columns.max(1);
    TensorData::new(DenseType::new(width.word(), [rows, columns]), bytes.into())
}
