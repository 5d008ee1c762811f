//! Reading tensors between their elements: grid sampling, its grids, deformable convolution.

use crate::blocks::in_blocks;
use crate::kernel::coordinates;
use crate::prelude::*;
use crate::sample_block::{BLOCK, SampleBlock};
use crate::sampled_axis::{Interpolation, Outside, SampledAxis};

pub fn ops() -> Vec<OpDef> {
    vec![grid_sample(), affine_grid(), deform_conv()]
}

/// A tap in a kernel.
pub struct Tap<'k> {
    pub at: Index,
    pub inside: KernelValue<'k>,
    pub weight: KernelValue<'k>,
}

fn axis_taps<'k>(k: &'k KernelScope, axis: &SampledAxis, x: KernelValue<'k>) -> Vec<Tap<'k>> {
    let args: Vec<_> = [x].into_iter().chain(open_size(k, axis.extent, x.dtype())).collect();
    let types = vec![x.dtype(); args.len()];
    let values = k.eval_all(&types, &args, |a| axis.taps(&a[0], a.get(1)).into_iter().flatten().collect());
    let tap = |v: &[KernelValue<'k>]| Tap { at: v[0].position(axis.extent), inside: v[1], weight: v[2] };
    values.chunks_exact(3).map(tap).collect()
}

/// An extent that depends on symbols, as a float.
fn open_size(k: &KernelScope, n: Extent, dtype: DType) -> Option<KernelValue<'_>> {
    n.known().is_none().then(|| k.position(&Index::constant(n)).cast(dtype))
}

/// The weighted sum over all combinations of taps of `x[lead…, taps…]`, in the type arithmetic is done in.
pub fn interpolate<'k>(
    k: &'k KernelScope,
    x: KernelTensor<'k>,
    lead: &[Index],
    axes: &[Vec<Tap<'k>>],
    zeros: bool,
) -> KernelValue<'k> {
    let zero = k.number(compute_type(x.dtype()), 0.0);
    fn level<'k>(
        (x, zero): (KernelTensor<'k>, KernelValue<'k>),
        at: &mut Vec<Index>,
        inside: Option<KernelValue<'k>>,
        axes: &[Vec<Tap<'k>>],
    ) -> KernelValue<'k> {
        let wide = zero.dtype();
        let Some((taps, rest)) = axes.split_first() else {
            let value = x.get_as(&*at, wide);
            return inside.map_or(value, |inside| inside.select(value, zero));
        };
        let mut term = |tap: &Tap<'k>| {
            let both = inside.map(|all| all & tap.inside);
            at.push(tap.at.clone());
            let value = level((x, zero), at, both, rest);
            at.pop();
            value * tap.weight.cast(wide)
        };
        let mut sum = None;
        for tap in taps {
            let term = term(tap);
            sum = Some(sum.map_or(term, |sum: KernelValue<'k>| sum + term));
        }
        sum.unwrap_or(zero)
    }
    level((x, zero), &mut lead.to_vec(), zeros.then(|| k.constant(Scalar::bool(true))), axes)
}

fn grid_modes(params: &Params) -> Result<(Interpolation, Outside), OpError> {
    let interpolation = match params.str("mode").unwrap_or("linear") {
        "nearest" => Interpolation::Nearest,
        "linear" | "bilinear" => Interpolation::Linear,
        "cubic" | "bicubic" => Interpolation::Cubic,
        other => return Err(OpError(format!("parameter `mode`: unknown mode `{other}`"))),
    };
    let outside = match params.str("padding_mode").unwrap_or("zeros") {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => return Err(OpError(format!("parameter `padding_mode`: unknown mode `{other}`"))),
    };
    Ok((interpolation, outside))
}

