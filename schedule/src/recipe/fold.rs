//! Clusters of folds: along rows, or a column to each lane.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::WARP;

use crate::access::space::{Analysis, IterationSpace};
use crate::access::{Located, MergedAxes};

/// Fewest elements of a row that are worth a vector.
const MIN_ROW: u64 = 8;

/// Whether a processor folds rows: they are long and contiguous enough for vectors along them.
///
/// # Errors
/// A value of the cluster has a shape that is not of its space.
pub fn has_rows(cluster: &Located<'_>) -> Result<bool> {
    let space = IterationSpace::of(cluster.body)?;
    let plan = Analysis::of(cluster, &space)?;
    let Some(inner) = plan.reduced.last() else { return Ok(false) };
    // Windows that overlap, and rows too short for a vector, are better walked across.
    let overlap = |f: &Index, k: &MergedAxes| {
        f.coefficient(k.axis as u32).is_some_and(|c| c != 0 && c.magnitude() < inner.extent)
    };
    let windowed = plan
        .kept
        .last()
        .is_some_and(|k| plan.uses.flats.iter().any(|(_, f)| f.mentions(inner.axis as u32) && overlap(f, k)));
    Ok(plan.kept.is_empty() || is_contiguous(&plan, inner) && !windowed && inner.extent >= MIN_ROW)
}

/// Whether a GPU folds rows: they are contiguous and long enough for the threads of a warp.
///
/// # Errors
/// As [`has_rows`].
pub fn has_warp_rows(cluster: &Located<'_>) -> Result<bool> {
    let space = IterationSpace::of(cluster.body)?;
    let plan = Analysis::of(cluster, &space)?;
    let Some(inner) = plan.reduced.last() else { return Ok(false) };
    Ok(plan.kept.is_empty() || is_contiguous(&plan, inner) && space.length() >= WARP as u64)
}

/// Whether the innermost folded axis is innermost of all, and something is read along it.
fn is_contiguous(plan: &Analysis, inner: &MergedAxes) -> bool {
    plan.kept.iter().all(|k| k.axis < inner.axis)
        && plan.uses.flats.iter().any(|(_, f)| f.coefficient(inner.axis as u32).is_some_and(|c| c == 1))
}
