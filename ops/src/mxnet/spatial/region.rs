//! Regions of interest: rows of image number and corners.

use super::grid::Pixels;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![roi_pooling(), roi_align()]
}

/// Rows and columns of bins.
fn pooled(params: &Params) -> [u64; 2] {
    match params.ints("pooled_size") {
        Some([h, w]) => [(*h).max(1) as u64, (*w).max(1) as u64],
        Some([n]) => [(*n).max(1) as u64; 2],
        _ => [1, 1],
    }
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    let (Some(data), Some(rois)) = (rank_in(cx, 0, 4..=4)?, rank_in(cx, 1, 2..=2)?) else { return Ok(()) };
    shaped(cx, 1, &[rois[0], Dim::Const(5)])?;
    let [h, w] = pooled(cx.params);
    cx.set_output_dims(0, [rois[0], data[1], Dim::Const(h), Dim::Const(w)])
}

/// Column `i` of the regions as [regions, 1].
pub fn column(rois: Tensor<'_>, i: u64) -> Tensor<'_> {
    rois.slice(1, i, 1)
}

/// The nearest integer; halves go away from zero, as in C.
pub fn half_away(x: &Ex) -> Ex {
    let up = (x.abs() + x.lit(0.5)).floor();
    x.lt(&x.lit(0.0)).select(&-&up, &up)
}

/// First and last position (exclusive) of every bin of every region along an axis of `n`, [regions, bins, 2].
fn edges<'g>(ends: [Tensor<'g>; 2], scale: f64, bins: u64, n: u64) -> Result<Tensor<'g>> {
    let count = ends[0].dims()?[0];
    let inputs = ends.map(|end| end.reshape([count, 1, 1]));
    Ok(inputs[0].graph().map(&inputs, DType::I64, [count, bins, 2], |s, a| {
        let [start, end] = [0, 1].map(|i| half_away(&(&a[i] * scale)));
        // In f64, where a factor in place of the divisor moves no edge.
        let length = (&end - &start + start.lit(1.0)).max(&start.lit(1.0));
        let size = (length.cast(DType::F64) / bins as f64).cast(length.dtype());
        let bin = s.coord(1).cast(size.dtype());
        let low = (&bin * &size).floor();
        let high = ((bin + start.lit(1.0)) * size).ceil();
        let at = s.coord(2).eq(&s.coord(2).lit(0.0)).select(&low, &high) + start;
        at.max(&at.lit(0.0)).min(&at.lit(n as f64)).cast(DType::I64)
    }))
}

/// The position of the greatest element of every bin in the flattened data, -1 for empty bins.
fn greatest(data: &DenseType, places: [&DenseType; 3], found: &DenseType) -> Result<Kernel, OpError> {
    let wide = compute_type(data.dtype);
    let k = &KernelScope::new("roi_argmax");
    let x = k.input("data", data);
    let [image, rows, columns] = k.inputs(["image", "rows", "columns"], places);
    let result = k.output("found", found);
    k.parallel(&found.dims, |at| {
        let (best, place) = (k.cell("best", wide), k.cell("place", DType::I64));
        best.set(lowest(wide));
        place.set(-1);
        let n = image.position(&at[0], data.dims[0]);
        let range = |edges: KernelTensor<'_>, bin: &Index, extent: u64| {
            [0, 1].map(|side| bounded(&edges.get([&at[0], bin, &Index::constant(side)]).index(), extent))
        };
        let (ys, xs) = (range(rows, &at[2], data.dims[2]), range(columns, &at[3], data.dims[3]));
        k.range("y", (&ys[0], &ys[1]), |y| {
            k.range("x", (&xs[0], &xs[1]), |column| {
                let here = linearize(&[n.clone(), at[1].clone(), y.clone(), column.clone()], &data.dims);
                let value = x.get_as(&here, wide);
                let old = best.get();
                let more = value.gt(old);
                let held = place.get();
                let here = k.position(&here);
                let (new, chosen) = (more.select(value, old), more.select(here, held));
                best.set(new);
                place.set(chosen);
            });
        });
        result.set(at, place.get());
    });
    k.finish()
}

fn pooling_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let ([data, rois], out) = (g.operands(), &cx.outputs[0]);
    let scale = cx.params.float("spatial_scale").unwrap_or(1.0);
    let ty = data.ty()?;
    // Which element is the greatest is constant to differentiation; the element is not.
    let [fixed, rois] = [data, rois].map(|x| x.call("stop_gradient", &[]));
    let [image, x1, y1, x2, y2] = [0, 1, 2, 3, 4].map(|i| column(rois, i));
    let image = image.convert(DType::I64);
    let rows = edges([y1, y2], scale, out.dims[2], ty.dims[2])?;
    let columns = edges([x1, x2], scale, out.dims[3], ty.dims[3])?;
    let places = DenseType::new(DType::I64, &out.dims);
    let kernel = greatest(&ty, [&image.ty()?, &rows.ty()?, &columns.ty()?], &places);
    let found = g.kernel(kernel, &[fixed, image, rows, columns], &[places])?[0];
    let from = found.map(|at| at.max(&at.lit(0.0)));
    let values = data.reshape([ty.len()]).gather(from, 0);
    Ok(values.map_with(&[found], |_, a| a[1].ge(&a[1].lit(0.0)).select(&a[0], &a[0].lit(0.0))))
}

fn roi_pooling() -> OpDef {
    let doc = "The maximum of every bin of regions [image, x1, y1, x2, y2] of images; 0 of an empty bin.";
    define("mx_roi_pooling", doc, formula(pooling_body), rule(shapes))
        .groups(&["data", "rois"], FLOATS)
        .required("pooled_size", ParamKind::Ints, "rows and columns of bins")
        .required("spatial_scale", ParamKind::Float, "elements of the data per unit of the regions")
        .mxnet("ROIPooling")
}

