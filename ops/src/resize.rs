//! Resampling along axes: resize and upsample.

use crate::prelude::*;
use crate::rules::axes;

pub fn ops() -> Vec<OpDef> {
    vec![resize(), upsample()]
}

/// One resampled axis: `n` elements become `m`, with `scale` output elements per operand element.
#[derive(Clone, Copy, Debug)]
struct ResizedAxis {
    axis: usize,
    n: u64,
    m: u64,
    scale: f64,
    /// The part of the axis that `tf_crop_and_resize` reads, in units of its length.
    roi: (f64, f64),
}

/// The axes that are resampled, or `None` while a shape or value is unknown.
fn plan(
    params: &Params,
    dims: &[u64],
    roi: Option<&TensorData>,
    scales: Option<Vec<f64>>,
    sizes: Option<Vec<i64>>,
) -> Result<Vec<ResizedAxis>, OpError> {
    let listed = match params.ints("axes") {
        Some(list) if !list.is_empty() => axes(list, dims.len())?,
        _ => (0..dims.len()).collect(),
    };
    let roi = roi.map(|r| r.to_f64s()).filter(|r| r.len() == 2 * listed.len());
    let (count, found) = (listed.len(), scales.as_ref().map_or(sizes.as_ref().map_or(0, Vec::len), Vec::len));
    reject_if(found != count, || format!("operands `scales` and `sizes`: expected {count} entries, found {found}"))?;
    let ratio = |i: usize, size: i64| size as f64 / dims[listed[i]] as f64;
    let common = sizes.as_ref().and_then(|sizes| {
        let ratios = sizes.iter().enumerate().map(|(i, s)| ratio(i, *s));
        match params.str("keep_aspect_ratio_policy") {
            Some("not_larger") => ratios.reduce(f64::min),
            Some("not_smaller") => ratios.reduce(f64::max),
            _ => None,
        }
    });
    let mut out = vec![];
    for (i, &axis) in listed.iter().enumerate() {
        let n = dims[axis];
        let (m, scale) = match (&scales, &sizes, common) {
            (Some(s), _, _) => ((n as f64 * s[i]).floor(), s[i]),
            (_, Some(_), Some(c)) => ((n as f64 * c + 0.5).floor(), c),
            (_, Some(s), None) => (s[i] as f64, ratio(i, s[i])),
            _ => (n as f64, 1.0),
        };
        reject_if(n == 0 && m > 0.0, || format!("operand `X`: axis {axis} has no elements to make {m} of"))?;
        let roi = roi.as_ref().map_or((0.0, 1.0), |r| (r[i], r[i + count]));
        out.push(ResizedAxis { axis, n, m: m.max(0.0) as u64, scale, roi });
    }
    Ok(out)
}

/// A factor by which an axis grows is positive and finite.
fn check_scales(scales: &[f64]) -> Result<(), OpError> {
    match scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
        Some(s) => Err(OpError(format!("operand `scales`: expected positive factors, found {s}"))),
        None => Ok(()),
    }
}

/// Scales and sizes: an empty tensor stands for an absent operand.
fn given<T>(values: Option<Vec<T>>) -> Option<Vec<T>> {
    values.filter(|v| !v.is_empty())
}

/// The position on the operand's axis that result element `x` shows.
fn source(a: &ResizedAxis, x: u64, mode: &str) -> Result<f64, OpError> {
    let (n, x, width) = (a.n as f64, x as f64, a.scale * a.n as f64);
    let half_pixel = (x + 0.5) / a.scale - 0.5;
    Ok(match mode {
        "half_pixel" => half_pixel,
        "tf_half_pixel_for_nn" => (x + 0.5) / a.scale,
        "half_pixel_symmetric" => n / 2.0 * (1.0 - a.m as f64 / width) + half_pixel,
        "pytorch_half_pixel" if width == 1.0 => -0.5,
        "pytorch_half_pixel" => half_pixel,
        "align_corners" if width == 1.0 => 0.0,
        "align_corners" => x * (n - 1.0) / (width - 1.0),
        "asymmetric" => x / a.scale,
        "tf_crop_and_resize" => {
            let (start, end) = a.roi;
            let inner = match a.m {
                1 => (end - start) * (n - 1.0) / 2.0,
                _ => x * (end - start) * (n - 1.0) / (width - 1.0),
            };
            inner + start * (n - 1.0)
        }
        other => {
            let name = "coordinate_transformation_mode";
            return Err(OpError(format!("parameter `{name}`: unknown mode `{other}`")));
        }
    })
}

