//! Short forms for composite operators: constants, reductions and shapes on values of known type.

use tensorc_ir::build::Builder;
use tensorc_ir::diag::{DiagnosticCode, Result};
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::Value;
use tensorc_ir::params::Params;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, Extent, Extents};

/// An optional operand of a composite body.
pub fn maybe(args: &[Option<Value>], i: usize) -> Option<Value> {
    args.get(i).copied().flatten()
}

/// A required operand of a composite.
pub fn operand(b: &Builder<'_>, args: &[Option<Value>], i: usize) -> Result<Value> {
    maybe(args, i).ok_or_else(|| b.error(DiagnosticCode::Operands, format!("operand {i} is missing")))
}

/// The type arithmetic on `dtype` is done in: f32 for the 16-bit floats.
pub(crate) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Converts to a type; nothing is added where the type is the same.
pub fn cast(b: &mut Builder<'_>, x: Value, to: DType) -> Result<Value> {
    if b.ty(x)?.dtype == to { Ok(x) } else { b.op("cast", &[x], Params::new().with("to", to)) }
}

/// A value in the type arithmetic is done in.
pub fn widened(b: &mut Builder<'_>, x: Value) -> Result<Value> {
    let to = compute_type(b.ty(x)?.dtype);
    cast(b, x, to)
}

/// A rank-0 constant of the type of `like`.
pub fn number(b: &mut Builder<'_>, like: Value, value: f64) -> Result<Value> {
    let dtype = b.ty(like)?.dtype;
    Ok(b.scalar(Scalar::from_f64(dtype, value)))
}

/// A binary operator with a constant on the right.
pub(crate) fn with_number(b: &mut Builder<'_>, op: &str, x: Value, value: f64) -> Result<Value> {
    let value = number(b, x, value)?;
    b.call(op, &[x, value])
}

/// A reduction over `axes` that keeps them with extent 1.
pub fn reduce(b: &mut Builder<'_>, op: &str, x: Value, axes: &[usize]) -> Result<Value> {
    let axes: Vec<i64> = axes.iter().map(|&a| a as i64).collect();
    let axes = b.i64s(&axes);
    b.op(op, &[x, axes], Params::new().with("noop_with_empty_axes", true))
}

/// Another shape of the same elements.
pub fn reshape(b: &mut Builder<'_>, x: Value, dims: impl Into<Extents>) -> Result<Value> {
    let dims = dims.into();
    if b.ty(x)?.dims == dims {
        return Ok(x);
    }
    let dims = b.extents(&dims);
    b.op("reshape", &[x, dims], Params::new().with("allowzero", true))
}

/// A vector over axis 1 of a tensor of the given rank, shaped to broadcast with it.
pub fn per_channel(b: &mut Builder<'_>, x: Value, rank: usize) -> Result<Value> {
    let len = b.ty(x)?.dims.count();
    let dims: Extents = (0..rank.max(2)).map(|axis| if axis == 1 { len } else { Extent::ONE }).collect();
    reshape(b, x, dims)
}
