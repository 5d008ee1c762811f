//! Lists among the parameters of trees, with an entry for each row.

use super::forest::LeafWeight;
use crate::prelude::*;

/// Numbers from a list of floats, or from the tensor that may be given instead of it.
pub(in crate::ml) fn numbers(params: &Params, list: &str, tensor: &str) -> Result<Option<Vec<f64>>, OpError> {
    match (params.floats(list), params.tensor(tensor)) {
        (Some(_), Some(_)) => Err(OpError(format!("parameters `{list}` and `{tensor}` are both given"))),
        (Some(list), None) => Ok(Some(list.to_vec())),
        (None, Some(tensor)) => Ok(Some(tensor.to_f64s())),
        (None, None) => Ok(None),
    }
}

/// A list with an entry for each row.
pub(super) fn column<'p>(params: &'p Params, name: &str, rows: usize) -> Result<&'p [i64], OpError> {
    let list = params.ints(name).unwrap_or(&[]);
    reject_if(list.len() != rows, || format!("parameter `{name}` has {} entries for {rows}", list.len()))?;
    Ok(list)
}

/// Which tests NaN passes; `None`: no list is given.
pub(super) fn missing(params: &Params, rows: usize) -> Result<Option<&[i64]>, OpError> {
    match params.ints("nodes_missing_value_tracks_true") {
        None | Some([]) => Ok(None),
        Some(_) => column(params, "nodes_missing_value_tracks_true", rows).map(Some),
    }
}

/// A feature, which cannot be negative.
pub(super) fn feature(number: i64) -> Result<usize, OpError> {
    usize::try_from(number).map_err(|_| OpError(format!("a node tests feature {number}")))
}

/// A weight for one of some targets.
pub(super) fn leaf_weight(target: i64, targets: usize, value: f64) -> Result<LeafWeight, OpError> {
    match u32::try_from(target) {
        Ok(target) if (target as usize) < targets => Ok(LeafWeight { target, value }),
        _ => Err(OpError(format!("a leaf has a weight for target {target} of {targets}"))),
    }
}
