//! Pooling over regions of interest.

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::nest::{Scalars, buffers, flat, int, kernel_prim, parallel, serial};
use crate::prelude::*;
use crate::sampling::{Tap, interpolate};

pub fn ops() -> Vec<OpDef> {
    vec![roi_align(), max_roi_pool()]
}

/// Scalar arithmetic in kernels on values of one float type.
struct Floats<'k> {
    k: &'k mut KernelBuilder,
    dtype: DType,
}

impl Floats<'_> {
    fn lit(&self, x: f64) -> Operand {
        Operand::Const(Scalar::from_f64(self.dtype, x))
    }

    /// Evaluates a small expression over operands of the type.
    fn eval(&mut self, args: &[Operand], f: impl FnOnce(&[Ex]) -> Ex) -> Result<Operand, OpError> {
        let types = vec![self.dtype; args.len()];
        let f = ScalarFn::build(&types, |_, a| vec![f(a)])?;
        Ok(self.k.apply(&f, args, &[])[0])
    }
}

/// Start and size of a bin of a region along one axis, and the number of samples in it.
struct Bins {
    start: Operand,
    size: Operand,
    samples: Operand,
}

fn bins(f: &mut Floats<'_>, ends: [Operand; 2], count: u64, params: &Params) -> Result<Bins, OpError> {
    let scale = params.float("spatial_scale").unwrap_or(1.0);
    let half_pixel = params.str("coordinate_transformation_mode").unwrap_or("half_pixel") == "half_pixel";
    let shift = if half_pixel { 0.5 } else { 0.0 };
    let start = f.eval(&ends[..1], |a| &a[0] * scale - a[0].lit(shift))?;
    let size = f.eval(&ends, |a| {
        let length = (&a[1] - &a[0]) * scale;
        let length = if half_pixel { length } else { length.max(&length.lit(1.0)) };
        length / a[0].lit(count as f64)
    })?;
    let ratio = params.int("sampling_ratio").unwrap_or(0);
    let samples = match ratio > 0 {
        true => int(ratio),
        false => {
            let n = f.eval(&[size], |a| a[0].ceil())?;
            f.k.cast(n, DType::I64)
        }
    };
    Ok(Bins { start, size, samples })
}

/// The taps of one sample of a bin, by the rule of the region operators: nothing beyond one
/// element outside, and clamped to the axis within.
fn region_taps(
    f: &mut Floats<'_>,
    bins: &Bins,
    (bin, sample): (&Index, &Index),
    extent: u64,
) -> Result<Vec<Tap>, OpError> {
    let (bin, sample) = (f.k.index_value(bin.clone()), f.k.index_value(sample.clone()));
    let args =
        [bins.start, bins.size, f.k.cast(bin, f.dtype), f.k.cast(sample, f.dtype), f.k.cast(bins.samples, f.dtype)];
    let last = extent as f64 - 1.0;
    let expression = ScalarFn::build(&[f.dtype; 5], |_, a| {
        let x = &a[0] + &a[2] * &a[1] + (&a[3] + a[3].lit(0.5)) * &a[1] / &a[4];
        let inside = x.ge(&x.lit(-1.0)) & x.le(&x.lit(extent as f64));
        let x = x.max(&x.lit(0.0)).min(&x.lit(last));
        let low = x.floor();
        let high = (&low + low.lit(1.0)).min(&low.lit(last));
        let t = &x - &low;
        vec![low.cast(DType::I64), inside.clone(), t.lit(1.0) - &t, high.cast(DType::I64), inside, t]
    })?;
    let v = f.k.apply(&expression, &args, &[]);
    let tap = |k: &mut KernelBuilder, v: &[Operand]| Tap { at: k.position(v[0], extent), inside: v[1], weight: v[2] };
    Ok(vec![tap(f.k, &v[..3]), tap(f.k, &v[3..])])
}