/// [`grid_sample`] by gathers.
fn gathered_samples<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let ([x, grid], out) = (g.operands(), &cx.outputs[0]);
    let (interpolation, outside) = grid_modes(cx.params).or_fail(&g)?;
    let align_corners = cx.params.flag("align_corners");
    let dims = x.dims()?;
    let (rank, wide) = (dims.len() - 2, compute_type(out.dtype));
    let place = [&out.dims[..1], &out.dims[2..]].concat();
    let axis = |&extent: &u64| SampledAxis { extent: extent.into(), interpolation, outside, align_corners };
    let axes: Vec<_> = dims[2..].iter().map(axis).collect();
    let position = |i: usize| {
        let column = grid.slice(place.len(), (rank - 1 - i) as u64, 1).reshape(&place);
        g.map(&[column], wide, &place, |_, a| axes[i].unnormalized(&a[0].cast(wide), None))
    };
    let positions: Vec<_> = (0..rank).map(position).collect();
    Ok(crate::resample::gathered(x, &positions, &axes)?.convert(out.dtype))
}

fn grid_sample() -> OpDef {
    let compute = prim(|cx| {
        let (x, grid, out) = (cx.input(0)?, cx.input(1)?, &cx.outputs[0]);
        let (interpolation, outside) = grid_modes(cx.params)?;
        let align_corners = cx.params.flag("align_corners");
        let rank = x.rank() - 2;
        let (wide, zeros) = (compute_type(x.dtype), outside == Outside::Zeros);
        let k = &KernelScope::new("grid_sample");
        let [source, grid] = k.inputs(["x", "grid"], [x, grid]);
        let result = k.output("out", out);
        let axis = |i: usize| SampledAxis { extent: x.dims.at(2 + i), interpolation, outside, align_corners };
        // The taps at a place of an image's result.
        let taps = |image: &Index, place: &[Index]| -> Vec<Vec<Tap<'_>>> {
            let sample = |i: usize| {
                // The grid names the innermost axis first.
                let last = Index::constant((rank - 1 - i) as i64);
                let at = [std::slice::from_ref(image), place, &[last]].concat();
                let axis = axis(i);
                let args: Vec<_> =
                    [grid.get_as(&at, wide)].into_iter().chain(open_size(k, axis.extent, wide)).collect();
                let [position] = k.eval(&args, |a| [axis.unnormalized(&a[0], a.get(1))]);
                axis_taps(k, &axis, position)
            };
            (0..rank).map(sample).collect()
        };
        match cx.grain {
            Grain::Fine => k.parallel(&out.dims, |at| {
                let y = interpolate(k, source, &at[..2], &taps(&at[0], &at[2..]), zeros);
                result.set_cast(at, y);
            }),
            Grain::Coarse => {
                let [space, places] = [&x.dims, &out.dims].map(|dims| dims.range(2..));
                let [whole, part] = [space.count(), places.count()];
                in_blocks(k, (x.dims.at(0), part), BLOCK, |image, first, count| {
                    let counts = (0..rank).map(|i| axis(i).tap_count()).collect();
                    let block = SampleBlock::new(k, space.clone(), counts, wide, zeros, count);
                    k.each("i", count, |i| block.note(i, &taps(image, &coordinates(&first.add(i), &places))));
                    k.each("c", x.dims.at(1), |channel| {
                        let plane = image.scale(x.dims.at(1)).add(channel);
                        let to = plane.scale(part).add(first);
                        block.each(source, &plane.scale(whole), |i, y| result.set_cast(&to.add(i), y));
                    });
                });
            }
        }
        k.prim()
    });
    let infer = shape_rule(|cx| {
        let (Some(x), Some(grid)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        if x.len() < 3 || grid.len() != x.len() {
            return Err(OpError(format!(
                "operand `grid`: expected rank {}, found rank {}",
                x.len().max(3),
                grid.len()
            )));
        }
        cx.unify_dims(x[0], grid[0], "operand `grid`, axis 0")?;
        let last = grid.len() - 1;
        cx.unify_dims(Dim::Const(x.len() as u64 - 2), grid[last], &format!("operand `grid`, axis {last}"))?;
        cx.set_output_dims(0, [&x[..2], &grid[1..last]].concat())
    });
    define("grid_sample", "Values of [n, c, spatial…] at the positions of a grid in [-1, 1].", compute, infer)
        .operands(&["X", "grid"], FLOATS)
        .param("mode", "linear", "nearest, linear or cubic.")
        .param("padding_mode", "zeros", "zeros, border or reflection.")
        .param("align_corners", false, "-1 and 1 are the centres of the outermost elements.")
        .differentiated_as(gathered_samples)
        .onnx("GridSample", 16)
        .ulp(16.0)
}

