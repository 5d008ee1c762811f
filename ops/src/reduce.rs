//! Reductions.

use crate::prelude::*;

/// Types with an order: every one.
const ORDERED: &[DType] = &DType::COMPUTED;

pub fn ops() -> Vec<OpDef> {
    [sums(), extremes(), positions()].into_iter().flatten().collect()
}

/// A reduction with one accumulator: what an element contributes, how contributions join from
/// `unit` on, and the result.
#[derive(Clone, Copy)]
struct Fold {
    unit: fn(DType) -> Scalar,
    map: fn(&Ex) -> Ex,
    join: fn(&Ex, &Ex) -> Ex,
    finish: fn(&Ex) -> Ex,
}

const SUM: Fold = Fold { unit: Scalar::zero, map: Ex::clone, join: |a, x| a + x, finish: Ex::clone };

/// The type accumulated in.
fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U8,
        other => compute_type(other),
    }
}

impl Fold {
    fn prim(self, x: DType, axes: Vec<usize>, keep_dims: bool) -> Result<Prim, OpError> {
        let wide = accumulator(x);
        let unit = (self.unit)(wide);
        let map = |_: &_, a: &[Ex]| vec![(self.map)(&a[0].cast(wide))];
        let finish = |_: &_, a: &[Ex]| vec![(self.finish)(&a[0]).cast(x)];
        if axes.is_empty() {
            let f = ScalarFn::build(&[x], |b, a| {
                let joined = (self.join)(&b.constant(unit), &map(b, a)[0]);
                finish(b, &[joined])
            })?;
            return Ok(Prim::Map(f.into()));
        }
        let map = ScalarFn::build(&[x], map)?;
        let combine = ScalarFn::build(&[wide, wide], |_, a| vec![(self.join)(&a[0], &a[1])])?;
        let finish = ScalarFn::build(&[wide], finish)?;
        Ok(Prim::Reduce(Reduction { axes, keep_dims, init: vec![unit], map, combine, finish }.into()))
    }
}

