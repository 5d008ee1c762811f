//! Pooling over windows and over all spatial axes.

use crate::conv::window_params;
use crate::prelude::*;
use crate::rules::{open_rank_in, open_ranked};

pub fn ops() -> Vec<OpDef> {
    vec![
        max_pool(),
        average_pool(),
        lp_pool(),
        global_pool("global_max_pool", "The maximum over the spatial axes.", |_, x, axes| {
            whole(x, axes, PoolFold::Max)
        })
        .onnx("GlobalMaxPool", 1),
        global_pool("global_average_pool", "The mean over the spatial axes.", |_, x, axes| mean_of(x, axes))
            .onnx("GlobalAveragePool", 1)
            .ulp(2.0),
        global_pool("global_lp_pool", "The p-norm over the spatial axes.", |params, x, axes| {
            whole(x, axes, norm_of(params))
        })
        .param("p", 2, "")
        .onnx("GlobalLpPool", 2)
        .ulp(4.0),
        max_unpool(),
    ]
}

pub(crate) fn window_of(params: &Params) -> Result<SpatialWindow, OpError> {
    let kernel = params.ints("kernel_shape").filter(|k| !k.is_empty() && k.iter().all(|n| *n > 0));
    let Some(kernel) = kernel else { return Err("parameter `kernel_shape` must be given and positive".into()) };
    let window = SpatialWindow::new(params, kernel.iter().map(|n| *n as u64).collect())?;
    // A window in the padding alone would have no maximum and no mean.
    for (axis, span) in (0..kernel.len()).map(|axis| (axis, window.span(axis))) {
        let pad = window.before[axis].max(window.after[axis]);
        if pad >= span {
            return Err(OpError(format!("spatial axis {axis}: padding of {pad} for a window that covers {span}")));
        }
    }
    Ok(window)
}

/// All windows of [n, c, spatial…] as [n, c, count…, kernel…], with `fill` outside the operand. The kernel is trimmed to what
/// reads the operand.
pub(crate) fn windows<'g>(x: Tensor<'g>, window: &SpatialWindow, count: &Extents, fill: Scalar) -> Result<Tensor<'g>> {
    let d = x.dims()?;
    let rank = count.len();
    let window = window.trimmed(&d.range(2..), count);
    let kernel = window.kernel.iter().map(|n| Extent::from(*n));
    let dims: Extents = d.all().take(2).chain(count.all()).chain(kernel).collect();
    let v = vars(dims.len());
    let mut map = v[..2].to_vec();
    let mut inside = true;
    for i in 0..rank {
        let at = window.position(i, d.at(2 + i), &v[2 + i], &v[2 + rank + i]);
        let (lo, hi) = at.interval(&dims);
        inside &= lo.is_surely_from(0) && hi.is_surely_below(d.at(2 + i));
        map.push(at);
    }
    Ok(x.view(map, (!inside).then_some(fill), &dims))
}

/// The axes of the kernel in the result of [`windows`].
pub(crate) fn kernel_axes(rank: usize) -> Vec<usize> {
    (2 + rank..2 + 2 * rank).collect()
}

/// What is made of the elements of a window.
#[derive(Clone, Copy)]
pub(crate) enum PoolFold {
    Max,
    Sum,
    /// The sum over a number.
    Mean(f64),
    /// The sum times a number.
    Scaled(f64),
    /// The p-norm.
    Norm(i64),
}

impl PoolFold {
    pub(crate) fn over(self, dtype: DType, axes: &[usize], keep_dims: bool) -> Result<Reduction, OpError> {
        let sum = |finish: &dyn Fn(&Ex) -> Ex| sum_of(dtype, axes, keep_dims, Ex::clone, |s| finish(s).cast(dtype));
        match self {
            PoolFold::Max => max_of(dtype, axes, keep_dims),
            PoolFold::Sum => sum(&Ex::clone),
            PoolFold::Mean(n) => sum(&|s| s / s.lit(n)),
            PoolFold::Scaled(factor) => sum(&|s| s * factor),
            PoolFold::Norm(p) => sum_of(dtype, axes, keep_dims, |x| power(x, p), |s| root(s, p).cast(dtype)),
        }
    }
}