fn affine_grid() -> OpDef {
    let compute = formula(|g, cx| {
        let (out, theta) = (&cx.outputs[0], g.operand(0));
        let rank = out.rank() - 2;
        let dims = [&out.dims[..1], &vec![1; rank][..], &[rank as u64]].concat();
        let columns: Vec<_> = (0..=rank).map(|j| theta.slice(2, j as u64, 1).reshape(&dims)).collect();
        let align = cx.params.flag("align_corners");
        Ok(g.map(&columns, out.dtype, &out.dims, |s, a| {
            let mut sum = a[rank].clone();
            for (j, column) in a[..rank].iter().enumerate() {
                // Column 0 multiplies the innermost axis.
                let axis = rank - j;
                let extent = out.dims[axis] as f64;
                let i = s.coord(axis).cast(sum.dtype());
                let base = match align {
                    true => i * (2.0 / (extent - 1.0).max(1.0)) + s.number(sum.dtype(), -1.0),
                    false => (i * 2.0 + s.number(sum.dtype(), 1.0 - extent)) / s.number(sum.dtype(), extent),
                };
                sum = sum + column * &base;
            }
            sum
        }))
    });
    let infer = shape_rule(|cx| {
        let theta = ranked(cx, 0, 3)?;
        let Some(size) = ints(cx, 1) else { return Ok(()) };
        reject_if(size.len() < 4, || format!("operand `size`: expected at least 4 entries, found {}", size.len()))?;
        let rank = size.len() as u64 - 2;
        cx.unify_dims(Dim::Const(rank), theta[1], "operand `theta`, axis 1")?;
        cx.unify_dims(Dim::Const(rank + 1), theta[2], "operand `theta`, axis 2")?;
        cx.unify_dims(Dim::Const(size[0].max(0) as u64), theta[0], "operand `theta`, axis 0")?;
        let spatial = size[2..].iter().map(|n| Dim::Const((*n).max(0) as u64));
        cx.set_output_dims(0, [theta[0]].into_iter().chain(spatial).chain([Dim::Const(rank)]))
    });
    define("affine_grid", "Positions in [-1, 1] of a sampling grid under affine maps.", compute, infer)
        .operand("theta", FLOATS)
        .static_operands(&["size"], INDICES)
        .param("align_corners", false, "-1 and 1 are the centres of the outermost elements.")
        .onnx("AffineGrid", 20)
        .ulp(4.0)
}

/// What the samples of a deformable convolution are made of.
struct Deformed<'a, 'g> {
    x: Tensor<'g>,
    offset: Tensor<'g>,
    mask: Option<Tensor<'g>>,
    window: &'a SpatialWindow,
    offset_groups: u64,
    out: &'a [u64],
    grain: Grain,
}

/// A sample times its element of the mask, if there is one.
fn masked<'k>(y: KernelValue<'k>, mask: Option<KernelTensor<'k>>, at: &Index) -> KernelValue<'k> {
    mask.map_or(y, |mask| y * mask.get_as(at, y.dtype()))
}

