//! Anchor boxes over the positions of a feature map: constants of its extents.

use crate::prelude::*;

fn list<'a>(params: &'a Params, name: &str) -> &'a [f64] {
    params.floats(name).unwrap_or_default()
}

fn pair(params: &Params, name: &str, default: f64) -> Result<[f32; 2], OpError> {
    match list(params, name) {
        [] => Ok([default as f32; 2]),
        [y, x] => Ok([*y as f32, *x as f32]),
        other => Err(OpError(format!("parameter `{name}` has {} entries, expected 2", other.len()))),
    }
}

/// Half width (of a square image) and half height of each anchor.
fn halves(params: &Params, aspect: f32) -> Vec<[f32; 2]> {
    let (sizes, ratios) = (list(params, "sizes"), list(params, "ratios"));
    let of = |size: f64, ratio: f64| {
        let root = (ratio as f32).sqrt();
        [size as f32 * aspect * root / 2.0, size as f32 / root / 2.0]
    };
    let first = ratios.first().copied().unwrap_or(1.0);
    let own = sizes.iter().map(|&s| of(s, first));
    let more = ratios.iter().skip(1).map(|&r| of(sizes.first().copied().unwrap_or(1.0), r));
    own.chain(more).collect()
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let dims = &cx.input(0).or_fail(&g)?.dims;
    let (h, w) = (dims[2], dims[3]);
    let steps = pair(cx.params, "steps", -1.0).or_fail(&g)?;
    let offsets = pair(cx.params, "offsets", 0.5).or_fail(&g)?;
    let step = |given: f32, n: u64| if given <= 0.0 { 1.0 / n as f32 } else { given };
    let (step_y, step_x) = (step(steps[0], h), step(steps[1], w));
    let halves = halves(cx.params, h as f32 / w as f32);
    let clip = cx.params.flag("clip");
    let (count, out) = (halves.len() as u64, &cx.outputs[0]);
    let data = TensorData::from_fn(out.clone(), |i| {
        let (corner, anchor, place) = (i % 4, i / 4 % count, i / 4 / count);
        let (row, column) = (place / w, place % w);
        let [half_w, half_h] = halves[anchor as usize];
        let (y, x) = ((row as f32 + offsets[0]) * step_y, (column as f32 + offsets[1]) * step_x);
        let value = match corner {
            0 => x - half_w,
            1 => y - half_h,
            2 => x + half_w,
            _ => y + half_h,
        };
        let value = if clip { value.clamp(0.0, 1.0) } else { value };
        Scalar::from_f64(out.dtype, f64::from(value))
    });
    Ok(g.constant(data))
}

pub fn multibox_prior() -> OpDef {
    let infer = shape_rule(|cx| {
        pair(cx.params, "steps", -1.0)?;
        pair(cx.params, "offsets", 0.5)?;
        let count = halves(cx.params, 1.0).len() as u64;
        let Some(x) = rank_in(cx, 0, 4..=4)? else { return Ok(()) };
        match (x[2], x[3]) {
            (Dim::Const(h), Dim::Const(w)) => {
                cx.set_output_dims(0, [Dim::Const(1), Dim::Const(h * w * count), Dim::Const(4)])
            }
            _ => Ok(()),
        }
    });
    let doc = "Anchor boxes (x1, y1, x2, y2, in shares of the image) at every position of a feature map.";
    define("mx_multibox_prior", doc, formula(body), infer)
        .operand("data", FLOATS)
        .param("sizes", vec![1.0], "sizes, with the first ratio")
        .param("ratios", vec![1.0], "widths over heights, the second and later with the first size")
        .param("clip", false, "whether boxes are clipped to the image")
        .param("steps", vec![-1.0, -1.0], "distance of rows and columns; negative: even")
        .param("offsets", vec![0.5, 0.5], "place of the centre in a cell, by row and column")
        .no_gradient()
        .mxnet("_contrib_MultiBoxPrior")
}