/// The element nearest to a position.
fn nearest(at: f64, mode: &str) -> Result<i64, OpError> {
    let rounded = match mode {
        "round_prefer_floor" => (at - 0.5).ceil(),
        "round_prefer_ceil" => (at + 0.5).floor(),
        "floor" => at.floor(),
        "ceil" => at.ceil(),
        other => return Err(OpError(format!("parameter `nearest_mode`: unknown mode `{other}`"))),
    };
    Ok(rounded as i64)
}

/// The cubic convolution kernel of Keys (1981) with coefficient `a`.
fn keys(x: f64, a: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// A position outside of every axis, to which integers are exact.
const FAR: f64 = 9e15;

/// Operand elements and weights of one result element; elements may lie outside the axis.
type ResizeTaps = Vec<(i64, f64)>;

fn taps(params: &Params, a: &ResizedAxis, x: u64) -> Result<ResizeTaps, OpError> {
    let text = |name: &str, default: &'static str| params.str(name).unwrap_or(default).to_owned();
    let at = source(a, x, &text("coordinate_transformation_mode", "half_pixel"))?;
    if at.is_nan() {
        return Err("operands `roi` and `scales` give no position".into());
    }
    // Elements are counted from here in both directions; so far outside nothing weighs anything.
    let at = at.clamp(-FAR, FAR);
    let coefficient = params.float("cubic_coeff_a").unwrap_or(-0.75);
    // With antialiasing, a kernel that shrinks the operand is stretched to cover what it merges.
    let squeeze = if params.flag("antialias") { a.scale.min(1.0) } else { 1.0 };
    let (reach, cubic) = match text("mode", "nearest").as_str() {
        "nearest" => {
            let rounding = match text("nearest_mode", "round_prefer_floor") {
                by_scale if by_scale == "by_scale" => if a.scale < 1.0 { "ceil" } else { "floor" }.to_owned(),
                named => named,
            };
            return Ok(vec![(nearest(at, &rounding)?, 1.0)]);
        }
        "linear" => (1.0, false),
        "cubic" => (2.0, true),
        other => return Err(OpError(format!("parameter `mode`: unknown mode `{other}`"))),
    };
    let weight = |i: i64| {
        let distance = (i as f64 - at) * squeeze;
        if cubic { keys(distance, coefficient) } else { (1.0 - distance.abs()).max(0.0) }
    };
    let width = 2 * (reach / squeeze).ceil() as i64;
    tabulated(a.m, width as u64)?;
    let first = at.floor() as i64 + (-reach / squeeze).floor() as i64 + 1;
    let last = at.floor() as i64 + (reach / squeeze).ceil() as i64;
    let mut list: ResizeTaps = (first..=last).map(|i| (i, weight(i))).collect();
    let exclude = params.flag("exclude_outside");
    if exclude {
        list.iter_mut().filter(|(i, _)| !(0..a.n as i64).contains(i)).for_each(|t| t.1 = 0.0);
    }
    if exclude || squeeze < 1.0 {
        let sum: f64 = list.iter().map(|t| t.1).sum();
        list.iter_mut().for_each(|t| t.1 /= sum);
    }
    Ok(list)
}

/// Taps of every result element with equal counts, positions clamped to the axis.
fn table(params: &Params, a: &ResizedAxis) -> Result<Vec<ResizeTaps>, OpError> {
    tabulated(a.m, 1)?;
    let mut rows: Vec<ResizeTaps> = (0..a.m).map(|x| taps(params, a, x)).collect::<Result<_, _>>()?;
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    for row in &mut rows {
        row.resize(width, (0, 0.0));
        row.iter_mut().for_each(|t| t.0 = t.0.clamp(0, a.n as i64 - 1));
    }
    // Columns that never weigh anything are left out, but for one.
    let mut used: Vec<usize> = (0..width).filter(|&t| rows.iter().any(|r| r[t].1 != 0.0)).collect();
    if used.is_empty() && width > 0 {
        used.push(0);
    }
    Ok(rows.into_iter().map(|r| used.iter().map(|&t| r[t]).collect()).collect())
}

/// The elements at constant positions along an axis: a view where the positions repeat evenly.
fn pick<'g>(x: Tensor<'g>, axis: usize, at: &[i64]) -> Result<Tensor<'g>> {
    let mut dims = x.dims()?;
    let n = dims[axis] as i64;
    dims.set(axis, at.len());
    let mut map = vars(dims.len());
    let v = Index::var(axis as u32);
    let candidates =
        [v.clone(), v.scale(n / (at.len() as i64).max(1)), v.floor_div((at.len() as i64 / n.max(1)).max(1), &dims[..])];
    for c in candidates {
        if at.iter().enumerate().all(|(i, p)| c.eval(&|_| i as i64) == *p) {
            map[axis] = c;
            return Ok(x.view(map, None, &dims));
        }
    }
    Ok(x.gather(x.graph().i64s(at), axis))
}