/// The samples a deformable convolution multiplies with its weights: [n, c, kernel…, out…].
fn deformed_columns<'g>(d: &Deformed<'_, 'g>) -> Result<Tensor<'g>> {
    let (window, out) = (d.window, d.out);
    let (xt, ot) = (d.x.ty()?, d.offset.ty()?);
    let mask_ty = d.mask.map(|m| m.ty()).transpose()?;
    let rank = window.kernel.len();
    let wide = compute_type(xt.dtype);
    let columns = DenseType::new(xt.dtype, [&xt.dims[..2], &window.kernel, out].concat());
    let k = &KernelScope::new("deform_columns");
    let [source, shifts] = k.inputs(["x", "offset"], [&xt, &ot]);
    let weights = mask_ty.as_ref().map(|ty| k.input("mask", ty));
    let result = k.output("out", &columns);
    let kernel = Extents::from_iter(window.kernel.iter().map(|n| Extent::from(*n)));
    let (places, space) = (columns.dims.range(2 + rank..), xt.dims.range(2..));
    let (part, whole, kernel_taps) = (places.count(), space.count(), kernel.count());
    let (channels, groups) = (xt.dims.at(1), Extent::from(d.offset_groups));
    let per_group = (xt.dims[1] / d.offset_groups).max(1) as i64;
    // Positions are those of all channels of a group: [n, groups, taps of the kernel, place…].
    let shared = [&[xt.dims.at(0), groups, kernel_taps][..], &places.all().collect::<Vec<_>>()].concat();
    let shared: Extents = shared.into_iter().collect();
    let taps = |at: &[Index]| -> Vec<Vec<Tap<'_>>> {
        let (tap, place) = (at[1].scale(kernel_taps).add(&at[2]), &at[3..]);
        let kernel = coordinates(&at[2], &kernel);
        let sample = |i: usize| {
            let channel = tap.scale(rank as i64).offset(i as i64);
            let shift = shifts.get_as(&[&[at[0].clone(), channel], place].concat(), wide);
            let base = k.position(&window.position(i, xt.dims[2 + i], &place[i], &kernel[i])).cast(wide);
            axis_taps(k, &SampledAxis::linear(xt.dims[2 + i]), base + shift)
        };
        (0..rank).map(sample).collect()
    };
    match d.grain {
        Grain::Fine => k.parallel(&columns.dims, |at| {
            let group = at[1].floor_div(per_group, &|_: u32| (0, columns.len() as i64));
            let position = [&[at[0].clone(), group, linearize(&at[2..2 + rank], &kernel)], &at[2 + rank..]].concat();
            let y = interpolate(k, source, &at[..2], &taps(&position), true);
            result.set_cast(at, masked(y, weights, &linearize(&position, &shared)));
        }),
        Grain::Coarse => in_blocks(k, (shared.range(..3).count(), part), BLOCK, |outer, first, count| {
            let block = SampleBlock::new(k, space.clone(), vec![2; rank], wide, true, count);
            let at = coordinates(outer, &shared.range(..3));
            k.each("i", count, |i| {
                block.note(i, &taps(&[&at[..], &coordinates(&first.add(i), &places)].concat()));
            });
            k.each("c", per_group, |c| {
                let plane = at[0].scale(channels).add(&at[1].scale(per_group)).add(c);
                let to = plane.scale(kernel_taps).add(&at[2]).scale(part).add(first);
                let mask = outer.scale(part).add(first);
                block.each(source, &plane.scale(whole), |i, y| {
                    result.set_cast(&to.add(i), masked(y, weights, &mask.add(i)));
                });
            });
        }),
    }
    let args: Vec<_> = [d.x, d.offset].into_iter().chain(d.mask).collect();
    Ok(d.x.graph().kernel(k.finish(), &args, &[columns])?[0])
}

/// [`deformed_columns`] by gathers.
fn gathered_columns<'g>(d: &Deformed<'_, 'g>) -> Result<Tensor<'g>> {
    let (window, groups, g) = (d.window, d.offset_groups, d.x.graph());
    let (xt, rank) = (d.x.ty()?, window.kernel.len());
    let (wide, n) = (compute_type(xt.dtype), xt.dims[0] * groups);
    let x = d.x.reshape([&[n, xt.dims[1] / groups], &xt.dims[2..]].concat());
    let place = [&[n][..], &window.kernel, d.out].concat();
    let offset = d.offset.reshape([&[n][..], &window.kernel, &[rank as u64], d.out].concat());
    let position = |i: usize| {
        let shift = offset.slice(1 + rank, i as u64, 1).reshape(&place);
        let lead = window.lead(i, xt.dims[2 + i]);
        g.map(&[shift], wide, &place, |s, a| {
            let int = |n: i64| s.constant(Scalar::i64(n));
            let at = s.coord(1 + rank + i) * int(window.strides[i]) + s.coord(1 + i) * int(window.dilations[i]);
            (at - int(lead.fixed())).cast(wide) + a[0].cast(wide)
        })
    };
    let positions: Vec<_> = (0..rank).map(position).collect();
    let axes: Vec<_> = xt.dims[2..].iter().map(|&n| SampledAxis::linear(n)).collect();
    let mut y = crate::resample::gathered(x, &positions, &axes)?;
    if let Some(mask) = d.mask {
        let mask = mask.reshape([&[n, 1][..], &place[1..]].concat());
        y = y.map_with(&[mask], |_, a| &a[0] * a[1].cast(wide));
    }
    Ok(y.convert(xt.dtype).reshape([&xt.dims[..2], &place[1..]].concat()))
}

