//! Reductions over chosen axes, positions of extremes, running sums.
//!
//! There are no arrays of rank 0: where every axis is reduced the result has one of extent 1.

use crate::prelude::*;
use crate::rules::selected;

pub fn ops() -> Vec<OpDef> {
    let sums = vec![
        reduction("mx_sum", "Σ x.", "reduce_sum", None).named(&["sum", "sum_axis"]),
        reduction("mx_mean", "(Σ x) / count.", "reduce_mean", None).named(&["mean"]),
        reduction("mx_prod", "Π x.", "reduce_prod", None).named(&["prod"]),
        reduction("mx_nansum", "Σ x, NaN counting as 0.", "reduce_sum", Some(0.0)).named(&["nansum"]),
        reduction("mx_nanprod", "Π x, NaN counting as 1.", "reduce_prod", Some(1.0)).named(&["nanprod"]),
        reduction("mx_max", "The greatest; its gradient goes to all equal ones.", "reduce_max", None)
            .named(&["max", "max_axis"]),
        reduction("mx_min", "The least; its gradient goes to all equal ones.", "reduce_min", None)
            .named(&["min", "min_axis"]),
        reduction("mx_square_sum", "Σ x².", "reduce_sum_square", None).named(&["_square_sum"]),
    ];
    let positions = vec![
        position("mx_argmax", "Position of the first greatest element, in the type of the data.", "argmax")
            .named(&["argmax"]),
        position("mx_argmin", "Position of the first least element, in the type of the data.", "argmin")
            .named(&["argmin"]),
        argmax_channel(),
    ];
    [sums, positions, vec![norm(), cumsum()]].into_iter().flatten().collect()
}

/// The axes of a reduction's result: those reduced have extent 1 or are dropped.
pub fn kept(x: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    let axis = |(i, d): (usize, &Dim)| match (axes.contains(&i), keep) {
        (false, _) => Some(*d),
        (true, true) => Some(Dim::Const(1)),
        (true, false) => None,
    };
    let dims: Vec<Dim> = x.iter().enumerate().filter_map(axis).collect();
    if dims.is_empty() { vec![Dim::Const(1)] } else { dims }
}

fn axes_of(params: &Params, rank: usize) -> Result<Vec<usize>, OpError> {
    selected(params.ints("axis"), params.flag("exclude"), rank)
}

/// States the result's axes from those of the data.
fn reduced(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let Some(x) = cx.open_dims(0) else { return Ok(()) };
    let axes = axes_of(cx.params, x.len())?;
    let dims = kept(&x, &axes, cx.params.flag("keepdims"));
    cx.set_output_dims(0, dims)
}

fn axis_params(def: OpDef) -> OpDef {
    let def = def.maybe("axis", ParamKind::Ints, "Axes that are reduced; default: all.");
    def.param("keepdims", false, "Keep reduced axes with extent 1.")
}

fn reduction(name: &'static str, doc: &'static str, entry: &'static str, instead_of_nan: Option<f64>) -> OpDef {
    let compute = formula(move |g, cx| {
        let mut x = g.operand(0);
        let ty = x.ty()?;
        let axes = axes_of(cx.params, ty.rank()).or_fail(&g)?;
        if let (Some(value), true) = (instead_of_nan, ty.dtype.is_float()) {
            x = x.map(|x| x.ne(x).select(&x.lit(value), x));
        }
        Ok(x.reduce(entry, &axes).reshaped(&cx.outputs[0].dims))
    });
    let infer = shape_rule(reduced);
    axis_params(define(name, doc, compute, infer).operand("data", NUMBERS))
        .param("exclude", false, "Reduce all axes but those.")
        .ulp(2.0)
}

fn norm() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, out) = (g.operand(0), &cx.outputs[0]);
        let axes = axes_of(cx.params, x.dims()?.len()).or_fail(&g)?;
        let entry = if cx.params.int("ord") == Some(1) { "reduce_l1" } else { "reduce_l2" };
        Ok(x.widened().reduce(entry, &axes).reshaped_to(out))
    });
    // Of the square root x / ‖x‖, 0 at the origin.
    let gradient = derivative(|g, cx| {
        let (x, head) = (g.operand(0), g.head(cx, 0));
        let ty = x.ty()?;
        let axes = axes_of(cx.node.params, ty.rank()).or_fail(&g)?;
        let extent = |i: usize| if axes.contains(&i) { Extent::ONE } else { ty.dims.at(i) };
        let shaped: Extents = (0..ty.rank()).map(extent).collect();
        let results = [head, g.value(cx.outputs[0])].map(|v| v.reshaped(&shaped)).map(|v| v.cast(ty.dtype));
        let first = cx.node.params.int("ord") == Some(1);
        let out = x.map_with(&results, |_, a| {
            let (x, zero) = (&a[0], a[0].lit(0.0));
            if first {
                let below = x.lt(&zero).select(&-&a[1], &zero);
                return x.gt(&zero).select(&a[1], &below);
            }
            a[2].eq(&zero).select(&zero, &(x * &a[1] / &a[2]))
        });
        Ok(vec![Some(out)])
    });
    let infer = rule(|cx| {
        match cx.params.int("ord") {
            None | Some(1 | 2) => {}
            Some(other) => return Err(OpError(format!("parameter `ord` is {other}, expected 1 or 2"))),
        }
        dtype_or_first(cx, "out_dtype")?;
        reduced(cx)
    });
    axis_params(define("mx_norm", "Σ |x| (ord 1) or √Σ x² (ord 2).", compute, infer).operand("data", FLOATS))
        .param("ord", 2, "1 or 2.")
        .maybe("out_dtype", ParamKind::DType, "The result's type, if not the operand's.")
        .gradient(gradient)
        .named(&["norm"])
        .ulp(2.0)
}