/// Above this many taps the sum is a reduction over a gathered axis instead of one expression.
const MAX_INLINE_TAPS: usize = 4;

/// Resamples one axis.
fn resample<'g>(x: Tensor<'g>, a: &ResizedAxis, rows: &[ResizeTaps]) -> Result<Tensor<'g>> {
    let (g, count, ty) = (x.graph(), rows.first().map_or(0, Vec::len), x.ty()?);
    let dtype = ty.dtype;
    let mut dims = ty.dims;
    dims.set(a.axis, a.m);
    let column = |t: usize| rows.iter().map(|r| r[t].0).collect::<Vec<i64>>();
    if a.m == 0 {
        return pick(x, a.axis, &[]);
    }
    if count == 1 && rows.iter().all(|r| r[0].1 == 1.0) {
        return pick(x, a.axis, &column(0));
    }
    let weights = |lead: &[u64], at: &dyn Fn(usize) -> f64| {
        let shape = [lead, &vec![1; dims.len() - a.axis - 1]].concat();
        g.constant(TensorData::from_fn(DenseType::new(dtype, &shape), |i| Scalar::from_f64(dtype, at(i as usize))))
    };
    if count <= MAX_INLINE_TAPS {
        let mut inputs = (0..count).map(|t| pick(x, a.axis, &column(t))).collect::<Result<Vec<_>>>()?;
        inputs.extend((0..count).map(|t| weights(&[a.m], &|i| rows[i][t].1)));
        return Ok(g.map(&inputs, dtype, &dims, |_, v| {
            let products = (0..count).map(|t| &v[t] * &v[count + t]);
            products.reduce(|s, p| s + p).unwrap_or_else(|| v[0].clone())
        }));
    }
    let flat: Vec<i64> = rows.iter().flatten().map(|t| t.0).collect();
    let indices = TensorData::i64s(&[a.m, count as u64], &flat);
    let Some(indices) = indices else { return Err(g.fail("taps do not fill their table")) };
    let taken = x.gather(g.constant(indices), a.axis);
    let w = weights(&[a.m, count as u64], &|i| rows[i / count][i % count].1);
    let product = taken.map_with(&[w], |_, v| &v[0] * &v[1]);
    product.reduced(sum_of(dtype, &[a.axis + 1], false, Ex::clone, Ex::clone))
}

