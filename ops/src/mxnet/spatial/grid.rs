//! Bilinear sampling on grids in [-1, 1]. Positions outside an image count as zero.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![grid_generator(), bilinear_sampler(), spatial_transformer()]
}

/// Coordinate `at` of `n` as a number in [-1, 1].
fn normalized(at: &Ex, like: &Ex, n: u64) -> Ex {
    at.cast(like.dtype()) * (2.0 / (n.max(2) - 1) as f64) - like.lit(1.0)
}

/// Positions [n, 2, h, w] under affine maps [n, 6]: the first row of each gives x, the second y.
fn affine_grid(theta: Tensor<'_>, [h, w]: [u64; 2]) -> Result<Tensor<'_>> {
    let ty = theta.ty()?;
    let n = ty.dims[0];
    let theta = theta.reshape([n, 2, 3]);
    let columns = [0, 1, 2].map(|i| theta.slice(2, i, 1).reshape([n, 2, 1, 1]));
    Ok(theta.graph().map(&columns, ty.dtype, [n, 2, h, w], |s, a| {
        let (x, y) = (normalized(&s.coord(3), &a[0], w), normalized(&s.coord(2), &a[0], h));
        &a[0] * x + &a[1] * y + &a[2]
    }))
}

/// Positions from displacements in pixels, [n, 2, h, w].
fn warped_grid(flow: Tensor<'_>) -> Result<Tensor<'_>> {
    let dims = flow.dims()?;
    let half = |n: u64| (n.max(2) - 1) as f64 / 2.0;
    let (h, w) = (half(dims[2]), half(dims[3]));
    Ok(flow.map_with(&[], |s, a| {
        let along =
            |axis: usize, half: f64| (&a[0] + s.coord(axis).cast(a[0].dtype())) / a[0].lit(half) - a[0].lit(1.0);
        let first = s.coord(1).eq(&s.coord(1).lit(0.0));
        first.select(&along(3, w), &along(2, h))
    }))
}

/// Rows of [n · h · w, c]: where an image's pixels lie.
pub struct Pixels<'g> {
    rows: Tensor<'g>,
    dims: Vec<u64>,
}

impl<'g> Pixels<'g> {
    /// From [n, c, h, w].
    pub fn new(image: Tensor<'g>) -> Result<Pixels<'g>> {
        let dims = image.dims()?.to_vec();
        let rows = image.permute(&[0, 2, 3, 1]).reshape([dims[0] * dims[2] * dims[3], dims[1]]);
        Ok(Pixels { rows, dims })
    }

    /// Pixels at positions `at` (image, row, column, as numbers), each times a weight, all of shape `shape`:
    /// the result has the channels behind these axes.
    pub fn weighted(&self, at: [Tensor<'g>; 3], weight: Tensor<'g>, shape: &[u64]) -> Tensor<'g> {
        let last = [0, 2, 3].map(|i| self.dims[i].saturating_sub(1) as f64);
        let [h, w] = [self.dims[2], self.dims[3]].map(|n| n as f64);
        let from = self.rows.graph().map(&at, DType::I64, shape, |_, a| {
            let [n, y, x] = [0, 1, 2].map(|i| {
                let at = a[i].cast(DType::I64);
                at.max(&at.lit(0.0)).min(&at.lit(last[i]))
            });
            (&n * n.lit(h) + y) * n.lit(w) + x
        });
        let count = shape.iter().product();
        let got = self.rows.gather(from.reshape([count]), 0);
        (got * weight.reshape([count, 1])).reshape([shape, &[self.dims[1]]].concat())
    }
}

/// Values of [n, c, h, w] at positions [n, 2, h', w'].
fn sampled<'g>(image: Tensor<'g>, grid: Tensor<'g>) -> Result<Tensor<'g>> {
    let (g, pixels) = (image.graph(), Pixels::new(image)?);
    let (dims, ty) = (&pixels.dims, grid.ty()?);
    let shape = [dims[0], ty.dims[2], ty.dims[3]];
    let [x, y] = [(0, dims[3]), (1, dims[2])].map(|(which, n)| {
        let position = |x: &Ex| (x + x.lit(1.0)) * (n.saturating_sub(1) as f64 / 2.0);
        grid.slice(1, which, 1).reshape(shape).map(position)
    });
    let number = g.map(&[], DType::I64, shape, |s, _| s.coord(0));
    let parts = [0, 1, 2, 3].map(|corner| {
        let (right, below) = (f64::from(corner % 2), f64::from(corner / 2));
        let weight = x.map_with(&[y], |_, a| {
            let share = |p: &Ex, step: f64, n: u64| {
                let corner = p.floor() + p.lit(step);
                let inside = corner.ge(&p.lit(0.0)) & corner.le(&p.lit(n.saturating_sub(1) as f64));
                let fraction = p - p.floor();
                let weight = if step == 0.0 { p.lit(1.0) - fraction } else { fraction };
                inside.select(&weight, &p.lit(0.0))
            };
            share(&a[0], right, dims[3]) * share(&a[1], below, dims[2])
        });
        let edge =
            |p, step: f64| g.map(&[p], DType::I64, shape, |_, a| (a[0].floor() + a[0].lit(step)).cast(DType::I64));
        let (cx, cy) = (edge(x, right), edge(y, below));
        pixels.weighted([number, cy, cx], weight, &shape)
    });
    Ok(parts[0].call("sum", &parts[1..]).permute(&[0, 3, 1, 2]))
}

/// Rows and columns of parameter `target_shape`.
fn target(params: &Params) -> Result<[u64; 2], OpError> {
    let given = params.ints("target_shape").unwrap_or_default();
    match given {
        [h, w] if *h > 0 && *w > 0 => Ok([*h as u64, *w as u64]),
        _ => Err(OpError(format!("parameter `target_shape` is {given:?}, expected rows and columns"))),
    }
}

fn grid_generator() -> OpDef {
    let compute = formula(|g, cx| match (cx.params.str("transform_type"), &cx.outputs[0].dims) {
        (Some("warp"), _) => warped_grid(g.operand(0)),
        (_, out) => affine_grid(g.operand(0), [out[2], out[3]]),
    });
    let infer = shape_rule(|cx| {
        if cx.params.str("transform_type") == Some("warp") {
            same(cx, 0, 0)?;
            let Some(data) = rank_in(cx, 0, 4..=4)? else { return Ok(()) };
            return cx.unify_dims(Dim::Const(2), data[1], "operand `data`, axis 1");
        }
        let [h, w] = target(cx.params)?;
        let data = ranked(cx, 0, 2)?;
        cx.unify_dims(Dim::Const(6), data[1], "operand `data`, axis 1")?;
        cx.set_output_dims(0, [data[0], Dim::Const(2), Dim::Const(h), Dim::Const(w)])
    });
    let doc = "Positions in [-1, 1] for bilinear sampling, from affine maps [n, 6] or displacements [n, 2, h, w].";
    define("mx_grid_generator", doc, compute, infer)
        .operand("data", FLOATS)
        .required("transform_type", ParamKind::Choice(&["affine", "warp"]), "what the operand holds")
        .param("target_shape", vec![0, 0], "rows and columns, for affine maps")
        .ulp(8.0)
        .mxnet("GridGenerator")
}

fn bilinear_sampler() -> OpDef {
    let compute = formula(|g, _| sampled(g.operand(0), g.operand(1)));
    let infer = shape_rule(|cx| {
        let (Some(data), Some(grid)) = (rank_in(cx, 0, 4..=4)?, rank_in(cx, 1, 4..=4)?) else { return Ok(()) };
        shaped(cx, 1, &[data[0], Dim::Const(2), grid[2], grid[3]])?;
        cx.set_output_dims(0, [data[0], data[1], grid[2], grid[3]])
    });
    define("mx_bilinear_sampler", "Values of images at the positions of a grid, zero outside.", compute, infer)
        .groups(&["data", "grid"], FLOATS)
        .maybe("cudnn_off", ParamKind::Bool, "No effect.")
        .ulp(16.0)
        .mxnet("BilinearSampler")
}

fn spatial_transformer() -> OpDef {
    let compute = formula(|g, cx| {
        let out = &cx.outputs[0].dims;
        sampled(g.operand(0), affine_grid(g.operand(1), [out[2], out[3]])?)
    });
    let infer = shape_rule(|cx| {
        let [h, w] = target(cx.params)?;
        let Some(data) = rank_in(cx, 0, 4..=4)? else { return Ok(()) };
        cx.set_input_dims(1, [data[0], Dim::Const(6)])?;
        cx.set_output_dims(0, [data[0], data[1], Dim::Const(h), Dim::Const(w)])
    });
    define("mx_spatial_transformer", "Images resampled under affine maps [n, 6].", compute, infer)
        .groups(&["data", "loc"], FLOATS)
        .param("target_shape", vec![0, 0], "rows and columns of the result")
        .required("transform_type", ParamKind::Choice(&["affine"]), "what `loc` holds")
        .required("sampler_type", ParamKind::Choice(&["bilinear"]), "how values are interpolated")
        .maybe("cudnn_off", ParamKind::Bool, "No effect.")
        .ulp(32.0)
        .mxnet("SpatialTransformer")
}
