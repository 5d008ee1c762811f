//! Pooling over regions of interest.

use crate::blocks::in_blocks;
use crate::kernel::coordinates;
use crate::prelude::*;
use crate::rules::open_ranked;
use crate::sampling::{Tap, interpolate};

pub fn ops() -> Vec<OpDef> {
    vec![roi_align(), max_roi_pool()]
}

/// Most samples of a bin along an axis, so that no element of the result takes much more than a tenth of a second.
const MAX_SAMPLES: i64 = 1 << 10;

/// The most samples of a bin along an axis that are counted: a product of two such numbers is within 64 bits.
const MAX_COUNT: f64 = (1u64 << 31) as f64;

/// Channels whose totals an iteration of a kernel for processors keeps.
const MAX_CHANNELS: i64 = 64;

/// One bin of a region along one axis of an image.
struct Bin<'k> {
    /// Where the region begins.
    start: KernelValue<'k>,
    /// The size of every bin of the region.
    size: KernelValue<'k>,
    /// The number of the bin, as a float.
    number: KernelValue<'k>,
    samples: KernelValue<'k>,
    read: SamplesRead<'k>,
    /// The extent of the axis.
    extent: Extent,
}

/// The samples of a bin that are read.
enum SamplesRead<'k> {
    /// As many as `sampling_ratio` says.
    All(i64),
    /// From the first to the second (exclusive). The others lie outside of the image, so that a region, however large
    /// it is, takes no more steps than the image is wide.
    Within([KernelValue<'k>; 2]),
}

/// The bin `at` of `count` bins between the two ends of a region.
fn bin<'k>(
    k: &'k KernelScope,
    ends: [KernelValue<'k>; 2],
    (at, count): (&Index, u64),
    extent: Extent,
    params: &Params,
) -> Bin<'k> {
    let scale = params.float("spatial_scale").unwrap_or(1.0);
    let half_pixel = params.str("coordinate_transformation_mode").unwrap_or("half_pixel") == "half_pixel";
    let shift = if half_pixel { 0.5 } else { 0.0 };
    let [start] = k.eval(&ends[..1], |a| [&a[0] * scale - a[0].lit(shift)]);
    let [size] = k.eval(&ends, |a| {
        let length = (&a[1] - &a[0]) * scale;
        let length = if half_pixel { length } else { length.max(&length.lit(1.0)) };
        [length / a[0].lit(count as f64)]
    });
    let number = k.position(at).cast(start.dtype());
    let (samples, read) = match params.int("sampling_ratio").unwrap_or(0) {
        ratio if ratio > 0 => (k.int(ratio), SamplesRead::All(ratio)),
        _ => {
            let [samples] = k.eval(&[size], |a| [a[0].ceil().min(&a[0].lit(MAX_COUNT))]);
            let within = samples_within(k, [start, size, number, samples], extent);
            (samples.cast(DType::I64), SamplesRead::Within(within))
        }
    };
    Bin { start, size, number, samples, read, extent }
}

/// The samples of a bin that lie within one element of an axis, and two more on either side for what the division
/// rounds. `bin`: start of the region, size and number of the bin, number of samples.
fn samples_within<'k>(k: &'k KernelScope, bin: [KernelValue<'k>; 4], extent: Extent) -> [KernelValue<'k>; 2] {
    let [start, size, number, samples] = bin;
    let extent = k.position(&Index::constant(extent)).cast(start.dtype());
    let ends = k.eval(&[start, size, number, samples, extent], |a| {
        let first = &a[0] + &a[2] * &a[1];
        let step = &a[1] / &a[3];
        [(first.lit(-1.0), -2.5), (a[4].clone(), 3.5)].map(|(edge, margin)| {
            let sample = (edge - &first) / &step + first.lit(margin);
            sample.max(&first.lit(0.0)).min(&a[3])
        })
    });
    ends.map(|end| end.cast(DType::I64))
}

impl<'k> Bin<'k> {
    /// Loops over the samples that are read.
    fn each_read(&self, k: &KernelScope, name: &str, body: impl FnOnce(&Index)) {
        match &self.read {
            SamplesRead::All(count) => k.range(name, (&Index::default(), &Index::constant(*count)), body),
            SamplesRead::Within([first, end]) => k.range(name, (&first.index(), &end.index()), body),
        }
    }

