//! Trees as `TreeEnsemble` has them: branches and leaves by their positions, sets of members behind each other.

use super::forest::{Branch, Forest, Test, TreeNode};
use super::lists::{column, feature, leaf_weight, missing};
use crate::prelude::*;

/// The mode of a test for members of a set.
const MEMBER: i64 = 6;

fn tensor<'p>(params: &'p Params, name: &str) -> Result<&'p TensorData, OpError> {
    params.tensor(name).ok_or_else(|| OpError(format!("parameter `{name}` is not given")))
}

/// The sets of members, each ended by a NaN or by the end of the list.
fn sets(params: &Params) -> impl Iterator<Item = Vec<f64>> {
    let values = params.tensor("membership_values").map(TensorData::to_f64s).unwrap_or_default();
    let mut rest = values.into_iter().peekable();
    std::iter::from_fn(move || {
        rest.peek()?;
        Some(rest.by_ref().take_while(|x| !x.is_nan()).collect())
    })
}

/// The forest of the parameters.
///
/// # Errors
/// Lists differ in length, or name branches, leaves or modes that do not exist.
pub(super) fn forest(params: &Params, targets: usize) -> Result<Forest, OpError> {
    let modes = tensor(params, "nodes_modes")?.to_i64s();
    let (rows, splits) = (modes.len(), tensor(params, "nodes_splits")?.to_f64s());
    reject_if(splits.len() != rows, || format!("parameter `nodes_splits` has {} entries for {rows}", splits.len()))?;
    let features = column(params, "nodes_featureids", rows)?;
    let children = [column(params, "nodes_truenodeids", rows)?, column(params, "nodes_falsenodeids", rows)?];
    let are_leaves = [column(params, "nodes_trueleafs", rows)?, column(params, "nodes_falseleafs", rows)?];
    let missing = missing(params, rows)?;
    let (values, ids) = (tensor(params, "leaf_weights")?.to_f64s(), params.ints("leaf_targetids").unwrap_or(&[]));
    reject_if(ids.len() != values.len(), || {
        format!("parameter `leaf_targetids` has {} entries for {}", ids.len(), values.len())
    })?;
    let mut sets = sets(params);
    let mut nodes = vec![];
    for row in 0..rows {
        let test = match (modes[row], splits[row]) {
            (0, split) => Test::AtMost(split),
            (1, split) => Test::Below(split),
            (2, split) => Test::AtLeast(split),
            (3, split) => Test::Above(split),
            (4, split) => Test::Equal(split),
            (5, split) => Test::Unequal(split),
            (MEMBER, _) => Test::Member(
                sets.next().ok_or_else(|| OpError(format!("node {row} has no set of `membership_values`")))?,
            ),
            (mode, _) => return Err(OpError(format!("node {row} has the unknown mode {mode}"))),
        };
        let feature = feature(features[row])?;
        let child = |which: usize| {
            let (at, is_leaf) = (children[which][row], are_leaves[which][row] != 0);
            let count = if is_leaf { values.len() } else { rows };
            let inside = usize::try_from(at).ok().filter(|at| *at < count);
            let what = if is_leaf { "leaf" } else { "node" };
            let place = inside.map(|at| (at + if is_leaf { rows } else { 0 }) as u32);
            place.ok_or_else(|| OpError(format!("node {row} has the child {at}, {what} of {count}")))
        };
        let nan_passes = missing.is_some_and(|missing| missing[row] != 0);
        nodes.push(TreeNode::Branch(Branch { feature, test, nan_passes, children: [child(0)?, child(1)?] }));
    }
    let mut weights = vec![];
    for (i, (target, value)) in ids.iter().zip(values).enumerate() {
        weights.push(leaf_weight(*target, targets, value)?);
        nodes.push(TreeNode::Leaf(i as u32..i as u32 + 1));
    }
    let roots = params.ints("tree_roots").unwrap_or(&[]).iter().map(|root| {
        let inside = usize::try_from(*root).ok().filter(|root| *root < rows);
        inside.map(|root| root as u32).ok_or_else(|| OpError(format!("a tree begins at node {root} of {rows}")))
    });
    Ok(Forest { nodes, weights, roots: roots.collect::<Result<_, _>>()?, targets })
}