fn norm_of(params: &Params) -> PoolFold {
    PoolFold::Norm(params.int("p").unwrap_or(2))
}

/// The axes of the operand and of the result of a pool over `rank` spatial axes.
pub(crate) fn pooled_dims(cx: &mut InferCtx<'_>, rank: usize) -> Result<[Vec<Dim>; 2], OpError> {
    let x = open_ranked(cx, 0, rank + 2)?;
    partial(cx, 0, &vec![None; rank + 2])?;
    let out = output_dims(cx, 0);
    cx.unify_dims(x[0], out[0], "output, axis 0")?;
    cx.unify_dims(x[1], out[1], "output, axis 1")?;
    Ok([x, out])
}

/// Result type and shape of a pool over [n, c, spatial…].
fn pool_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let window = window_of(cx.params)?;
    let rank = window.kernel.len();
    let [x, out] = pooled_dims(cx, rank)?;
    (0..rank).try_for_each(|i| window.relate(cx, i, x[2 + i], out[2 + i]))
}

fn max_pool() -> OpDef {
    let compute = formulas(|g, cx| {
        let window = window_of(cx.params).or_fail(&g)?;
        let x = g.operand(0);
        let ty = x.ty()?;
        let count = &cx.outputs[0].dims.range(2..);
        let window = window.trimmed(&ty.dims.range(2..), count);
        let y = windows(x, &window, count, lowest(ty.dtype))?;
        if let [_, indices] = cx.outputs {
            let reduction = max_with_index(&ty, &window, cx.params).or_fail(&g)?;
            return y.reduced_to(reduction, &[cx.outputs[0].clone(), indices.clone()]);
        }
        Ok(vec![y.reduced(PoolFold::Max.over(ty.dtype, &kernel_axes(count.len()), false))?])
    });
    let infer = shape_rule(|cx| {
        pool_rule(cx)?;
        if cx.output_count() > 1 {
            cx.set_output_dtype(1, DType::I64)?;
            let shape = cx.output_shape(0);
            cx.set_output_shape(1, shape)?;
        }
        Ok(())
    });
    let doc =
        "The maximum of every window (NaN is skipped), and optionally its position in the operand's row-major order.";
    window_params(define("max_pool", doc, compute, infer))
        .operand("X", NUMBERS)
        .param("ceil_mode", false, "Count windows that reach past the end.")
        .param("storage_order", 0, "1: positions count spatial axes in column-major order.")
        .outputs(1, 2)
        .gradient(derivative(max_pool_gradient))
        .onnx("MaxPool", 1)
}

/// What a step along each spatial axis of [n, c, spatial…] adds to a position in a plane.
fn position_strides(params: &Params, x: &DenseType) -> Vec<Extent> {
    let (rank, n) = (x.rank() - 2, |axis: usize| x.dims.at(2 + axis));
    let mut strides = vec![Extent::ONE; rank];
    if params.int("storage_order") == Some(1) {
        (1..rank).for_each(|i| strides[i] = strides[i - 1] * n(i - 1));
    } else {
        (1..rank).rev().for_each(|i| strides[i - 1] = strides[i] * n(i));
    }
    strides
}

/// Elements of a plane of [n, c, spatial…].
fn plane_of(x: &DenseType) -> Extent {
    x.dims.range(2..).count()
}