fn roi_align_body(cx: &NodeCtx<'_>) -> Result<Prim, OpError> {
    let (x, rois, batch, out) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, &cx.outputs[0]);
    let wide = compute_type(x.dtype);
    let take_max = cx.params.str("mode").is_some_and(|m| m.eq_ignore_ascii_case("max"));
    let mut k = KernelBuilder::new("roi_align");
    let bufs = buffers(&mut k, &[("x", x), ("rois", rois), ("batch_indices", batch)], &[("out", out)]);
    parallel(&mut k, &out.dims, |k, at| {
        let roi = |k: &mut KernelBuilder, i: i64| {
            let v = k.load(bufs[1], flat(&[at[0].clone(), Index::constant(i)], &rois.dims));
            k.cast(v, wide)
        };
        let [x1, y1, x2, y2] = [roi(k, 0), roi(k, 1), roi(k, 2), roi(k, 3)];
        let image = k.load(bufs[2], at[0].clone());
        let lead = [k.position(image, x.dims[0]), at[1].clone()];
        let state = k.alloc("state", wide, 1, MemorySpace::Stack);
        let mut f = Floats { k, dtype: wide };
        let rows = bins(&mut f, [y1, y2], out.dims[2], cx.params)?;
        let columns = bins(&mut f, [x1, x2], out.dims[3], cx.params)?;
        let start = if take_max { f.lit(f64::NEG_INFINITY) } else { f.lit(0.0) };
        f.k.store(state, Index::default(), start);
        let bound = |k: &KernelBuilder, o: Operand| k.as_index(o);
        let (height, width) = (bound(f.k, rows.samples), bound(f.k, columns.samples));
        f.k.for_loop("iy", (Index::default(), height, 1), LoopKind::Serial, |k, iy| {
            k.for_loop("ix", (Index::default(), width.clone(), 1), LoopKind::Serial, |k, ix| {
                let mut f = Floats { k, dtype: wide };
                let ty = region_taps(&mut f, &rows, (&at[2], &iy), x.dims[2])?;
                let tx = region_taps(&mut f, &columns, (&at[3], &ix), x.dims[3])?;
                let old = f.k.load(state, Index::default());
                let new = if take_max {
                    corners_max(&mut f, (bufs[0], x), &lead, &ty, &tx, old)
                } else {
                    let value = interpolate(f.k, (bufs[0], x), &lead, &[ty, tx], true);
                    f.k.bin(ScalarOp::Add, old, value)
                };
                f.k.store(state, Index::default(), new);
                Ok::<(), OpError>(())
            })
        })?;
        let count = f.k.bin(ScalarOp::Mul, rows.samples, columns.samples);
        let some = f.k.cmp(CmpOp::Gt, count, int(0));
        let total = f.k.load(state, Index::default());
        let n = f.k.cast(count, wide);
        let result = if take_max { total } else { f.k.bin(ScalarOp::Div, total, n) };
        let zero = f.lit(0.0);
        let result = f.k.select(some, result, zero);
        let result = f.k.cast(result, out.dtype);
        f.k.store(bufs[3], flat(at, &out.dims), result);
        Ok(())
    })?;
    Ok(kernel_prim(k))
}

/// The greatest of `old` and the weighted corners of one sample.
fn corners_max(
    f: &mut Floats<'_>,
    (buf, ty): (Buf, &DenseType),
    lead: &[Index],
    rows: &[Tap],
    columns: &[Tap],
    old: Operand,
) -> Operand {
    let mut best = old;
    for row in rows {
        for column in columns {
            let at = [lead, &[row.at.clone(), column.at.clone()]].concat();
            let value = f.k.load(buf, flat(&at, &ty.dims));
            let value = f.k.cast(value, f.dtype);
            let weight = f.k.bin(ScalarOp::Mul, row.weight, column.weight);
            let value = f.k.bin(ScalarOp::Mul, value, weight);
            let inside = f.k.bin(ScalarOp::And, row.inside, column.inside);
            let zero = f.lit(0.0);
            let value = f.k.select(inside, value, zero);
            best = f.k.bin(ScalarOp::Max, best, value);
        }
    }
    best
}

fn roi_align() -> OpDef {
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        let (x, rois, batch) = (ranked(cx, 0, 4)?, ranked(cx, 1, 2)?, ranked(cx, 2, 1)?);
        cx.unify_dims(Dim::Const(4), rois[1], "operand `rois`, axis 1")?;
        cx.unify_dims(rois[0], batch[0], "operand `batch_indices`, axis 0")?;
        let extent = |name: &str| Dim::Const(cx.params.int(name).unwrap_or(1).max(0) as u64);
        let dims = [rois[0], x[1], extent("output_height"), extent("output_width")];
        cx.set_output_dims(0, dims)
    });
    define("roi_align", "Regions of images resampled to a fixed size.", prim(roi_align_body), infer)
        .group("X", FLOATS)
        .group("rois", FLOATS)
        .operand("batch_indices", INDICES)
        .param("mode", ParamValue::Str("avg".into()), "avg or max of the samples of a bin.")
        .param(
            "coordinate_transformation_mode",
            ParamValue::Str("half_pixel".into()),
            "half_pixel or output_half_pixel.",
        )
        .param("output_height", ParamValue::Int(1), "")
        .param("output_width", ParamValue::Int(1), "")
        .param("sampling_ratio", ParamValue::Int(0), "Samples of a bin along an axis; 0: its extent rounded up.")
        .param("spatial_scale", ParamValue::Float(1.0), "Elements of X per unit of `rois`.")
        .gradient(roi_align_gradient)
        .onnx("RoiAlign", 10)
        .ulp(16.0)
}

