//! Branches and loops that the host runs between two parts of a graph: each body is a model of its own, compiled when it first runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tensorc_ir::flow::Flow;
use tensorc_ir::graph::{Graph, NodeId};
use tensorc_ir::interp::run_flow;
use tensorc_ir::{DenseType, TensorData};
use tensorc_runtime::Interrupter;
use tensorc_runtime::plan::RunError;

use crate::compiler::Compiler;
use crate::error::Error;
use crate::model::Model;
use crate::tensor::Tensor;

/// The models that the bodies of a graph's branches and loops are.
#[derive(Default)]
pub(crate) struct HostFlows(Mutex<BTreeMap<NodeId, Arc<[Model]>>>);

impl HostFlows {
    /// Runs a branch or loop of the graph on its operands.
    ///
    /// # Errors
    /// A body does not compile or fails, or the loop takes longer than a run may take.
    pub fn run(
        &self,
        compiler: &Compiler,
        (graph, node): (&Graph, NodeId),
        flow: &Flow,
        operands: &[TensorData],
    ) -> Result<Vec<TensorData>, Error> {
        let bodies = self.bodies(compiler, node, flow);
        let start = Instant::now();
        // Bytes of a constant lie as a file has them, which need not be aligned.
        let aligned = |data: &TensorData| Tensor::from_bytes(data.dtype(), data.dims(), data.bytes().clone());
        let operands = operands.iter().map(|data| Ok(aligned(data)?.0)).collect::<Result<Vec<_>, Error>>()?;
        run_flow(flow, &operands, &mut |body, inputs| {
            if let Some(limit) = compiler.options().limits.time.filter(|limit| start.elapsed() > *limit) {
                return Err(RunError::Time { step: graph.node(node).name.to_string(), limit }.into());
            }
            if compiler.options().interrupter.as_ref().is_some_and(Interrupter::wants_end) {
                return Err(RunError::Interrupted { step: graph.node(node).name.to_string() }.into());
            }
            let types: Vec<DenseType> = inputs.iter().map(|data| data.ty.clone()).collect();
            let inputs: Vec<Tensor> = inputs.iter().cloned().map(Tensor).collect();
            let results = bodies[body].code(&types)?.run(&inputs)?;
            Ok(results.into_iter().map(|t| t.0).collect())
        })
    }

    fn bodies(&self, compiler: &Compiler, node: NodeId, flow: &Flow) -> Arc<[Model]> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let model = |body: &Graph| Model::new(compiler.clone(), body.clone());
        made.entry(node).or_insert_with(|| flow.bodies.iter().map(model).collect()).clone()
    }
}