/// Sample positions along an axis, [regions, bins · samples], in elements.
fn samples<'g>(cx: &NodeCtx<'_>, ends: [Tensor<'g>; 2], count: u64, dtype: DType) -> Result<Tensor<'g>> {
    let regions = ends[0].dims()?[0];
    let scale = cx.params.float("spatial_scale").unwrap_or(1.0);
    let aligned = cx.params.flag("aligned");
    Ok(ends[0].graph().map(&ends, dtype, [regions, count], |s, a| {
        let shift = a[0].lit(if aligned { 0.5 } else { 0.0 });
        let (start, end) = (&a[0] * scale - &shift, &a[1] * scale - &shift);
        let length = end - &start;
        let length = if aligned { length } else { length.max(&start.lit(1.0)) };
        let step = length / start.lit(count as f64);
        start + (s.coord(1).cast(step.dtype()) + step.lit(0.5)) * step
    }))
}

/// The pixel before or behind a position, and its share; a position beyond the border by more than 1 has none.
fn tap(p: &Ex, n: u64, behind: bool) -> (Ex, Ex) {
    let last = p.lit(n.saturating_sub(1) as f64);
    let outside = p.lt(&p.lit(-1.0)) | p.gt(&p.lit(n as f64));
    let p = p.max(&p.lit(0.0));
    let low = p.floor();
    let at_end = low.ge(&last);
    let fraction = at_end.select(&p.lit(0.0), &(&p - &low));
    let low = low.min(&last);
    let (at, share) = if behind { ((&low + low.lit(1.0)).min(&last), fraction) } else { (low, p.lit(1.0) - fraction) };
    (at, outside.select(&share.lit(0.0), &share))
}

fn align_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let each = cx.params.int("sample_ratio").unwrap_or(-1);
    let (data, rois) = (g.operand(0), g.operand(1).call("stop_gradient", &[]));
    if each <= 0 {
        return Ok(adaptive(cx, data, rois));
    }
    let (each, out) = (each as u64, &cx.outputs[0].dims);
    let (count, h, w) = (out[0], out[2], out[3]);
    let pixels = Pixels::new(data)?;
    let ty = data.ty()?;
    let wide = compute_type(ty.dtype);
    let [image, x1, y1, x2, y2] = [0, 1, 2, 3, 4].map(|i| column(rois, i));
    let ys = samples(cx, [y1, y2], h * each, wide)?;
    let xs = samples(cx, [x1, x2], w * each, wide)?;
    let shape = [count, h * each, w * each];
    let image = image.reshape([count, 1, 1]);
    let ys = ys.reshape([count, h * each, 1]);
    let xs = xs.reshape([count, 1, w * each]);
    let parts = [0, 1, 2, 3].map(|corner| {
        let (right, below) = (corner % 2 == 1, corner / 2 == 1);
        let weight =
            g.map(&[ys, xs], ty.dtype, shape, |_, a| tap(&a[0], ty.dims[2], below).1 * tap(&a[1], ty.dims[3], right).1);
        let pixel = |p, dims: [u64; 3], n: u64, behind: bool| {
            g.map(&[p], DType::I64, dims, |_, a| tap(&a[0], n, behind).0.cast(DType::I64))
        };
        let y = pixel(ys, [count, h * each, 1], ty.dims[2], below);
        let x = pixel(xs, [count, 1, w * each], ty.dims[3], right);
        pixels.weighted([image, y, x], weight, &shape)
    });
    let all = parts[0].call("sum", &parts[1..]).reshape([count, h, each, w, each, ty.dims[1]]);
    Ok(all.mean(&[2, 4]).reshape([count, h, w, ty.dims[1]]).permute(&[0, 3, 1, 2]))
}

/// As many samples as a bin has elements: a kernel, without a gradient.
fn adaptive<'g>(cx: &NodeCtx<'_>, data: Tensor<'g>, rois: Tensor<'g>) -> Tensor<'g> {
    let out = &cx.outputs[0].dims;
    let image = column(rois, 0).reshape(&out[..1]).convert(DType::I64);
    let mode = if cx.params.flag("aligned") { "half_pixel" } else { "output_half_pixel" };
    let params = Params::new()
        .with("coordinate_transformation_mode", mode.to_owned())
        .with("output_height", out[2] as i64)
        .with("output_width", out[3] as i64)
        .with("spatial_scale", cx.params.float("spatial_scale").unwrap_or(1.0));
    data.graph().op("roi_align", &[data, rois.slice(1, 1, 4), image], params)
}

fn roi_align() -> OpDef {
    let infer = rule(|cx| {
        if cx.params.flag("position_sensitive") {
            return Err("parameter `position_sensitive` is not supported".into());
        }
        shapes(cx)
    });
    let doc = "Regions [image, x1, y1, x2, y2] of images resampled bilinearly, the mean of the samples of each bin. \
               Without a number of samples there is no gradient.";
    define("mx_roi_align", doc, formula(align_body), infer)
        .groups(&["data", "rois"], FLOATS)
        .required("pooled_size", ParamKind::Ints, "rows and columns of bins")
        .required("spatial_scale", ParamKind::Float, "elements of the data per unit of the regions")
        .param("sample_ratio", -1, "samples of a bin along an axis; not positive: its extent")
        .param("position_sensitive", false, "Not supported.")
        .param("aligned", false, "whether positions shift by half an element")
        .ulp(64.0)
        .mxnet("_contrib_ROIAlign")
}
