//! Clusters that the kernels of the library for processors compute.

use std::sync::Arc;

use tensorc_abi::{
    Arg, BatchedGemm, BufferId, Convert, Epilogue, GemmElements, LeftOperand, MatrixLayout, Packing, Prologue, StepOp,
    StorageClass, Weight,
};
use tensorc_ir::Extent;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Fixed;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DType, DenseType, TensorData};

use super::Lowering;
use crate::kernel::{Computes, inputs_of};
use crate::layout::Layouts;
use crate::recipe::{Library, contraction, split_final_view, sums_apart};
use crate::recognise::attention::Attended;

/// Whether a step reads weights in the form of blocked ones, of which its cluster knows the values alone.
pub(super) fn reads_blocked(op: &StepOp<Extent>) -> bool {
    matches!(op, StepOp::Gemm { call, .. } if matches!(call.elements, GemmElements::Blocked(_)))
}

/// Whether a constant is the right operand of a product in the form of blocked weights: all of the matrix, whose rows are
/// the columns of the product.
fn takes_blocked(call: &BatchedGemm<Extent>, data: &TensorData) -> bool {
    let Some(matrix) = data.content().blocked() else { return false };
    let [n, k] = matrix.dims().map(|n| n as u64);
    let MatrixLayout { offset, row_stride, col_stride, .. } = call.b.convert(&Fixed);
    let strides = (row_stride == 1 || k == 1) && (col_stride == k as i64 || n == 1);
    let dims = [call.n, call.k].map(|n| Fixed.number(n)) == [n, k];
    call.elements == GemmElements::F32 && offset == 0 && strides && dims
}

