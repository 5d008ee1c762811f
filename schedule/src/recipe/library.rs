//! Calls of the kernel library that compute the contraction of a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_abi::{Conv2d, ConvPass, GemmElements};
use tensorc_ir::Extent;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Contraction, Prim, View};
use tensorc_ir::views::strides_in_result;

use crate::layout::{Layouts, Runs};
use crate::recognise::contract::{Gemm, LibraryCall, library_call};

/// The library call at the heart of a contract cluster. Operands are positions in the cluster's
/// inputs; without one, the left operand is computed in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Library {
    /// A matrix product.
    Gemm {
        /// The product.
        gemm: Box<Gemm>,
        /// The left operand by position, `None` if a prologue computes it.
        a: Option<usize>,
        /// The right operand, by position.
        b: usize,
    },
    /// A convolution.
    Conv {
        /// The convolution.
        conv: Box<Conv2d<Extent>>,
        /// The left operand by position, `None` if a prologue computes it.
        a: Option<usize>,
        /// The right operand, by position.
        b: usize,
    },
}

/// How a library computes the cluster's contraction, if one can: operands must be cluster inputs, but for a left one
/// that the library takes computed, and everything after the contraction element-wise on its shape.
pub fn library_form(body: &Graph) -> Result<Option<Library>> {
    let (node, c) = contraction(body)?;
    let [(_, output)] = body.outputs() else { return Ok(None) };
    let (result, moved) = split_final_view(body, *output)?;
    let out = body.dense(Value { node, port: 0 })?;
    let found = body.dense(result)?;
    let apart = found.dtype != out.dtype;
    let strides = match moved {
        None => None,
        Some(view) => match strides_in_result(view, &out.dims, &body.dense(*output)?.dims) {
            Some(strides) => Some(strides),
            None => return Ok(None),
        },
    };
    let position = |v: Value| body.inputs().iter().position(|n| *n == v.node);
    let args = body.args(node);
    if found.dims != out.dims {
        return Ok(None);
    }
    let (l, r) = (position(args[0]), position(args[1]));
    let (lhs, rhs) = (body.dense(args[0])?, body.dense(args[1])?);
    let call = library_call(&c, &lhs, &rhs, strides.as_deref()).filter(|call| !apart || call.sums_bytes());
    Ok(call.and_then(|call| match call {
        LibraryCall::Conv(conv) => {
            let b = r.filter(|_| l.is_some() || conv.takes_computed());
            Some(Library::Conv { conv, a: l, b: b? })
        }
        LibraryCall::Gemm(gemm) => {
            let (a, b) = if gemm.swapped { (r, l) } else { (l, r) };
            let computed = a.is_none() && gemm.call.elements != GemmElements::F32;
            Some(Library::Gemm { gemm, a, b: b? }).filter(|_| !computed)
        }
    }))
}

/// The value before a last view, and that view.
pub fn split_final_view(body: &Graph, output: Value) -> Result<(Value, Option<&View>)> {
    match &body.node(output.node).kind {
        NodeKind::Prim(Prim::View(view)) => Ok((body.args(output.node)[0], Some(view))),
        _ => Ok((output, None)),
    }
}

/// Whether a library's sums lie apart from the result of a cluster, which is of another type.
///
/// # Errors
/// The body has no contraction or no result.
pub fn sums_apart(body: &Graph) -> Result<bool> {
    let (node, _) = contraction(body)?;
    let (result, _) = split_final_view(body, body.outputs()[0].1)?;
    Ok(body.dense(result)?.dtype != body.dense(Value { node, port: 0 })?.dtype)
}

/// The contraction of a cluster.
///
/// # Errors
/// There is none.
pub fn contraction(body: &Graph) -> Result<(NodeId, Arc<Contraction>)> {
    let found = body.order().into_iter().find_map(|n| match &body.node(n).kind {
        NodeKind::Prim(Prim::Contract(c)) => Some((n, c.clone())),
        _ => None,
    });
    found.ok_or_else(|| Diagnostic::new(DiagnosticCode::Internal, "a contract cluster holds no contraction"))
}

impl Library {
    /// Which operand of the contraction is the left one of the call.
    pub fn left_side(&self) -> usize {
        usize::from(matches!(self, Library::Gemm { gemm, .. } if gemm.swapped))
    }

    /// The positions of the operands.
    pub fn operands(&self) -> Vec<usize> {
        match self {
            Library::Gemm { a, b, .. } | Library::Conv { a, b, .. } => a.iter().chain([b]).copied().collect(),
        }
    }

    /// The call with its operands and result in their layouts.
    ///
    /// # Errors
    /// The library does not take an operand or the result in its layout.
    pub fn located(mut self, layouts: &Layouts) -> Result<Library> {
        let refused =
            || Diagnostic::new(DiagnosticCode::Internal, "a library call does not take an operand in its layout");
        for operand in self.operands().into_iter().collect::<BTreeSet<_>>() {
            if let Some(runs) = layouts.input(operand) {
                self = self.laid_out(operand, runs).ok_or_else(refused)?;
            }
        }
        match layouts.output(0) {
            None => Ok(self),
            Some(runs) => self.result_laid_out(runs).ok_or_else(refused),
        }
    }

    /// The call with an operand in runs; `None` if the library cannot read it so.
    pub fn laid_out(&self, operand: usize, runs: Runs) -> Option<Library> {
        let mut call = self.clone();
        match &mut call {
            Library::Gemm { gemm, a, b } => {
                let c = &mut gemm.call;
                if *a == Some(operand) {
                    c.a = runs.matrix(&c.a, &c.batch, [c.m, c.k])?;
                }
                if *b == operand {
                    c.b = runs.matrix(&c.b, &c.batch, [c.k, c.n])?;
                }
            }
            Library::Conv { conv, a, b } => {
                let sides = match conv.pass {
                    ConvPass::DataGradient => [(*a, Some(1)), (Some(*b), None)],
                    ConvPass::FilterGradient => [(*a, Some(0)), (Some(*b), Some(1))],
                    _ => [(*a, Some(0)), (Some(*b), None)],
                };
                for (_, side) in sides.into_iter().filter(|(position, _)| *position == Some(operand)) {
                    let side = side?;
                    conv.images[side] = images(conv.image_sizes()[side], runs)?;
                }
            }
        }
        Some(call)
    }

    /// The call with its result in runs; `None` if the library cannot write it so.
    pub(crate) fn result_laid_out(&self, runs: Runs) -> Option<Library> {
        let mut call = self.clone();
        match &mut call {
            Library::Gemm { gemm, .. } => {
                let c = &mut gemm.call;
                c.c = runs.matrix(&c.c, &c.batch, [c.m, c.n])?;
                // Rows stay contiguous.
                (c.c.col_stride == 1).then_some(())?;
            }
            Library::Conv { conv, .. } => {
                let side = match conv.pass {
                    ConvPass::DataGradient => 0,
                    ConvPass::FilterGradient => return None,
                    _ => 1,
                };
                conv.images[side] = images(conv.image_sizes()[side], runs)?;
            }
        }
        Some(call)
    }
}

/// The distance of images of that many elements, if a run is one.
fn images(size: Extent, runs: Runs) -> Option<Extent> {
    (runs.run == size).then_some(runs.stride)
}
