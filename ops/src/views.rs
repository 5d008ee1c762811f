//! Index maps of the usual views, and the primitives composite operators are built from.

use std::sync::Arc;

use crate::compose::compute_type;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::Value;
use tensorc_ir::index::Ranges;
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::kir::Kernel;
use tensorc_ir::op::OpError;
use tensorc_ir::prim::{Contraction, Gather, Prim, Reduction, View};
use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder, ScalarFn};
use tensorc_ir::{DType, DenseType, Extent, Extents};

/// The variables of an iteration space, outermost first.
pub fn vars(rank: usize) -> Vec<Index> {
    (0..rank as u32).map(Index::var).collect()
}

/// The row-major number of the element at the first coordinates of an element-wise function, by the extents of their axes.
pub fn row_major(s: &ScalarBuilder, extents: &[Ex]) -> Ex {
    let first = if extents.is_empty() { s.constant(Scalar::i64(0)) } else { s.coord(0) };
    (1..extents.len()).fold(first, |at, axis| at * &extents[axis] + s.coord(axis))
}

/// The concatenation of the shapes `dims` and `window`.
pub fn followed_by(dims: &Extents, window: &[u64]) -> Extents {
    dims.all().chain(window.iter().map(|n| Extent::from(*n))).collect()
}

/// Row-major reinterpretation of `from` as `to`, of the same size.
pub fn reshape(from: &(impl Axes + ?Sized), to: &(impl Axes + Ranges + ?Sized)) -> View {
    let offset = linearize(&vars(to.rank()), to);
    View { map: delinearize(&offset, from, to), fill: None }
}

/// Output axis `i` is operand axis `perm[i]`.
pub fn permute(perm: &[usize]) -> View {
    let mut map = vec![Index::default(); perm.len()];
    for (i, &axis) in perm.iter().enumerate() {
        map[axis] = Index::var(i as u32);
    }
    View { map, fill: None }
}

/// Repeats axes of extent 1, right-aligned.
pub fn broadcast(from: &(impl Axes + ?Sized), to: &(impl Axes + ?Sized)) -> View {
    let lead = to.rank() - from.rank();
    let map = from.each().enumerate().map(|(i, n)| match n == 1 && to.extent(lead + i) != 1 {
        true => Index::constant(0),
        false => Index::var((lead + i) as u32),
    });
    View { map: map.collect(), fill: None }
}

/// `in[starts[i] + steps[i]·d_i]` along every axis.
pub fn strided<S: Into<Extent> + Copy>(starts: &[S], steps: &[i64]) -> View {
    let map = starts.iter().zip(steps).enumerate();
    View { map: map.map(|(i, (&s, &k))| Index::var(i as u32).scale(k).offset(s.into())).collect(), fill: None }
}

/// Prim of a view.
pub fn view_prim(view: View) -> Prim {
    Prim::View(Arc::new(view))
}

/// The least value of a type: the neutral element of the maximum.
pub fn lowest(dtype: DType) -> Scalar {
    match dtype {
        d if d.is_float() => Scalar::from_f64(d, f64::NEG_INFINITY),
        DType::I64 => Scalar::i64(i64::MIN),
        d if d.is_signed_int() => Scalar::from_i64(d, -(1i64 << (d.size() * 8 - 1))),
        d => Scalar::zero(d),
    }
}

/// Primitives as methods of the builder; every shape is given or follows from the operand.
pub trait Build {
    fn fail(&self, why: impl Into<String>) -> Diagnostic;
    fn dims(&self, v: Value) -> Result<Extents>;
    fn view(&mut self, x: Value, view: View, dims: impl Into<Extents>) -> Result<Value>;
    fn reshaped(&mut self, x: Value, dims: impl Into<Extents>) -> Result<Value>;
    fn permuted(&mut self, x: Value, perm: &[usize]) -> Result<Value>;
    /// `len` elements from `start` along one axis.
    fn slice_axis(&mut self, x: Value, axis: usize, start: impl Into<Extent>, len: impl Into<Extent>) -> Result<Value>;
    /// Element-wise over `dims`; f16 and bf16 operands arrive as f32, and a f32 result is rounded
    /// to `dtype`.
    fn map_as(
        &mut self,
        inputs: &[Value],
        dtype: DType,
        dims: impl Into<Extents>,
        f: impl FnOnce(&ScalarBuilder, &[Ex]) -> Ex,
    ) -> Result<Value>;
    fn reduced(&mut self, x: Value, reduction: Reduction) -> Result<Value>;
    fn contract(&mut self, lhs: Value, rhs: Value, contraction: Contraction) -> Result<Value>;
    fn gathered(&mut self, data: Value, indices: Value, axis: usize) -> Result<Value>;
    fn concat(&mut self, parts: &[Value], axis: usize) -> Result<Value>;
    fn kernel(&mut self, kernel: Result<Kernel, OpError>, inputs: &[Value], types: &[DenseType]) -> Result<Vec<Value>>;
    fn converted(&mut self, x: Value, to: DType) -> Result<Value>;
}

