//! Operators that cut and join: slice, pad, concat, split, flip, crop.

use crate::prelude::*;
use crate::rules::{axes, axis_of, need_extents};
use crate::views::{strided, view_prim};

pub fn ops() -> Vec<OpDef> {
    vec![slice(), pad(), concat(), split(), flip(), center_crop_pad()]
}

/// What a slice takes along one axis.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub start: Extent,
    pub step: i64,
    pub len: Extent,
}

/// Clamps `start` and `end` as numpy does; `step` is not 0.
pub(crate) fn cut(start: Extent, end: Extent, step: i64, extent: impl Into<Extent>) -> Cut {
    let n = extent.into();
    let wrap = |i: Extent| if i < 0 { i.saturating_add(n) } else { i };
    let (least, most) = if step > 0 { (Extent::ZERO, n) } else { (Extent::of(-1), n - 1) };
    let [start, end] = [start, end].map(|i| wrap(i).greatest(least).least(most));
    let span = if step > 0 { end - start } else { start - end };
    let stride = step.unsigned_abs() as i64;
    let len = if span <= 0 { Extent::ZERO } else { (span - 1).div_floor(stride.max(1)) + 1 };
    Cut { start: start.greatest(0), step, len }
}

/// As [`cut`], but that a `start` before the axis is its first element also where `step` is negative, as ONNX has it.
fn cut_inside(start: Extent, end: Extent, step: i64, extent: Extent) -> Cut {
    let start = if step < 0 { start.greatest(-extent) } else { start };
    cut(start, end, step, extent)
}