/// Replaces what lies outside the operand by the extrapolation value.
fn extrapolate<'g>(mut y: Tensor<'g>, plan: &[ResizedAxis], value: f64) -> Result<Tensor<'g>> {
    let (g, rank) = (y.graph(), y.dims()?.len());
    for a in plan {
        let outside: Vec<bool> = (0..a.m)
            .map(|x| source(a, x, "tf_crop_and_resize").map(|at| at < 0.0 || at > a.n as f64 - 1.0))
            .collect::<Result<_, _>>()
            .or_fail(&g)?;
        if outside.iter().any(|o| *o) {
            let shape = [&[a.m], &vec![1; rank - a.axis - 1][..]].concat();
            let mask = TensorData::from_fn(DenseType::new(DType::Bool, &shape), |i| Scalar::bool(outside[i as usize]));
            y = y.map_with(&[g.constant(mask)], |_, v| v[1].select(&v[0].lit(value), &v[0]));
        }
    }
    Ok(y)
}

fn plan_of(cx: &NodeCtx<'_>) -> Result<Vec<ResizedAxis>, OpError> {
    let scales = given(cx.value(2).map(|v| v.to_f64s()));
    let sizes = given(cx.value(3).map(|v| v.to_i64s()));
    plan(cx.params, &cx.input(0)?.dims, cx.value(1), scales, sizes)
}

/// By how much each of `rank` axes is repeated, if that is all that nearest interpolation does: where axes grow by whole factors,
/// and positions are rounded to the element that a position lies in.
fn repetitions(params: &Params, scales: Option<&[f64]>, rank: usize) -> Option<Vec<i64>> {
    let text = |name: &str, default: &'static str| params.str(name).unwrap_or(default).to_owned();
    let modes = (
        text("coordinate_transformation_mode", "half_pixel"),
        text("nearest_mode", "round_prefer_floor"),
        text("mode", "nearest"),
    );
    let repeats = matches!(
        (&*modes.0, &*modes.1, &*modes.2),
        ("asymmetric", "floor", "nearest")
            | ("half_pixel" | "pytorch_half_pixel", "round_prefer_floor" | "round_prefer_ceil", "nearest")
    );
    let listed = match params.ints("axes") {
        Some(list) if !list.is_empty() => axes(list, rank).ok()?,
        _ => (0..rank).collect(),
    };
    let scales = scales.filter(|s| repeats && s.len() == listed.len())?;
    let whole = |s: &f64| (s.fract() == 0.0 && (1.0..1e6).contains(s)).then_some(*s as i64);
    let factors = scales.iter().map(whole).collect::<Option<Vec<i64>>>()?;
    let mut all = vec![1; rank];
    listed.into_iter().zip(factors).for_each(|(axis, factor)| all[axis] = factor);
    Some(all)
}

/// Repeats every element along an axis.
pub(crate) fn repeated(x: Tensor<'_>, axis: usize, by: i64) -> Result<Tensor<'_>> {
    let mut dims = x.dims()?;
    dims.set(axis, dims.at(axis) * by);
    let mut map = vars(dims.len());
    map[axis] = map[axis].floor_div(by.max(1), &dims);
    Ok(x.view(map, None, dims))
}

fn resize_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let scales = given(cx.value(2).map(|v| v.to_f64s()));
    if let Some(by) = repetitions(cx.params, scales.as_deref(), cx.outputs[0].rank()) {
        let grown = by.into_iter().enumerate().filter(|(_, by)| *by > 1);
        return grown.into_iter().try_fold(g.operand(0), |x, (axis, by)| repeated(x, axis, by));
    }
    let (plan, x) = (plan_of(cx).or_fail(&g)?, g.operand(0));
    let dtype = x.ty()?.dtype;
    let copies = cx.params.str("mode").unwrap_or("nearest") == "nearest";
    let wide = match compute_type(dtype) {
        d if copies || d.is_float() => d,
        _ => DType::F32,
    };
    let mut y = if copies { x } else { x.convert(wide) };
    for a in &plan {
        y = resample(y, a, &table(cx.params, a).or_fail(&g)?)?;
    }
    if cx.params.str("coordinate_transformation_mode") == Some("tf_crop_and_resize") {
        y = extrapolate(y, &plan, cx.params.float("extrapolation_value").unwrap_or(0.0))?;
    }
    Ok(y.convert(dtype))
}

