//! Operators that make tensors from little or nothing: constants, ranges, shapes, triangles.

use crate::prelude::*;
use crate::rules::open_rank_in;

pub fn ops() -> Vec<OpDef> {
    vec![
        constant(),
        constant_of_shape(),
        zeros("zeros", "A tensor of zeros.", 0.0),
        zeros("ones", "A tensor of ones.", 1.0),
        range(),
        arange(),
        eye_like(),
        shape(),
        size(),
        trilu(),
        one_hot(),
    ]
}

/// The value of an ONNX `Constant`.
fn constant_value(params: &Params) -> Result<TensorData, OpError> {
    let list = |n: usize, dtype: DType, at: &dyn Fn(usize) -> Scalar| {
        TensorData::from_fn(DenseType::new(dtype, [n as u64]), |i| at(i as usize))
    };
    if let Some(t) = params.tensor("value") {
        return Ok(t.clone());
    }
    if let Some(x) = params.float("value_float") {
        return Ok(TensorData::scalar(Scalar::f32(x as f32)));
    }
    if let Some(x) = params.int("value_int") {
        return Ok(TensorData::scalar(Scalar::i64(x)));
    }
    if let Some(xs) = params.floats("value_floats") {
        return Ok(list(xs.len(), DType::F32, &|i| Scalar::f32(xs[i] as f32)));
    }
    match params.ints("value_ints") {
        Some(xs) => Ok(list(xs.len(), DType::I64, &|i| Scalar::i64(xs[i]))),
        None => Err("no parameter gives the value".into()),
    }
}

fn constant() -> OpDef {
    let compute = formula(|g, cx| Ok(g.constant(constant_value(cx.params).or_fail(&g)?)));
    let infer = rule(|cx| {
        let ty = constant_value(cx.params)?.ty;
        cx.set_output_dtype(0, ty.dtype)?;
        cx.set_output_dims(0, ty.dims.all().map(Dim::of))
    });
    define("constant", "A constant given as a parameter.", compute, infer)
        .maybe("value", ParamKind::Tensor, "")
        .maybe("value_float", ParamKind::Float, "")
        .maybe("value_int", ParamKind::Int, "")
        .maybe("value_floats", ParamKind::Floats, "")
        .maybe("value_ints", ParamKind::Ints, "")
        .onnx("Constant", 1)
}

/// The element of a filled tensor: the only element of `value`, or an f32 zero.
fn fill_value(params: &Params) -> Result<Scalar, OpError> {
    match params.tensor("value") {
        None => Ok(Scalar::f32(0.0)),
        Some(t) => t.item().ok_or_else(|| "parameter `value`: expected one element".into()),
    }
}

fn constant_of_shape() -> OpDef {
    let compute = formula(|g, cx| {
        let value = fill_value(cx.params).or_fail(&g)?;
        Ok(g.map(&[], value.dtype, &cx.outputs[0].dims, |s, _| s.constant(value)))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, fill_value(cx.params)?.dtype)?;
        match (extents(cx, 0), length(cx, 0)) {
            (Some(dims), _) => {
                if let Some(n) = dims.iter().find(|n| **n < 0) {
                    return Err(OpError(format!("operand `input`: negative extent {n}")));
                }
                cx.set_output_dims(0, dims.into_iter().map(Dim::of))
            }
            (None, Some(rank)) => partial(cx, 0, &vec![None; rank]),
            _ => Ok(()),
        }
    });
    define("constant_of_shape", "A tensor of the given shape with every element `value`.", compute, infer)
        .static_operands(&["input"], INDICES)
        .maybe("value", ParamKind::Tensor, "One element; default: f32 zero.")
        .onnx("ConstantOfShape", 9)
}

fn zeros(name: &'static str, doc: &'static str, value: f64) -> OpDef {
    let compute = formula(move |g, cx| {
        let out = &cx.outputs[0];
        Ok(g.map(&[], out.dtype, &out.dims, |s, _| s.number(out.dtype, value)))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, cx.params.dtype("dtype").unwrap_or(DType::F32))?;
        let dims = cx.params.ints("shape").unwrap_or(&[]).to_vec();
        cx.set_output_dims(0, dims.into_iter().map(|n| Dim::Const(n.max(0) as u64)))
    });
    define(name, doc, compute, infer).required("shape", ParamKind::Ints, "").param("dtype", DType::F32, "")
}

/// `max(ceil((limit - start) / delta), 0)`, in the arithmetic of the operands.
pub(crate) fn range_len(start: Scalar, limit: Scalar, delta: Scalar) -> Result<u64, OpError> {
    reject_if(delta.as_f64() == 0.0, || "operand `delta` is 0")?;
    if start.dtype.is_float() {
        let n = ((limit.as_f64() - start.as_f64()) / delta.as_f64()).ceil();
        return if n.is_finite() { Ok(n.max(0.0) as u64) } else { Err("operands: the range is not finite".into()) };
    }
    let (start, limit, delta) = (start.as_i64() as i128, limit.as_i64() as i128, delta.as_i64() as i128);
    let span = limit - start;
    let n = if (span > 0) == (delta > 0) { (span.abs() + delta.abs() - 1) / delta.abs() } else { 0 };
    Ok(n as u64)
}

