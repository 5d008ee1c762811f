//! Trees as `TreeEnsembleClassifier` and `TreeEnsembleRegressor` list them: one row for each node, rows for weights of leaves.

use std::collections::BTreeMap;

use super::forest::{Branch, Forest, LeafWeight, Test, TreeNode};
use super::lists::{column, feature, leaf_weight, missing, numbers};
use crate::prelude::*;

fn test(mode: &str, threshold: f64) -> Option<Test> {
    Some(match mode {
        "BRANCH_LEQ" => Test::AtMost(threshold),
        "BRANCH_LT" => Test::Below(threshold),
        "BRANCH_GTE" => Test::AtLeast(threshold),
        "BRANCH_GT" => Test::Above(threshold),
        "BRANCH_EQ" => Test::Equal(threshold),
        "BRANCH_NEQ" => Test::Unequal(threshold),
        _ => return None,
    })
}

/// Nodes by the numbers of their trees and their own.
type Places = BTreeMap<(i64, i64), u32>;

/// The prefix of the parameters of leaves, and the number of targets.
pub(super) struct Listing {
    pub prefix: &'static str,
    pub targets: usize,
}

impl Listing {
    /// The forest that parameters list.
    ///
    /// # Errors
    /// Lists differ in length, or name nodes, children, features or modes that do not exist.
    pub fn forest(&self, params: &Params) -> Result<Forest, OpError> {
        let trees = params.ints("nodes_treeids").unwrap_or(&[]);
        reject_if(trees.is_empty(), || "parameter `nodes_treeids` is empty")?;
        let own = column(params, "nodes_nodeids", trees.len())?;
        let (mut places, mut roots, mut known) = (Places::new(), vec![], BTreeMap::new());
        for (row, (tree, number)) in trees.iter().zip(own).enumerate() {
            if places.insert((*tree, *number), row as u32).is_some() {
                return Err(OpError(format!("node {number} of tree {tree} is listed twice")));
            }
            known.entry(*tree).or_insert_with(|| roots.push(row as u32));
        }
        let (ranges, weights) = self.weights(params, &places, trees.len())?;
        let nodes = branches(params, (trees, own), &places, ranges)?;
        Ok(Forest { nodes, weights, roots, targets: self.targets })
    }

    /// The weights in the order of nodes, and which of them each node has.
    fn weights(
        &self,
        params: &Params,
        places: &Places,
        nodes: usize,
    ) -> Result<(Vec<std::ops::Range<u32>>, Vec<LeafWeight>), OpError> {
        let name = |what: &str| format!("{}_{what}", self.prefix);
        let values = numbers(params, &name("weights"), &name("weights_as_tensor"))?.unwrap_or_default();
        let of = |what: &str| column(params, &name(what), values.len());
        let (trees, leaves, targets) = (of("treeids")?, of("nodeids")?, of("ids")?);
        let mut rows = vec![];
        for (i, value) in values.iter().enumerate() {
            let Some(&node) = places.get(&(trees[i], leaves[i])) else {
                return Err(OpError(format!(
                    "a weight is for node {} of tree {}, which is not listed",
                    leaves[i], trees[i]
                )));
            };
            rows.push((node, leaf_weight(targets[i], self.targets, *value)?));
        }
        rows.sort_by_key(|(node, _)| *node);
        let (mut ranges, mut at) = (vec![], 0);
        for node in 0..nodes as u32 {
            let first = at;
            while rows.get(at).is_some_and(|(of, _)| *of == node) {
                at += 1;
            }
            ranges.push(first as u32..at as u32);
        }
        Ok((ranges, rows.into_iter().map(|(_, weight)| weight).collect()))
    }
}

fn branches(
    params: &Params,
    (trees, own): (&[i64], &[i64]),
    places: &Places,
    ranges: Vec<std::ops::Range<u32>>,
) -> Result<Vec<TreeNode>, OpError> {
    let rows = trees.len();
    let modes = params.strs("nodes_modes").unwrap_or(&[]);
    reject_if(modes.len() != rows, || format!("parameter `nodes_modes` has {} entries for {rows}", modes.len()))?;
    let values = numbers(params, "nodes_values", "nodes_values_as_tensor")?.unwrap_or_default();
    reject_if(values.len() != rows, || format!("parameter `nodes_values` has {} entries for {rows}", values.len()))?;
    let features = column(params, "nodes_featureids", rows)?;
    let children = [column(params, "nodes_truenodeids", rows)?, column(params, "nodes_falsenodeids", rows)?];
    let missing = missing(params, rows)?;
    let mut nodes = vec![];
    for (row, range) in ranges.into_iter().enumerate() {
        if modes[row] == "LEAF" {
            nodes.push(TreeNode::Leaf(range));
            continue;
        }
        let (tree, number) = (trees[row], own[row]);
        let test = test(&modes[row], values[row])
            .ok_or_else(|| OpError(format!("node {number} of tree {tree} has the unknown mode `{}`", modes[row])))?;
        let feature = feature(features[row])?;
        let child = |which: usize| {
            let child = children[which][row];
            places.get(&(tree, child)).copied().ok_or_else(|| {
                OpError(format!("node {number} of tree {tree} has the child {child}, which is not listed"))
            })
        };
        let nan_passes = missing.is_some_and(|missing| missing[row] == 1);
        nodes.push(TreeNode::Branch(Branch { feature, test, nan_passes, children: [child(0)?, child(1)?] }));
    }
    Ok(nodes)
}