/// Every element gets the gradients of the windows whose first maximum it is.
fn max_pool_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let window = window_of(cx.node.params).or_fail(&g)?;
    let indices = match cx.outputs {
        [_, indices] => g.value(*indices),
        _ => g.op_multi("max_pool", &[Some(x)], cx.node.params.clone(), 2)[1],
    };
    let (ty, out) = (x.ty()?, head.dims()?);
    let window = window.trimmed(&ty.dims.range(2..), &out.range(2..));
    let rank = window.kernel.len();
    let dims = followed_by(&ty.dims, &window.kernel);
    let v = vars(dims.len());
    let mut map = v[..2].to_vec();
    for i in 0..rank {
        let from = v[2 + i].sub(&v[2 + rank + i].scale(window.dilations[i])).offset(window.lead(i, ty.dims.at(2 + i)));
        map.push(from.exact_quotient(window.strides[i], out.at(2 + i), &dims));
    }
    let wide = compute_type(ty.dtype);
    let zero = Scalar::zero(ty.dtype);
    let reaching = head.view(map.clone(), Some(zero), &dims);
    let winner = indices.view(map, Some(Scalar::i64(-1)), &dims);
    let extents: Extents =
        [ty.dims.at(1), plane_of(&ty)].into_iter().chain(position_strides(cx.node.params, &ty)).collect();
    let parts = g.map_with_extents(&[winner, reaching], &extents, wide, &dims, |s, a, extents| {
        let start = (s.coord(0) * &extents[0] + s.coord(1)) * &extents[1];
        let own = (0..rank).fold(start, |at, i| at + s.coord(2 + i) * &extents[2 + i]);
        a[0].eq(&own).select(&a[1], &a[1].lit(0.0))
    });
    let sum = parts.reduced(sum_of(wide, &kernel_axes(rank), false, Ex::clone, |s| s.cast(ty.dtype)))?;
    Ok(vec![Some(sum)])
}

/// Maximum and its position in the operand; the lowest position among equals.
pub(crate) fn max_with_index(x: &DenseType, window: &SpatialWindow, params: &Params) -> Result<Reduction, OpError> {
    let (wide, rank) = (compute_type(x.dtype), window.kernel.len());
    let strides = position_strides(params, x);
    let map = ScalarFn::build(&[x.dtype], |b, a| {
        let int = |n: i64| b.constant(Scalar::i64(n));
        let mut at = (b.coord(0) * int(x.dims.at(1).fixed()) + b.coord(1)) * int(plane_of(x).fixed());
        let mut inside: Option<Ex> = None;
        for (i, step) in strides.iter().enumerate() {
            let p = b.coord(2 + i) * int(window.strides[i]) + b.coord(2 + rank + i) * int(window.dilations[i])
                - int(window.lead(i, x.dims.at(2 + i)).fixed());
            let ok = p.ge(&int(0)) & p.lt(&int(x.dims.at(2 + i).fixed()));
            inside = Some(inside.map_or(ok.clone(), |all| all & ok));
            at = at + p * int(step.fixed());
        }
        let at = inside.map_or(at.clone(), |ok| ok.select(&at, &int(i64::MAX)));
        vec![a[0].cast(wide), at]
    })?;
    let combine = ScalarFn::build(&[wide, DType::I64, wide, DType::I64], |_, a| {
        let nan = |x: &Ex| x.ne(x);
        let mut second = a[2].gt(&a[0]) | (a[2].eq(&a[0]) & a[3].lt(&a[1]));
        if wide.is_float() {
            second = (second | nan(&a[2])) & !nan(&a[0]);
        }
        vec![second.select(&a[2], &a[0]), second.select(&a[3], &a[1])]
    })?;
    let finish = ScalarFn::build(&[wide, DType::I64], |_, a| vec![a[0].cast(x.dtype), a[1].clone()])?;
    let init = vec![lowest(wide), Scalar::i64(i64::MAX)];
    Ok(Reduction { axes: kernel_axes(rank), keep_dims: false, init, map, combine, finish })
}

/// How many kernel positions of every window along a spatial axis fall into what is counted.
///
/// # Errors
/// There are more windows than a table may have.
pub(crate) fn counted(
    window: &SpatialWindow,
    axis: usize,
    n: u64,
    count: u64,
    include_pad: bool,
) -> Result<Vec<u64>, OpError> {
    tabulated(count, 1)?;
    let lead = window.lead(axis, n).fixed();
    let after = match window.auto {
        AutoPad::Explicit => window.after[axis],
        _ => ((count as i64 - 1) * window.strides[axis] + window.span(axis) - n as i64 - lead).max(0),
    };
    let (lo, hi) = if include_pad { (-lead, n as i64 + after) } else { (0, n as i64) };
    // The first position of the kernel that reads `bound` or more.
    let first = |o: i64, bound: i64| {
        let distance = bound.saturating_add(lead).saturating_sub(o.saturating_mul(window.strides[axis]));
        let step = window.dilations[axis].max(1);
        (distance.max(0).saturating_add(step - 1) / step).min(window.kernel[axis] as i64)
    };
    Ok((0..count as i64).map(|o| (first(o, hi) - first(o, lo)).max(0) as u64).collect())
}