    /// Whether samples outside of the image are not read.
    fn unread(&self) -> Option<KernelValue<'k>> {
        match self.read {
            SamplesRead::All(_) => None,
            SamplesRead::Within([first, end]) => Some(first.gt(0) | end.lt(self.samples)),
        }
    }

    /// The taps of one sample, by the rule of the region operators: nothing beyond one element outside, and clamped to
    /// the axis within.
    fn taps(&self, k: &'k KernelScope, sample: &Index) -> Vec<Tap<'k>> {
        let dtype = self.start.dtype();
        let float = |at: &Index| k.position(at).cast(dtype);
        let [end, last] = [self.extent, self.extent - 1].map(|n| float(&Index::constant(n)));
        let args = [self.start, self.size, self.number, float(sample), self.samples.cast(dtype), end, last];
        let [low, inside, rest, high, also_inside, share] = k.eval(&args, |a| {
            let x = &a[0] + &a[2] * &a[1] + (&a[3] + a[3].lit(0.5)) * &a[1] / &a[4];
            let (end, last) = (&a[5], &a[6]);
            let inside = x.ge(&x.lit(-1.0)) & x.le(end);
            let x = x.max(&x.lit(0.0)).min(last);
            let low = x.floor();
            let high = (&low + low.lit(1.0)).min(last);
            let t = &x - &low;
            [low.cast(DType::I64), inside.clone(), t.lit(1.0) - &t, high.cast(DType::I64), inside, t]
        });
        [(low, inside, rest), (high, also_inside, share)]
            .map(|(at, inside, weight)| Tap { at: at.position(self.extent), inside, weight })
            .into()
    }
}

fn roi_align_body(cx: &NodeCtx<'_>) -> Result<Prim, OpError> {
    let (x, rois, batch, out) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, &cx.outputs[0]);
    let wide = compute_type(x.dtype);
    let image_size = [2, 3].map(|axis| x.dims.at(axis));
    let bins = bin_counts(out);
    let take_max = cx.params.str("mode").is_some_and(|m| m.eq_ignore_ascii_case("max"));
    let k = &KernelScope::new("roi_align");
    let [source, rois, images] = k.inputs(["x", "rois", "batch_indices"], [x, rois, batch]);
    let result = k.output("out", out);
    // Some channels of a bin: what its samples are made of is computed once for all of them.
    let bin = |[roi, row, column]: [&Index; 3], first: &Index, count: i64| {
        let [x1, y1, x2, y2] = corners(rois, roi, wide);
        let image = images.position(roi, x.dims.at(0));
        let rows = bin(k, [y1, y2], (row, bins[0]), image_size[0], cx.params);
        let columns = bin(k, [x1, x2], (column, bins[1]), image_size[1], cx.params);
        let states = k.memory("states", wide, [count as u64], MemorySpace::Stack);
        k.each("c", count, |c| states.set(c, if take_max { f64::NEG_INFINITY } else { 0.0 }));
        each_sample(k, &rows, &columns, |ty, tx| {
            let taps = [ty, tx];
            k.each("c", count, |c| {
                let (lead, old) = ([image.clone(), first.add(c)], states.get(c));
                states.set(
                    c,
                    match take_max {
                        true => corners_max(source, &lead, &taps[0], &taps[1], old),
                        false => old + interpolate(k, source, &lead, &taps, true),
                    },
                );
            });
        });
        let samples = rows.samples * columns.samples;
        k.each("c", count, |c| {
            let state = k.cell("state", wide).holding(states.get(c));
            // A sample outside of the image counts as zero.
            for unread in [rows.unread(), columns.unread()].into_iter().flatten().filter(|_| take_max) {
                let best = state.get();
                state.update(unread, best.max(0.0));
            }
            let total = state.get();
            let value = if take_max { total } else { total / samples.cast(wide) };
            result.set_cast([roi, &first.add(c), row, column], samples.gt(0).select(value, 0.0));
        });
    };
    match cx.grain {
        Grain::Fine => k.parallel(&out.dims, |at| bin([&at[0], &at[2], &at[3]], &at[1], 1)),
        Grain::Coarse => {
            let places = Extents::of([0, 2, 3].map(|axis| out.dims.at(axis)));
            in_blocks(k, (places.count(), out.dims.at(1)), MAX_CHANNELS, |place, first, count| {
                let at = coordinates(place, &places);
                bin([&at[0], &at[1], &at[2]], first, count);
            });
        }
    }
    k.prim()
}

