//! Arrays made from little or nothing, and what is known of an array's shape.

use crate::fill::range_len;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![
        filled("mx_zeros", "An array of zeros.", 0.0).named(&["_zeros"]),
        filled("mx_ones", "An array of ones.", 1.0).named(&["_ones"]),
        full(),
        zeros_without_dtype(),
        like("mx_zeros_like", "Zeros in the shape and type of the data.", 0.0).named(&["zeros_like"]),
        like("mx_ones_like", "Ones in the shape and type of the data.", 1.0).named(&["ones_like"]),
        arange(),
        linspace(),
        arange_like(),
        eye(),
        shape_array(),
        size_array(),
        identity_like(),
    ]
}

/// The extents of the parameter `shape`; 0 stands for one that others decide.
fn stated_shape(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let Some(dims) = cx.params.ints("shape").map(<[i64]>::to_vec) else { return Ok(()) };
    let dims: Vec<Option<Dim>> = dims.iter().map(|&n| (n > 0).then_some(Dim::Const(n as u64))).collect();
    partial(cx, 0, &dims)
}

fn dtype_param(def: OpDef) -> OpDef {
    def.ignored(&[("ctx", ParamValue::Str(String::new()))])
        .param("dtype", DType::F32, "The result's type.")
        .no_gradient()
}

fn stated_dtype(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.set_output_dtype(0, cx.params.dtype("dtype").unwrap_or(DType::F32))
}

fn constant(value: impl Fn(&Params) -> f64 + Send + Sync + 'static) -> Compute {
    formula(move |g, cx| {
        let (out, value) = (&cx.outputs[0], value(cx.params));
        Ok(g.map(&[], out.dtype, &out.dims, |s, _| s.number(out.dtype, value)))
    })
}

fn stated() -> Infer {
    rule(|cx| {
        stated_dtype(cx)?;
        stated_shape(cx)
    })
}

fn filled(name: &'static str, doc: &'static str, value: f64) -> OpDef {
    dtype_param(define(name, doc, constant(move |_| value), stated())).param(
        "shape",
        ParamValue::Ints(vec![]),
        "The result's shape; 0 for an extent that its users decide.",
    )
}

fn full() -> OpDef {
    let compute = constant(|params| params.float("value").unwrap_or(0.0));
    dtype_param(define("mx_full", "An array of one number.", compute, stated()))
        .maybe("shape", ParamKind::Ints, "The result's shape; 0 for an extent that its users decide.")
        .required("value", ParamKind::Float, "The number.")
        .named(&["_full"])
}

fn zeros_without_dtype() -> OpDef {
    let infer = rule(|cx| {
        if cx.output_dtype(0).is_none() {
            cx.set_output_dtype(0, DType::F32)?;
        }
        stated_shape(cx)
    });
    let doc = "An array of zeros of the type that its users have, f32 if they do not tell.";
    define("mx_zeros_without_dtype", doc, constant(|_| 0.0), infer)
        .maybe("shape", ParamKind::Ints, "The result's shape; 0 for an extent that its users decide.")
        .ignored(&[("ctx", ParamValue::Str(String::new())), ("dtype", ParamValue::Int(-1))])
        .no_gradient()
        .named(&["_zeros_without_dtype"])
}

fn like(name: &'static str, doc: &'static str, value: f64) -> OpDef {
    let infer = rule(|cx| same(cx, 0, 0));
    define(name, doc, constant(move |_| value), infer).operand("data", &[]).no_gradient()
}

/// Start, step and repetitions of a range.
fn range_of(params: &Params) -> (f64, f64, i64) {
    let float = |name: &str, default| params.float(name).unwrap_or(default);
    let start = match params.float("stop") {
        None if params.bool("infer_range") == Some(false) => 0.0,
        _ => float("start", 0.0),
    };
    (start, float("step", 1.0), params.int("repeat").unwrap_or(1).max(1))
}

/// `start + ⌊i / repeat⌋·step`, computed in f64, where i is the row-major position.
fn ramp(range: impl Fn(&Params) -> (f64, f64, i64) + Send + Sync + 'static) -> Compute {
    formula(move |g, cx| {
        let (out, (start, step, repeat)) = (&cx.outputs[0], range(cx.params));
        Ok(g.map_with_extents(&[], &out.dims, out.dtype, &out.dims, |s, _, extents| {
            let position = row_major(s, extents);
            let position = if repeat == 1 { position } else { position / s.constant(Scalar::i64(repeat)) };
            (position.cast(DType::F64) * step + start).cast(out.dtype)
        }))
    })
}