fn average_pool_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let window = window_of(cx.params).or_fail(&g)?;
    mean_of_windows(g.operand(0), &window, &cx.outputs[0], cx.params.flag("count_include_pad"))
}

/// How many elements count in every window: for each spatial axis the number along it, of type `wide`, shaped to broadcast with
/// results.
pub(crate) fn window_counts<'g>(
    g: GraphScope<'g>,
    window: &SpatialWindow,
    [x, out]: [&Extents; 2],
    wide: DType,
    include_pad: bool,
) -> Result<Vec<Tensor<'g>>> {
    let rank = window.kernel.len();
    let of = |axis: usize| {
        let [n, count] = [x, out].map(|dims| dims.at(2 + axis));
        let dims: Extents = [count].into_iter().chain(vec![Extent::ONE; rank - 1 - axis]).collect();
        let (Some(n), Some(known)) = (n.known(), count.known()) else {
            return Ok(open_counts(g, window, axis, [n, count], wide, include_pad).reshape(dims));
        };
        let list = counted(window, axis, n as u64, known as u64, include_pad).or_fail(&g)?;
        let number = |j: u64| Scalar::from_f64(wide, list[j as usize] as f64);
        Ok(g.constant(TensorData::from_fn(DenseType { dtype: wide, dims }, number)))
    };
    (0..rank).map(of).collect()
}

/// [`counted`], computed in the graph, where extents depend on symbols.
fn open_counts<'g>(
    g: GraphScope<'g>,
    window: &SpatialWindow,
    axis: usize,
    [n, count]: [Extent; 2],
    wide: DType,
    include_pad: bool,
) -> Tensor<'g> {
    let (lead, step) = (window.lead(axis, n), window.dilations[axis].max(1));
    let after = match window.auto {
        AutoPad::Explicit => window.after[axis].into(),
        _ => ((count - 1) * window.strides[axis] + window.span(axis) - n - lead).greatest(0),
    };
    let [low, high] = if include_pad { [Extent::ZERO, n + after + lead] } else { [lead, n + lead] };
    let ends = g.extents(&Extents::of([low, high]));
    let ends = [0u64, 1].map(|i| ends.slice(0, i, 1).reshape([]));
    g.map(&ends, wide, Extents::of([count]), |s, a| {
        let int = |n: i64| s.constant(Scalar::i64(n));
        let first = |bound: &Ex| {
            let distance = (bound - s.coord(0) * int(window.strides[axis])).max(&int(0));
            ((distance + int(step - 1)) / int(step)).min(&int(window.kernel[axis] as i64))
        };
        (first(&a[1]) - first(&a[0])).max(&int(0)).cast(wide)
    })
}

/// Whether every element of every window along an axis of extent `n` counts.
fn all_count(window: &SpatialWindow, axis: usize, n: Extent, count: Extent, include_pad: bool) -> bool {
    let lead = window.lead(axis, n);
    let end = (count - 1) * window.strides[axis] + window.span(axis) - lead;
    match include_pad {
        true => window.auto != AutoPad::Explicit || end <= n + window.after[axis],
        false => lead == 0 && end <= n,
    }
}