/// The image a region lies in, and the first and last rows and columns (exclusive) of one of its bins: `at` is the
/// region, the bin's row and its column.
fn pooled_bin(
    f: &mut Floats<'_>,
    (buf, rois): (Buf, &DenseType),
    at: &[&Index; 3],
    x: &DenseType,
    out: &DenseType,
    scale: f64,
) -> Result<(Index, [Index; 4]), OpError> {
    let mut roi = vec![];
    for i in 0..5 {
        let v = f.k.load(buf, flat(&[at[0].clone(), Index::constant(i)], &rois.dims));
        roi.push(f.k.cast(v, f.dtype));
    }
    let image = f.k.position(roi[0], x.dims[0]);
    let mut ranges: [Index; 4] = Default::default();
    for (nth, (axis, first)) in [(2, 2), (3, 1)].into_iter().enumerate() {
        let bin = f.k.index_value(at[1 + nth].clone());
        let bin = f.k.cast(bin, f.dtype);
        let (n, m) = (x.dims[axis] as f64, out.dims[axis] as f64);
        for (end, side) in [0.0, 1.0].into_iter().enumerate() {
            let edge = f.eval(&[roi[first], roi[first + 2], bin], |a| {
                let round = |v: &Ex| (v * scale + v.lit(0.5)).floor();
                let (start, end) = (round(&a[0]), round(&a[1]));
                let size = (&end - &start + start.lit(1.0)).max(&start.lit(1.0)) / start.lit(m);
                let at = (&a[2] + a[2].lit(side)) * size;
                let at = if side == 0.0 { at.floor() } else { at.ceil() };
                (at + &start).max(&start.lit(0.0)).min(&start.lit(n))
            })?;
            let edge = f.k.cast(edge, DType::I64);
            let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
            let edge = f.k.as_index(edge).maximum(&Index::default(), &free);
            ranges[2 * nth + end] = edge.minimum(&Index::constant(n as i64), &free);
        }
    }
    Ok((image, ranges))
}

/// The gradient of `max_roi_pool`: that of a bin goes to its first maximum.
fn max_roi_pool_kernel(
    x: &DenseType,
    rois: &DenseType,
    head: &DenseType,
    sums: &DenseType,
    scale: f64,
) -> Result<Kernel, OpError> {
    let mut k = KernelBuilder::new("max_roi_pool_gradient");
    let bufs = buffers(&mut k, &[("x", x), ("rois", rois), ("head", head)], &[("out", sums)]);
    let (wide, bins) = (sums.dtype, [head.dims[0], head.dims[2], head.dims[3]]);
    parallel(&mut k, &x.dims[1..2], |k, channel| {
        let channel = &channel[0];
        clear_channel(k, bufs[3], sums, channel)?;
        let best = k.alloc("best", wide, 1, MemorySpace::Stack);
        let place = k.alloc("place", DType::I64, 1, MemorySpace::Stack);
        serial(k, &bins, &mut |k, at| {
            let mut f = Floats { k, dtype: wide };
            let (image, ranges) = pooled_bin(&mut f, (bufs[1], rois), &[&at[0], &at[1], &at[2]], x, head, scale)?;
            let lowest = f.lit(f64::NEG_INFINITY);
            f.k.store(best, Index::default(), lowest);
            f.k.store(place, Index::default(), int(-1));
            let [top, bottom, left, right] = ranges;
            f.k.for_loop("y", (top, bottom, 1), LoopKind::Serial, |k, y| {
                k.for_loop("x", (left.clone(), right.clone(), 1), LoopKind::Serial, |k, column| {
                    let here = flat(&[image.clone(), channel.clone(), y.clone(), column], &x.dims);
                    let value = k.load(bufs[0], here.clone());
                    let value = k.cast(value, wide);
                    let old = k.load(best, Index::default());
                    let better = k.cmp(CmpOp::Gt, value, old);
                    let here = k.index_value(here);
                    k.if_then(better, |k| {
                        k.store(best, Index::default(), value);
                        k.store(place, Index::default(), here);
                        Ok::<(), OpError>(())
                    })
                })
            })?;
            let to = f.k.load(place, Index::default());
            let found = f.k.cmp(CmpOp::Ge, to, int(0));
            let to = f.k.position(to, x.len());
            let part =
                f.k.load(bufs[2], flat(&[at[0].clone(), channel.clone(), at[1].clone(), at[2].clone()], &head.dims));
            f.k.if_then(found, |k| {
                add_to(k, bufs[3], to, part, wide);
                Ok(())
            })
        })
    })?;
    Ok(k.finish())
}