/// The (axis, start, end, step) quadruples of a slice.
fn quadruples(
    rank: usize,
    starts: &[Extent],
    ends: &[Extent],
    given: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> Result<Vec<(usize, Extent, Extent, i64)>, OpError> {
    let list = given.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || list.len() != starts.len() || steps.len() != starts.len() {
        return Err("operands `starts`, `ends`, `axes` and `steps` differ in length".into());
    }
    if steps.contains(&0) {
        return Err("operand `steps`: a step is 0".into());
    }
    let list = axes(&list, rank)?;
    Ok((0..starts.len()).map(|i| (list[i], starts[i], ends[i], steps[i])).collect())
}

fn slice() -> OpDef {
    let compute = prim(|cx| {
        let x = cx.input(0)?;
        let (starts, ends) = (need_extents(cx, 1, "starts")?, need_extents(cx, 2, "ends")?);
        let (given, steps) = (cx.value(3).map(|v| v.to_i64s()), cx.value(4).map(|v| v.to_i64s()));
        let (mut from, mut by) = (vec![Extent::ZERO; x.rank()], vec![1; x.rank()]);
        for (axis, start, end, step) in quadruples(x.rank(), &starts, &ends, given, steps)? {
            let c = cut_inside(start, end, step, x.dims.at(axis));
            from[axis] = c.start;
            by[axis] = if c.step == 1 || c.len <= 1 { 1 } else { c.step };
        }
        Ok(view_prim(strided(&from, &by)))
    });
    let infer = shape_rule(|cx| {
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        let unknown = (3..5).any(|i| cx.has_input(i) && cx.value(i).is_none());
        let (Some(starts), Some(ends), false) = (extents(cx, 1), extents(cx, 2), unknown) else {
            // The sliced axes may still be known, which fixes the others.
            let mut dims = vec![None; input.len()];
            if let (true, Some(list)) = (cx.has_input(3), ints(cx, 3)) {
                let cut = axes(&list, input.len())?;
                (0..dims.len()).filter(|i| !cut.contains(i)).for_each(|i| dims[i] = Some(input[i]));
            }
            return partial(cx, 0, &dims);
        };
        let (given, steps) = (ints(cx, 3), ints(cx, 4));
        let mut dims: Vec<Option<Dim>> = input.iter().copied().map(Some).collect();
        for (axis, start, end, step) in quadruples(input.len(), &starts, &ends, given, steps)? {
            dims[axis] = match input[axis].as_extent() {
                Some(n) => Some(Dim::of(cut_inside(start, end, step, n).len)),
                None if start == 0 && step == 1 && end >= i64::from(i32::MAX) => Some(input[axis]),
                None => None,
            };
        }
        partial(cx, 0, &dims)
    });
    let doc = "Elements from `starts` to before `ends` by `steps`, as in numpy, but that a start before the axis is its first \
               element.";
    define("slice", doc, compute, infer)
        .operand("data", &[])
        .static_operands(&["starts", "ends"], INDICES)
        .static_optionals(&["axes", "steps"], INDICES)
        .onnx("Slice", 1)
}

/// (before, after) for every axis.
fn pads_by_axis(rank: usize, pads: &[Extent], given: Option<Vec<i64>>) -> Result<Vec<(Extent, Extent)>, OpError> {
    let list = match given {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * list.len() {
        return Err(OpError(format!("operand `pads`: expected {} entries, found {}", 2 * list.len(), pads.len())));
    }
    let mut out = vec![(Extent::ZERO, Extent::ZERO); rank];
    for (i, &axis) in list.iter().enumerate() {
        out[axis] = (pads[i], pads[i + list.len()]);
    }
    Ok(out)
}

/// The element of an axis of extent `n` that the padded position `at` shows.
fn padded(at: Index, n: Extent, mode: &str, ranges: &Extents) -> Result<Index, OpError> {
    Ok(match mode {
        "constant" => at,
        _ if n == 0 => return Err(OpError(format!("mode `{mode}` cannot pad an empty axis"))),
        "edge" => at.maximum(&Index::constant(0), ranges).minimum(&Index::constant(n - 1), ranges),
        "reflect" if n == 1 => Index::constant(0),
        "reflect" => {
            let period = (n - 1) * 2;
            let phase = at.modulo(period, ranges);
            phase.minimum(&Index::constant(period).sub(&phase), ranges)
        }
        "wrap" => at.modulo(n, ranges),
        other => return Err(OpError(format!("parameter `mode`: unknown mode `{other}`"))),
    })
}

fn pad_prim(cx: &NodeCtx<'_>) -> Result<Prim, OpError> {
    let (x, out) = (cx.input(0)?, &cx.outputs[0]);
    let pads = pads_by_axis(x.rank(), &need_extents(cx, 1, "pads")?, cx.value(3).map(|v| v.to_i64s()))?;
    let mode = cx.params.str("mode").unwrap_or("constant");
    let mut map = vec![];
    for (i, &(before, _)) in pads.iter().enumerate() {
        map.push(match before == 0 && x.dims.at(i) == out.dims.at(i) {
            true => Index::var(i as u32),
            false => padded(Index::var(i as u32).offset(-before), x.dims.at(i), mode, &out.dims)?,
        });
    }
    let value = match cx.value(2) {
        Some(v) => v.item().ok_or_else(|| OpError("operand `constant_value`: expected one element".into()))?,
        None => Scalar::zero(x.dtype),
    };
    let grows = pads.iter().any(|(a, b)| *a > 0 || *b > 0);
    let fill = (mode == "constant" && grows).then(|| value.cast(x.dtype));
    Ok(view_prim(View { map, fill }))
}

fn pad() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        partial(cx, 0, &vec![None; input.len()])?;
        let (Some(pads), false) = (extents(cx, 1), cx.has_input(3) && cx.value(3).is_none()) else { return Ok(()) };
        let pads = pads_by_axis(input.len(), &pads, ints(cx, 3))?;
        let out = output_dims(cx, 0);
        for (i, (before, after)) in pads.into_iter().enumerate() {
            let (sum, what) = (before + after, format!("output, axis {i}"));
            match input[i].as_extent().filter(|_| sum.is_open()) {
                Some(n) => cx.unify_dims(Dim::of(n + sum), out[i], &what)?,
                None if sum == 0 => cx.unify_dims(input[i], out[i], &what)?,
                None => {
                    let add = sum.fixed();
                    cx.relate(Equation::Affine { out: out[i], input: input[i], mul: 1, add, div: 1 })?;
                }
            }
        }
        Ok(())
    });
    define("pad", "Adds elements around the operand; negative pads remove.", prim(pad_prim), infer)
        .operand("data", &[])
        .static_operands(&["pads"], INDICES)
        .optional("constant_value", TypeRule::Any)
        .static_value()
        .static_optionals(&["axes"], INDICES)
        .param("mode", "constant", "constant, reflect, edge or wrap.")
        .onnx("Pad", 1)
        .contrib("Pad")
}