/// The numbers of rows and columns of bins, which are parameters.
fn bin_counts(out: &DenseType) -> [u64; 2] {
    [2, 3].map(|axis| out.dims.at(axis).fixed().max(0) as u64)
}

/// The corners of region `n`: x1, y1, x2, y2.
fn corners<'k>(rois: KernelTensor<'k>, n: &Index, dtype: DType) -> [KernelValue<'k>; 4] {
    [0, 1, 2, 3].map(|i| rois.get_as([n, &Index::constant(i)], dtype))
}

/// Loops over the samples of a bin, with their taps on rows and columns.
fn each_sample<'k>(
    k: &'k KernelScope,
    rows: &Bin<'k>,
    columns: &Bin<'k>,
    body: impl FnOnce(Vec<Tap<'k>>, Vec<Tap<'k>>),
) {
    rows.each_read(k, "iy", |iy| columns.each_read(k, "ix", |ix| body(rows.taps(k, iy), columns.taps(k, ix))));
}

/// The greatest of `old` and the weighted corners of one sample.
fn corners_max<'k>(
    x: KernelTensor<'k>,
    lead: &[Index],
    rows: &[Tap<'k>],
    columns: &[Tap<'k>],
    old: KernelValue<'k>,
) -> KernelValue<'k> {
    let mut best = old;
    for row in rows {
        for column in columns {
            let value = x.get_as(&[lead, &[row.at.clone(), column.at.clone()]].concat(), old.dtype());
            let weighted = value * (row.weight * column.weight);
            let inside = row.inside & column.inside;
            best = best.max(inside.select(weighted, 0.0));
        }
    }
    best
}

fn roi_align() -> OpDef {
    let infer = shape_rule(|cx| {
        let (x, rois, batch) = (open_ranked(cx, 0, 4)?, open_ranked(cx, 1, 2)?, open_ranked(cx, 2, 1)?);
        cx.unify_dims(Dim::Const(4), rois[1], "operand `rois`, axis 1")?;
        cx.unify_dims(rois[0], batch[0], "operand `batch_indices`, axis 0")?;
        let samples = cx.params.int("sampling_ratio").unwrap_or(0);
        reject_if(samples > MAX_SAMPLES, || {
            format!("parameter `sampling_ratio`: expected at most {MAX_SAMPLES}, found {samples}")
        })?;
        let extent = |name: &str| Dim::Const(cx.params.int(name).unwrap_or(1).max(0) as u64);
        let dims = [rois[0], x[1], extent("output_height"), extent("output_width")];
        cx.set_output_dims(0, dims)
    });
    define("roi_align", "Regions of images resampled to a fixed size.", prim(roi_align_body), infer)
        .groups(&["X", "rois"], FLOATS)
        .operand("batch_indices", INDICES)
        .param("mode", "avg", "avg or max of the samples of a bin.")
        .param("coordinate_transformation_mode", "half_pixel", "half_pixel or output_half_pixel.")
        .param("output_height", 1, "")
        .param("output_width", 1, "")
        .param("sampling_ratio", 0, "Samples of a bin along an axis, at most 1024; 0: its extent rounded up.")
        .param("spatial_scale", 1.0, "Elements of X per unit of `rois`.")
        .demand(2, |cx| Ok(Some(Allowed::below(cx.input(0)?.dims.at(0)))))
        .gradient(derivative(roi_align_gradient))
        .onnx("RoiAlign", 10)
        .ulp(16.0)
}