/// The operands of an element-wise function, halves as f32.
fn map_arguments(graph: &Builder<'_>, b: &ScalarBuilder, inputs: &[Value]) -> Result<Vec<Ex>> {
    inputs.iter().map(|&v| Ok(widen(&b.input(graph.ty(v)?.dtype)))).collect()
}

/// An element-wise function with the result `out`, rounded to `ty` if that is a half.
fn finish_map(graph: &mut Builder<'_>, b: &ScalarBuilder, out: &Ex, inputs: &[Value], ty: DenseType) -> Result<Value> {
    let out = if out.dtype() == compute_type(ty.dtype) { out.cast(ty.dtype) } else { out.clone() };
    let f = b.finish(&[&out]).map_err(|why| graph.error(DiagnosticCode::Internal, why))?;
    Ok(graph.prim(Prim::Map(Arc::new(f)), inputs, &[ty])?[0])
}

impl Build for Builder<'_> {
    fn fail(&self, why: impl Into<String>) -> Diagnostic {
        self.error(DiagnosticCode::Unsupported, why)
    }

    fn dims(&self, v: Value) -> Result<Extents> {
        Ok(self.ty(v)?.dims)
    }

    fn view(&mut self, x: Value, view: View, dims: impl Into<Extents>) -> Result<Value> {
        let (ty, dims) = (self.ty(x)?, dims.into());
        if view.is_identity(&ty.dims, &dims) {
            return Ok(x);
        }
        Ok(self.prim(view_prim(view), &[x], &[DenseType::new(ty.dtype, dims)])?[0])
    }

    fn reshaped(&mut self, x: Value, dims: impl Into<Extents>) -> Result<Value> {
        let (from, dims) = (self.dims(x)?, dims.into());
        if from.count() != dims.count() {
            return Err(self.error(DiagnosticCode::TypeConflict, format!("{from:?} cannot be reshaped to {dims:?}")));
        }
        let view = reshape(&from, &dims);
        self.view(x, view, dims)
    }

    fn permuted(&mut self, x: Value, perm: &[usize]) -> Result<Value> {
        let from = self.dims(x)?;
        let dims: Extents = perm.iter().map(|&p| from.at(p)).collect();
        self.view(x, permute(perm), dims)
    }

    fn slice_axis(&mut self, x: Value, axis: usize, start: impl Into<Extent>, len: impl Into<Extent>) -> Result<Value> {
        let mut dims = self.dims(x)?;
        let mut map = vars(dims.len());
        map[axis] = map[axis].offset(start.into());
        dims.set(axis, len);
        self.view(x, View { map, fill: None }, dims)
    }

    fn map_as(
        &mut self,
        inputs: &[Value],
        dtype: DType,
        dims: impl Into<Extents>,
        f: impl FnOnce(&ScalarBuilder, &[Ex]) -> Ex,
    ) -> Result<Value> {
        let b = ScalarBuilder::new();
        let args = map_arguments(self, &b, inputs)?;
        let out = f(&b, &args);
        finish_map(self, &b, &out, inputs, DenseType::new(dtype, dims))
    }

    fn reduced(&mut self, x: Value, reduction: Reduction) -> Result<Value> {
        let dims = reduction.output_dims(&self.dims(x)?);
        let dtype = reduction.finish.output_dtypes()[0];
        Ok(self.prim(Prim::Reduce(Arc::new(reduction)), &[x], &[DenseType::new(dtype, &dims)])?[0])
    }

    fn contract(&mut self, lhs: Value, rhs: Value, contraction: Contraction) -> Result<Value> {
        // Only bytes of two kinds meet, and their products are added in i32.
        let (left, right) = (self.ty(lhs)?.dtype, self.ty(rhs)?.dtype);
        let dtype = if left == right { left } else { DType::I32 };
        let dims = contraction.extents.range(..contraction.out_rank);
        Ok(self.prim(Prim::Contract(Arc::new(contraction)), &[lhs, rhs], &[DenseType::new(dtype, &dims)])?[0])
    }

    fn gathered(&mut self, data: Value, indices: Value, axis: usize) -> Result<Value> {
        let (data_ty, index_ty) = (self.ty(data)?, self.ty(indices)?);
        let gather = Gather { axis };
        let dims = gather.output_dims(&data_ty, &index_ty);
        Ok(self.prim(Prim::Gather(gather), &[data, indices], &[DenseType::new(data_ty.dtype, &dims)])?[0])
    }

    fn concat(&mut self, parts: &[Value], axis: usize) -> Result<Value> {
        if let [only] = parts {
            return Ok(*only);
        }
        let mut ty = self.ty(parts[0])?;
        let joined = parts.iter().map(|p| Ok(self.dims(*p)?.at(axis))).sum::<Result<Extent>>()?;
        ty.dims.set(axis, joined);
        Ok(self.prim(Prim::Concat { axis }, parts, &[ty])?[0])
    }

    fn kernel(&mut self, kernel: Result<Kernel, OpError>, inputs: &[Value], types: &[DenseType]) -> Result<Vec<Value>> {
        let kernel = kernel.or_fail(self)?;
        Ok(self.prim(Prim::Kernel(Arc::new(kernel)), inputs, types)?.to_vec())
    }

    fn converted(&mut self, x: Value, to: DType) -> Result<Value> {
        let ty = self.ty(x)?;
        if ty.dtype == to {
            return Ok(x);
        }
        let f = ScalarFn::build(&[ty.dtype], |_, a| vec![a[0].cast(to)]);
        let f = f.map_err(|why| self.error(DiagnosticCode::Internal, why))?;
        Ok(self.prim(Prim::Map(Arc::new(f)), &[x], &[DenseType::new(to, &ty.dims)])?[0])
    }
}

