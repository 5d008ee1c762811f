//! Cutting out and replacing parts, and crops.

use crate::prelude::*;
use crate::slicing::{Cut, cut};
use crate::views::strided;

pub fn ops() -> Vec<OpDef> {
    vec![slice(), slice_axis(), slice_like(), slice_assign(), slice_assign_scalar(), crop(), pad()]
}

/// Begin, end and step along one axis; [`ParamValue::NONE`] where none is given.
type Bounds = (i64, i64, i64);

/// What the bounds take of an axis of extent `n`.
fn taken((begin, end, step): Bounds, n: Extent) -> Cut {
    let step = if step == ParamValue::NONE { 1 } else { step };
    let begin = match (begin, step > 0) {
        (ParamValue::NONE, true) => 0,
        (ParamValue::NONE, false) => i64::MAX,
        (begin, _) => begin,
    };
    let end = match (end, step > 0) {
        (ParamValue::NONE, true) => i64::MAX,
        (ParamValue::NONE, false) => i64::MIN,
        (end, _) => end,
    };
    cut(begin.into(), end.into(), step, n)
}

/// Bounds by axis from the parameters `begin`, `end` and `step`; axes not named are taken whole.
fn bounds(params: &Params, rank: usize) -> Result<Vec<Bounds>, OpError> {
    let list = |name: &str| params.ints(name).unwrap_or(&[]);
    let (begin, end, step) = (list("begin"), list("end"), list("step"));
    if begin.len() != end.len() || begin.len() > rank || !(step.is_empty() || step.len() == begin.len()) {
        return Err(OpError(format!(
            "parameters `begin`, `end` and `step`: {}, {} and {} entries for an operand of rank {rank}",
            begin.len(),
            end.len(),
            step.len()
        )));
    }
    reject_if(step.contains(&0), || "parameter `step`: a step is 0")?;
    let none = ParamValue::NONE;
    let at = |list: &[i64], i: usize| list.get(i).copied().unwrap_or(none);
    Ok((0..rank).map(|i| (at(begin, i), at(end, i), at(step, i))).collect())
}

/// What the bounds take of every axis.
fn cuts(bounds: &[Bounds], dims: &Extents) -> Vec<Cut> {
    bounds.iter().zip(dims.all()).map(|(bounds, n)| taken(*bounds, n)).collect()
}

fn sliced<'g>(x: Tensor<'g>, bounds: &[Bounds], out: &Extents) -> Result<Tensor<'g>> {
    let cuts = cuts(bounds, &x.dims()?);
    let starts: Vec<Extent> = cuts.iter().map(|c| c.start).collect();
    let steps: Vec<i64> = cuts.iter().map(|c| if c.len <= 1 { 1 } else { c.step }).collect();
    Ok(x.view(strided(&starts, &steps).map, None, out))
}

fn sliced_rule(cx: &mut InferCtx<'_>, x: &[Dim], bounds: &[Bounds]) -> Result<(), OpError> {
    let whole = |b: &Bounds| {
        matches!(b.0, 0 | ParamValue::NONE) && b.1 == ParamValue::NONE && matches!(b.2, 1 | ParamValue::NONE)
    };
    let dims: Vec<Option<Dim>> = x
        .iter()
        .zip(bounds)
        .map(|(d, bounds)| match d.as_extent() {
            _ if whole(bounds) => Some(*d),
            Some(n) => Some(Dim::of(taken(*bounds, n).len)),
            None => None,
        })
        .collect();
    partial(cx, 0, &dims)
}

fn begin_end_step(def: OpDef) -> OpDef {
    def.required("begin", ParamKind::Ints, "First position by axis; None: the end that the step comes from.")
        .required("end", ParamKind::Ints, "End by axis; None: beyond the last position.")
        .param("step", ParamValue::Ints(vec![]), "Step by axis; default: 1.")
}