/// The image a region lies in, and the first and last rows and columns (exclusive) of one of its bins: `at` is the
/// region, the bin's row and its column; `bins` are their numbers.
fn pooled_bin<'k>(
    k: &'k KernelScope,
    rois: KernelTensor<'k>,
    at: [&Index; 3],
    (x, bins): (&DenseType, [u64; 2]),
    scale: f64,
) -> (Index, [(Index, Index); 2]) {
    let wide = compute_type(x.dtype);
    let roi = [0, 1, 2, 3, 4].map(|i| rois.get_as([at[0], &Index::constant(i)], wide));
    let image = roi[0].position(x.dims.at(0));
    let range = |axis: usize, first: usize| {
        let (n, m) = (x.dims.at(2 + axis), bins[axis] as f64);
        let [bin, end] = [at[1 + axis].clone(), Index::constant(n)].map(|at| k.position(&at).cast(wide));
        let [low, high] = [0.0, 1.0].map(|side| {
            let [edge] = k.eval(&[roi[first], roi[first + 2], bin, end], |a| {
                let round = |v: &Ex| (v * scale + v.lit(0.5)).floor();
                let (start, end) = (round(&a[0]), round(&a[1]));
                let size = (&end - &start + start.lit(1.0)).max(&start.lit(1.0)) / start.lit(m);
                let at = (&a[2] + a[2].lit(side)) * size;
                let at = if side == 0.0 { at.floor() } else { at.ceil() };
                [(at + &start).max(&start.lit(0.0)).min(&a[3])]
            });
            bounded(&edge.cast(DType::I64).index(), n)
        });
        (low, high)
    };
    (image, [range(0, 2), range(1, 1)])
}

/// The gradient of `max_roi_pool`: that of a bin goes to its first maximum.
fn max_roi_pool_kernel([x, rois, head]: [&DenseType; 3], sums: &DenseType, scale: f64) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("max_roi_pool_gradient");
    let [data, regions, heads] = k.inputs(["x", "rois", "head"], [x, rois, head]);
    let out = k.output("out", sums);
    let (wide, bins) = (sums.dtype, [head.dims[0], head.dims[2], head.dims[3]]);
    k.parallel(&x.dims[1..2], |channel| {
        let channel = &channel[0];
        clear_channel(k, out, channel);
        let (best, place) = (k.cell("best", wide), k.cell("place", DType::I64));
        k.serial(&bins, |at| {
            let (image, [rows, columns]) =
                pooled_bin(k, regions, [&at[0], &at[1], &at[2]], (x, [bins[1], bins[2]]), scale);
            best.set(f64::NEG_INFINITY);
            place.set(-1);
            k.range("y", (&rows.0, &rows.1), |y| {
                k.range("x", (&columns.0, &columns.1), |column| {
                    let here = linearize(&[image.clone(), channel.clone(), y.clone(), column.clone()], &x.dims);
                    let value = data.get_as(&here, wide);
                    let better = value.gt(best.get());
                    let here = k.position(&here);
                    k.when(better, || {
                        best.set(value);
                        place.set(here);
                    });
                });
            });
            let to = place.get();
            let found = to.ge(0);
            let to = to.position(x.len());
            let part = heads.get([&at[0], channel, &at[1], &at[2]]);
            k.when(found, || out.add(&to, part));
        });
    });
    k.finish()
}

/// Zeros in one channel of [n, c, h, w].
fn clear_channel(k: &KernelScope, x: KernelTensor<'_>, channel: &Index) {
    let dims = x.dims();
    k.serial(&[dims[0], dims[2], dims[3]], |at| x.set([&at[0], channel, &at[1], &at[2]], Scalar::zero(x.dtype())));
}

/// The gradient of `roi_align` by averages: that of a bin goes, in equal shares, to its samples.
fn roi_align_kernel(params: &Params, [rois, batch, head, sums]: [&DenseType; 4]) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("roi_align_gradient");
    let [rois, images, heads] = k.inputs(["rois", "batch_indices", "head"], [rois, batch, head]);
    let out = k.output("out", sums);
    let (wide, bin_counts) = (sums.dtype, [head.dims[0], head.dims[2], head.dims[3]]);
    k.parallel(&sums.dims[1..2], |channel| {
        let channel = &channel[0];
        clear_channel(k, out, channel);
        k.serial(&bin_counts, |at| {
            let [x1, y1, x2, y2] = corners(rois, &at[0], wide);
            let image = images.position(&at[0], sums.dims[0]);
            let part = heads.get([&at[0], channel, &at[1], &at[2]]);
            let rows = bin(k, [y1, y2], (&at[1], head.dims[2]), sums.dims.at(2), params);
            let columns = bin(k, [x1, x2], (&at[2], head.dims[3]), sums.dims.at(3), params);
            let count = rows.samples * columns.samples;
            let share = part.cast(wide) / count.cast(wide);
            each_sample(k, &rows, &columns, |ty, tx| {
                for (row, column) in ty.iter().flat_map(|row| tx.iter().map(move |column| (row, column))) {
                    let term = row.weight * column.weight * share;
                    k.when(row.inside & column.inside, || {
                        let to = [&image, channel, &row.at, &column.at].map(Index::clone);
                        out.add(&to[..], term);
                    });
                }
            });
        });
    });
    k.finish()
}