/// Zeros in one channel of [n, c, h, w].
fn clear_channel(k: &mut KernelBuilder, buf: Buf, ty: &DenseType, channel: &Index) -> Result<(), OpError> {
    serial(k, &[ty.dims[0], ty.dims[2], ty.dims[3]], &mut |k, at| {
        let to = flat(&[at[0].clone(), channel.clone(), at[1].clone(), at[2].clone()], &ty.dims);
        k.store(buf, to, Operand::Const(Scalar::zero(ty.dtype)));
        Ok(())
    })
}

/// `buf[at] += part`.
fn add_to(k: &mut KernelBuilder, buf: Buf, at: Index, part: Operand, wide: DType) {
    let (old, part) = (k.load(buf, at.clone()), k.cast(part, wide));
    let sum = k.bin(ScalarOp::Add, old, part);
    k.store(buf, at, sum);
}

/// The gradient of `roi_align` by averages: that of a bin goes, in equal shares, to its samples.
fn roi_align_kernel(params: &Params, [rois, batch, head, sums]: [&DenseType; 4]) -> Result<Kernel, OpError> {
    let mut k = KernelBuilder::new("roi_align_gradient");
    let bufs = buffers(&mut k, &[("rois", rois), ("batch_indices", batch), ("head", head)], &[("out", sums)]);
    let (wide, bin_counts) = (sums.dtype, [head.dims[0], head.dims[2], head.dims[3]]);
    parallel(&mut k, &sums.dims[1..2], |k, channel| {
        let channel = &channel[0];
        clear_channel(k, bufs[3], sums, channel)?;
        serial(k, &bin_counts, &mut |k, at| {
            let roi = |k: &mut KernelBuilder, i: i64| {
                let v = k.load(bufs[0], flat(&[at[0].clone(), Index::constant(i)], &rois.dims));
                k.cast(v, wide)
            };
            let [x1, y1, x2, y2] = [roi(k, 0), roi(k, 1), roi(k, 2), roi(k, 3)];
            let image = k.load(bufs[1], at[0].clone());
            let image = k.position(image, sums.dims[0]);
            let part =
                k.load(bufs[2], flat(&[at[0].clone(), channel.clone(), at[1].clone(), at[2].clone()], &head.dims));
            let mut f = Floats { k, dtype: wide };
            let rows = bins(&mut f, [y1, y2], head.dims[2], params)?;
            let columns = bins(&mut f, [x1, x2], head.dims[3], params)?;
            let count = f.k.bin(ScalarOp::Mul, rows.samples, columns.samples);
            let (part, count) = (f.k.cast(part, wide), f.k.cast(count, wide));
            let share = f.k.bin(ScalarOp::Div, part, count);
            let (height, width) = (f.k.as_index(rows.samples), f.k.as_index(columns.samples));
            f.k.for_loop("iy", (Index::default(), height, 1), LoopKind::Serial, |k, iy| {
                k.for_loop("ix", (Index::default(), width.clone(), 1), LoopKind::Serial, |k, ix| {
                    let mut f = Floats { k, dtype: wide };
                    let ty = region_taps(&mut f, &rows, (&at[1], &iy), sums.dims[2])?;
                    let tx = region_taps(&mut f, &columns, (&at[2], &ix), sums.dims[3])?;
                    for (row, column) in ty.iter().flat_map(|row| tx.iter().map(move |column| (row, column))) {
                        let to = [image.clone(), channel.clone(), row.at.clone(), column.at.clone()];
                        let weight = f.k.bin(ScalarOp::Mul, row.weight, column.weight);
                        let term = f.k.bin(ScalarOp::Mul, weight, share);
                        let inside = f.k.bin(ScalarOp::And, row.inside, column.inside);
                        f.k.if_then(inside, |k| {
                            add_to(k, bufs[3], flat(&to, &sums.dims), term, wide);
                            Ok::<(), OpError>(())
                        })?;
                    }
                    Ok(())
                })
            })
        })
    })?;
    Ok(k.finish())
}