impl<'a> Lowering<'a, '_> {
    pub(super) fn library(
        &mut self,
        node: NodeId,
        body: &'a Graph,
        library: Library,
        layouts: Layouts,
        flops: Extent,
    ) -> Result<()> {
        let graph = self.graph;
        let inputs = graph.args(node);
        let (contracted, _) = contraction(body)?;
        let accumulated = Value { node: contracted, port: 0 };
        let (Library::Gemm { a, .. } | Library::Conv { a, .. }) = &library;
        let left: LeftOperand = match a {
            Some(a) => self.operand(inputs[*a])?.into(),
            None => {
                let operand = body.args(contracted)[library.left_side()];
                let read = inputs_of(body, operand, None);
                let args = self.read_args(&read, &inputs)?;
                let computes = Computes::Prologue { body, library: library.clone(), inputs: read };
                let spec = self.spec(&body.node(operand.node).name, node, computes, layouts.clone());
                LeftOperand::Computed(Prologue { kernel: self.add_kernel(spec), args })
            }
        };
        let (finished, _) = split_final_view(body, body.outputs()[0].1)?;
        let follows =
            (finished != accumulated).then(|| (library.clone(), inputs_of(body, finished, Some(accumulated))));
        let constant = |i: usize| graph.constant(inputs[i]);
        let step: Box<dyn FnOnce(BufferId, Option<Epilogue>) -> StepOp<Extent>> = match library {
            Library::Conv { conv: mut call, b, .. } => {
                let b = match (constant(b), call.pass.packed()) {
                    (Some(data), Some(packed)) => {
                        call.pass = packed;
                        self.weight(inputs[b].node, data, Packing::Conv(call.of_filters().convert(&Fixed)), &data.ty)?
                    }
                    _ => self.operand(inputs[b])?,
                };
                Box::new(move |c, epilogue| StepOp::Conv { call: *call, a: left, b, c, epilogue })
            }
            Library::Gemm { gemm, b, .. } => {
                let mut call = gemm.call;
                let b = self.right_operand(inputs[b], &mut call, left.prologue().is_none())?;
                Box::new(move |c, epilogue| StepOp::Gemm { call, a: left, b, c, epilogue })
            }
        };
        let reads = follows.as_ref().map_or(Ok(vec![]), |(_, read)| self.read_args(read, &inputs))?;
        let epilogue = follows.map(|(library, inputs)| {
            let computes = Computes::Epilogue { body, library, inputs };
            let spec = self.spec(&graph.node(node).name, node, computes, layouts);
            self.add_kernel(spec)
        });
        let (result, apart) = (self.results(node)?[0], sums_apart(body)?);
        let epilogue = epilogue.map(|kernel| {
            let own = Arg { buffer: result, writes: true };
            Epilogue { kernel, args: std::iter::once(own).chain(reads).collect(), apart }
        });
        self.step(node, step(result, epilogue), flops);
        Ok(())
    }

    /// The right operand of a product: packed if it is a constant that all batches share.
    fn right_operand(&mut self, v: Value, call: &mut BatchedGemm<Extent>, left_in_memory: bool) -> Result<BufferId> {
        let shared = call.b.batch_strides == [Extent::ZERO; 3];
        if let Some(data) = self.graph.constant(v).filter(|_| shared) {
            if left_in_memory && takes_blocked(call, data) {
                return self.blocked_weights(v.node, data, call);
            }
            if let Some(elements) = call.elements.packed() {
                call.b_packed = true;
                let [k, n] = [call.k, call.n].map(|n| Fixed.number(n));
                let MatrixLayout { offset, row_stride, col_stride, .. } = call.b.convert(&Fixed);
                let packing = Packing::GemmB { k, n, offset, row_stride, col_stride, elements };
                return self.weight(v.node, data, packing, &data.ty);
            }
        }
        // What a run computes is not rounded.
        if call.elements == GemmElements::Bf16 {
            call.elements = GemmElements::F32;
        }
        self.operand(v)
    }

    /// The packed form of weights as an operand of a product, which it makes one of blocked weights.
    fn blocked_weights(&mut self, node: NodeId, data: &TensorData, call: &mut BatchedGemm<Extent>) -> Result<BufferId> {
        let internal = || Diagnostic::new(DiagnosticCode::Internal, "blocked weights are not packed");
        let matrix = data.content().blocked().ok_or_else(internal)?;
        call.elements = GemmElements::Blocked(matrix.form());
        if let Some(id) = self.blocked.get(&node) {
            return Ok(*id);
        }
        let ty = DenseType::new(DType::U8, [matrix.packed().len() as u64]);
        let packed = TensorData::new(ty.clone(), matrix.packed().clone()).ok_or_else(internal)?;
        self.out.constants.push(packed);
        let constant = self.out.constants.len() as u32 - 1;
        let name = self.graph.node(node).name.to_string();
        let storage = StorageClass::Weight(self.out.plan.weights.len() as u32);
        self.plan().weights.push(Weight { name: name.clone(), constant, packing: Packing::Plain });
        let id = self.buffer(&name, &ty, storage);
        self.blocked.insert(node, id);
        Ok(id)
    }

    /// The operands at some positions of a cluster's, as arguments that are read.
    fn read_args(&mut self, positions: &[usize], inputs: &[Value]) -> Result<Vec<Arg>> {
        positions.iter().map(|i| Ok(Arg { buffer: self.operand(inputs[*i])?, writes: false })).collect()
    }

    pub(super) fn attention(
        &mut self,
        node: NodeId,
        body: &'a Graph,
        found: Arc<Attended>,
        layouts: Layouts,
        flops: Extent,
    ) -> Result<()> {
        let internal = || Diagnostic::new(DiagnosticCode::Internal, "an operand of attention is none of its cluster's");
        let inputs = self.graph.args(node);
        let mut operand = |v: Value| {
            let position = body.inputs().iter().position(|n| *n == v.node).ok_or_else(internal)?;
            self.operand(inputs[position])
        };
        let (q, k, v) = (operand(found.q)?, operand(found.k)?, operand(found.v)?);
        let call = found.call;
        let epilogue = match found.accumulated == found.scores {
            true => None,
            false => {
                let read = inputs_of(body, found.scores, Some(found.accumulated));
                let args = self.read_args(&read, &inputs)?;
                let computes = Computes::Scores { body, found, inputs: read };
                let spec = self.spec(&self.graph.node(node).name, node, computes, layouts);
                Some(Epilogue { kernel: self.add_kernel(spec), args, apart: false })
            }
        };
        let out = self.results(node)?[0];
        self.step(node, StepOp::Attention { call, q, k, v, out, epilogue }, flops);
        Ok(())
    }
}