/// The data and an axis of it; without one the data flat.
pub fn line(x: Tensor<'_>, axis: Option<i64>) -> Result<(Tensor<'_>, usize)> {
    let ty = x.ty()?;
    match axis {
        Some(axis) => Ok((x, normalize_axis(axis, ty.rank()).or_fail(&x.graph())?)),
        None => Ok((x.reshaped(Extents::from_iter([ty.dims.count()])), 0)),
    }
}

/// The position along an axis of the data, or in the flattened data, as an element of the data's type.
fn found<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, entry: &str, axis: Option<i64>) -> Result<Tensor<'g>> {
    let (x, axis) = line(g.operand(0), axis)?;
    let at = g.op(entry, &[x], Params::new().with("axis", axis as i64).with("keepdims", true));
    Ok(at.reshaped(&cx.outputs[0].dims).cast(x.ty()?.dtype))
}

fn position(name: &'static str, doc: &'static str, entry: &'static str) -> OpDef {
    let compute = formula(move |g, cx| found(g, cx, entry, cx.params.int("axis")));
    let infer = shape_rule(|cx| {
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axes = match cx.params.int("axis") {
            Some(axis) => vec![normalize_axis(axis, x.len())?],
            None => (0..x.len()).collect(),
        };
        let dims = kept(&x, &axes, cx.params.flag("keepdims"));
        cx.set_output_dims(0, dims)
    });
    define(name, doc, compute, infer)
        .operand("data", NUMBERS)
        .maybe("axis", ParamKind::Int, "The axis searched; default: the flattened data.")
        .param("keepdims", false, "Keep the axis with extent 1.")
        .no_gradient()
}

fn argmax_channel() -> OpDef {
    let compute = formula(|g, cx| found(g, cx, "argmax", Some(1)));
    let infer = shape_rule(|cx| {
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axis = normalize_axis(1, x.len())?;
        cx.set_output_dims(0, kept(&x, &[axis], false))
    });
    let doc = "Position of the first greatest element along axis 1, in the type of the data.";
    define("mx_argmax_channel", doc, compute, infer).operand("data", NUMBERS).no_gradient().named(&["argmax_channel"])
}

/// The running sums of `x` along the axis of the parameters, from the other end if `reverse`.
fn running<'g>(params: &Params, x: Tensor<'g>, reverse: bool) -> Result<Tensor<'g>> {
    let (flat, axis) = line(x, params.int("axis"))?;
    let axis = x.graph().scalar(Scalar::i64(axis as i64));
    Ok(x.graph().op("cumsum", &[flat, axis], Params::new().with("reverse", reverse)))
}

fn cumsum() -> OpDef {
    let compute = formula(|g, cx| running(cx.params, g.operand(0).cast(cx.outputs[0].dtype), false));
    let gradient = derivative(|g, cx| {
        let sums = running(cx.node.params, g.head(cx, 0), true)?;
        Ok(vec![Some(sums.reshaped_to(&g.operand(0).ty()?))])
    });
    let infer = rule(|cx| {
        dtype_or_first(cx, "dtype")?;
        if cx.params.int("axis").is_some() {
            return agree_shapes(cx, &[0], &[0]);
        }
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let len = x.iter().map(|d| d.as_extent()).product::<Option<Extent>>();
        partial(cx, 0, &[len.map(Dim::of)])
    });
    define("mx_cumsum", "Running sums along an axis, or of the flattened operand.", compute, infer)
        .operand("a", NUMBERS)
        .maybe("axis", ParamKind::Int, "The axis; default: the flattened operand.")
        .maybe("dtype", ParamKind::DType, "The type added in and of the result, if not the operand's.")
        .gradient(gradient)
        .named(&["_np_cumsum", "cumsum"])
        .ulp(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reducing_everything_leaves_one_axis() {
        let x = [Dim::Const(2), Dim::Const(3)];
        assert_eq!(kept(&x, &[0, 1], false), [Dim::Const(1)]);
        assert_eq!(kept(&x, &[0, 1], true), [Dim::Const(1), Dim::Const(1)]);
        assert_eq!(kept(&x, &[0], false), [Dim::Const(3)]);
    }
}
