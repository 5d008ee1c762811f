//! Images brought to another size, and the patches under a sliding window.

use crate::prelude::*;
use crate::resize::repeated;

pub fn ops() -> Vec<OpDef> {
    vec![adaptive_avg_pooling(), bilinear_resize(), up_sampling()]
}

/// What each result position along an axis takes from each operand position: a matrix [m, n].
type AxisWeights = fn(u64, u64) -> Vec<Vec<f64>>;

/// The images [n, c, h, w] with both spatial axes multiplied by weights: two contractions that read little
/// where extents are small, and that differentiate into two more.
fn resampled<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, weights: AxisWeights) -> Result<Tensor<'g>> {
    let out = &cx.outputs[0];
    let wide = compute_type(out.dtype);
    let mut x = g.operand(0).cast(wide);
    for axis in [3, 2] {
        let (mut dims, m) = (x.dims()?, out.dims.at(axis).fixed() as u64);
        let n = dims.at(axis).fixed() as u64;
        let table = weights(n, m);
        let table = g.constant(TensorData::from_fn(DenseType::new(wide, [m, n]), |i| {
            Scalar::from_f64(wide, table[(i / n.max(1)) as usize][(i % n.max(1)) as usize])
        }));
        dims.set(axis, m);
        let extents: Extents = dims.all().chain([n.into()]).collect();
        let v = vars(extents.len());
        let mut lhs = v[..4].to_vec();
        lhs[axis] = v[4].clone();
        let rhs = vec![v[axis].clone(), v[4].clone()];
        x = x.contract(table, Contraction::new(extents, 4, lhs, rhs));
    }
    Ok(x.cast(out.dtype))
}

/// The mean over `⌊i·n/m⌋ .. ⌈(i + 1)·n/m⌉`.
fn means(n: u64, m: u64) -> Vec<Vec<f64>> {
    let row = |i: u64| {
        let (from, to) = (i * n / m, ((i + 1) * n).div_ceil(m));
        (0..n).map(|j| if (from..to).contains(&j) { 1.0 / (to - from) as f64 } else { 0.0 }).collect()
    };
    (0..m).map(row).collect()
}

/// Between two neighbours, the first and last positions of either side on each other.
fn corners(n: u64, m: u64) -> Vec<Vec<f64>> {
    let step = if m > 1 { (n as f64 - 1.0) / (m as f64 - 1.0) } else { 0.0 };
    taps(n, m, |i| i * step)
}

/// Between two neighbours, the middles of either side on each other.
fn centres(n: u64, m: u64) -> Vec<Vec<f64>> {
    let step = n as f64 / m as f64;
    taps(n, m, |i| ((i + 0.5) * step - 0.5).max(0.0))
}

fn taps(n: u64, m: u64, position: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
    let row = |i: u64| {
        let at = position(i as f64);
        let low = (at.floor() as u64).min(n.saturating_sub(1));
        let high = (low + 1).min(n.saturating_sub(1));
        let share = at - low as f64;
        let mut row = vec![0.0; n as usize];
        row[low as usize] += 1.0 - share;
        row[high as usize] += share;
        row
    };
    (0..m).map(row).collect()
}

fn images(cx: &mut InferCtx<'_>, size: [Dim; 2]) -> Result<(), OpError> {
    let x = open_ranked(cx, 0, 4)?;
    cx.set_output_dims(0, [x[0], x[1], size[0], size[1]])
}

/// As [`images`]; an axis without elements is refused, since nothing can be interpolated.
fn interpolated(cx: &mut InferCtx<'_>, size: [Dim; 2]) -> Result<(), OpError> {
    let x = open_ranked(cx, 0, 4)?;
    for (axis, n) in [(2, size[0]), (3, size[1])] {
        let missing = x[axis] == Dim::Const(0) && n != Dim::Const(0);
        reject_if(missing, || format!("operand `data`: axis {axis} has no elements to interpolate"))?;
    }
    images(cx, size)
}

fn adaptive_avg_pooling() -> OpDef {
    let compute = formula(|g, cx| resampled(g, cx, means));
    let infer = shape_rule(|cx| {
        let size = match cx.params.ints("output_size") {
            None | Some([]) => [1, 1],
            Some([side]) => [*side; 2],
            Some([h, w]) => [*h, *w],
            Some(list) => {
                return Err(OpError(format!("parameter `output_size`: expected 2 entries, found {}", list.len())));
            }
        };
        let size = [extent(size[0].max(1), "output_size")?, extent(size[1].max(1), "output_size")?];
        images(cx, size)
    });
    let doc = "The mean of parts of images [n, c, h, w], as many as asked for.";
    define("mx_adaptive_avg_pooling_2d", doc, compute, infer)
        .operand("data", FLOATS)
        .param("output_size", ParamValue::Ints(vec![]), "Height and width, or both; default: 1.")
        .named(&["_contrib_AdaptiveAvgPooling2D"])
        .ulp(4.0)
}

