//! Calls as functions that can be differentiated: one operator, a model, or a gradient made before.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::op::{Grad, Registry};
use tensorc_passes::differentiate::differentiate;

use crate::Error;
use crate::ndarray::program::ArrayProgram;

/// The gradient of a formula by some of its inputs.
pub(in crate::ndarray) struct Gradient {
    /// Inputs: those of the formula, its results, gradients of its results. Outputs: the gradients.
    pub graph: Graph,
    /// The formula's inputs whose gradients the outputs are. Where one that was asked for is missing, it is zero.
    pub of: Vec<usize>,
}

impl ArrayProgram {
    /// The gradient by the inputs that are wanted, made at the first use.
    pub(super) fn gradient(&self, registry: &Registry, wanted: &[bool]) -> Result<Arc<Gradient>, Error> {
        let mut gradients = self.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = gradients.get(wanted) {
            return Ok(found.clone());
        }
        let made = Arc::new(self.derive(registry, wanted)?);
        gradients.insert(wanted.to_vec(), made.clone());
        Ok(made)
    }

    fn derive(&self, registry: &Registry, wanted: &[bool]) -> Result<Gradient, Error> {
        let mut graph = self.graph.clone();
        let types = &self.outputs;
        let inputs: Vec<Value> = graph.inputs().iter().map(|node| Value { node: *node, port: 0 }).collect();
        let results: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let add = |graph: &mut Graph, name: &str| -> Vec<Value> {
            types.iter().enumerate().map(|(i, ty)| graph.add_input(format!("{name}{i}"), ty.clone().into())).collect()
        };
        let kept = add(&mut graph, "result");
        let heads = add(&mut graph, "head");
        let seeds: Vec<(Value, Option<Value>)> = results
            .iter()
            .zip(types)
            .zip(&heads)
            .map(|((v, ty), head)| (*v, ty.dtype.is_float().then_some(*head)))
            .collect();
        let positions: Vec<usize> = (0..inputs.len()).filter(|i| wanted.get(*i) == Some(&true)).collect();
        let variables: Vec<Value> = positions.iter().map(|i| inputs[*i]).collect();
        let gradients = differentiate(&mut graph, registry, &seeds, &variables)?;
        let found: Vec<(usize, Value)> =
            positions.into_iter().zip(gradients).filter_map(|(i, gradient)| Some((i, gradient?))).collect();
        let gradients = found.iter().map(|(i, v)| (format!("gradient{i}").into(), *v)).collect::<Vec<_>>();
        graph.set_outputs(gradients);
        for (result, kept) in results.iter().zip(&kept) {
            if self.keeps(*result) {
                graph.replace_uses(*result, *kept);
            }
        }
        graph.remove_dead();
        Ok(Gradient { graph, of: found.into_iter().map(|(i, _)| i).collect() })
    }

    /// Whether the gradient may read a result instead of computing it again: where a rule says so. The results of
    /// element-wise operators are not kept.
    fn keeps(&self, result: Value) -> bool {
        match &self.graph.node(result.node).kind {
            NodeKind::Op(op) => matches!(op.def.grad, Grad::Rule(_)) && !self.elementwise,
            _ => false,
        }
    }

    /// Whether any result is read by gradients.
    pub fn keeps_results(&self) -> bool {
        self.graph.outputs().iter().any(|(_, v)| self.keeps(*v))
    }
}

/// Copies what `roots` need from one graph to another whose inputs are given as values there, where they are needed.
pub(in crate::ndarray) fn inline(
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
                let id = into.add_op(n.name.clone(), &op.def, &operands, op.params.clone(), types.len())?;
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