/// Regions receive no gradient, as in MXNet.
fn roi_align_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    if cx.node.params.str("mode").is_some_and(|m| m.eq_ignore_ascii_case("max")) {
        return Err(b.fail("no gradient for parameter `mode` = max"));
    }
    let (x, rois, batch, head) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.head(b, 0)?);
    let (x, types) = (b.ty(x)?, [b.ty(rois)?, b.ty(batch)?, b.ty(head)?]);
    let sums = DenseType::new(compute_type(x.dtype), &x.dims);
    let kernel = roi_align_kernel(cx.node.params, [&types[0], &types[1], &types[2], &sums]).or_fail(b)?;
    let part = b.kernel(kernel, &[rois, batch, head], &[sums])[0];
    Ok(vec![Some(b.converted(part, x.dtype)?), None, None])
}

/// Regions receive no gradient, as in MXNet.
fn max_roi_pool_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (x, rois, head) = (cx.input(0)?, cx.input(1)?, cx.head(b, 0)?);
    let (xt, rois_ty, head_ty) = (b.ty(x)?, b.ty(rois)?, b.ty(head)?);
    let sums = DenseType::new(compute_type(xt.dtype), &xt.dims);
    let scale = cx.node.params.float("spatial_scale").unwrap_or(1.0);
    let kernel = max_roi_pool_kernel(&xt, &rois_ty, &head_ty, &sums, scale).or_fail(b)?;
    let part = b.kernel(kernel, &[x, rois, head], &[sums])[0];
    Ok(vec![Some(b.converted(part, xt.dtype)?), None])
}

fn max_roi_pool() -> OpDef {
    let compute = prim(|cx| {
        let (x, rois, out) = (cx.input(0)?, cx.input(1)?, &cx.outputs[0]);
        let wide = compute_type(x.dtype);
        let scale = cx.params.float("spatial_scale").unwrap_or(1.0);
        let mut k = KernelBuilder::new("max_roi_pool");
        let bufs = buffers(&mut k, &[("x", x), ("rois", rois)], &[("out", out)]);
        parallel(&mut k, &out.dims, |k, at| {
            let state = k.alloc("state", wide, 1, MemorySpace::Stack);
            let mut f = Floats { k, dtype: wide };
            let (image, ranges) = pooled_bin(&mut f, (bufs[1], rois), &[&at[0], &at[2], &at[3]], x, out, scale)?;
            let lowest = f.lit(f64::NEG_INFINITY);
            f.k.store(state, Index::default(), lowest);
            let [top, bottom, left, right] = ranges;
            let (rows, columns) = ((top, bottom, 1), (left, right, 1));
            f.k.for_loop("y", rows, LoopKind::Serial, |k, y| {
                k.for_loop("x", columns.clone(), LoopKind::Serial, |k, column| {
                    let value = k.load(bufs[0], flat(&[image.clone(), at[1].clone(), y.clone(), column], &x.dims));
                    let value = k.cast(value, wide);
                    let old = k.load(state, Index::default());
                    let new = k.bin(ScalarOp::Max, old, value);
                    k.store(state, Index::default(), new);
                    Ok::<(), OpError>(())
                })
            })?;
            let best = f.k.load(state, Index::default());
            let empty = f.k.cmp(CmpOp::Eq, best, lowest);
            let zero = f.lit(0.0);
            let best = f.k.select(empty, zero, best);
            let best = f.k.cast(best, out.dtype);
            f.k.store(bufs[2], flat(at, &out.dims), best);
            Ok(())
        })?;
        Ok(kernel_prim(k))
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        let (x, rois) = (ranked(cx, 0, 4)?, ranked(cx, 1, 2)?);
        cx.unify_dims(Dim::Const(5), rois[1], "operand `rois`, axis 1")?;
        let Some([h, w]) = cx.params.ints("pooled_shape").and_then(|s| <[i64; 2]>::try_from(s).ok()) else {
            return Err("parameter `pooled_shape`: expected 2 entries".into());
        };
        cx.set_output_dims(0, [rois[0], x[1], Dim::Const(h.max(0) as u64), Dim::Const(w.max(0) as u64)])
    });
    define("max_roi_pool", "The maximum of every bin of regions of images.", compute, infer)
        .group("X", FLOATS)
        .group("rois", FLOATS)
        .required("pooled_shape", ParamKind::Ints, "Rows and columns of bins.")
        .param("spatial_scale", ParamValue::Float(1.0), "Elements of X per unit of `rois`.")
        .gradient(max_roi_pool_gradient)
        .onnx("MaxRoiPool", 1)
}