type ColumnSampler = for<'g> fn(&Deformed<'_, 'g>) -> Result<Tensor<'g>>;

fn deform_conv_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, columns: ColumnSampler) -> Result<Tensor<'g>> {
    let ([x, w, offset], out) = (g.operands(), &cx.outputs[0]);
    let (xd, wd) = (x.dims()?, w.dims()?);
    let window = &SpatialWindow::new(cx.params, wd[2..].to_vec()).or_fail(&g)?;
    let count = |name: &str| cx.params.int(name).unwrap_or(1).max(1) as u64;
    let (groups, rank, offset_groups) = (count("group"), wd.len() - 2, count("offset_group"));
    let columns = columns(&Deformed {
        x,
        offset,
        mask: g.maybe(4),
        window,
        offset_groups,
        out: &out.dims[2..],
        grain: cx.grain,
    })?;
    let (oc, ic) = (wd[0] / groups, xd[1] / groups);
    let extents = [&[xd[0], groups, oc][..], &out.dims[2..], &[ic], &wd[2..]].concat();
    let v = vars(extents.len());
    let (place, kernel) = (&v[3..3 + rank], &v[4 + rank..]);
    let channel = v[1].scale(ic as i64).add(&v[3 + rank]);
    let lhs = [&[v[0].clone(), channel][..], kernel, place].concat();
    let rhs = [&[v[1].scale(oc as i64).add(&v[2]), v[3 + rank].clone()][..], kernel].concat();
    let y = columns.contract(w, Contraction::new(extents, 3 + rank, lhs, rhs));
    crate::conv::add_bias(y.reshape(&out.dims), g.maybe(3))
}

fn deform_conv() -> OpDef {
    let infer = shape_rule(|cx| {
        let (Some(x), Some(w)) = (cx.input_dims(0), cx.input_dims(1)) else { return Ok(()) };
        if x.len() < 3 || x.len() != w.len() {
            return Err(OpError(format!("operand `W`: expected rank {}, found rank {}", x.len().max(3), w.len())));
        }
        partial(cx, 0, &[&[Some(x[0]), Some(w[0])][..], &vec![None; x.len() - 2]].concat())?;
        cx.set_input_dims(3, [w[0]])?;
        let Some(kernel) = w[2..].iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>() else { return Ok(()) };
        let window = SpatialWindow::new(cx.params, kernel)?;
        let out = output_dims(cx, 0);
        let groups = cx.params.int("offset_group").unwrap_or(1).max(1) as u64;
        let taps = groups * window.kernel.iter().product::<u64>();
        for (i, channels) in [(2, taps * window.kernel.len() as u64), (4, taps)] {
            shaped(cx, i, &[&[x[0], Dim::Const(channels)][..], &out[2..]].concat())?;
        }
        (0..x.len() - 2).try_for_each(|i| window.relate(cx, i, x[2 + i], out[2 + i]))
    });
    let compute = formula(|g, cx| deform_conv_body(g, cx, deformed_columns));
    define("deform_conv", "Convolution whose samples are displaced and weighted.", compute, infer)
        .groups(&["X", "W", "offset"], FLOATS)
        .optional("B", TypeRule::Group(0, FLOATS))
        .optional("mask", TypeRule::Group(0, FLOATS))
        .param("group", 1, "Number of channel groups.")
        .param("offset_group", 1, "Number of channel groups with displacements of their own.")
        .maybe("kernel_shape", ParamKind::Ints, "")
        .maybe("strides", ParamKind::Ints, "Default: 1.")
        .maybe("dilations", ParamKind::Ints, "Default: 1.")
        .maybe("pads", ParamKind::Ints, "Default: 0.")
        .differentiated_as(|g, cx| deform_conv_body(g, cx, gathered_columns))
        .onnx("DeformConv", 19)
        .ulp(16.0)
}