/// The height and width of a resized image, by mode.
fn resized(params: &Params, from: [u64; 2]) -> Result<[u64; 2], OpError> {
    let given = [params.int("height"), params.int("width")];
    let scales = [params.float("scale_height"), params.float("scale_width")];
    let mut out = [0; 2];
    for i in 0..2 {
        let n = from[i];
        let scale =
            || scales[i].ok_or_else(|| OpError("parameters `scale_height` and `scale_width` are needed".into()));
        out[i] = match params.str("mode") {
            Some("odd_scale") if n.is_multiple_of(2) => (n as f64 * scale()?) as u64,
            Some("odd_scale") => ((n - 1) as f64 * scale()?) as u64 + 1,
            Some("to_even_down") => n - n % 2,
            Some("to_even_up") => n + n % 2,
            Some("to_odd_down") => n.saturating_sub(1 - n % 2),
            Some("to_odd_up") => n + (1 - n % 2),
            _ => match scales[i] {
                Some(scale) => (n as f64 * scale) as u64,
                None => given[i].unwrap_or(1).max(1) as u64,
            },
        };
    }
    Ok(out)
}

fn bilinear_resize() -> OpDef {
    let compute = formula(|g, cx| {
        let weights = if cx.params.bool("align_corners") == Some(false) { centres } else { corners };
        resampled(g, cx, weights)
    });
    let infer = shape_rule(|cx| {
        if cx.params.str("mode") == Some("like") {
            let like = match cx.open_dims(1) {
                Some(like) if like.len() == 4 => [like[2], like[3]],
                Some(like) => {
                    return Err(OpError(format!("operand `like`: expected rank 4, found rank {}", like.len())));
                }
                None => return Ok(()),
            };
            return interpolated(cx, like);
        }
        let x = open_ranked(cx, 0, 4)?;
        let (Some(h), Some(w)) = (x[2].as_const(), x[3].as_const()) else {
            let fixed = cx.params.str("mode") == Some("size") && cx.params.float("scale_height").is_none();
            if !fixed {
                return partial(cx, 0, &[Some(x[0]), Some(x[1]), None, None]);
            }
            let size = resized(cx.params, [0, 0])?;
            return interpolated(cx, size.map(Dim::Const));
        };
        let size = resized(cx.params, [h, w])?;
        interpolated(cx, size.map(Dim::Const))
    });
    const MODES: &[&str] = &["like", "odd_scale", "size", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"];
    define("mx_bilinear_resize_2d", "Images [n, c, h, w] in another size, by bilinear interpolation.", compute, infer)
        .operand("data", FLOATS)
        .optional("like", TypeRule::Any)
        .present(|params, _| params.str("mode") == Some("like"))
        .param("height", 1, "Height of the result.")
        .param("width", 1, "Width of the result.")
        .maybe("scale_height", ParamKind::Float, "Factor of the height, in place of `height`.")
        .maybe("scale_width", ParamKind::Float, "Factor of the width, in place of `width`.")
        .choice("mode", MODES, "size", "Where the size comes from.")
        .param("align_corners", true, "Corners on corners, not middles on middles.")
        .named(&["_contrib_BilinearResize2D"])
        .ulp(4.0)
}

fn scale_of(params: &Params) -> u64 {
    params.int("scale").unwrap_or(1).max(1) as u64
}

fn bilinear(params: &Params) -> bool {
    params.str("sample_type") == Some("bilinear")
}

/// Repeats rows and columns.
fn nearest<'g>(x: Tensor<'g>, size: &Extents) -> Result<Tensor<'g>> {
    let dims = x.dims()?;
    if dims.len() != 4 {
        return x.graph().check(Err(OpError(format!("images have four axes, found {dims:?}"))));
    }
    [2, 3].into_iter().try_fold(x, |x, axis| {
        let factor = size.at(axis - 2).div_floor(dims.at(axis).as_divisor());
        repeated(x, axis, factor.greatest(1).fixed())
    })
}