/// Sums over windows of the result's type by the number of elements that count in each.
pub(crate) fn over_counts<'g>(sums: Tensor<'g>, counts: &[Tensor<'g>], out: &DenseType) -> Tensor<'g> {
    sums.graph().map(&[&[sums], counts].concat(), out.dtype, &out.dims, |_, a| {
        let n = a[2..].iter().fold(a[1].clone(), |n, c| n * c);
        &a[0] / n
    })
}

/// The mean of every window of a result type, over the elements that count.
pub(crate) fn mean_of_windows<'g>(
    x: Tensor<'g>,
    window: &SpatialWindow,
    out: &DenseType,
    include_pad: bool,
) -> Result<Tensor<'g>> {
    let ty = x.ty()?;
    let axes = kernel_axes(window.kernel.len());
    let y = windows(x, window, &out.dims.range(2..), Scalar::zero(ty.dtype))?;
    let mean = |n: u64| y.reduced(PoolFold::Mean(n as f64).over(ty.dtype, &axes, false));
    let full = |i: usize| all_count(window, i, ty.dims.at(2 + i), out.dims.at(2 + i), include_pad);
    if (0..axes.len()).all(full) {
        return mean(window.kernel.iter().product());
    }
    if let Some(uniform) = uniform_count(window, &ty.dims, &out.dims, include_pad).or_fail(&x.graph())? {
        return mean(uniform);
    }
    let counts = window_counts(x.graph(), window, [&ty.dims, &out.dims], compute_type(out.dtype), include_pad)?;
    Ok(over_counts(y.reduced(sum_of(ty.dtype, &axes, false, Ex::clone, Ex::clone))?, &counts, out))
}

/// How many elements count in each window, if extents are known and it is the same everywhere.
fn uniform_count(
    window: &SpatialWindow,
    x: &Extents,
    out: &Extents,
    include_pad: bool,
) -> Result<Option<u64>, OpError> {
    let mut uniform = 1;
    for axis in 0..window.kernel.len() {
        let (Some(n), Some(count)) = (x.at(2 + axis).known(), out.at(2 + axis).known()) else { return Ok(None) };
        let counts = counted(window, axis, n as u64, count as u64, include_pad)?;
        if counts.windows(2).any(|pair| pair[0] != pair[1]) {
            return Ok(None);
        }
        uniform *= counts.first().copied().unwrap_or(1);
    }
    Ok(Some(uniform))
}

fn average_pool() -> OpDef {
    let doc = "The mean of every window.";
    window_params(define("average_pool", doc, formula(average_pool_body), shape_rule(pool_rule)))
        .operand("X", FLOATS)
        .param("ceil_mode", false, "Count windows that reach past the end.")
        .param("count_include_pad", false, "Padding counts as elements of value 0.")
        .onnx("AveragePool", 1)
        .ulp(2.0)
}

/// `|x|ᵖ`.
pub(crate) fn power(x: &Ex, p: i64) -> Ex {
    match p {
        1 => x.abs(),
        2 => x * x,
        _ => x.abs().pow(&x.lit(p as f64)),
    }
}

/// The p-th root of a sum of powers.
pub(crate) fn root(x: &Ex, p: i64) -> Ex {
    match p {
        1 => x.clone(),
        2 => x.sqrt(),
        _ => x.pow(&x.lit(1.0 / p as f64)),
    }
}

fn lp_pool() -> OpDef {
    let compute = formula(|g, cx| {
        let window = window_of(cx.params).or_fail(&g)?;
        let (x, count) = (g.operand(0), &cx.outputs[0].dims.range(2..));
        let dtype = x.ty()?.dtype;
        let y = windows(x, &window, count, Scalar::zero(dtype))?;
        y.reduced(norm_of(cx.params).over(dtype, &kernel_axes(count.len()), false))
    });
    window_params(define("lp_pool", "The p-norm of every window.", compute, shape_rule(pool_rule)))
        .operand("X", FLOATS)
        .param("ceil_mode", false, "Count windows that reach past the end.")
        .param("p", 2, "")
        .onnx("LpPool", 2)
        .ulp(4.0)
}

/// What is made of all elements of an image.
fn whole<'g>(x: Tensor<'g>, axes: &[usize], fold: PoolFold) -> Result<Tensor<'g>> {
    x.reduced(fold.over(x.ty()?.dtype, axes, true))
}

/// The mean along axes; without any, the operand.
fn mean_of<'g>(x: Tensor<'g>, axes: &[usize]) -> Result<Tensor<'g>> {
    Ok(if axes.is_empty() { x } else { x.mean(axes) })
}

/// Computes what is made of an operand along its spatial axes.
type FoldImages = for<'g> fn(&Params, Tensor<'g>, &[usize]) -> Result<Tensor<'g>>;

