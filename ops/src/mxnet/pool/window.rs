//! Pooling over windows: maximum, mean, sum and p-norm, with MXNet's three ways to count windows.

use crate::mxnet::layers::{LAYOUTS, check_layout, kernel_of};
use crate::pool::{
    PoolFold, kernel_axes, max_with_index, mean_of_windows, over_counts, pooled_dims, window_counts, windows,
};
use crate::prelude::*;
use crate::window::per_axis;

pub fn ops() -> Vec<OpDef> {
    vec![pooling(), pooling_v1()]
}

/// How many windows there are along an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Convention {
    /// Those inside the padded operand.
    Valid,
    /// Those that start inside and end at most a stride beyond.
    Full,
    /// One for every stride.
    Same,
}

fn convention(params: &Params) -> Convention {
    match params.str("pooling_convention") {
        Some("full") => Convention::Full,
        Some("same") => Convention::Same,
        _ => Convention::Valid,
    }
}

fn global(params: &Params) -> bool {
    params.flag("global_pool")
}

/// The windows; those of a global pool cover everything.
fn window_of(params: &Params, spatial: &Extents) -> Result<SpatialWindow, OpError> {
    let rank = spatial.len();
    if global(params) {
        let strides = spatial.iter().map(|&n| n.max(1) as i64).collect();
        return Ok(SpatialWindow::padded(spatial.to_vec(), strides, vec![1; rank], vec![0; rank]));
    }
    let kernel = kernel_of(params)?;
    let pads = per_axis(params, "pad", rank, 0)?;
    let strides = per_axis(params, "stride", rank, 1)?;
    reject_if(strides.iter().any(|s| *s <= 0), || "parameter `stride`: expected positive steps")?;
    if let Some(i) = (0..rank).find(|&i| pads[i] < 0 || pads[i] >= kernel[i] as i64) {
        return Err(OpError(format!("parameter `pad`: {} is not below the kernel's {}", pads[i], kernel[i])));
    }
    Ok(SpatialWindow::padded(kernel, strides, vec![1; rank], pads))
}

/// Windows along a spatial axis of extent `n`.
fn count(window: &SpatialWindow, convention: Convention, axis: usize, n: Extent) -> Result<Extent, OpError> {
    let (padded, k, s) = (n + 2 * window.before[axis], window.kernel[axis] as i64, window.strides[axis]);
    if convention == Convention::Same {
        return Ok((padded + s - 1).div_floor(s).greatest(0));
    }
    reject_if(padded < k, || format!("spatial axis {axis}: the kernel covers {k}, the padded operand has {padded}"))?;
    let beyond = if convention == Convention::Full { s - 1 } else { 0 };
    Ok((padded - k + beyond).div_floor(s) + 1)
}

/// What is made of the elements of a window.
#[derive(Clone, Copy)]
enum PoolKind {
    Max,
    Mean {
        include_pad: bool,
        /// All positions of the kernel count, even beyond the padding.
        whole: bool,
    },
    Sum,
    Norm(i64),
}

fn kind(params: &Params, whole: bool) -> Result<PoolKind, OpError> {
    let include_pad = params.bool("count_include_pad").unwrap_or(true);
    match params.str("pool_type") {
        Some("avg") => Ok(PoolKind::Mean { include_pad, whole }),
        Some("sum") => Ok(PoolKind::Sum),
        Some("lp") => match params.int("p_value") {
            Some(p @ 1..=3) => Ok(PoolKind::Norm(p)),
            Some(p) => Err(OpError(format!("parameter `p_value` is {p}, expected 1 to 3"))),
            None => Err("parameter `p_value` is needed by pool type lp".into()),
        },
        _ => Ok(PoolKind::Max),
    }
}

impl PoolKind {
    /// What is made of `n` elements.
    fn fold(self, n: f64) -> PoolFold {
        match self {
            PoolKind::Max => PoolFold::Max,
            PoolKind::Sum => PoolFold::Sum,
            PoolKind::Mean { .. } => PoolFold::Mean(n),
            PoolKind::Norm(p) => PoolFold::Norm(p),
        }
    }
}

