//! Images: crops, pools over channels that come last, slices of an axis.

use crate::conv::window_params;
use crate::pool::{kernel_axes, pooled_dims, window_of, windows};
use crate::prelude::*;
use crate::rules::{ints, open_rank_in};

pub fn ops() -> Vec<OpDef> {
    vec![crop_and_resize(), nhwc_max_pool(), max_pool_with_mask(), unfold_tensor()]
}

/// Where rows or columns of crops lie in the image, [crops, n], -1 outside of it. `first` and `last` are columns of
/// `boxes`, in shares of the image's extent.
fn samples<'g>(boxes: Tensor<'g>, [first, last]: [u64; 2], n: u64, extent: u64) -> Result<Tensor<'g>> {
    let (g, crops, to) = (boxes.graph(), boxes.dims()?[0], compute_type(boxes.ty()?.dtype));
    let bounds = [first, last].map(|column| boxes.slice(1, column, 1u64));
    Ok(g.map(&bounds, to, [crops, n], |s, a| {
        let [size, steps] = [extent, n].map(|n| n as f64 - 1.0);
        let at = match n {
            1 => (&a[0] + &a[1]) * 0.5 * size,
            _ => {
                let step = (&a[1] - &a[0]) * size / a[0].lit(steps);
                let at = &a[0] * size + s.coord(1).cast(step.dtype()) * &step;
                let end = s.coord(1).eq(&s.constant(Scalar::i64(n as i64 - 1)));
                end.select(&(&a[1] * size), &at)
            }
        };
        let outside = at.lit(-1.0);
        at.ge(&at.lit(0.0)).select(&at.le(&at.lit(size)).select(&at, &outside), &outside)
    }))
}

fn crop_and_resize() -> OpDef {
    let compute = formula(|g, cx| {
        let ([x, boxes, images], out) = (g.operands(), &cx.outputs[0]);
        let (d, [crops, channels, height, width]) = (x.dims()?, [0, 1, 2, 3].map(|i| out.dims[i]));
        let mode = cx.params.str("mode").unwrap_or("bilinear");
        let rows = samples(boxes, [0, 2], height, d[2])?.reshape([crops, 1, height, 1]);
        let columns = samples(boxes, [1, 3], width, d[3])?.reshape([crops, 1, 1, width]);
        let flat = x.permute(&[0, 2, 3, 1]).reshape([d[0] * d[2] * d[3], channels]);
        let image = images.cast(DType::I64).reshape([crops, 1, 1, 1]);
        // The elements of all channels at a row and a column, [crops, channels, height, width].
        let pixel = |row: &dyn Fn(&Ex) -> Ex, column: &dyn Fn(&Ex) -> Ex| {
            let at = g.map(&[image, rows, columns], DType::I64, [crops, 1, height, width], |s, a| {
                let whole = |x: Ex| x.cast(DType::I64).max(&s.constant(Scalar::i64(0)));
                let times = |x: Ex, n: u64| x * s.constant(Scalar::i64(n as i64));
                times(times(a[0].clone(), d[2]) + whole(row(&a[1])), d[3]) + whole(column(&a[2]))
            });
            flat.gather(at.reshape([crops, height, width]), 0).permute(&[0, 3, 1, 2])
        };
        let value = match mode {
            "nearest" => {
                // Halves away from 0.
                let near = |x: &Ex| (x + 0.5).floor();
                pixel(&near, &near)
            }
            _ => {
                let (low, high) = (|x: &Ex| x.floor(), |x: &Ex| x.ceil());
                let parts =
                    [pixel(&low, &low), pixel(&low, &high), pixel(&high, &low), pixel(&high, &high), rows, columns];
                g.map(&parts, out.dtype, &out.dims, |_, a| {
                    let share = |x: &Ex| x - x.floor();
                    let (x, y) = (share(&a[5]), share(&a[4]));
                    let top = &a[0] + (&a[1] - &a[0]) * &x;
                    let bottom = &a[2] + (&a[3] - &a[2]) * &x;
                    &top + (&bottom - &top) * &y
                })
            }
        };
        let fill = cx.params.float("extrapolation_value").unwrap_or(0.0);
        Ok(value.map_with(&[rows, columns], |_, a| {
            let none = a[0].lit(fill);
            let zero = a[1].lit(0.0);
            a[1].lt(&zero).select(&none, &a[2].lt(&zero).select(&none, &a[0]))
        }))
    });
    let infer = shape_rule(|cx| {
        let (x, boxes) = (open_rank_in(cx, 0, 4..=4)?, open_rank_in(cx, 1, 2..=2)?);
        let images = open_rank_in(cx, 2, 1..=1)?;
        if let (Some(boxes), Some(images)) = (&boxes, &images) {
            shaped(cx, 1, &[images[0], Dim::Const(4)])?;
            cx.unify_dims(boxes[0], images[0], "operand `batch_indices`, axis 0")?;
        }
        let size = ints(cx, 3);
        if let Some(size) = &size {
            reject_if(size.len() != 2 || size.iter().any(|n| *n < 1), || {
                format!("operand `crop_size`: expected two positive extents, found {size:?}")
            })?;
        }
        let extent = |i: usize| size.as_ref().map(|size| Dim::Const(size[i] as u64));
        partial(cx, 0, &[boxes.map(|b| b[0]), x.map(|x| x[1]), extent(0), extent(1)])
    });
    define("crop_and_resize", "Crops of images in one size, sampled with corners aligned.", compute, infer)
        .groups(&["X", "rois"], FLOATS)
        .operand("batch_indices", &[DType::I32])
        .static_operands(&["crop_size"], &[DType::I32])
        .choice("mode", &["bilinear", "nearest"], "bilinear", "how an element between others is found")
        .param("extrapolation_value", 0.0, "outside of the image")
        .demand(2, |cx| Ok(Some(Allowed::below(cx.input(0)?.dims.at(0)))))
        .contrib("CropAndResize")
        .ulp(8.0)
}