/// Kernel, stride and pad of the transposed convolution that interpolates.
fn bilinear_params(params: &Params) -> Params {
    let scale = scale_of(params) as i64;
    let pair = |n: i64| ParamValue::Ints(vec![n, n]);
    let filters = params.int("num_filter").unwrap_or(0);
    Params::new()
        .with("kernel", pair(2 * scale - scale % 2))
        .with("stride", pair(scale))
        .with("pad", pair(scale / 2))
        .with("num_filter", filters)
        .with("num_group", filters)
        .with("no_bias", true)
}

fn up_sampling_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    if bilinear(cx.params) {
        return Ok(g.op("mx_deconvolution", &g.operands::<2>(), bilinear_params(cx.params)));
    }
    let size = &cx.outputs[0].dims.range(2..);
    let parts = g.given().into_iter().map(|x| nearest(x, size)).collect::<Result<Vec<_>>>()?;
    Ok(match (&parts[..], cx.params.str("multi_input_mode")) {
        ([only], _) => *only,
        (_, Some("sum")) => g.op("mx_add_n", &parts, Params::new()),
        _ => g.op("concat", &parts, Params::new().with("axis", 1)),
    })
}

/// The shapes of operands that become `scale` times the first: together, or one after the other.
fn nearest_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let scale = scale_of(cx.params);
    let sum = cx.params.str("multi_input_mode") == Some("sum");
    let x = open_ranked(cx, 0, 4)?;
    let (Some(h), Some(w)) = (x[2].as_extent(), x[3].as_extent()) else { return Ok(()) };
    let size = [h * scale, w * scale];
    let mut channels = Some(Extent::ZERO);
    for i in (0..cx.input_count()).filter(|i| *i != 1) {
        let Some(dims) = cx.open_dims(i) else { return Ok(()) };
        reject_if(dims.len() != 4, || format!("{}: expected rank 4, found rank {}", cx.input_name(i), dims.len()))?;
        for (axis, n) in size.iter().enumerate() {
            if let Some(own) = dims[2 + axis].as_extent()
                && (own == 0 || !own.divides(*n))
            {
                return Err(OpError(format!("{}, axis {}: {n} is no multiple of {own}", cx.input_name(i), 2 + axis)));
            }
        }
        channels = match (channels, dims[1].as_extent()) {
            (Some(_), Some(n)) if sum => Some(n),
            (Some(sum), Some(n)) => Some(sum + n),
            _ => None,
        };
    }
    let Some(channels) = channels else { return Ok(()) };
    cx.set_output_dims(0, [x[0], Dim::of(channels), Dim::of(size[0]), Dim::of(size[1])])
}

fn up_sampling() -> OpDef {
    let infer = rule(|cx| {
        let inputs: Vec<usize> = (0..cx.input_count()).filter(|&i| cx.has_input(i)).collect();
        agree_dtypes(cx, &inputs, &[0])?;
        if !bilinear(cx.params) {
            return nearest_rule(cx);
        }
        let filters = extent(cx.params.int("num_filter").unwrap_or(0), "num_filter")?;
        let scale = scale_of(cx.params);
        let kernel = Dim::Const(2 * scale - scale % 2);
        cx.set_input_dims(1, [filters, Dim::Const(1), kernel, kernel])?;
        let x = open_ranked(cx, 0, 4)?;
        cx.unify_dims(filters, x[1], "operand `data`, axis 1")?;
        let grown = |d: Dim| d.as_extent().map(|n| Dim::of(n * scale));
        partial(cx, 0, &[Some(x[0]), Some(filters), grown(x[2]), grown(x[3])])
    });
    let doc = "Images [n, c, h, w] enlarged: rows and columns repeated, several operands joined or added; or bilinear, by \
               a transposed convolution with the weight.";
    define("mx_up_sampling", doc, formula(up_sampling_body), infer)
        .group("data", FLOATS)
        .optional("weight", TypeRule::Group(0, FLOATS))
        .optional("arg", TypeRule::Group(0, FLOATS))
        .variadic()
        .present(|params, i| i == 1 && bilinear(params))
        .required("scale", ParamKind::Int, "The factor.")
        .within(1.0, 1000.0)
        .param("num_filter", 0, "Channels, if bilinear.")
        .choice("sample_type", &["bilinear", "nearest"], "nearest", "How elements are made up.")
        .choice("multi_input_mode", &["concat", "sum"], "concat", "What is made of several operands.")
        .maybe("num_args", ParamKind::Int, "Number of operands; no effect.")
        .ignored(&[("workspace", ParamValue::Int(512))])
        .named(&["UpSampling"])
        .ulp(4.0)
}
