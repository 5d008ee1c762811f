//! Primitives that derivatives are written with.

use std::sync::Arc;

use tensorc_ir::build::Builder;
use tensorc_ir::diag::{DiagnosticCode, Result};
use tensorc_ir::graph::Value;
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::op::OpRole;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::prim::{Contraction, Prim, Reduction, View};
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::views::identity_map;
use tensorc_ir::{DType, DenseType, Extent, Extents};

/// Most operands of one map that adds.
const MAX_SUM_OPERANDS: usize = 8;

/// The type arithmetic on stored elements of `dtype` is done in.
pub(super) fn computed_in(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// A function with one result on operands that broadcast to `dims`; those it does not use are left out.
pub(super) fn map(b: &mut Builder<'_>, f: &ScalarFn, args: &[Option<Value>], dims: &Extents) -> Result<Value> {
    let (f, used) = f.without_unused();
    let args: Option<Vec<Value>> = used.iter().map(|i| args[*i]).collect();
    let args = args.ok_or_else(|| b.error(DiagnosticCode::Internal, "a derivative uses a value that is not given"))?;
    if f.is_identity() {
        return broadcast(b, args[0], dims);
    }
    let ty = DenseType::new(f.output_dtypes()[0], dims);
    Ok(b.prim(Prim::Map(Arc::new(f)), &args, &[ty])?[0])
}

/// Repeats axes of extent 1 and adds leading ones.
pub(super) fn broadcast(b: &mut Builder<'_>, x: Value, dims: &Extents) -> Result<Value> {
    let from = b.ty(x)?.dims;
    let lead = dims.len() - from.len();
    let axis = |i: usize| match from.at(i).is_repeated_along(dims.at(lead + i)) {
        true => Index::constant(0),
        false => Index::var((lead + i) as u32),
    };
    let map = (0..from.len()).map(axis).collect();
    if from == *dims { Ok(x) } else { view(b, x, View { map, fill: None }, dims) }
}

pub(super) fn view(b: &mut Builder<'_>, x: Value, view: View, dims: &Extents) -> Result<Value> {
    let ty = b.ty(x)?;
    if view.is_identity(&ty.dims, dims) {
        return Ok(x);
    }
    Ok(b.prim(Prim::View(Arc::new(view)), &[x], &[DenseType::new(ty.dtype, dims)])?[0])
}

/// An extent as an i64 without axes.
pub(super) fn extent(b: &mut Builder<'_>, n: Extent) -> Result<Value> {
    let one = b.extents(&Extents::of([n]));
    reshape(b, one, &Extents::default())
}

/// The same elements in row-major order under another shape.
pub(super) fn reshape(b: &mut Builder<'_>, x: Value, dims: &Extents) -> Result<Value> {
    let from = b.ty(x)?.dims;
    let map = delinearize(&linearize(&identity_map(dims.len()), dims), &from, dims);
    if from == *dims { Ok(x) } else { view(b, x, View { map, fill: None }, dims) }
}

/// `len` positions from `start` along one axis.
pub(super) fn slice(b: &mut Builder<'_>, x: Value, axis: usize, start: Extent, len: Extent) -> Result<Value> {
    let mut dims = b.ty(x)?.dims;
    let mut map = identity_map(dims.len());
    map[axis] = map[axis].offset(start);
    dims.set(axis, len);
    view(b, x, View { map, fill: None }, &dims)
}

pub(super) fn contract(b: &mut Builder<'_>, lhs: Value, rhs: Value, c: Contraction) -> Result<Value> {
    let ty = DenseType::new(b.ty(lhs)?.dtype, c.extents.range(..c.out_rank));
    Ok(b.prim(Prim::Contract(Arc::new(c)), &[lhs, rhs], &[ty])?[0])
}

/// Sums over `axes`, which go, rounded to `to` once.
pub(super) fn sum_axes(b: &mut Builder<'_>, x: Value, axes: &[usize], to: DType) -> Result<Value> {
    let ty = b.ty(x)?;
    if axes.iter().all(|a| ty.dims.at(*a).is_surely(1)) && ty.dtype == to {
        let dims: Extents = (0..ty.rank()).filter(|i| !axes.contains(i)).map(|i| ty.dims.at(i)).collect();
        return reshape(b, x, &dims);
    }
    let wide = computed_in(ty.dtype);
    let build = |f: std::result::Result<ScalarFn, String>| f.map_err(|why| b.error(DiagnosticCode::Internal, why));
    let map = build(ScalarFn::build(&[ty.dtype], |_, a| vec![a[0].cast(wide)]))?;
    let combine = build(ScalarFn::build(&[wide, wide], |_, a| vec![&a[0] + &a[1]]))?;
    let finish = build(ScalarFn::build(&[wide], |_, a| vec![a[0].cast(to)]))?;
    let (axes, init) = (axes.to_vec(), vec![Scalar::zero(wide)]);
    let reduction = Reduction { axes, keep_dims: false, init, map, combine, finish };
    let dims = reduction.output_dims(&ty.dims);
    Ok(b.prim(Prim::Reduce(Arc::new(reduction)), &[x], &[DenseType::new(to, &dims)])?[0])
}

/// Sums over the axes along which a value of shape `dims` was repeated to give the shape of `x`.
pub(super) fn unbroadcast(b: &mut Builder<'_>, x: Value, dims: &Extents, to: DType) -> Result<Value> {
    let from = b.ty(x)?;
    let same = from.rank() == dims.len() && from.dims.all().zip(dims.all()).all(|(a, b)| a.is_surely(b));
    if same && from.dtype == to {
        return Ok(x);
    }
    let lead = from.rank() - dims.len();
    let repeated = |i: &usize| {
        *i < lead || {
            let (own, other) = (dims.at(*i - lead), from.dims.at(*i));
            own.is_repeated_along(other) && !other.is_surely(1)
        }
    };
    let axes: Vec<usize> = (0..from.rank()).filter(repeated).collect();
    let sum = sum_axes(b, x, &axes, to)?;
    reshape(b, sum, dims)
}

/// The sum of values of one type, in order, rounded once for every few of them.
pub(super) fn sum(b: &mut Builder<'_>, parts: &[Value]) -> Result<Value> {
    let (first, mut rest) = (parts[0], &parts[1..]);
    let mut total = first;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(MAX_SUM_OPERANDS - 1));
        let ty = b.ty(total)?;
        let wide = computed_in(ty.dtype);
        let f = ScalarFn::build(&vec![ty.dtype; now.len() + 1], |_, a| {
            let first = a[0].cast(wide);
            vec![a[1..].iter().fold(first, |sum, x| sum + x.cast(wide)).cast(ty.dtype)]
        });
        let f = f.map_err(|why| b.error(DiagnosticCode::Internal, why))?;
        let args: Vec<Value> = std::iter::once(total).chain(now.iter().copied()).collect();
        total = b.prim(Prim::Map(Arc::new(f)), &args, &[ty])?[0];
        rest = later;
    }
    Ok(total)
}

/// Slices of updates added up by their indices along an axis of an extent: the adjoint of a gather.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`] if the registry has no operator for that.
pub(super) fn gather_adjoint(b: &mut Builder<'_>, operands: [Value; 2], axis: usize, extent: Extent) -> Result<Value> {
    let Some(op) = b.registry().with_role(OpRole::GatherAdjoint).cloned() else {
        return Err(b.error(DiagnosticCode::Unsupported, "the registry has no operator that adds up slices by index"));
    };
    let extent = b.extents(&[extent].into_iter().collect());
    let [updates, indices] = operands;
    b.op(op.name, &[updates, indices, extent], Params::new().with("axis", ParamValue::Int(axis as i64)))
}
