//! The body of a cluster for part of the batch.

use std::collections::BTreeMap;

use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::Prim;

use crate::results::results;

/// Which inputs of a body are read along the batch, the first axis of all results, and which as a whole.
/// `None` if a sample of a result depends on others or on its number.
pub fn batched(body: &Graph, batch: u64) -> Result<Option<Vec<bool>>> {
    Ok(along(body, batch)?.map(|along| {
        let is = |node| along.get(&Value { node, port: 0 }).copied().unwrap_or(false);
        body.inputs().iter().map(|node| is(*node)).collect()
    }))
}

/// The body for `size` of `batch` samples; `None` where [`batched`] is.
pub fn sliced(body: &Graph, batch: u64, size: u64) -> Result<Option<Graph>> {
    let Some(along) = along(body, batch)? else { return Ok(None) };
    let is = |v: Value| along.get(&v).copied().unwrap_or(false);
    let ty = |v: Value| {
        let ty = body.dense(v)?;
        Ok(if is(v) { first(&ty, size) } else { ty })
    };
    let mut new = Graph::new("");
    let mut values: BTreeMap<Value, Value> = BTreeMap::new();
    for &node in body.inputs() {
        let v = Value { node, port: 0 };
        values.insert(v, new.add_input(body.node(node).name.clone(), ty(v)?.into()));
    }
    let missing = || Diagnostic::new(DiagnosticCode::Internal, "an operand is missing");
    for node in body.order() {
        let n = body.node(node);
        let mut prim = match &n.kind {
            NodeKind::Const(data) => {
                values.insert(Value { node, port: 0 }, new.add_const(n.name.clone(), data.clone()));
                continue;
            }
            NodeKind::Prim(prim) => prim.clone(),
            _ => continue,
        };
        let results: Vec<Value> = results(body, node).collect();
        if let (Prim::Contract(c), true) = (&mut prim, is(results[0])) {
            let mut next = (**c).clone();
            next.extents.set(0, size);
            *c = next.into();
        }
        let args = body.args(node).into_iter().map(|v| values.get(&v).copied().ok_or_else(missing));
        let args = args.collect::<Result<Vec<Value>>>()?;
        let types = results.iter().map(|v| ty(*v)).collect::<Result<Vec<_>>>()?;
        let id = new.add_prim(n.name.clone(), prim, &args, &types);
        values.extend(results.into_iter().map(|v| (v, Value { node: id, port: v.port })));
    }
    for (name, v) in body.outputs() {
        new.add_output(name.clone(), *values.get(v).ok_or_else(missing)?);
    }
    Ok(Some(new))
}

/// A type with another first extent.
pub fn first(ty: &DenseType, size: u64) -> DenseType {
    let mut dims = ty.dims.clone();
    dims.set(0, size);
    DenseType::new(ty.dtype, &dims)
}

/// Of each value that is used, whether it is used along its first axis, which is the batch.
fn along(body: &Graph, batch: u64) -> Result<Option<BTreeMap<Value, bool>>> {
    let mut along: BTreeMap<Value, bool> = body.outputs().iter().map(|(_, v)| (*v, true)).collect();
    let mut order = body.order();
    order.reverse();
    for node in order {
        let n = body.node(node);
        let wanted: Vec<bool> = results(body, node).filter_map(|v| along.get(&v).copied()).collect();
        let Some(&all) = wanted.first() else { continue };
        for v in results(body, node) {
            if wanted.contains(&!all) || all && body.dense(v)?.dims.first() != Some(&batch) {
                return Ok(None);
            }
            // Results that nobody uses are cut with the others.
            along.insert(v, all);
        }
        let args = body.args(node);
        let uses = match &n.kind {
            NodeKind::Prim(_) if !all => vec![false; args.len()],
            NodeKind::Prim(prim) => {
                let types = args.iter().map(|v| body.dense(*v)).collect::<Result<Vec<_>>>()?;
                match operands(prim, &types, body.dense(Value { node, port: 0 })?.rank()) {
                    Some(uses) => uses,
                    None => return Ok(None),
                }
            }
            NodeKind::Const(_) if all => return Ok(None),
            _ => continue,
        };
        for (v, use_) in args.into_iter().zip(uses) {
            if *along.entry(v).or_insert(use_) != use_ {
                return Ok(None);
            }
        }
    }
    Ok(Some(along))
}

/// Whether each operand of a primitive is used along the batch, for results along the batch. `None` if samples
/// of the result depend on others or on their number.
fn operands(prim: &Prim, types: &[DenseType], rank: usize) -> Option<Vec<bool>> {
    // Along the batch, or the same for all samples.
    let use_ = |map: &[Index]| {
        let same = map.first().and_then(Index::as_var) == Some(0);
        match map.iter().skip(usize::from(same)).any(|index| index.mentions(0)) {
            true => None,
            false => Some(same),
        }
    };
    match prim {
        Prim::Map(f) if !f.uses_coord() => {
            Some(types.iter().map(|ty| ty.rank() == rank && ty.dims.first() != Some(&1)).collect())
        }
        Prim::Reduce(r) if !r.map.uses_coord() && !r.finish.uses_coord() && !r.axes.contains(&0) => {
            Some(vec![true; types.len()])
        }
        Prim::View(view) => Some(vec![use_(&view.map)?]),
        Prim::Contract(c) if c.out_rank > 0 => Some(vec![use_(&c.lhs)?, use_(&c.rhs)?]),
        _ => None,
    }
}
