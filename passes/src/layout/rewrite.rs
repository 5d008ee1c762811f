//! Rewrites the nodes that compute blocked results, with conversions between them and the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_abi::{CHANNEL_BLOCK, ConvLayout};
use tensorc_ir::DenseType;
use tensorc_ir::contract::blocked_convolution;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Method, Prim, View};

use super::choose::convolution;

/// Blocked forms: of values of the original graph, for results of one rank.
type Blocked = BTreeMap<(Value, usize), Value>;

/// Rewrites `nodes`, in topological order, convolutions to the given methods.
pub(super) fn run(graph: &mut Graph, nodes: &[(NodeId, Method)]) -> Result<()> {
    let mut blocked = Blocked::new();
    let mut patch = graph.patch("blocked-layout");
    for &(node, method) in nodes {
        let old = Value { node, port: 0 };
        let ty = patch.graph.dense(old)?;
        let (prim, args) = in_blocks(patch.graph, node, method, &mut blocked)?;
        let name = patch.graph.node(node).name.clone();
        let new = patch.graph.add_prim(name, prim, &args, &[block_type(&ty, ty.rank())]);
        blocked.insert((old, ty.rank()), Value { node: new, port: 0 });
    }
    for &(node, _) in nodes {
        let old = Value { node, port: 0 };
        let ty = patch.graph.dense(old)?;
        let new = blocked[&(old, ty.rank())];
        let name = patch.graph.node(node).name.clone();
        let view = patch.graph.add_prim(name, Prim::View(Arc::new(to_planes(&ty))), &[new], &[ty]);
        patch.replace(old, Value { node: view, port: 0 });
    }
    patch.commit();
    graph.remove_dead();
    Ok(())
}

/// The shape of a blocked tensor that broadcasts to a result of rank `rank`, as the original does.
fn block_type(ty: &DenseType, rank: usize) -> DenseType {
    let mut dims = vec![1; rank - ty.rank()];
    dims.extend(&ty.dims);
    let lanes = if dims[1] == 1 { 1 } else { CHANNEL_BLOCK };
    dims[1] /= lanes;
    dims.push(lanes);
    DenseType::new(ty.dtype, &dims)
}

/// Blocks to planes.
fn to_planes(ty: &DenseType) -> View {
    let lanes = CHANNEL_BLOCK as i64;
    let mut map: Vec<Index> = (0..ty.rank() as u32).map(Index::var).collect();
    map[1] = Index::var(1).floor_div(lanes, &ty.dims[..]);
    map.push(Index::var(1).modulo(lanes, &ty.dims[..]));
    View { map, fill: None }
}

/// An operand for a result of rank `rank` in blocks: what computes it so, or a view.
fn operand(graph: &mut Graph, v: Value, rank: usize, blocked: &mut Blocked) -> Result<Value> {
    if let Some(found) = blocked.get(&(v, rank)) {
        return Ok(*found);
    }
    let ty = graph.dense(v)?;
    let to = block_type(&ty, rank);
    let lead = rank - ty.rank();
    let at = |axis: usize| match lead + axis {
        _ if ty.dims[axis] == 1 => Index::constant(0),
        1 => Index::var(1).scale(CHANNEL_BLOCK as i64).add(&Index::var(rank as u32)),
        axis => Index::var(axis as u32),
    };
    let view = View { map: (0..ty.rank()).map(at).collect(), fill: None };
    let name = graph.node(v.node).name.clone();
    let node = graph.add_prim(name, Prim::View(Arc::new(view)), &[v], &[to]);
    let new = Value { node, port: 0 };
    blocked.insert((v, rank), new);
    Ok(new)
}

/// The computation of a node in blocks, and its operands.
fn in_blocks(
    graph: &mut Graph,
    node: NodeId,
    method: Method,
    blocked: &mut Blocked,
) -> Result<(Prim, SmallVec<[Value; 4]>)> {
    let out = graph.dense(Value { node, port: 0 })?;
    let NodeKind::Prim(prim) = graph.node(node).kind.clone() else { return Err(internal(graph, node)) };
    let args = graph.args(node);
    let prim = match prim {
        Prim::Contract(_) => {
            let conv = convolution(graph, node)?.ok_or_else(|| internal(graph, node))?;
            let planes = !conv.is_depthwise() && !blocked.contains_key(&(args[0], 4));
            let layout = if planes { ConvLayout::ToBlocked } else { ConvLayout::Blocked };
            let x = if planes { args[0] } else { operand(graph, args[0], 4, blocked)? };
            let c = Contraction { method, ..blocked_convolution(&conv, layout) };
            return Ok((Prim::Contract(Arc::new(c)), [x, args[1]].into_iter().collect()));
        }
        Prim::View(view) => {
            let mut map = view.map.clone();
            map.push(Index::var(out.rank() as u32));
            Prim::View(Arc::new(View { map, fill: view.fill }))
        }
        other => other,
    };
    let mut operands = SmallVec::new();
    for v in args {
        let rank = match prim {
            // Operands broadcast to the result.
            Prim::Map(_) => out.rank(),
            _ => graph.dense(v)?.rank(),
        };
        operands.push(operand(graph, v, rank, blocked)?);
    }
    Ok((prim, operands))
}

fn internal(graph: &Graph, node: NodeId) -> Diagnostic {
    Diagnostic::new(Code::Internal, "a node that cannot be computed in blocks was chosen").at(&graph.node(node).name)
}