/// As [`range_len`], of whole numbers, of which the limit depends on symbols.
fn open_range_len(start: i64, limit: Extent, delta: i64) -> Result<Extent, OpError> {
    reject_if(delta == 0, || "operand `delta` is 0")?;
    let span = if delta > 0 { limit - start } else { -limit + start };
    Ok(span.greatest(0).div_ceil(delta.saturating_abs()))
}

/// `start + i · delta` over elements of `start`'s type, on one axis.
fn counted<'g>(g: GraphScope<'g>, start: Scalar, delta: Scalar, dims: &Extents) -> Tensor<'g> {
    let dtype = start.dtype;
    let wide = compute_type(dtype);
    g.map(&[], dtype, dims, |s, _| s.coord(0).cast(wide) * s.constant(delta.cast(wide)) + s.constant(start.cast(wide)))
}

fn range() -> OpDef {
    let compute = formula(|g, cx| {
        let item = |i: usize| cx.value(i).and_then(TensorData::item);
        match (item(0), item(2)) {
            (Some(start), Some(delta)) => Ok(counted(g, start, delta, &cx.outputs[0].dims)),
            _ => Err(g.fail("operands `start` and `delta` must be scalars known at compile time")),
        }
    });
    let infer = shape_rule(|cx| {
        let item = |i: usize| cx.value(i).and_then(TensorData::item);
        let open = cx.value(1).filter(|limit| limit.is_open()).and_then(|limit| limit.extents().first().copied());
        if let (Some(start), Some(limit), Some(delta)) = (item(0), open, item(2)) {
            let n = open_range_len(start.as_i64(), limit, delta.as_i64())?;
            return cx.set_output_dims(0, [Dim::of(n)]);
        }
        match (item(0), item(1), item(2)) {
            (Some(start), Some(limit), Some(delta)) => {
                let n = range_len(start, limit, delta)?;
                cx.set_output_dims(0, [Dim::Const(n)])
            }
            _ => partial(cx, 0, &[None]),
        }
    });
    define("range", "`start`, `start + delta`, … before `limit`.", compute, infer)
        .group("start", NUMBERS)
        .static_value()
        .group("limit", NUMBERS)
        .static_value()
        .group("delta", NUMBERS)
        .static_value()
        .onnx("Range", 11)
}

/// Start, step and length of an MXNet `arange`.
fn arange_parts(params: &Params) -> Result<(Scalar, Scalar, u64), OpError> {
    let dtype = params.dtype("dtype").unwrap_or(DType::F32);
    let (first, step) = (params.float("start").unwrap_or(0.0), params.float("step").unwrap_or(1.0));
    let (start, stop) = match params.float("stop") {
        Some(stop) => (first, stop),
        None => (0.0, first),
    };
    let value = |x: f64| Scalar::from_f64(DType::F64, x);
    let n = range_len(value(start), value(stop), value(step))?;
    Ok((Scalar::from_f64(dtype, start), Scalar::from_f64(dtype, step), n))
}

fn arange() -> OpDef {
    let compute = formula(|g, cx| {
        let (start, step, n) = arange_parts(cx.params).or_fail(&g)?;
        Ok(counted(g, start, step, &[n].into()))
    });
    let infer = rule(|cx| {
        let (start, _, n) = arange_parts(cx.params)?;
        cx.set_output_dtype(0, start.dtype)?;
        cx.set_output_dims(0, [Dim::Const(n)])
    });
    define("arange", "`start`, `start + step`, … before `stop`, as parameters.", compute, infer)
        .param("start", 0.0, "Without `stop`: the end of a range from 0.")
        .maybe("stop", ParamKind::Float, "")
        .param("step", 1.0, "")
        .param("dtype", DType::F32, "")
}

fn eye_like() -> OpDef {
    let compute = formula(|g, cx| {
        let (out, k) = (&cx.outputs[0], cx.params.int("k").unwrap_or(0));
        let dtype = out.dtype;
        Ok(g.map(&[], dtype, &out.dims, |s, _| {
            let diagonal = (s.coord(0) + s.number(DType::I64, k as f64)).eq(&s.coord(1));
            diagonal.select(&s.number(dtype, 1.0), &s.number(dtype, 0.0))
        }))
    });
    let infer = rule(|cx| {
        dtype_or_first(cx, "dtype")?;
        match cx.input_shape(0).rank() {
            Some(2) => cx.copy_shape(0, 0),
            Some(rank) => Err(OpError(format!("operand `input`: expected rank 2, found rank {rank}"))),
            None => Ok(()),
        }
    });
    define("eye_like", "Ones on a diagonal of a matrix of the operand's shape.", compute, infer)
        .operand("input", &[])
        .maybe("dtype", ParamKind::DType, "Default: the operand's.")
        .param("k", 0, "Diagonals above the main one.")
        .onnx("EyeLike", 9)
}