fn arange() -> OpDef {
    let infer = rule(|cx| {
        stated_dtype(cx)?;
        if cx.params.flag("infer_range") && cx.params.float("stop").is_none() {
            return partial(cx, 0, &[None]);
        }
        let (start, step, repeat) = range_of(cx.params);
        let stop = cx.params.float("stop").or(cx.params.float("start")).unwrap_or(0.0);
        let value = |x: f64| Scalar::from_f64(DType::F64, x);
        let n = range_len(value(start), value(stop), value(step))?;
        cx.set_output_dims(0, [Dim::Const(n * repeat as u64)])
    });
    dtype_param(define("mx_arange", "`start`, `start + step`, … before `stop`, each repeated.", ramp(range_of), infer))
        .required("start", ParamKind::Float, "Without `stop`: the end of a range from 0.")
        .maybe("stop", ParamKind::Float, "The end.")
        .param("step", 1.0, "Distance of elements.")
        .param("repeat", 1, "Repetitions of each element.")
        .within(1.0, i64::MAX as f64)
        .param("infer_range", false, "Without `stop`: as many elements as the result's users need.")
        .named(&["_arange"])
}

fn linspace() -> OpDef {
    let compute = ramp(|params| {
        let float = |name: &str| params.float(name).unwrap_or(0.0);
        let n = params.int("num").unwrap_or(1);
        let parts = if params.bool("endpoint") == Some(false) { n } else { n - 1 };
        let step = if parts > 0 { (float("stop") - float("start")) / parts as f64 } else { 0.0 };
        (float("start"), step, 1)
    });
    let infer = rule(|cx| {
        stated_dtype(cx)?;
        cx.set_output_dims(0, [Dim::Const(cx.params.int("num").unwrap_or(0).max(0) as u64)])
    });
    dtype_param(define("mx_linspace", "Numbers at equal distances from `start` to `stop`.", compute, infer))
        .required("start", ParamKind::Float, "The first.")
        .required("stop", ParamKind::Float, "The last, or what would follow it.")
        .required("num", ParamKind::Int, "How many.")
        .within(0.0, i64::MAX as f64)
        .param("endpoint", true, "`stop` is the last.")
        .named(&["_linspace"])
}

fn arange_like() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(axis) = cx.params.int("axis") else { return agree_shapes(cx, &[0], &[0]) };
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        cx.set_output_dims(0, [x[normalize_axis(axis, x.len())?]])
    });
    let doc = "`start`, `start + step`, …: as many as the data or one of its axes has.";
    define("mx_arange_like", doc, ramp(range_of), infer)
        .operand("data", &[])
        .param("start", 0.0, "The first.")
        .param("step", 1.0, "Distance of elements.")
        .param("repeat", 1, "Repetitions of each element.")
        .within(1.0, i64::MAX as f64)
        .ignored(&[("ctx", ParamValue::Str(String::new()))])
        .maybe("axis", ParamKind::Int, "The axis; default: the shape of the data.")
        .no_gradient()
        .named(&["_contrib_arange_like"])
}

fn eye() -> OpDef {
    let compute = formula(|g, cx| {
        let (out, k) = (&cx.outputs[0], cx.params.int("k").unwrap_or(0));
        Ok(g.map(&[], out.dtype, &out.dims, |s, _| {
            let diagonal = (s.coord(0) + s.constant(Scalar::i64(k))).eq(&s.coord(1));
            diagonal.select(&s.number(out.dtype, 1.0), &s.number(out.dtype, 0.0))
        }))
    });
    let infer = rule(|cx| {
        stated_dtype(cx)?;
        let n = cx.params.int("N").unwrap_or(0).max(0) as u64;
        let m = cx.params.int("M").filter(|m| *m > 0).map_or(n, |m| m as u64);
        cx.set_output_dims(0, [Dim::Const(n), Dim::Const(m)])
    });
    dtype_param(define("mx_eye", "Ones on a diagonal of a matrix.", compute, infer))
        .required("N", ParamKind::Int, "Rows.")
        .param("M", 0, "Columns; 0: as many as rows.")
        .param("k", 0, "Diagonals above the main one.")
        .named(&["_eye"])
}

fn shape_array() -> OpDef {
    let compute = formula(|g, _| {
        let dims: Vec<i64> = g.operand(0).dims()?.iter().map(|n| *n as i64).collect();
        Ok(g.i64s(&dims))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        let Some(rank) = cx.input_shape(0).rank() else { return partial(cx, 0, &[None]) };
        cx.set_output_dims(0, [Dim::Const(rank as u64)])
    });
    define("mx_shape_array", "The extents of the data.", compute, infer)
        .operand("data", &[])
        .no_gradient()
        .named(&["shape_array"])
}

fn size_array() -> OpDef {
    let compute = formula(|g, _| Ok(g.i64s(&[g.operand(0).ty()?.len() as i64])));
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        cx.set_output_dims(0, [Dim::Const(1)])
    });
    define("mx_size_array", "The number of elements of the data.", compute, infer)
        .operand("data", &[])
        .no_gradient()
        .named(&["size_array"])
}

fn identity_like() -> OpDef {
    let compute = calling("identity");
    let infer = shape_rule(|cx| agree_shapes(cx, &[0, 1], &[0]));
    define("mx_identity_with_attr_like_rhs", "lhs, which has the shape of rhs.", compute, infer)
        .operands(&["lhs", "rhs"], &[])
        .named(&["_identity_with_attr_like_rhs"])
}