fn kernel_size(window: &SpatialWindow) -> f64 {
    window.kernel.iter().product::<u64>() as f64
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, old: bool) -> Result<Tensor<'g>> {
    let x = g.operand(0);
    let ty = x.ty()?;
    let window = window_of(cx.params, &ty.dims.range(2..)).or_fail(&g)?;
    let (out, rank) = (&cx.outputs[0], window.kernel.len());
    let kind = kind(cx.params, old).or_fail(&g)?;
    if global(cx.params) {
        let axes: Vec<usize> = (2..ty.rank()).collect();
        return x.reduced(kind.fold(kernel_size(&window)).over(ty.dtype, &axes, true));
    }
    let fill = if let PoolKind::Max = kind { lowest(ty.dtype) } else { Scalar::zero(ty.dtype) };
    let fold = match kind {
        PoolKind::Mean { include_pad, whole: false } => return mean_of_windows(x, &window, out, include_pad),
        PoolKind::Mean { .. } => PoolFold::Scaled(1.0 / kernel_size(&window)),
        other => other.fold(1.0),
    };
    windows(x, &window, &out.dims.range(2..), fill)?.reduced(fold.over(ty.dtype, &kernel_axes(rank), false))
}

/// How many windows at most see an element, by spatial axis.
fn overlaps(window: &SpatialWindow) -> Vec<u64> {
    (0..window.kernel.len()).map(|i| window.kernel[i].div_ceil(window.strides[i] as u64)).collect()
}

/// For every element [n, c, spatial…] what the windows that may see it hold, as further axes: the j-th
/// window before the last one that starts at the element or before it; `fill` where there is none.
fn seen_by<'g>(of_windows: Tensor<'g>, window: &SpatialWindow, x: &DenseType, fill: f64) -> Result<Tensor<'g>> {
    let ty = of_windows.ty()?;
    let rank = window.kernel.len();
    let dims = followed_by(&x.dims, &overlaps(window));
    let v = vars(dims.len());
    let mut map: Vec<Index> = v[..2].to_vec();
    for i in 0..rank {
        let last = v[2 + i].offset(window.before[i]).floor_div(window.strides[i], &dims);
        map.push(last.sub(&v[2 + rank + i]));
    }
    Ok(of_windows.view(map, Some(Scalar::from_f64(ty.dtype, fill)), &dims))
}

/// Whether the windows of [`seen_by`] reach the element; `None` if they all do.
fn reaches(s: &ScalarBuilder, window: &SpatialWindow) -> Option<Ex> {
    let rank = window.kernel.len();
    let int = |n: i64| s.constant(Scalar::i64(n));
    let uneven = (0..rank).filter(|&i| !window.kernel[i].is_multiple_of(window.strides[i] as u64));
    let along = |i: usize| {
        let stride = int(window.strides[i]);
        let inside = (s.coord(2 + i) + int(window.before[i])) % &stride + s.coord(2 + rank + i) * &stride;
        inside.lt(&int(window.kernel[i] as i64))
    };
    uneven.map(along).reduce(|all, ok| all & ok)
}

/// The sum over the windows that see each element.
fn gathered<'g>(of_windows: Tensor<'g>, window: &SpatialWindow, x: &DenseType) -> Result<Tensor<'g>> {
    let seen = seen_by(of_windows, window, x, 0.0)?;
    let masked = seen.map_with(&[], |s, a| match reaches(s, window) {
        Some(reached) => reached.select(&a[0], &a[0].lit(0.0)),
        None => a[0].clone(),
    });
    masked.sum_from(x.rank())
}

/// The head of a window goes to its first maximum.
fn max_gradient<'g>(cx: &GradCtx<'_>, window: &SpatialWindow, x: Tensor<'g>, head: Tensor<'g>) -> Result<Tensor<'g>> {
    let (ty, out) = (x.ty()?, &cx.node.outputs[0]);
    let trimmed = window.trimmed(&ty.dims.range(2..), &out.dims.range(2..));
    let seen = windows(x, &trimmed, &out.dims.range(2..), lowest(ty.dtype))?;
    let reduction = max_with_index(&ty, &trimmed, &Params::new()).or_fail(&x.graph())?;
    let found = seen.reduced_to(reduction, &[out.clone(), DenseType::new(DType::I64, &out.dims)])?;
    let at = seen_by(found[1], window, &ty, -1.0)?;
    let seen = seen_by(head, window, &ty, 0.0)?;
    let of = seen.ty()?;
    let chosen = x.graph().map_with_extents(&[seen, at], &ty.dims, of.dtype, &of.dims, |s, a, extents| {
        row_major(s, extents).eq(&a[1]).select(&a[0], &a[0].lit(0.0))
    });
    chosen.sum_from(ty.rank())
}

fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>, old: bool) -> Gradients<'g> {
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let (ty, out) = (x.ty()?, &cx.node.outputs[0]);
    let window = window_of(cx.node.params, &ty.dims.range(2..)).or_fail(&g)?;
    let kind = kind(cx.node.params, old).or_fail(&g)?;
    let share = match kind {
        PoolKind::Max => return Ok(vec![Some(max_gradient(cx, &window, x, head)?)]),
        PoolKind::Sum => head,
        PoolKind::Mean { whole: true, .. } => head.map(|head| head * (1.0 / kernel_size(&window))),
        PoolKind::Mean { include_pad, .. } => {
            let counts = window_counts(g, &window, [&ty.dims, &out.dims], compute_type(out.dtype), include_pad)?;
            over_counts(head, &counts, out)
        }
        PoolKind::Norm(p) => head.map_with(&[g.value(cx.outputs[0])], |_, a| match p {
            1 => a[0].clone(),
            p => a[1].gt(&a[1].lit(0.0)).select(&(&a[0] / a[1].pow(&a[1].lit(p as f64 - 1.0))), &a[0].lit(0.0)),
        }),
    };
    let mut gradient = gathered(share, &window, &ty)?;
    if let PoolKind::Norm(p) = kind {
        gradient = gradient.map_with(&[x], |_, a| {
            let x = &a[1];
            let size = (1..p).fold(a[0].clone(), |size, _| size * x.abs());
            x.lt(&x.lit(0.0)).select(&-&size, &size)
        });
    }
    Ok(vec![Some(gradient)])
}

fn infer(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    kind(cx.params, false)?;
    if global(cx.params) {
        let Some(x) = open_rank_in(cx, 0, 3..=5)? else { return Ok(()) };
        check_layout(cx.params, x.len() - 2)?;
        return cx.set_output_dims(0, x.iter().enumerate().map(|(i, d)| if i < 2 { *d } else { Dim::Const(1) }));
    }
    let rank = kernel_of(cx.params)?.len();
    check_layout(cx.params, rank)?;
    let window = window_of(cx.params, &vec![0; rank].into())?;
    let convention = convention(cx.params);
    let [x, out] = pooled_dims(cx, rank)?;
    for i in 0..rank {
        let (k, s, pad) = (window.kernel[i] as i64, window.strides[i], 2 * window.before[i]);
        let input = cx.resolve(x[2 + i]);
        match input.as_extent() {
            Some(n) => {
                let n = count(&window, convention, i, n)?;
                cx.unify_dims(Dim::of(n), out[2 + i], &format!("output, spatial axis {i}"))?;
            }
            None => {
                let add = match convention {
                    Convention::Valid => pad - k + s,
                    Convention::Full => pad - k + 2 * s - 1,
                    Convention::Same => pad + s - 1,
                };
                cx.relate(Equation::Affine { out: out[2 + i], input, mul: 1, add, div: s })?;
            }
        }
    }
    Ok(())
}

const CONVENTION_DOC: &str =
    "Windows inside the padded operand; or also one that reaches beyond (full); or one a stride (same).";

fn entry(name: &'static str, doc: &'static str, old: bool) -> OpDef {
    let kinds: &[&str] = if old { &["avg", "max", "sum"] } else { &["avg", "lp", "max", "sum"] };
    let conventions: &[&str] = if old { &["full", "valid"] } else { &["full", "same", "valid"] };
    define(name, doc, formula(move |g, cx| body(g, cx, old)), rule(infer))
        .operand("data", FLOATS)
        .param("kernel", ParamValue::Ints(vec![]), "Extents of a window, one to three; not needed by a global pool.")
        .choice("pool_type", kinds, "max", "What is made of a window.")
        .param("global_pool", false, "One window that covers everything.")
        .choice("pooling_convention", conventions, "valid", CONVENTION_DOC)
        .param("stride", ParamValue::Ints(vec![]), "Default: 1 along every axis.")
        .param("pad", ParamValue::Ints(vec![]), "On both sides, below the kernel. Default: 0.")
        .gradient(derivative(move |g, cx| gradient(g, cx, old)))
        .ulp(4.0)
}

fn pooling() -> OpDef {
    let doc = "The maximum, mean, sum or p-norm of every window of [n, c, spatial…]. Windows of a mean are clipped to \
               the padded operand.";
    entry("mx_pooling", doc, false)
        .maybe("p_value", ParamKind::Int, "p of a p-norm, 1 to 3.")
        .maybe("count_include_pad", ParamKind::Bool, "Whether padding counts in a mean; default: yes.")
        .choice("layout", LAYOUTS, "None", "Only those with channels on axis 1 are supported.")
        .ignored(&[("cudnn_off", ParamValue::Bool(false))])
        .named(&["Pooling"])
}

fn pooling_v1() -> OpDef {
    let doc = "Pooling as in MXNet 0.x: a mean divides by the size of the kernel, wherever the window is.";
    entry("mx_pooling_v1", doc, true).named(&["Pooling_v1"])
}