/// The half-open range of axes a `Shape` lists.
fn shape_range(params: &Params, rank: usize) -> std::ops::Range<usize> {
    let r = rank as i64;
    let clamp = |i: i64| (if i < 0 { i + r } else { i }).clamp(0, r) as usize;
    let start = clamp(params.int("start").unwrap_or(0));
    start..clamp(params.int("end").unwrap_or(r)).max(start)
}

fn shape() -> OpDef {
    let compute = formula(|g, cx| {
        let dims = g.operand(0).dims()?;
        Ok(g.extents(&dims.range(shape_range(cx.params, dims.len()))))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        let Some(rank) = cx.input_shape(0).rank() else { return partial(cx, 0, &[None]) };
        let len = shape_range(cx.params, rank).len();
        cx.set_output_dims(0, [Dim::Const(len as u64)])
    });
    define("shape", "The extents of the operand's axes `start..end`.", compute, infer)
        .operand("data", &[])
        .param("start", 0, "")
        .maybe("end", ParamKind::Int, "Default: the rank.")
        .onnx("Shape", 1)
}

fn size() -> OpDef {
    let compute = formula(|g, _| {
        let count = g.operand(0).dims()?.count();
        Ok(g.extents(&Extents::from_iter([count])).reshape([]))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        cx.set_output_dims(0, [])
    });
    define("size", "The number of elements of the operand.", compute, infer).operand("data", &[]).onnx("Size", 1)
}

/// Diagonals farther from the main one are the same as this one.
const FARTHEST: f64 = (1 << 30) as f64;

fn trilu() -> OpDef {
    let compute = formula(|g, cx| {
        let upper = cx.params.bool("upper").unwrap_or(true);
        let dims = &cx.outputs[0].dims;
        let [row, column] = [2, 1].map(|from_end| dims.len() - from_end);
        // Vectors of words have twice the lanes.
        let words = [row, column].iter().all(|axis| dims.at(*axis).is_surely_below(FARTHEST as i64));
        let index = if words { DType::I32 } else { DType::I64 };
        let near = |k: &Ex| k.max(&k.lit(-FARTHEST)).min(&k.lit(FARTHEST));
        let k = g.maybe(1).map(|k| k.reshape([])).map(|k| if words { k.map(near) } else { k }.cast(index));
        Ok(g.operand(0).map_with(&Vec::from_iter(k), |s, a| {
            let edge = s.coord(row).cast(index);
            let edge = a.get(1).map_or(edge.clone(), |k| &edge + k);
            let column = s.coord(column).cast(index);
            let keep = if upper { column.ge(&edge) } else { column.le(&edge) };
            keep.select(&a[0], &a[0].lit(0.0))
        }))
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        open_rank_in(cx, 0, 2..=usize::MAX)?;
        one_element(cx, 1)
    });
    define("trilu", "The upper or lower triangle of the last two axes; zero elsewhere.", compute, infer)
        .operand("input", &[])
        .optional("k", TypeRule::OneOf(INDICES))
        .param("upper", true, "")
        .onnx("Trilu", 14)
        .contrib("Trilu")
}

fn one_hot() -> OpDef {
    let compute = formula(|g, cx| {
        let (indices, values, out) = (g.operand(0), g.operand(2), &cx.outputs[0]);
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(-1), out.rank()).or_fail(&g)?;
        let dims = indices.dims()?;
        let (before, after) = (dims.range(..axis), dims.range(axis..));
        let dims: Extents = before.all().chain([Extent::ONE]).chain(after.all()).collect();
        let inputs = [indices.reshape(&dims), values.slice(0, 0, 1), values.slice(0, 1, 1)];
        let depth = Extents::of([out.dims.at(axis)]);
        Ok(g.map_with_extents(&inputs, &depth, out.dtype, &out.dims, |s, a, depth| {
            let i = a[0].cast(DType::I64);
            let i = i.lt(&i.lit(0.0)).select(&(&i + &depth[0]), &i);
            i.eq(&s.coord(axis)).select(&a[2], &a[1])
        }))
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 2)?;
        one_element(cx, 1)?;
        shaped(cx, 2, &[Dim::Const(2)])?;
        let depth = cx.value(1).and_then(|v| v.iter().next()).map(|s| Dim::Const(s.as_i64().max(0) as u64));
        let Some(indices) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(-1), indices.len() + 1)?;
        let mut dims: Vec<Option<Dim>> = indices.iter().copied().map(Some).collect();
        dims.insert(axis, depth);
        partial(cx, 0, &dims)
    });
    define("one_hot", "`values[1]` where the new axis equals the index, else `values[0]`.", compute, infer)
        .operands(&["indices", "depth"], NUMBERS)
        .static_value()
        .operand("values", &[])
        .param("axis", -1, "Position of the new axis.")
        .onnx("OneHot", 9)
}
