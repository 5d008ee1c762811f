//! Copying one graph into another.

use std::collections::BTreeMap;

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, NodeKind, Value};

use crate::error::Error;

/// Copies what `roots` need from one graph to another whose inputs are given as values there, where they are needed.
pub(super) fn inline(
    into: &mut Graph,
    from: &Graph,
    roots: &[Value],
    inputs: &[Option<Value>],
) -> Result<Vec<Value>, Error> {
    let mut needed: Vec<bool> = vec![];
    let mut mark = |node: tensorc_ir::graph::NodeId| {
        let at = node.0 as usize;
        if needed.len() <= at {
            needed.resize(at + 1, false);
        }
        !std::mem::replace(&mut needed[at], true)
    };
    let mut stack: Vec<_> = roots.iter().map(|v| v.node).filter(|n| mark(*n)).collect();
    while let Some(node) = stack.pop() {
        for v in from.args(node) {
            if mark(v.node) {
                stack.push(v.node);
            }
        }
    }
    let missing = || Error::Internal("a gradient needs a value that is not there".into());
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    for (node, value) in from.inputs().iter().zip(inputs) {
        if let Some(value) = value {
            map.insert(Value { node: *node, port: 0 }, *value);
        }
    }
    for node in from.order() {
        if !needed.get(node.0 as usize).copied().unwrap_or(false) {
            continue;
        }
        let n = from.node(node);
        let operand = |v: Option<Value>| v.map(|v| map.get(&v).copied().ok_or_else(missing)).transpose();
        let operands: Vec<Option<Value>> =
            from.operands(node).into_iter().map(operand).collect::<Result<_, Error>>()?;
        let types: Vec<DenseType> =
            (0..n.types.len() as u16).map(|port| from.dense(Value { node, port })).collect::<Result<_, _>>()?;
        let copy = match &n.kind {
            NodeKind::Input => continue,
            NodeKind::Const(data) => into.add_const(n.name.clone(), data.clone()).node,
            NodeKind::Op(op) => {
                let id = into.add_op_like(n.name.clone(), op, &operands, types.len())?;
                into.node_mut(id).types = types.iter().cloned().map(Into::into).collect();
                id
            }
            NodeKind::Prim(prim) => {
                let args: Vec<Value> = operands.into_iter().flatten().collect();
                into.add_prim(n.name.clone(), prim.clone(), &args, &types)
            }
            NodeKind::Fused(_) => return Err(Error::Internal("clusters are formed after differentiation".into())),
        };
        for port in 0..types.len() as u16 {
            map.insert(Value { node, port }, Value { node: copy, port });
        }
    }
    roots.iter().map(|v| map.get(v).copied().ok_or_else(missing)).collect()
}