fn nhwc_max_pool() -> OpDef {
    let names = ["auto_pad", "kernel_shape", "strides", "dilations", "pads", "ceil_mode"];
    let compute = formula(move |g, cx| {
        let given = names.iter().filter_map(|name| Some((*name, cx.params.get(name)?.clone())));
        let params = given.fold(Params::new(), |all, (name, value)| all.with(name, value));
        let x = g.operand(0);
        let rank = x.dims()?.len();
        let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        Ok(g.op("max_pool", &[x.permute(&first)], params).permute(&last))
    });
    let infer = shape_rule(|cx| {
        let window = window_of(cx.params)?;
        let rank = window.kernel.len();
        let Some(x) = open_rank_in(cx, 0, rank + 2..=rank + 2)? else { return Ok(()) };
        partial(cx, 0, &vec![None; rank + 2])?;
        let out = output_dims(cx, 0);
        for axis in [0, rank + 1] {
            cx.unify_dims(x[axis], out[axis], &format!("output, axis {axis}"))?;
        }
        (0..rank).try_for_each(|i| window.relate(cx, i, x[1 + i], out[1 + i]))
    });
    window_params(define("nhwc_max_pool", "`max_pool` of images whose channels come last.", compute, infer))
        .operand("x", &[DType::I8, DType::U8])
        .param("ceil_mode", false, "Count windows that reach past the end.")
        .contrib("NhwcMaxPool")
}