/// The axes named by the optional operand 1; all without it, or none if `noop_with_empty_axes`.
fn reduced_axes(params: &Params, given: Option<&TensorData>, rank: usize) -> Result<Vec<usize>, OpError> {
    let given = given.map(TensorData::to_i64s).unwrap_or_default();
    if given.is_empty() && !params.flag("noop_with_empty_axes") {
        return Ok((0..rank).collect());
    }
    let mut axes = given.into_iter().map(|a| normalize_axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

fn set_reduced_dims(cx: &mut InferCtx<'_>, axes: &[usize], keep: bool) -> Result<(), OpError> {
    let Some(dims) = cx.open_dims(0) else { return Ok(()) };
    let kept = dims.iter().enumerate().filter(|(i, _)| keep || !axes.contains(i));
    let dims: Vec<Dim> = kept.map(|(i, d)| if axes.contains(&i) { Dim::Const(1) } else { *d }).collect();
    cx.set_output_dims(0, dims)
}

fn reduced_shape(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let Some(dims) = cx.open_dims(0) else { return Ok(()) };
    let keep = cx.params.bool("keepdims") != Some(false);
    if cx.has_input(1) && cx.value(1).is_none() {
        let unknown: Vec<Dim> = if keep { dims.iter().map(|_| cx.fresh()).collect() } else { return Ok(()) };
        return match cx.output_shape(0).rank() {
            None => cx.set_output_dims(0, unknown),
            Some(_) => Ok(()),
        };
    }
    let axes = reduced_axes(cx.params, cx.value(1), dims.len())?;
    set_reduced_dims(cx, &axes, keep)
}

/// Operands and parameters every reduction shares.
fn reduction_entry(def: OpDef, types: &'static [DType]) -> OpDef {
    def.operand("data", types)
        .static_optionals(&["axes"], INDICES)
        .param("keepdims", true, "keep reduced axes with extent 1")
        .param("noop_with_empty_axes", false, "no axes means none instead of all")
}

fn reduction(name: &'static str, doc: &'static str, types: &'static [DType], fold: Fold) -> OpDef {
    let compute = prim(move |cx| {
        let x = cx.input(0)?;
        let axes = reduced_axes(cx.params, cx.value(1), x.rank())?;
        fold.prim(x.dtype, axes, cx.params.bool("keepdims") != Some(false))
    });
    reduction_entry(define(name, doc, compute, shape_rule(reduced_shape)), types)
}

fn sums() -> Vec<OpDef> {
    let square = |x: &Ex| x * x;
    let sqrt = |a: &Ex| if a.dtype().is_float() { a.sqrt() } else { a.cast(DType::F64).sqrt().cast(a.dtype()) };
    let log = |a: &Ex| if a.dtype().is_float() { a.log() } else { a.cast(DType::F64).log().cast(a.dtype()) };
    vec![
        reduction("reduce_sum", "Σ x.", NUMBERS, SUM).onnx("ReduceSum", 13).ulp(1.0),
        mean(),
        reduction(
            "reduce_prod",
            "Π x.",
            NUMBERS,
            Fold { unit: |d| Scalar::from_f64(d, 1.0), join: |a, x| a * x, ..SUM },
        )
        .onnx("ReduceProd", 18)
        .ulp(1.0),
        reduction("reduce_l1", "Σ |x|.", NUMBERS, Fold { map: Ex::abs, ..SUM }).onnx("ReduceL1", 18).ulp(1.0),
        reduction("reduce_l2", "√Σ x².", NUMBERS, Fold { map: square, finish: sqrt, ..SUM })
            .onnx("ReduceL2", 18)
            .ulp(1.0),
        reduction("reduce_sum_square", "Σ x².", NUMBERS, Fold { map: square, ..SUM })
            .onnx("ReduceSumSquare", 18)
            .ulp(1.0),
        reduction("reduce_log_sum", "ln Σ x.", NUMBERS, Fold { finish: log, ..SUM }).onnx("ReduceLogSum", 18).ulp(2.0),
        log_sum_exp(),
    ]
}

/// The number of elements is an operand where it depends on symbols.
fn mean() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, ty) = (g.operand(0), g.operand(0).ty()?);
        let axes = g.check(reduced_axes(cx.params, cx.value(1), ty.rank()))?;
        if axes.is_empty() {
            return Ok(x);
        }
        let keep_dims = cx.params.bool("keepdims") != Some(false);
        let count = axes.iter().map(|&a| ty.dims.at(a)).product::<Extent>();
        if let Some(n) = count.known() {
            let mean = |sum: &Ex| match sum.dtype().is_float() {
                true => (sum * (1.0 / n as f64)).cast(ty.dtype),
                false => (sum / n as f64).cast(ty.dtype),
            };
            return x.reduced(sum_of(ty.dtype, &axes, keep_dims, Ex::clone, mean));
        }
        let sum = x.reduced(sum_of(ty.dtype, &axes, keep_dims, Ex::clone, Ex::clone))?;
        let (count, out) = (g.extents(&Extents::from_iter([count])).reshape([]), &cx.outputs[0]);
        Ok(g.map(&[sum, count], ty.dtype, &out.dims, |s, a| {
            let (dtype, wide) = (a[0].dtype(), a[1].cast(DType::F64));
            match dtype.is_float() {
                true => &a[0] * (s.number(DType::F64, 1.0) / wide).cast(dtype),
                // A count that the type does not hold is the greatest number of it, as where it is known.
                false => &a[0] / wide.cast(dtype),
            }
        }))
    });
    reduction_entry(
        define("reduce_mean", "Σ x · (1 / count), of integers (Σ x) / count.", compute, shape_rule(reduced_shape)),
        NUMBERS,
    )
    .onnx("ReduceMean", 18)
    .ulp(1.0)
}

/// Exponents are taken relative to the greatest finite element.
fn log_sum_exp() -> OpDef {
    let compute = formula(|g, cx| {
        let ty = g.operand(0).ty()?;
        let axes = g.check(reduced_axes(cx.params, cx.value(1), ty.rank()))?;
        let x = g.operand(0).cast(if ty.dtype.is_float() { compute_type(ty.dtype) } else { DType::F64 });
        let peak = x.reduce("reduce_peak", &axes);
        let peak = peak.call("isinf", &[]).call("where", &[x.number(0.0), peak]);
        let log = (x - peak).exp().sum(&axes).log();
        Ok((log + peak).reshaped(&cx.outputs[0].dims).cast(ty.dtype))
    });
    reduction_entry(
        define("reduce_log_sum_exp", "ln Σ eˣ, without overflow.", compute, shape_rule(reduced_shape)),
        NUMBERS,
    )
    .onnx("ReduceLogSumExp", 18)
    .ulp(2.0)
}

fn least(dtype: DType) -> Scalar {
    match dtype {
        d if d.is_float() => Scalar::from_f64(d, f64::NEG_INFINITY),
        d if d.is_signed_int() => Scalar::from_i64(d, i64::MIN >> (64 - 8 * d.size())),
        d => Scalar::zero(d),
    }
}

