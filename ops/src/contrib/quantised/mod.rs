//! Operators of ONNX Runtime on quantised tensors, computed in floats or i32 between integers.

mod elementwise;
mod model;
mod packed;
mod pool;
mod product;

use crate::prelude::*;
use crate::quantize::quantised;

pub(super) use crate::quantize::{BYTES, ROUNDS};

pub fn ops() -> Vec<OpDef> {
    [elementwise::ops(), model::ops(), packed::ops(), pool::ops(), product::ops()].into_iter().flatten().collect()
}

/// Scales, and zero points that may be left out, are scalars.
pub(super) const SCALE: &[DType] = &[DType::F32];

/// `(x - zero point) · scale`, of a scalar scale and zero point.
pub(super) fn dequantised<'g>(x: Tensor<'g>, scale: Tensor<'g>, zero: Option<Tensor<'g>>) -> Tensor<'g> {
    let steps = x.cast(DType::F32);
    let steps = zero.map_or(steps, |zero| steps - zero.reshape([]).cast(DType::F32));
    steps * scale.reshape([])
}

/// A float tensor quantised with the scale and the zero point at the operands `at`.
pub(super) fn requantised<'g>(g: GraphScope<'g>, x: Tensor<'g>, at: [usize; 2], to: DType) -> Tensor<'g> {
    quantised(x, g.operand(at[0]).reshape([]), g.maybe(at[1]).map(|zero| zero.reshape([])), to)
}

/// The operand at `at`, less the zero point behind its scale, times the scale.
pub(super) fn real(g: GraphScope<'_>, at: usize) -> Tensor<'_> {
    dequantised(g.operand(at), g.operand(at + 1), g.maybe(at + 2))
}

/// Operands have one element.
pub(super) fn scalars(cx: &InferCtx<'_>, operands: &[usize]) -> Result<(), OpError> {
    operands.iter().try_for_each(|&i| crate::rules::one_element(cx, i))
}
