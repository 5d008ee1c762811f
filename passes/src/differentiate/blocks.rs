//! Partial gradients that fill blocks of a value side by side, as those of the results of a split do.
//!
//! Each comes as a view that is zero outside its block. Blocks that do not overlap are put together by one
//! concatenation, which writes every element once, instead of by a sum that reads zeros for all the others.

use std::sync::Arc;

use tensorc_ir::build::Builder;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, Extent};

use super::emit;

/// A partial gradient that is zero but at the positions `start..end` of one axis.
pub(super) struct BlockGradient {
    axis: usize,
    start: Extent,
    end: Extent,
    /// Where it stands among the partial gradients.
    part: usize,
    /// What it reads, and how.
    operand: Value,
    view: Arc<View>,
}

/// Blocks along one axis, in order of their position, that do not overlap; none if there are fewer than two.
pub(super) fn find(graph: &Graph, parts: &[Value]) -> Result<Vec<BlockGradient>> {
    let mut found: Vec<BlockGradient> = vec![];
    for (part, value) in parts.iter().enumerate() {
        found.extend(block(graph, part, *value)?);
    }
    let Some(axis) = found.first().map(|b| b.axis) else { return Ok(vec![]) };
    found.retain(|b| b.axis == axis);
    found.sort_by_key(|b| b.start);
    let overlap = found.windows(2).any(|pair| pair[1].start < pair[0].end);
    Ok(if overlap || found.len() < 2 { vec![] } else { found })
}

/// Replaces the parts that are blocks by their concatenation, which comes first.
pub(super) fn join(b: &mut Builder<'_>, blocks: &[BlockGradient], parts: &[Value]) -> Result<Vec<Value>> {
    let Some(axis) = blocks.first().map(|block| block.axis) else { return Ok(parts.to_vec()) };
    let ty = b.ty(parts[0])?;
    let along = |extent: Extent| {
        let mut dims = ty.dims.clone();
        dims.set(axis, extent);
        DenseType::new(ty.dtype, &dims)
    };
    let mut pieces = vec![];
    let mut end = Extent::ZERO;
    for block in blocks {
        if block.start > end {
            pieces.push(b.filled(&along(block.start - end), 0.0)?);
        }
        let dims = along(block.end - block.start).dims;
        let place = |v: u32| match v as usize == axis {
            true => Index::var(v).offset(block.start),
            false => Index::var(v),
        };
        let map = block.view.map.iter().map(|m| m.substitute(&place, &dims)).collect();
        pieces.push(emit::view(b, block.operand, View { map, fill: None }, &dims)?);
        end = block.end;
    }
    if end < ty.dims.at(axis) {
        pieces.push(b.filled(&along(ty.dims.at(axis) - end), 0.0)?);
    }
    let joined = b.prim(Prim::Concat { axis }, &pieces, std::slice::from_ref(&ty))?[0];
    let rest = parts.iter().enumerate().filter(|(i, _)| blocks.iter().all(|block| block.part != *i));
    Ok(std::iter::once(joined).chain(rest.map(|(_, v)| *v)).collect())
}

/// The block a value fills, if it is a view that is inside its operand exactly there.
fn block(graph: &Graph, part: usize, value: Value) -> Result<Option<BlockGradient>> {
    let NodeKind::Prim(Prim::View(view)) = &graph.node(value.node).kind else { return Ok(None) };
    let (ty, operand) = (graph.dense(value)?, graph.args(value.node)[0]);
    if view.fill != Some(Scalar::zero(ty.dtype)) || ty.is_empty() {
        return Ok(None);
    }
    let limits = graph.dense(operand)?.dims;
    let outside = |(m, n): &(&Index, Extent)| {
        let (lo, hi) = m.interval(&ty.dims);
        lo < 0 || hi >= *n
    };
    let mut bounded = view.map.iter().zip(limits.all()).filter(outside);
    let (Some((index, extent)), None) = (bounded.next(), bounded.next()) else { return Ok(None) };
    let start = -index.constant;
    let Some(axis) = index.offset(start).as_var().map(|v| v as usize) else { return Ok(None) };
    let (start, end) = (start.greatest(0), (start + extent).least(ty.dims.at(axis)));
    let filled = end > start;
    Ok(filled.then(|| BlockGradient { axis, start, end, part, operand, view: view.clone() }))
}