/// Shapes of operands that are joined along `axis`: equal along the other axes, in every direction.
pub(crate) fn joined(cx: &mut InferCtx<'_>, axis: i64) -> Result<(), OpError> {
    let count = cx.input_count();
    let ranked = (0..count).find_map(|i| cx.input_shape(i).rank()).or_else(|| cx.output_shape(0).rank());
    let Some(rank) = ranked else { return Ok(()) };
    let axis = normalize_axis(axis, rank)?;
    partial(cx, 0, &vec![None; rank])?;
    let out = output_dims(cx, 0);
    let mut terms = vec![];
    for i in 0..count {
        if cx.open_dims(i).is_none() {
            let dims: Dims = (0..rank).map(|a| if a == axis { cx.fresh() } else { out[a] }).collect();
            cx.set_input_dims(i, dims)?;
        }
        let Some(dims) = cx.open_dims(i) else { continue };
        if dims.len() != rank {
            let what = cx.input_name(i);
            return Err(OpError(format!("{what}: expected rank {rank}, found rank {}", dims.len())));
        }
        for a in (0..rank).filter(|a| *a != axis) {
            let what = format!("{}, axis {a}", cx.input_name(i));
            cx.unify_dims(out[a], dims[a], &what)?;
        }
        terms.push(dims[axis]);
    }
    cx.relate(Equation::Sum { out: out[axis], terms })
}

fn concat() -> OpDef {
    let compute = prim(|cx| {
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(0), cx.outputs[0].rank())?;
        Ok(Prim::Concat { axis })
    });
    let infer = rule(|cx| {
        (0..cx.input_count()).try_for_each(|i| cx.same_dtype(0, i))?;
        joined(cx, cx.params.int("axis").unwrap_or(0))
    });
    define("concat", "Joins the operands along `axis`.", compute, infer)
        .group("inputs", &[])
        .variadic()
        .required("axis", ParamKind::Int, "")
        .onnx("Concat", 1)
}

/// Sizes of the parts of an axis of extent `n` when they are not given: equal, the last smaller.
fn even_parts(n: Extent, parts: usize) -> Vec<Extent> {
    let chunk = n.div_ceil(parts.max(1));
    (0..parts).map(|i| chunk.least((n - chunk * i).greatest(0))).collect()
}

