//! Clusters that the kernels of the library for processors compute.

use std::collections::BTreeSet;

use tensorc_abi::{
    Arg, BufferId, ConvPass, DType, Epilogue, KernelId, LeftOperand, MatrixLayout, Packing, Prologue, StepOp,
};
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Fused, Graph, NodeId, Value};
use tensorc_schedule::recognise::attention::attention_at;

use super::Lowering;
use crate::emit::{Library, OnBlocks, emit_epilogue, emit_prologue, emit_scores};
use tensorc_schedule::layout::Layouts;

impl Lowering<'_> {
    pub(super) fn library(&mut self, node: NodeId, fused: &Fused, library: Library, flops: u64) -> Result<()> {
        let graph = self.graph;
        let inputs = graph.args(node);
        let name = graph.node(node).name.clone();
        let layouts = self.layouts(node)?;
        let library = laid_out(library, &layouts)?;
        let epilogue = emit_epilogue(&fused.body, &library, &name, self.math, &layouts)?;
        let prologue = emit_prologue(&fused.body, &library, self.math, &layouts)?;
        let (Library::Gemm { a, .. } | Library::Conv { a, .. }) = &library;
        let left: LeftOperand = match (a, prologue) {
            (Some(a), _) => self.operand(inputs[*a])?.into(),
            (None, Some(prologue)) => {
                let (kernel, args) = self.on_blocks(prologue, &inputs)?;
                LeftOperand::Computed(Prologue { kernel, args })
            }
            (None, None) => return Err(Diagnostic::new(Code::Internal, "a library call lacks an operand")),
        };
        let constant = |i: usize| graph.constant(inputs[i]);
        let step: Box<dyn FnOnce(BufferId, Option<Epilogue>) -> StepOp> = match library {
            Library::Conv { conv: mut call, b, .. } => {
                let b = match constant(b) {
                    Some(data) if call.pass == ConvPass::Forward || call.pass.is_packed() => {
                        if call.pass == ConvPass::Forward {
                            call.pass = ConvPass::Packed;
                        }
                        self.weight(inputs[b].node, data, Packing::Conv(call.contiguous()), &data.ty)?
                    }
                    _ => self.operand(inputs[b])?,
                };
                Box::new(move |c, epilogue| StepOp::Conv { call, a: left, b, c, epilogue })
            }
            Library::Gemm { gemm, b, .. } => {
                let mut call = gemm.call;
                let shared = call.b.batch_strides == [0; 3];
                let b = match constant(b) {
                    Some(data) if shared => {
                        call.b_packed = true;
                        let MatrixLayout { offset, row_stride, col_stride, .. } = call.b;
                        let packing = Packing::GemmB { k: call.k, n: call.n, offset, row_stride, col_stride };
                        self.weight(inputs[b].node, data, packing, &data.ty)?
                    }
                    _ => self.operand(inputs[b])?,
                };
                Box::new(move |c, epilogue| StepOp::Gemm { call, a: left, b, c, epilogue })
            }
        };
        let epilogue = epilogue.map(|e| self.on_blocks(e, &inputs)).transpose()?;
        let result = self.results(node)?[0];
        let epilogue = epilogue.map(|(kernel, reads)| {
            let own = Arg { buffer: result, writes: true };
            Epilogue { kernel, args: std::iter::once(own).chain(reads).collect() }
        });
        self.step(node, step(result, epilogue), flops);
        Ok(())
    }

    /// A kernel that a library calls on blocks, and what it reads.
    fn on_blocks(&mut self, found: OnBlocks, inputs: &[Value]) -> Result<(KernelId, Vec<Arg>)> {
        let read = |i: &usize| Ok(Arg { buffer: self.operand(inputs[*i])?, writes: false });
        let args = found.inputs.iter().map(read).collect::<Result<_>>()?;
        Ok((self.add_kernel(found.kernel), args))
    }

    pub(super) fn attention(&mut self, node: NodeId, fused: &Fused, flops: u64) -> Result<()> {
        let internal = || Diagnostic::new(Code::Internal, "an attention cluster is not what the library computes");
        let graph = self.graph;
        let body = &fused.body;
        let found = body.order().into_iter().find_map(|n| attention_at(body, n));
        let found = found.filter(|found| found.dtype == DType::F32).ok_or_else(internal)?;
        let inputs = graph.args(node);
        let mut operand = |v: Value| {
            let position = body.inputs().iter().position(|n| *n == v.node).ok_or_else(internal)?;
            self.operand(inputs[position])
        };
        let (q, k, v) = (operand(found.q)?, operand(found.k)?, operand(found.v)?);
        let scores = emit_scores(body, &found, &graph.node(node).name, self.math, &self.layouts(node)?)?;
        let epilogue = match scores {
            Some(e) => {
                let (kernel, args) = self.on_blocks(e, &inputs)?;
                Some(Epilogue { kernel, args })
            }
            None => None,
        };
        let out = self.results(node)?[0];
        self.step(node, StepOp::Attention { call: found.call, q, k, v, out, epilogue }, flops);
        Ok(())
    }
}

/// Whether a call finds its filters as it needs them: those of blocked channels must be packed.
pub(super) fn packs(graph: &Graph, node: NodeId, library: &Library) -> bool {
    match library {
        Library::Conv { conv, b, .. } if !conv.in_planes() || conv.pass.is_packed() => {
            graph.constant(graph.args(node)[*b]).is_some()
        }
        _ => true,
    }
}

/// A library call with its operands and result where they lie.
pub(super) fn laid_out(mut library: Library, layouts: &Layouts) -> Result<Library> {
    let refused = || Diagnostic::new(Code::Internal, "a library call does not take an operand where it lies");
    for operand in library.operands().into_iter().collect::<BTreeSet<_>>() {
        if let Some(runs) = layouts.input(operand) {
            library = library.laid_out(operand, runs).ok_or_else(refused)?;
        }
    }
    match layouts.output(0) {
        None => Ok(library),
        Some(runs) => library.result_laid_out(runs).ok_or_else(refused),
    }
}
