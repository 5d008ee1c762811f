//! Differentiation as a pass, for text.

use std::sync::Arc;

use tensorc_ir::TensorData;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::Scalar;

use super::differentiate;
use crate::manager::{Pass, PassCx};

/// Adds the gradients of the sum of all elements of all float outputs as outputs `d_NAME`, zeros where
/// nothing flows. Requires all types known.
#[derive(Clone, Debug, Default)]
pub struct Differentiate {
    /// Names of inputs; none means every float input.
    pub wrt: Vec<String>,
}

impl Pass for Differentiate {
    fn name(&self) -> &'static str {
        "differentiate"
    }

    fn visits_bodies(&self) -> bool {
        false
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let inputs = self.inputs(graph)?;
        let wrt: Vec<Value> = inputs.iter().map(|(_, v)| *v).collect();
        let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let mut heads = vec![];
        for v in outputs {
            let float = graph.dense(v)?.dtype.is_float();
            heads.push((v, if float { Some(filled(graph, v, 1.0)?) } else { None }));
        }
        let gradients = differentiate(graph, cx.registry, &heads, &wrt)?;
        for ((name, v), gradient) in inputs.into_iter().zip(gradients) {
            let gradient = match gradient {
                Some(gradient) => gradient,
                None => filled(graph, v, 0.0)?,
            };
            graph.add_output(format!("d_{name}"), gradient);
        }
        graph.remove_dead();
        Ok(true)
    }
}

impl Differentiate {
    fn inputs(&self, graph: &Graph) -> Result<Vec<(Arc<str>, Value)>> {
        let all = graph.inputs().iter().map(|n| (graph.node(*n).name.clone(), Value { node: *n, port: 0 }));
        let all: Vec<(Arc<str>, Value)> = all.collect();
        if let Some(unknown) = self.wrt.iter().find(|name| all.iter().all(|(n, _)| **n != ***name)) {
            let known = all.iter().map(|(n, _)| &**n).collect::<Vec<_>>().join(", ");
            let why = format!("option `wrt` of pass `differentiate`: no input `{unknown}`; there are {known}");
            return Err(Diagnostic::new(DiagnosticCode::Pipeline, why));
        }
        let float = |v: Value| graph.dense(v).map(|ty| ty.dtype.is_float());
        let mut chosen = vec![];
        for (name, v) in all {
            let named = self.wrt.iter().any(|n| **n == *name);
            if named || self.wrt.is_empty() && float(v)? {
                chosen.push((name, v));
            }
        }
        Ok(chosen)
    }
}

/// One number in the type and shape of a value.
fn filled(graph: &mut Graph, like: Value, value: f64) -> Result<Value> {
    let ty = graph.dense(like)?;
    let number = graph.add_const("seed", TensorData::scalar(Scalar::from_f64(ty.dtype, value)));
    let repeat = Prim::View(Arc::new(View { map: vec![], fill: None }));
    Ok(Value { node: graph.add_prim("seed", repeat, &[number], &[ty]), port: 0 })
}