fn resize_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let scales = given(cx.value(2).map(|v| v.to_f64s()));
    check_scales(scales.as_deref().unwrap_or_default())?;
    let open = cx.open_dims(0);
    if let Some(open) = &open
        && let Some(by) = repetitions(cx.params, scales.as_deref(), open.len())
        && let Some(n) = open.iter().map(|d| d.as_extent()).collect::<Option<Vec<Extent>>>()
    {
        return cx.set_output_dims(0, n.into_iter().zip(by).map(|(n, by)| Dim::of(n * by)));
    }
    let Some(x) = cx.input_dims(0) else { return Ok(()) };
    let sizes = given(ints(cx, 3));
    if scales.is_none() && sizes.is_none() {
        return partial(cx, 0, &vec![None; x.len()]);
    }
    let listed = match cx.params.ints("axes") {
        Some(list) if !list.is_empty() => axes(list, x.len())?,
        _ => (0..x.len()).collect(),
    };
    let known = x.iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>();
    let mut dims: Vec<Option<Dim>> = x.iter().copied().map(Some).collect();
    match known {
        Some(known) => {
            for a in plan(cx.params, &known, None, scales, sizes)? {
                dims[a.axis] = Some(Dim::Const(a.m));
            }
        }
        None => {
            let identity = |i: usize| scales.as_ref().is_some_and(|s| s.get(i) == Some(&1.0));
            (0..listed.len()).filter(|&i| !identity(i)).for_each(|i| dims[listed[i]] = None);
        }
    }
    partial(cx, 0, &dims)
}

fn resize() -> OpDef {
    let doc = "Resamples axes by nearest, linear or cubic interpolation.";
    define("resize", doc, formula(resize_body), shape_rule(resize_rule))
        .operand("X", &[])
        .static_optionals(&["roi", "scales"], FLOATS)
        .static_optionals(&["sizes"], INDICES)
        .param("mode", "nearest", "nearest, linear or cubic.")
        .param("coordinate_transformation_mode", "half_pixel", "How positions correspond.")
        .param(
            "nearest_mode",
            "round_prefer_floor",
            "How a position is rounded; by_scale: up where the axis shrinks, else down.",
        )
        .param("cubic_coeff_a", -0.75, "Coefficient of the cubic kernel.")
        .param("exclude_outside", false, "Give elements outside the operand no weight.")
        .param("extrapolation_value", 0.0, "What tf_crop_and_resize shows outside.")
        .param("antialias", false, "Stretch the kernel when shrinking.")
        .param("keep_aspect_ratio_policy", "stretch", "How `sizes` is met.")
        .maybe("axes", ParamKind::Ints, "The axes that `scales`, `sizes` and `roi` name; default: all.")
        .onnx("Resize", 10)
        .ulp(8.0)
}

fn upsample() -> OpDef {
    let compute = formula(|g, cx| {
        let params = Params::new()
            .with("mode", cx.params.str("mode").unwrap_or("nearest").to_owned())
            .with("coordinate_transformation_mode", "asymmetric")
            .with("nearest_mode", "floor");
        Ok(g.op_multi("resize", &[g.maybe(0), None, g.maybe(1)], params, 1)[0])
    });
    let infer = shape_rule(|cx| {
        rank_in(cx, 1, 1..=1)?;
        let (Some(x), Some(scales)) = (cx.input_dims(0), cx.value(1).map(|v| v.to_f64s())) else { return Ok(()) };
        check_scales(&scales)?;
        if scales.len() != x.len() {
            return Err(OpError(format!("operand `scales`: expected {} entries, found {}", x.len(), scales.len())));
        }
        let dims = x.iter().zip(&scales).map(|(d, s)| match (d, *s) {
            (d, 1.0) => Some(*d),
            (Dim::Const(n), s) => Some(Dim::Const((*n as f64 * s).floor().max(0.0) as u64)),
            _ => None,
        });
        let dims: Vec<Option<Dim>> = dims.collect();
        partial(cx, 0, &dims)
    });
    define("upsample", "Enlarges axes by repetition or linear interpolation.", compute, infer)
        .operand("X", &[])
        .static_operands(&["scales"], FLOATS)
        .param("mode", "nearest", "nearest or linear.")
        .onnx("Upsample", 7)
        .ulp(8.0)
}