/// Regions receive no gradient, as in MXNet.
fn roi_align_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    if cx.node.params.str("mode").is_some_and(|m| m.eq_ignore_ascii_case("max")) {
        return Err(g.fail("no gradient for parameter `mode` = max"));
    }
    let ([x, rois, batch], head) = (g.operands(), g.head(cx, 0));
    let ty = x.ty()?;
    let sums = DenseType::new(compute_type(ty.dtype), &ty.dims);
    let kernel = roi_align_kernel(cx.node.params, [&rois.ty()?, &batch.ty()?, &head.ty()?, &sums]);
    let part = g.kernel(kernel, &[rois, batch, head], &[sums])?[0];
    Ok(vec![Some(part.convert(ty.dtype)), None, None])
}

/// Regions receive no gradient, as in MXNet.
fn max_roi_pool_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let ([x, rois], head) = (g.operands(), g.head(cx, 0));
    let ty = x.ty()?;
    let sums = DenseType::new(compute_type(ty.dtype), &ty.dims);
    let scale = cx.node.params.float("spatial_scale").unwrap_or(1.0);
    let kernel = max_roi_pool_kernel([&ty, &rois.ty()?, &head.ty()?], &sums, scale);
    let part = g.kernel(kernel, &[x, rois, head], &[sums])?[0];
    Ok(vec![Some(part.convert(ty.dtype)), None])
}

fn max_roi_pool() -> OpDef {
    let compute = prim(|cx| {
        let (x, rois, out) = (cx.input(0)?, cx.input(1)?, &cx.outputs[0]);
        let wide = compute_type(x.dtype);
        let scale = cx.params.float("spatial_scale").unwrap_or(1.0);
        let k = &KernelScope::new("max_roi_pool");
        let [data, regions] = k.inputs(["x", "rois"], [x, rois]);
        let result = k.output("out", out);
        let bins = bin_counts(out);
        k.parallel(&out.dims, |at| {
            let state = k.cell("state", wide);
            let (image, [rows, columns]) = pooled_bin(k, regions, [&at[0], &at[2], &at[3]], (x, bins), scale);
            state.set(f64::NEG_INFINITY);
            k.range("y", (&rows.0, &rows.1), |y| {
                k.range("x", (&columns.0, &columns.1), |column| {
                    let value = data.get_as([&image, &at[1], y, column], wide);
                    state.set(state.get().max(value));
                });
            });
            let best = state.get();
            result.set_cast(at, best.eq(f64::NEG_INFINITY).select(0.0, best));
        });
        k.prim()
    });
    let infer = shape_rule(|cx| {
        let (x, rois) = (ranked(cx, 0, 4)?, ranked(cx, 1, 2)?);
        cx.unify_dims(Dim::Const(5), rois[1], "operand `rois`, axis 1")?;
        let Some([h, w]) = cx.params.ints("pooled_shape").and_then(|s| <[i64; 2]>::try_from(s).ok()) else {
            return Err("parameter `pooled_shape`: expected 2 entries".into());
        };
        cx.set_output_dims(0, [rois[0], x[1], Dim::Const(h.max(0) as u64), Dim::Const(w.max(0) as u64)])
    });
    define("max_roi_pool", "The maximum of every bin of regions of images.", compute, infer)
        .groups(&["X", "rois"], FLOATS)
        .required("pooled_shape", ParamKind::Ints, "Rows and columns of bins.")
        .param("spatial_scale", 1.0, "Elements of X per unit of `rois`.")
        .gradient(derivative(max_roi_pool_gradient))
        .onnx("MaxRoiPool", 1)
}
