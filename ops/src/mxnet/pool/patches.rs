//! The patches under a sliding window as columns of a matrix, and back.

use crate::mxnet::layers::kernel_of;
use crate::prelude::*;
use crate::window::per_axis;

pub fn ops() -> Vec<OpDef> {
    vec![im2col(), col2im()]
}

fn window_of(params: &Params) -> Result<SpatialWindow, OpError> {
    let kernel = kernel_of(params)?;
    let rank = kernel.len();
    let (strides, dilations) = (per_axis(params, "stride", rank, 1)?, per_axis(params, "dilate", rank, 1)?);
    let pads = per_axis(params, "pad", rank, 0)?;
    if strides.iter().chain(&dilations).any(|s| *s <= 0) || pads.iter().any(|p| *p < 0) {
        return Err("parameters `stride` and `dilate` must be positive, `pad` at least 0".into());
    }
    Ok(SpatialWindow::padded(kernel, strides, dilations, pads))
}

/// Numbers of windows by spatial axis of [n, c, spatial…].
fn counts(window: &SpatialWindow, dims: &Extents) -> Result<Extents, OpError> {
    dims.range(2..).all().enumerate().map(|(axis, n)| window.count(axis, n)).collect()
}

/// Extents of the patches of [n, c, spatial…]: [n, c, kernel…, windows…].
fn patched(window: &SpatialWindow, dims: &Extents, counts: &Extents) -> Extents {
    let kernel = window.kernel.iter().map(|n| Extent::from(*n));
    dims.range(..2).all().chain(kernel).chain(counts.all()).collect()
}

/// [n, c, spatial…] as [n, c·kernel, windows].
fn columns<'g>(params: &Params, x: Tensor<'g>) -> Result<Tensor<'g>> {
    let ty = x.ty()?;
    let window = window_of(params).or_fail(&x.graph())?;
    let counts = counts(&window, &ty.dims).or_fail(&x.graph())?;
    let rank = counts.len();
    let dims = patched(&window, &ty.dims, &counts);
    let v = vars(dims.len());
    let mut map = v[..2].to_vec();
    map.extend((0..rank).map(|i| window.position(i, ty.dims.at(2 + i), &v[2 + rank + i], &v[2 + i])));
    let patches = x.view(map, Some(Scalar::zero(ty.dtype)), &dims);
    Ok(patches.reshaped(Extents::of([ty.dims.at(0), ty.dims.at(1) * size(&window), counts.count()])))
}

/// [n, c·kernel, windows] added up to [n, c, spatial…]: every element gathers what the windows say of it.
fn image<'g>(params: &Params, x: Tensor<'g>, out: &DenseType) -> Result<Tensor<'g>> {
    let window = window_of(params).or_fail(&x.graph())?;
    let counts = counts(&window, &out.dims).or_fail(&x.graph())?;
    let rank = counts.len();
    let patches = x.reshaped(patched(&window, &out.dims, &counts));
    let dims = followed_by(&out.dims, &window.kernel);
    let v = vars(dims.len());
    let kernel = &v[2 + rank..];
    let mut map: Vec<Index> = [&v[..2], kernel].concat();
    for i in 0..rank {
        let at = v[2 + i].offset(window.before[i]).sub(&kernel[i].scale(window.dilations[i]));
        // Between two windows the position lies beyond the last one, where the view fills.
        let beyond = at.modulo(window.strides[i], &dims).scale(counts.at(i) + 1 + out.dims.at(2 + i));
        map.push(at.floor_div(window.strides[i], &dims).add(&beyond));
    }
    patches.view(map, Some(Scalar::zero(out.dtype)), &dims).sum_from(out.rank())
}

fn window_params(def: OpDef) -> OpDef {
    def.required("kernel", ParamKind::Ints, "Extents of the window.")
        .param("stride", ParamValue::Ints(vec![]), "Default: 1 along every axis.")
        .param("dilate", ParamValue::Ints(vec![]), "Default: 1 along every axis.")
        .param("pad", ParamValue::Ints(vec![]), "Zeros on both sides. Default: 0.")
}

fn size(window: &SpatialWindow) -> u64 {
    window.kernel.iter().product()
}

fn im2col() -> OpDef {
    let compute = formula(|g, cx| columns(cx.params, g.operand(0)));
    let gradient = derivative(|g, cx| Ok(vec![Some(image(cx.node.params, g.head(cx, 0), &g.operand(0).ty()?)?)]));
    let infer = shape_rule(|cx: &mut InferCtx<'_>| {
        let window = window_of(cx.params)?;
        let x = open_ranked(cx, 0, window.kernel.len() + 2)?;
        let channels = x[1].as_extent().map(|c| Dim::of(c * size(&window)));
        let known: Option<Extents> = x.iter().map(|d| d.as_extent().or(Some(Extent::ONE))).collect();
        let is_known = x[2..].iter().all(|d| d.as_extent().is_some());
        let windows = match known.filter(|_| is_known) {
            Some(dims) => Some(Dim::of(counts(&window, &dims)?.count())),
            None => None,
        };
        partial(cx, 0, &[Some(x[0]), channels, windows])
    });
    let doc = "The patches of [n, c, spatial…] under a sliding window, as columns: [n, c · kernel, windows].";
    window_params(define("mx_im2col", doc, compute, infer).operand("data", FLOATS))
        .gradient(gradient)
        .named(&["im2col"])
}

fn col2im() -> OpDef {
    let compute = formula(|g, cx| image(cx.params, g.operand(0), &cx.outputs[0]));
    let gradient = derivative(|g, cx| Ok(vec![Some(columns(cx.node.params, g.head(cx, 0))?)]));
    let infer = shape_rule(|cx: &mut InferCtx<'_>| {
        let window = window_of(cx.params)?;
        let out = cx.params.ints("output_size").unwrap_or(&[]).to_vec();
        if out.len() != window.kernel.len() || out.iter().any(|n| *n <= 0) {
            return Err(OpError(format!("parameter `output_size`: expected {} extents", window.kernel.len())));
        }
        let spatial: Vec<u64> = out.iter().map(|n| *n as u64).collect();
        let windows: u64 = window.counts(&spatial)?.iter().product();
        let x = open_ranked(cx, 0, 3)?;
        cx.unify_dims(Dim::Const(windows), x[2], "operand `data`, axis 2 (windows)")?;
        let size = size(&window);
        multiple_of(x[1], size, "operand `data`, axis 1")?;
        let channels = x[1].as_const().map(|c| Dim::Const(c / size));
        let dims = [Some(x[0]), channels].into_iter().chain(spatial.into_iter().map(|n| Some(Dim::Const(n))));
        partial(cx, 0, &dims.collect::<Vec<_>>())
    });
    let doc = "Adds up patches, columns of [n, c · kernel, windows], to [n, c, spatial…].";
    window_params(define("mx_col2im", doc, compute, infer).operand("data", FLOATS))
        .required("output_size", ParamKind::Ints, "Spatial extents of the result.")
        .gradient(gradient)
        .named(&["col2im"])
}