/// An entry that takes what bounds of every axis say.
fn slicing(name: &'static str, doc: &'static str, bounds: fn(&Params, usize) -> Result<Vec<Bounds>, OpError>) -> OpDef {
    let compute = formula(move |g, cx| {
        let out = &cx.outputs[0];
        sliced(g.operand(0), &bounds(cx.params, out.rank()).or_fail(&g)?, &out.dims)
    });
    let infer = shape_rule(move |cx| {
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let bounds = bounds(cx.params, x.len())?;
        sliced_rule(cx, &x, &bounds)
    });
    define(name, doc, compute, infer).operand("data", &[])
}

fn slice() -> OpDef {
    let doc = "Positions from begin to before end by steps, axis by axis.";
    begin_end_step(slicing("mx_slice", doc, bounds)).named(&["slice", "crop"])
}

/// The bounds of a slice along one axis.
fn one_axis(params: &Params, rank: usize) -> Result<Vec<Bounds>, OpError> {
    let none = ParamValue::NONE;
    let mut out = vec![(none, none, none); rank];
    out[normalize_axis(params.int("axis").unwrap_or(0), rank)?] =
        (params.int("begin").unwrap_or(0), params.int("end").unwrap_or(none), none);
    Ok(out)
}

fn slice_axis() -> OpDef {
    slicing("mx_slice_axis", "Positions from begin to before end along one axis.", one_axis)
        .required("axis", ParamKind::Int, "The axis.")
        .required("begin", ParamKind::Int, "First position.")
        .maybe("end", ParamKind::Int, "End; default: that of the axis.")
        .named(&["slice_axis"])
}

fn slice_like() -> OpDef {
    let compute = formula(|g, cx| {
        let out = &cx.outputs[0].dims;
        Ok(g.operand(0).view(vars(out.len()), None, out))
    });
    let infer = shape_rule(|cx| {
        let (Some(x), Some(like)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        let list = cx.params.ints("axes").unwrap_or(&[]).to_vec();
        if list.is_empty() && x.len() != like.len() {
            return Err(OpError(format!("operand `shape_like`: expected rank {}, found rank {}", x.len(), like.len())));
        }
        let own = match list.is_empty() {
            true => (0..x.len()).map(|i| (i, i)).collect(),
            false => list
                .iter()
                .map(|&a| Ok((normalize_axis(a, x.len())?, normalize_axis(a, like.len())?)))
                .collect::<Result<Vec<_>, OpError>>()?,
        };
        let mut dims = x.to_vec();
        for (axis, from) in own {
            if let (Some(n), Some(most)) = (like[from].as_extent(), x[axis].as_extent())
                && n > most
            {
                return Err(OpError(format!("operand `shape_like`, axis {from}: {n} exceeds the data's {most}")));
            }
            dims[axis] = like[from];
        }
        cx.set_output_dims(0, dims)
    });
    let doc = "The first positions, as many as the other operand has, along the given axes.";
    define("mx_slice_like", doc, compute, infer)
        .operands(&["data", "shape_like"], &[])
        .param("axes", ParamValue::Ints(vec![]), "Axes that are cut; default: all.")
        .named(&["slice_like"])
}

/// Whether the element at the coordinates is one of those a slice takes. Of each axis, `bounds` has the first position and how
/// many positions the slice spans.
fn inside(s: &ScalarBuilder, cuts: &[Cut], bounds: &[Ex]) -> Option<Ex> {
    let int = |n: i64| s.constant(Scalar::i64(n));
    let along = |(axis, (c, bounds)): (usize, (&Cut, &[Ex; 2]))| {
        let away = (s.coord(axis) - &bounds[0]) * int(c.step.signum());
        let step = c.step.abs();
        let ok = away.ge(&int(0)) & away.lt(&bounds[1]);
        if step == 1 { ok } else { ok & (&away % int(step)).eq(&int(0)) }
    };
    cuts.iter().zip(bounds.as_chunks().0).enumerate().map(along).reduce(|all, ok| all & ok)
}

/// The operand with the elements of a slice replaced by those of another array, or by a number.
fn assigned<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let x = g.operand(0);
    let ty = x.ty()?;
    let cuts = cuts(&bounds(cx.params, ty.rank()).or_fail(&g)?, &ty.dims);
    let ends: Extents = cuts.iter().flat_map(|c| [c.start, c.len * c.step.abs()]).collect();
    let replaced = |operands: &[Tensor<'g>], new: &dyn Fn(&[Ex]) -> Ex| {
        g.map_with_extents(operands, &ends, ty.dtype, &ty.dims, |s, a, ends| match inside(s, &cuts, ends) {
            Some(inside) => inside.select(&new(a), &a[0]),
            None => new(a),
        })
    };
    let Some(rhs) = g.maybe(1) else {
        let number = cx.params.float("scalar").unwrap_or(0.0);
        return Ok(replaced(&[x], &|a| a[0].lit(number)));
    };
    let map = vars(ty.rank()).into_iter().zip(&cuts).map(|(at, c)| {
        let (step, away) = (c.step.abs(), at.offset(-c.start).scale(c.step.signum()));
        // A remainder moves the position beyond the end, where the view fills.
        let beyond = away.modulo(step, &ty.dims).scale(c.len + 1);
        away.floor_div(step, &ty.dims).add(&beyond)
    });
    let spread = rhs.view(map.collect(), Some(Scalar::zero(ty.dtype)), &ty.dims);
    Ok(replaced(&[x, spread], &|a| a[1].clone()))
}

