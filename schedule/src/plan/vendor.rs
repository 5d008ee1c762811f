//! Contractions that vendor libraries compute on a GPU, and the kernels for what follows them.

use tensorc_abi::vendor::VendorCall;
use tensorc_abi::{Arg, BufferId, DType, StepOp, StorageClass};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::{DenseType, Extent};

use super::{Lowering, flops};
use crate::layout::Layouts;
use crate::recipe::{Vendor, contraction};

impl Lowering<'_, '_> {
    /// Schedules a call of a library and a kernel for what follows.
    pub(super) fn vendor(&mut self, node: NodeId, body: &Graph, layouts: Layouts, form: Vendor) -> Result<()> {
        let inputs = self.graph.args(node);
        let (contraction, _) = contraction(body)?;
        let total = flops(body)?;
        let (result, rest) = match form.whole {
            true => (self.results(node)?[0], None),
            false => {
                let ty = body.dense(Value { node: contraction, port: 0 })?;
                let name = body.node(contraction).name.to_string();
                (self.buffer(&name, &ty, StorageClass::Arena(0)), Some(rest(body, contraction)?))
            }
        };
        let mut operands = vec![];
        for input in form.operands.iter().chain(&form.bias) {
            operands.push(self.operand(inputs[*input])?);
        }
        let rest_flops = rest.as_ref().map_or(Ok(Extent::ZERO), |(body, _)| flops(body))?;
        self.call(node, form.call, &operands, result, total - rest_flops);
        if let Some((body, used)) = rest {
            let mut buffers = vec![result];
            for i in &used {
                buffers.push(self.operand(inputs[*i])?);
            }
            let from = used.iter().map(|i| layouts.input(*i));
            let layouts = Layouts { inputs: std::iter::once(None).chain(from).collect(), outputs: layouts.outputs };
            let results = self.results(node)?;
            self.launch_map(node, body, layouts, [&buffers, &results], rest_flops)?;
        }
        Ok(())
    }

    /// Adds the step of a call.
    fn call(&mut self, node: NodeId, call: VendorCall, operands: &[BufferId], result: BufferId, flops: Extent) {
        let name = self.graph.node(node).name.to_string();
        let mut written = vec![result];
        if call.workspace > 0 {
            let ty = DenseType::new(DType::U8, [call.workspace]);
            written.push(self.buffer(&format!("{name} workspace"), &ty, StorageClass::Arena(0)));
        }
        let read = operands.iter().map(|buffer| Arg { buffer: *buffer, writes: false });
        let write = written.into_iter().map(|buffer| Arg { buffer, writes: true });
        let args = read.chain(write).collect();
        self.step(node, StepOp::Vendor { call, args }, flops);
        // Working memory is not what the contraction moves.
        if let Some(step) = self.plan().steps.last_mut() {
            step.bytes = step.bytes - call.workspace;
        }
    }
}

/// What follows a contraction, as a graph of the contraction's result and some of the cluster's inputs, whose positions are
/// given.
fn rest(body: &Graph, contraction: NodeId) -> Result<(Graph, Vec<usize>)> {
    let mut rest = Graph::new("");
    let contracted = Value { node: contraction, port: 0 };
    let mut values = std::collections::BTreeMap::new();
    values.insert(contracted, rest.add_input("contracted", body.dense(contracted)?.into()));
    let mut used = vec![];
    for (i, &node) in body.inputs().iter().enumerate() {
        let v = Value { node, port: 0 };
        if body.uses(node).iter().any(|(user, ..)| *user != contraction) {
            used.push(i);
            values.insert(v, rest.add_input(body.node(node).name.clone(), body.dense(v)?.into()));
        }
    }
    for node in body.order() {
        let NodeKind::Prim(prim) = &body.node(node).kind else { continue };
        if node == contraction {
            continue;
        }
        let missing = || {
            Diagnostic::new(
                DiagnosticCode::Internal,
                "the epilogue of a vendor call reads an operand of the contraction",
            )
        };
        let args =
            body.args(node).iter().map(|v| values.get(v).copied().ok_or_else(missing)).collect::<Result<Vec<_>>>()?;
        let types = (0..body.node(node).types.len() as u16).map(|port| body.dense(Value { node, port }));
        let types = types.collect::<Result<Vec<_>>>()?;
        let new = rest.add_prim(body.node(node).name.clone(), prim.clone(), &args, &types);
        for port in 0..types.len() as u16 {
            values.insert(Value { node, port }, Value { node: new, port });
        }
    }
    for (name, v) in body.outputs() {
        let missing = || Diagnostic::new(DiagnosticCode::Internal, "a cluster gives out one of its inputs");
        rest.add_output(name.clone(), *values.get(v).ok_or_else(missing)?);
    }
    Ok((rest, used))
}