fn greatest(dtype: DType) -> Scalar {
    match dtype {
        d if d.is_float() => Scalar::from_f64(d, f64::INFINITY),
        d if d.is_signed_int() => Scalar::from_i64(d, i64::MAX >> (64 - 8 * d.size())),
        d => Scalar::from_i64(d, -1),
    }
}

fn extremes() -> Vec<OpDef> {
    vec![
        reduction("reduce_max", "The greatest; NaN if any is.", ORDERED, Fold { unit: least, join: Ex::max, ..SUM })
            .onnx("ReduceMax", 18),
        reduction("reduce_min", "The least; NaN if any is.", ORDERED, Fold { unit: greatest, join: Ex::min, ..SUM })
            .onnx("ReduceMin", 18),
        reduction(
            "reduce_peak",
            "The greatest that is not NaN: the shift that keeps exponentials in range, which no result depends on. \
             Constant to differentiation.",
            FLOATS,
            Fold { unit: least, join: |a, x| x.gt(a).select(x, a), ..SUM },
        )
        .no_gradient(),
    ]
}

/// The type of positions along an axis: the narrowest that vectors of f32 have as many lanes of, where it holds them all.
pub(crate) fn position_type(extent: Extent) -> DType {
    let fits = Extent::ZERO.is_surely_below(extent) && extent.is_surely_below(i64::from(i32::MAX));
    if fits { DType::I32 } else { DType::I64 }
}

/// Which elements are looked for, and which of equal ones.
#[derive(Clone, Copy)]
pub(crate) struct Extreme {
    pub greatest: bool,
    pub last: bool,
}

impl Extreme {
    /// The positions of such elements of x along an axis, which is kept. NaN beats everything.
    ///
    /// One fold finds the extreme, and one the position: each takes a few instructions on whole vectors, where a fold of
    /// pairs would compare both halves of each pair.
    pub fn positions<'g>(self, g: GraphScope<'g>, x: Tensor<'g>, axis: usize, dtype: DType) -> Result<Tensor<'g>> {
        let ty = x.ty()?;
        let (wide, at) = (compute_type(ty.dtype), position_type(ty.dims.at(axis)));
        let extreme = x.reduce(if self.greatest { "reduce_max" } else { "reduce_min" }, &[axis]);
        let nowhere = if self.last { Scalar::i64(-1).cast(at) } else { greatest(at) };
        let hits = g.map(&[x, extreme], at, &ty.dims, |s, a| {
            let [x, extreme] = [&a[0], &a[1]].map(|v| v.cast(wide));
            let mut hit = x.eq(&extreme);
            if wide.is_float() {
                hit = hit | (x.ne(&x) & extreme.ne(&extreme));
            }
            hit.select(&s.coord(axis).cast(at), &s.constant(nowhere))
        });
        let unary = |f: &dyn Fn(&Ex) -> Ex| ScalarFn::build(&[at], |_, a| vec![f(&a[0])]);
        let join = |_: &ScalarBuilder, a: &[Ex]| vec![if self.last { a[0].max(&a[1]) } else { a[0].min(&a[1]) }];
        let fold = || -> Result<Reduction, OpError> {
            let (map, finish) = (unary(&Ex::clone)?, unary(&|v| v.cast(dtype))?);
            let combine = ScalarFn::build(&[at, at], join)?;
            Ok(Reduction { axes: vec![axis], keep_dims: true, init: vec![nowhere], map, combine, finish })
        };
        hits.reduced(fold())
    }
}

fn positions() -> Vec<OpDef> {
    let entry = |name, doc, greatest| {
        let infer = rule(|cx| {
            cx.set_output_dtype(0, DType::I64)?;
            let Some(dims) = cx.open_dims(0) else { return Ok(()) };
            let axis = normalize_axis(cx.params.int("axis").unwrap_or(0), dims.len())?;
            set_reduced_dims(cx, &[axis], cx.params.bool("keepdims") != Some(false))
        });
        let compute = formula(move |g, cx| {
            let x = g.operand(0);
            let axis = g.check(normalize_axis(cx.params.int("axis").unwrap_or(0), x.ty()?.rank()))?;
            let which = Extreme { greatest, last: cx.params.flag("select_last_index") };
            Ok(which.positions(g, x, axis, DType::I64)?.reshaped(&cx.outputs[0].dims))
        });
        define(name, doc, compute, infer)
            .operand("data", NUMBERS)
            .param("axis", 0, "axis searched")
            .param("keepdims", true, "keep the axis with extent 1")
            .param("select_last_index", false, "the last of equal elements")
    };
    vec![
        entry("argmax", "Position of the greatest element.", true).onnx("ArgMax", 1),
        entry("argmin", "Position of the least element.", false).onnx("ArgMin", 1),
    ]
}