fn global_pool(name: &'static str, doc: &'static str, fold: FoldImages) -> OpDef {
    let compute = formula(move |g, cx| {
        let x = g.operand(0);
        let axes: Vec<usize> = (2..x.ty()?.rank()).collect();
        fold(cx.params, x, &axes)
    });
    let infer = shape_rule(|cx| {
        let Some(x) = open_rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        cx.set_output_dims(0, x.iter().enumerate().map(|(i, d)| if i < 2 { *d } else { Dim::Const(1) }))
    });
    define(name, doc, compute, infer).operand("X", FLOATS)
}

/// The extents a max pool with this window came from.
fn unpooled(window: &SpatialWindow, x: &[u64]) -> Vec<u64> {
    let spatial = (0..window.kernel.len()).map(|i| {
        let n = (x[2 + i] as i64 - 1) * window.strides[i] + window.span(i);
        (n - window.before[i] - window.after[i]).max(0) as u64
    });
    x[..2].iter().copied().chain(spatial).collect()
}

fn max_unpool() -> OpDef {
    let compute = formula(|g, cx| {
        let [x, indices] = g.operands();
        let (ty, index_ty) = (x.ty()?, indices.ty()?);
        let window = window_of(cx.params).or_fail(&g)?;
        let natural = DenseType::new(ty.dtype, unpooled(&window, &ty.dims));
        let k = &KernelScope::new("max_unpool");
        let [maxima, positions] = k.inputs(["x", "indices"], [&ty, &index_ty]);
        let out = k.output("out", &natural);
        k.each("z", natural.len(), |i| out.set(i, Scalar::zero(ty.dtype)));
        k.each("i", ty.len(), |i| {
            let at = positions.position(i, natural.len());
            out.set(&at, maxima.get(i));
        });
        let dims = &cx.outputs[0].dims;
        let fill = (natural.dims != *dims).then(|| Scalar::zero(ty.dtype));
        let y = g.kernel(k.finish(), &[x, indices], std::slice::from_ref(&natural))?[0];
        Ok(y.view(vars(ty.rank()), fill, dims))
    });
    let infer = shape_rule(|cx| {
        let window = window_of(cx.params)?;
        let rank = 2 + window.kernel.len();
        let Some(x) = rank_in(cx, 0, rank..=rank)? else { return Ok(()) };
        shaped(cx, 1, &x)?;
        let known = x.iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>();
        match (cx.has_input(2), ints(cx, 2), known) {
            (true, Some(shape), _) if shape.len() != rank => {
                let name = cx.input_name(2);
                Err(OpError(format!("{name}: expected {rank} entries, found {}", shape.len())))
            }
            (_, _, Some(x)) if !x.contains(&0) && unpooled(&window, &x).contains(&0) => {
                Err(OpError::from("parameter `pads`: nothing is left of the result"))
            }
            (true, Some(shape), _) => cx.set_output_dims(0, shape.into_iter().map(|n| Dim::Const(n.max(0) as u64))),
            (false, _, Some(x)) => cx.set_output_dims(0, unpooled(&window, &x).into_iter().map(Dim::Const)),
            _ => partial(cx, 0, &vec![None; x.len()]),
        }
    });
    let doc = "Puts the maxima of a max pool back at their positions, zeros elsewhere.";
    window_params(define("max_unpool", doc, compute, infer))
        .operand("X", NUMBERS)
        .operand("I", INDICES)
        .static_optionals(&["output_shape"], INDICES)
        .edit(|d| d.params.retain(|p| p.name == "kernel_shape" || p.name == "strides" || p.name == "pads"))
        .demand(1, |cx| {
            let natural = unpooled(&window_of(cx.params)?, &cx.input(0)?.dims);
            Ok(Some(Allowed::below(natural.iter().product::<u64>())))
        })
        .gradient(derivative(|g, cx| {
            let window = window_of(cx.node.params).or_fail(&g)?;
            let natural = unpooled(&window, &cx.node.input(0).or_fail(&g)?.dims);
            crate::adjoint::of_max_unpool(g, cx, &natural)
        }))
        .onnx("MaxUnpool", 9)
}