/// Windows end before the first element whose mask is 0, along each line of their last axis. Of several axes, the first
/// element of an image never ends one, as in ONNX Runtime.
fn max_pool_with_mask() -> OpDef {
    let compute = formula(|g, cx| {
        let window = window_of(cx.params).or_fail(&g)?;
        let (x, out) = (g.operand(0), &cx.outputs[0]);
        let (d, count) = (x.dims()?, out.dims.range(2..));
        let rank = count.len();
        let ty = x.ty()?;
        let mask = g.map(&[g.operand(1)], DType::I32, [&[1, 1], &d[2..]].concat(), |s, a| {
            let zero = s.constant(Scalar::i64(0));
            let first = (2..2 + rank).fold(zero.clone(), |sum, axis| sum + s.coord(axis)).eq(&zero);
            let shown = a[0].ne(&a[0].lit(0.0)).cast(DType::I32);
            if rank > 1 { first.select(&shown.lit(1.0), &shown) } else { shown }
        });
        let below = Scalar::from_f64(ty.dtype, f64::from(f32::MIN));
        let values = windows(x, &window, &count, below)?;
        let shown = windows(mask, &window, &count, Scalar::from_i64(DType::I32, 1))?;
        let axis = g.scalar(Scalar::i64(2 * rank as i64 + 1));
        let shown = shown.call("cumprod", &[axis]);
        let seen = values.map_with(&[shown], |s, a| a[1].ne(&a[1].lit(0.0)).select(&a[0], &s.constant(below)));
        let axes = kernel_axes(rank);
        Ok(seen.reduce("reduce_max", &axes).reshape(&out.dims))
    });
    let infer = shape_rule(|cx| {
        let window = window_of(cx.params)?;
        reject_if(window.dilations.iter().any(|n| *n != 1), || "parameter `dilations` is not supported")?;
        let rank = window.kernel.len();
        let [x, out] = pooled_dims(cx, rank)?;
        let mask: Vec<Dim> = [Dim::Const(1); 2].into_iter().chain(x[2..].iter().copied()).collect();
        shaped(cx, 1, &mask)?;
        (0..rank).try_for_each(|i| window.relate(cx, i, x[2 + i], out[2 + i]))
    });
    let doc = "The maximum of every window, up to where a mask of the image is 0.";
    window_params(define("max_pool_with_mask", doc, compute, infer))
        .operand("X", &[DType::F32])
        .operand("M", &[DType::I32])
        .param("storage_order", 0, "No effect.")
        .contrib("MaxpoolWithMask")
        .not_differentiable("it is defined for inference alone")
}

fn unfold_tensor() -> OpDef {
    let parts = |cx: &Params, rank: usize| {
        let axis = normalize_axis(cx.int("dim").unwrap_or(-1), rank)?;
        match (cx.int("size").unwrap_or(0), cx.int("step").unwrap_or(1)) {
            (size, step) if size > 0 && step > 0 => Ok((axis, size, step)),
            (size, step) => Err(OpError(format!("parameters `size` = {size} and `step` = {step} must be positive"))),
        }
    };
    let compute = formula(move |g, cx| {
        let (x, out) = (g.operand(0), &cx.outputs[0].dims);
        let rank = x.dims()?.len();
        let (axis, _, step) = g.check(parts(cx.params, rank))?;
        let mut map = vars(rank + 1);
        let within = map.pop().unwrap_or_default();
        map[axis] = map[axis].scale(step).add(&within);
        Ok(x.view(map, None, out))
    });
    let infer = shape_rule(move |cx| {
        let Some(x) = open_rank_in(cx, 0, 1..=7)? else { return Ok(()) };
        let (axis, size, step) = parts(cx.params, x.len())?;
        let mut out: Vec<Option<Dim>> = x.iter().copied().map(Some).collect();
        out[axis] = match x[axis].as_const() {
            Some(n) if n < size as u64 => {
                return Err(OpError(format!("slices of {size} elements of an axis of {n}")));
            }
            n => n.map(|n| Dim::Const((n - size as u64) / step as u64 + 1)),
        };
        out.push(Some(Dim::Const(size as u64)));
        partial(cx, 0, &out)
    });
    define(
        "unfold_tensor",
        "All slices of a size along an axis, a step apart, along a further last axis.",
        compute,
        infer,
    )
    .operand("input", &[])
    .param("dim", -1, "the axis")
    .required("size", ParamKind::Int, "elements of a slice")
    .param("step", 1, "between the first elements of two slices")
    .contrib("UnfoldTensor")
}