/// `finish(Σ map(x))`; f16 and bf16 accumulate in f32, and `finish` sees the accumulator.
pub fn sum_of(
    dtype: DType,
    axes: &[usize],
    keep_dims: bool,
    map: impl FnOnce(&Ex) -> Ex,
    finish: impl FnOnce(&Ex) -> Ex,
) -> Result<Reduction, OpError> {
    let wide = compute_type(dtype);
    let map = ScalarFn::build(&[dtype], |_, a| vec![map(&a[0].cast(wide))])?;
    let combine = ScalarFn::build(&[wide, wide], |_, a| vec![&a[0] + &a[1]])?;
    let finish = ScalarFn::build(&[wide], |_, a| vec![finish(&a[0])])?;
    Ok(Reduction { axes: axes.to_vec(), keep_dims, init: vec![Scalar::zero(wide)], map, combine, finish })
}

/// The greatest element that is not NaN; of equal zeros the first.
pub fn max_of(dtype: DType, axes: &[usize], keep_dims: bool) -> Result<Reduction, OpError> {
    let wide = compute_type(dtype);
    let map = ScalarFn::build(&[dtype], |_, a| vec![a[0].cast(wide)])?;
    let combine = ScalarFn::build(&[wide, wide], |_, a| vec![a[1].gt(&a[0]).select(&a[1], &a[0])])?;
    let finish = ScalarFn::build(&[wide], |_, a| vec![a[0].cast(dtype)])?;
    Ok(Reduction { axes: axes.to_vec(), keep_dims, init: vec![lowest(wide)], map, combine, finish })
}

/// What is expanded, of which something is not supported.
pub trait Complaint {
    fn unsupported(&self, why: String) -> Diagnostic;
}

impl Complaint for Builder<'_> {
    fn unsupported(&self, why: String) -> Diagnostic {
        self.fail(why)
    }
}

/// Turns an operator's own complaint into a diagnostic at the node being expanded.
pub trait OrFail<T> {
    fn or_fail(self, at: &impl Complaint) -> Result<T>;
}

impl<T> OrFail<T> for Result<T, OpError> {
    fn or_fail(self, at: &impl Complaint) -> Result<T> {
        self.map_err(|OpError(why)| at.unsupported(why))
    }
}

/// An f16 or bf16 value as f32; any other unchanged.
pub fn widen(x: &Ex) -> Ex {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(DType::F32),
        _ => x.clone(),
    }
}