fn slice_assign() -> OpDef {
    let compute = formula(assigned);
    let infer = rule(|cx| {
        agree_dtypes(cx, &[0, 1], &[0])?;
        agree_shapes(cx, &[0], &[0])?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let bounds = bounds(cx.params, x.len())?;
        let known: Option<Vec<Extent>> = x.iter().map(|d| d.as_extent()).collect();
        let Some(known) = known else { return Ok(()) };
        let dims = known.iter().zip(&bounds).map(|(n, bounds)| Dim::of(taken(*bounds, *n).len));
        cx.set_input_dims(1, dims)
    });
    let def = define("mx_slice_assign", "lhs with the elements of a slice replaced by rhs.", compute, infer);
    begin_end_step(def.operands(&["lhs", "rhs"], &[])).named(&["_slice_assign", "_crop_assign"])
}

fn slice_assign_scalar() -> OpDef {
    let compute = formula(assigned);
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        bounds(cx.params, x.len()).map(|_| ())
    });
    let def =
        define("mx_slice_assign_scalar", "The data with the elements of a slice replaced by a number.", compute, infer);
    begin_end_step(def.operand("data", &[]))
        .param("scalar", 0.0, "The number.")
        .named(&["_slice_assign_scalar", "_crop_assign_scalar"])
}

fn two(params: &Params, name: &str) -> [i64; 2] {
    match params.ints(name) {
        Some([a, b]) => [*a, *b],
        _ => [0, 0],
    }
}

/// Where a crop of the given size begins along each spatial axis.
fn corner(params: &Params, from: [u64; 2], to: [u64; 2]) -> Result<[u64; 2], OpError> {
    let offset = two(params, "offset");
    let mut out = [0; 2];
    for i in 0..2 {
        reject_if(to[i] > from[i], || format!("a crop of {} exceeds the data's {}", to[i], from[i]))?;
        out[i] = match params.bool("center_crop") {
            Some(true) => (from[i] - to[i]) / 2,
            _ => offset[i].max(0) as u64,
        };
        if out[i] + to[i] > from[i] {
            return Err(OpError(format!("parameter `offset`: {} + {} exceeds the data's {}", out[i], to[i], from[i])));
        }
    }
    Ok(out)
}

