//! Views around contractions move into their index maps.

use std::sync::Arc;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim, View};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::views::{compose, in_bounds, keeps_linear_order};
use tensorc_ir::{DenseType, Extents};
use tensorc_schedule::recognise::contract::{as_image_convolution, is_library, is_product, planar_convolution};

use super::{prim_of, replace, single_user, visit_all};

/// `keeps_convolutions`: layouts of images will be chosen, and only what is a convolution over planes has a choice.
pub fn run(graph: &mut Graph, keeps_convolutions: bool) -> Result<bool> {
    visit_all(graph, |graph, node| match prim_of(graph, node).cloned() {
        // What reads through a view is another node, whose turn comes in the next round.
        Some(Prim::Contract(c)) => Ok(absorb_operand(graph, node, &c, 0, keeps_convolutions)?
            || absorb_operand(graph, node, &c, 1, keeps_convolutions)?),
        Some(Prim::View(view)) => absorb_result(graph, node, &view),
        _ => Ok(false),
    })
}

/// Reads through a view of an operand, unless a library kernel would be lost by it.
fn absorb_operand(
    graph: &mut Graph,
    node: NodeId,
    c: &Arc<Contraction>,
    port: usize,
    keeps_convolutions: bool,
) -> Result<bool> {
    let args = graph.args(node);
    let Some(Prim::View(view)) = prim_of(graph, args[port].node) else { return Ok(false) };
    let source = graph.args(args[port].node)[0];
    let (from, through) = (graph.dense(source)?, graph.dense(args[port])?);
    let zero = Scalar::zero(from.dtype);
    let access = View {
        map: if port == 0 { c.lhs.clone() } else { c.rhs.clone() },
        // Outside the left operand is zero.
        fill: (port == 0).then_some(zero),
    };
    let Some(both) = compose(view, &from.dims, &access, &through.dims, &c.extents) else { return Ok(false) };
    if !(both.fill.is_none() || port == 0 && both.fill == Some(zero)) {
        return Ok(false);
    }
    let mut new = (**c).clone();
    *(if port == 0 { &mut new.lhs } else { &mut new.rhs }) = both.map;
    let types = [graph.dense(args[0])?, graph.dense(args[1])?];
    let mut after = types.clone();
    after[port] = from;
    let has_choice = keeps_convolutions && port == 0 && graph.constant(args[1]).is_some();
    if !advice(|| is_better(c, &types, &new, &after, has_choice)) {
        return Ok(false);
    }
    let mut operands = args.to_vec();
    operands[port] = source;
    let out = graph.dense(Value { node, port: 0 })?;
    replace(graph, "view-into-contraction", node, Prim::Contract(Arc::new(new)), &operands, out);
    Ok(true)
}

/// Whether a contraction of operands of the types `after` takes the place of one of the types `types` without a loss.
fn is_better(
    c: &Contraction,
    types: &[DenseType; 2],
    new: &Contraction,
    after: &[DenseType; 2],
    has_choice: bool,
) -> bool {
    let recognised = is_library(new, &after[0], &after[1]);
    let affine = new.lhs.iter().chain(&new.rhs).all(Index::is_affine);
    if !(recognised || affine && !is_library(c, &types[0], &types[1])) {
        return false;
    }
    // Layouts decide on the order of a sum; choosing them is another pass's part.
    let layouts = |c: &Contraction, [lhs, rhs]: &[DenseType; 2]| as_image_convolution(c, lhs, rhs).map(|c| c.layouts);
    let over_planes = |c: &Contraction, [lhs, rhs]: &[DenseType; 2]| planar_convolution(c, lhs, rhs).is_some();
    let now = layouts(new, after);
    let chosen = now.is_some() && now != layouts(c, types);
    !(chosen || has_choice && over_planes(c, types) && !over_planes(new, after))
}

/// Delivers the result of a matrix product in the shape a reshape asks for, when that only splits
/// axes.
fn absorb_result(graph: &mut Graph, node: NodeId, view: &Arc<View>) -> Result<bool> {
    let arg = graph.args(node)[0];
    let Some(Prim::Contract(c)) = prim_of(graph, arg.node) else { return Ok(false) };
    if single_user(graph, arg.node) != Some(node) {
        return Ok(false);
    }
    let (input, output) = (graph.dense(arg)?, graph.dense(Value { node, port: 0 })?);
    let split = keeps_linear_order(view, &input, &output.dims) && view.map.iter().all(Index::is_affine);
    if !split || !in_bounds(&view.map, &input.dims, &output.dims) {
        return Ok(false);
    }
    let extents: Extents = output.dims.all().chain(c.extents.all().skip(c.out_rank)).collect();
    let shift = output.rank() as u32;
    let at = |v: u32| match (v as usize).checked_sub(c.out_rank) {
        Some(reduced) => Index::var(shift + reduced as u32),
        None => view.map[v as usize].clone(),
    };
    let through = |map: &[Index]| map.iter().map(|m| m.substitute(&at, &extents)).collect::<Vec<_>>();
    let new = Contraction::new(extents.clone(), output.rank(), through(&c.lhs), through(&c.rhs));
    let args = graph.args(arg.node);
    let (lhs, rhs) = (graph.dense(args[0])?, graph.dense(args[1])?);
    // A convolution to one pixel is a product, too, but only as a convolution it can read blocks of channels.
    let stays = advice(|| {
        let is_convolution = |c: &Contraction| planar_convolution(c, &lhs, &rhs).is_some();
        let loses_convolution = is_convolution(c) && !is_convolution(&new);
        !loses_convolution && is_product(c, &lhs, &rhs) && is_product(&new, &lhs, &rhs)
    });
    if !stays {
        return Ok(false);
    }
    replace(graph, "reshape-into-contraction", node, Prim::Contract(Arc::new(new)), &args, output);
    Ok(true)
}
