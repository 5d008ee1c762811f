//! Clusters that the kernels of the library for processors compute.

use std::collections::BTreeSet;

use tensorc_abi::{Arg, BufferId, ConvLayout, ConvPass, DType, Epilogue, MatrixLayout, Packing, StepOp};
use tensorc_ir::attention::attention_at;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Fused, Graph, NodeId, Value};

use super::Lowering;
use crate::emit::{Layouts, Library, emit_epilogue, emit_scores};

impl Lowering<'_> {
    pub(super) fn library(&mut self, node: NodeId, fused: &Fused, library: Library, flops: u64) -> Result<()> {
        let graph = self.graph;
        let inputs = graph.args(node);
        let name = graph.node(node).name.clone();
        let layouts = self.layouts(node)?;
        let library = laid_out(library, &layouts)?;
        let epilogue = emit_epilogue(&fused.body, &library, &name, self.math, &layouts)?;
        let constant = |i: usize| graph.constant(inputs[i]);
        let step: Box<dyn FnOnce(BufferId, Option<Epilogue>) -> StepOp> = match library {
            Library::Conv { conv: mut call, a, b } => {
                let b = match constant(b) {
                    Some(data) if call.pass == ConvPass::Forward || call.pass.is_packed() => {
                        if call.pass == ConvPass::Forward {
                            call.pass = ConvPass::Packed;
                        }
                        self.weight(inputs[b].node, data, Packing::Conv(call.contiguous()), &data.ty)
                    }
                    _ => self.operand(inputs[b])?,
                };
                let a = self.operand(inputs[a])?;
                Box::new(move |c, epilogue| StepOp::Conv { call, a, b, c, epilogue })
            }
            Library::Gemm { gemm, a, b } => {
                let mut call = gemm.call;
                let shared = call.b.batch_strides == [0; 3];
                let b = match constant(b) {
                    Some(data) if shared => {
                        call.b_packed = true;
                        let MatrixLayout { offset, row_stride, col_stride, .. } = call.b;
                        let packing = Packing::GemmB { k: call.k, n: call.n, offset, row_stride, col_stride };
                        self.weight(inputs[b].node, data, packing, &data.ty)
                    }
                    _ => self.operand(inputs[b])?,
                };
                let a = self.operand(inputs[a])?;
                Box::new(move |c, epilogue| StepOp::Gemm { call, a, b, c, epilogue })
            }
        };
        let extra = match &epilogue {
            Some(e) => e.inputs.iter().map(|i| self.operand(inputs[*i])).collect::<Result<Vec<_>>>()?,
            None => vec![],
        };
        let result = self.results(node)?[0];
        let epilogue = epilogue.map(|e| {
            let kernel = self.add_kernel(e.kernel);
            let own = Arg { buffer: result, writes: true };
            let reads = extra.into_iter().map(|buffer| Arg { buffer, writes: false });
            Epilogue { kernel, args: std::iter::once(own).chain(reads).collect() }
        });
        self.step(node, step(result, epilogue), flops);
        Ok(())
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
                let read = |i: &usize| Ok(Arg { buffer: self.operand(inputs[*i])?, writes: false });
                let args = e.inputs.iter().map(read).collect::<Result<_>>()?;
                Some(Epilogue { kernel: self.add_kernel(e.kernel), args })
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
        Library::Conv { conv, b, .. } if conv.layout != ConvLayout::Planar => {
            graph.constant(graph.args(node)[*b]).is_some()
        }
        _ => true,
    }
}

/// A library call with its operands and result where they lie.
pub(super) fn laid_out(mut library: Library, layouts: &Layouts) -> Result<Library> {
    let refused = || Diagnostic::new(Code::Internal, "a library call does not take an operand where it lies");
    let (Library::Gemm { a, b, .. } | Library::Conv { a, b, .. }) = library;
    for operand in BTreeSet::from([a, b]) {
        if let Some(runs) = layouts.input(operand) {
            library = library.laid_out(operand, runs).ok_or_else(refused)?;
        }
    }
    match layouts.output(0) {
        None => Ok(library),
        Some(runs) => library.result_laid_out(runs).ok_or_else(refused),
    }
}