fn crop() -> OpDef {
    let compute = formula(|g, cx| {
        let (from, to) = (g.operand(0).dims()?, &cx.outputs[0].dims);
        let at = corner(cx.params, [from[2], from[3]], [to[2], to[3]]).or_fail(&g)?;
        Ok(g.operand(0).view(strided(&[0, 0, at[0] as i64, at[1] as i64], &[1; 4]).map, None, to))
    });
    let infer = shape_rule(|cx| {
        reject_if(cx.input_count() > 2, || format!("{} operands given, at most 2 expected", cx.input_count()))?;
        let x = ranked(cx, 0, 4)?;
        let size = match cx.has_input(1) {
            true => match cx.input_dims(1) {
                Some(like) if like.len() == 4 => [like[2], like[3]],
                Some(like) => return Err(OpError(format!("operand 1: expected rank 4, found rank {}", like.len()))),
                None => return Ok(()),
            },
            false => two(cx.params, "h_w").map(|n| Dim::Const(n.max(0) as u64)),
        };
        cx.set_output_dims(0, [x[0], x[1], size[0], size[1]])
    });
    let doc = "A part of images [n, c, h, w]: as large as a second operand, or of the size `h_w`.";
    define("mx_crop", doc, compute, infer)
        .operand("arg", &[])
        .variadic()
        .param("offset", vec![0, 0], "Where the part begins.")
        .param("h_w", vec![0, 0], "Height and width, without a second operand.")
        .param("center_crop", false, "The part in the middle.")
        .named(&["Crop"])
}

fn pad() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0);
        let widths = widths(cx.params, cx.outputs[0].rank()).or_fail(&g)?;
        let list: Vec<i64> = widths.iter().map(|w| w.0).chain(widths.iter().map(|w| w.1)).collect();
        let (pads, value) = (g.i64s(&list), x.number(cx.params.float("constant_value").unwrap_or(0.0)));
        let mode = cx.params.str("mode").unwrap_or("constant").to_owned();
        Ok(g.op("pad", &[x, pads, value], Params::new().with("mode", mode)))
    });
    let infer = shape_rule(|cx| {
        let given = cx.params.ints("pad_width").map_or(0, <[i64]>::len) / 2;
        let x = open_ranked(cx, 0, given)?;
        let widths = widths(cx.params, x.len())?;
        partial(cx, 0, &vec![None; x.len()])?;
        let out = output_dims(cx, 0);
        for (i, (before, after)) in widths.into_iter().enumerate() {
            let add = before + after;
            if let (Some(n), Some("reflect")) = (cx.resolve(x[i]).as_extent(), cx.params.str("mode"))
                && before.max(after) > 0
                && n <= before.max(after)
            {
                return Err(OpError(format!(
                    "parameter `pad_width`: axis {i} of {n} elements cannot be reflected so far"
                )));
            }
            cx.relate(tensorc_ir::dim::Equation::Affine { out: out[i], input: x[i], mul: 1, add, div: 1 })?;
        }
        Ok(())
    });
    define("mx_pad", "Adds elements around the data: a constant, the outermost ones, or mirrored ones.", compute, infer)
        .operand("data", &[])
        .required("mode", ParamKind::Choice(&["constant", "edge", "reflect"]), "Which elements are added.")
        .required("pad_width", ParamKind::Ints, "Elements before and after, axis by axis.")
        .param("constant_value", 0.0, "The constant.")
        .named(&["Pad", "pad"])
}

/// Elements added before and after each axis.
fn widths(params: &Params, rank: usize) -> Result<Vec<(i64, i64)>, OpError> {
    match params.ints("pad_width") {
        Some(list) if list.len() == 2 * rank && list.iter().all(|n| *n >= 0) => {
            Ok(list.chunks_exact(2).map(|p| (p[0], p[1])).collect())
        }
        _ => Err(OpError(format!("parameter `pad_width`: expected {} numbers of at least 0", 2 * rank))),
    }
}