fn split() -> OpDef {
    let compute = formulas(|g, cx| {
        let axis = axis_of(cx, cx.outputs[0].rank()).or_fail(&g)?;
        let mut start = Extent::ZERO;
        let part = |out: &DenseType| {
            let len = out.dims.at(axis);
            let part = g.operand(0).slice(axis, start, len);
            start = start + len;
            part
        };
        Ok(cx.outputs.iter().map(part).collect())
    });
    let infer = rule(|cx| {
        let count = cx.output_count();
        (0..count).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(0), input.len())?;
        let sizes: Option<Vec<Extent>> = match (extents(cx, 1), input[axis].as_extent()) {
            (Some(list), _) => Some(list.iter().map(|n| n.greatest(0)).collect()),
            (None, Some(n)) if !cx.has_input(1) => Some(even_parts(n, count)),
            _ => None,
        };
        if let Some(sizes) = &sizes
            && sizes.len() != count
        {
            return Err(OpError(format!("operand `split`: expected {count} entries, found {}", sizes.len())));
        }
        let mut terms = vec![];
        for i in 0..count {
            let mut dims: Vec<Option<Dim>> = input.iter().copied().map(Some).collect();
            dims[axis] = sizes.as_ref().map(|s| Dim::of(s[i]));
            partial(cx, i, &dims)?;
            terms.push(output_dims(cx, i)[axis]);
        }
        cx.relate(Equation::Sum { out: input[axis], terms })
    });
    define("split", "Cuts `axis` into consecutive parts.", compute, infer)
        .operand("input", &[])
        .static_optionals(&["split"], INDICES)
        .param("axis", 0, "")
        .maybe("num_outputs", ParamKind::Int, "Number of equal parts (the last may be smaller).")
        .outputs(1, usize::from(u16::MAX))
        .gradient(derivative(|g, cx| {
            let heads: Vec<_> = (0..cx.outputs.len()).map(|i| g.head(cx, i)).collect();
            let axis = axis_of(cx.node, cx.node.outputs[0].rank()).or_fail(&g)?;
            Ok(vec![Some(g.concat(&heads, axis))])
        }))
        .onnx("Split", 1)
}

fn flip() -> OpDef {
    let compute = prim(|cx| {
        let x = cx.input(0)?;
        let mut map = vars(x.rank());
        for axis in axes(cx.params.ints("axis").unwrap_or(&[]), x.rank())? {
            map[axis] = map[axis].scale(-1).offset(x.dims.at(axis).last_position());
        }
        Ok(view_prim(View { map, fill: None }))
    });
    define("flip", "Reverses the given axes.", compute, rule(|cx| same(cx, 0, 0)))
        .operand("data", &[])
        .required("axis", ParamKind::Ints, "")
        .named(&["reverse", "flip"])
}

/// The target extents of a centred crop or pad, by axis.
fn targets(rank: usize, shape: &[i64], given: Option<&[i64]>) -> Result<Vec<(usize, u64)>, OpError> {
    let list = match given {
        Some(list) => axes(list, rank)?,
        None => (0..rank).collect(),
    };
    match list.len() == shape.len() {
        true => Ok(list.into_iter().zip(shape.iter().map(|n| (*n).max(0) as u64)).collect()),
        false => Err(OpError(format!("operand `shape`: expected {} entries, found {}", list.len(), shape.len()))),
    }
}

fn center_crop_pad() -> OpDef {
    let compute = prim(|cx| {
        let (x, out) = (cx.input(0)?, &cx.outputs[0]);
        let map = (0..x.rank()).map(|i| {
            let (from, to) = (x.dims[i] as i64, out.dims[i] as i64);
            // Cropping starts at floor of half the surplus, padding likewise.
            let shift = if from >= to { (from - to) / 2 } else { -((to - from) / 2) };
            Index::var(i as u32).offset(shift)
        });
        let grows = x.dims.iter().zip(&out.dims).any(|(a, b)| b > a);
        Ok(view_prim(View { map: map.collect(), fill: grows.then(|| Scalar::zero(x.dtype)) }))
    });
    let infer = shape_rule(|cx| {
        let (Some(shape), Some(input)) = (ints(cx, 1), cx.input_dims(0)) else { return Ok(()) };
        let given = cx.params.ints("axes").map(<[i64]>::to_vec);
        let mut dims = input.to_vec();
        for (axis, n) in targets(input.len(), &shape, given.as_deref())? {
            dims[axis] = Dim::Const(n);
        }
        cx.set_output_dims(0, dims)
    });
    define("center_crop_pad", "Crops or zero-pads the middle of the operand to a shape.", compute, infer)
        .operand("input_data", &[])
        .static_operands(&["shape"], INDICES)
        .maybe("axes", ParamKind::Ints, "Axes that `shape` names; default: all.")
        .onnx("CenterCropPad", 18)
}
