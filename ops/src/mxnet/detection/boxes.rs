//! Boxes by corners (x1, y1, x2, y2) or centre (x, y, width, height): overlap, and offsets from anchors.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![iou(), decode(), encode()]
}

pub const FORMATS: &[&str] = &["corner", "center"];

pub fn is_center(params: &Params, name: &str) -> bool {
    params.str(name) == Some("center")
}

/// Factors of the four offsets of a box from an anchor.
pub fn variances(params: &Params) -> [f64; 4] {
    let given = params.floats("variances").unwrap_or_default();
    [0, 1, 2, 3].map(|i| given.get(i).copied().unwrap_or(if i < 2 { 0.1 } else { 0.2 }))
}

/// Element `i` of the last axis, which it keeps with extent 1.
pub fn component(x: Tensor<'_>, i: u64) -> Tensor<'_> {
    x.then(|b, x| {
        let rank = b.dims(x)?.len();
        b.slice_axis(x, rank - 1, i, 1)
    })
}

/// The four numbers of boxes.
fn components(x: Tensor<'_>) -> [Tensor<'_>; 4] {
    [0, 1, 2, 3].map(|i| component(x, i))
}

/// The four numbers of boxes, by corners.
pub fn corners(x: Tensor<'_>, center: bool) -> [Tensor<'_>; 4] {
    let part = components(x);
    if !center {
        return part;
    }
    let side = |at: usize, sign: f64| part[at].map_with(&[part[at + 2]], |_, a| &a[0] + &a[1] * (sign / 2.0));
    [side(0, -1.0), side(1, -1.0), side(0, 1.0), side(1, 1.0)]
}

/// How offsets of boxes from anchors are read.
pub struct Decoding {
    /// Anchors are given by corners.
    pub by_corner: bool,
    pub factors: [f64; 4],
    /// Greatest logarithm of a size, if positive.
    pub limit: f64,
    /// Boxes end at the border of the image.
    pub clip: bool,
}

/// Boxes by corners, [images, n, 4], from offsets of that shape and anchors [1, n, 4].
pub fn decoded<'g>(offsets: Tensor<'g>, anchors: Tensor<'g>, how: &Decoding) -> Result<Tensor<'g>> {
    let (g, ty, anchor) = (offsets.graph(), offsets.ty()?, components(anchors));
    let parts = [0, 1, 2, 3].map(|corner| {
        let axis = corner % 2;
        let (at, size) = (component(offsets, axis as u64), component(offsets, axis as u64 + 2));
        let sign = if corner < 2 { -1.0 } else { 1.0 };
        let inputs = [at, size, anchor[axis], anchor[axis + 2]];
        g.map(&inputs, ty.dtype, [ty.dims[0], ty.dims[1], 1], |_, a| {
            let (width, centre) = match how.by_corner {
                true => (&a[3] - &a[2], (&a[2] + &a[3]) * 0.5),
                false => (a[3].clone(), a[2].clone()),
            };
            let log = &a[1] * how.factors[axis + 2];
            let log = if how.limit > 0.0 { log.min(&log.lit(how.limit)) } else { log };
            let half = log.exp() * &width * 0.5;
            let edge = &a[0] * how.factors[axis] * &width + centre + half * sign;
            if how.clip { edge.max(&edge.lit(0.0)).min(&edge.lit(1.0)) } else { edge }
        })
    });
    Ok(g.concat(&parts, 2))
}

/// Intersection over union of boxes by corners.
pub fn overlap(a: &[Ex], b: &[Ex]) -> Ex {
    let zero = a[0].lit(0.0);
    let length = |low: &Ex, high: &Ex| (high - low).max(&zero);
    let area = |p: &[Ex]| length(&p[0], &p[2]) * length(&p[1], &p[3]);
    let common = length(&a[0].max(&b[0]), &a[2].min(&b[2])) * length(&a[1].max(&b[1]), &a[3].min(&b[3]));
    let union = area(a) + area(b) - &common;
    union.le(&zero).select(&zero, &(common / &union))
}

fn iou() -> OpDef {
    let compute = formula(|g, cx| {
        let ([x, y], out) = (g.operands(), &cx.outputs[0]);
        let (n, m) = (x.ty()?.len() / 4, y.ty()?.len() / 4);
        let parts = |x, dims: [u64; 2]| corners(x, is_center(cx.params, "format")).map(|part| part.reshape(dims));
        let inputs = [parts(x, [n, 1]), parts(y, [1, m])].concat();
        Ok(g.map(&inputs, out.dtype, [n, m], |_, a| overlap(&a[..4], &a[4..])).reshape(&out.dims))
    });
    let infer = shape_rule(|cx| {
        let (Some(x), Some(y)) = (rank_in(cx, 0, 1..=usize::MAX)?, rank_in(cx, 1, 1..=usize::MAX)?) else {
            return Ok(());
        };
        cx.unify_dims(Dim::Const(4), x[x.len() - 1], "operand `lhs`, last axis")?;
        cx.unify_dims(Dim::Const(4), y[y.len() - 1], "operand `rhs`, last axis")?;
        cx.set_output_dims(0, [&x[..x.len() - 1], &y[..y.len() - 1]].concat())
    });
    define("mx_box_iou", "Intersection over union of all pairs of boxes.", compute, infer)
        .groups(&["lhs", "rhs"], FLOATS)
        .choice("format", FORMATS, "corner", "what the numbers of a box are")
        .no_gradient()
        .ulp(16.0)
        .mxnet("_contrib_box_iou")
}

const FACTORS: [&str; 4] = ["std0", "std1", "std2", "std3"];

fn decode() -> OpDef {
    let compute = formula(|g, cx| {
        let [data, anchors] = g.operands();
        let how = Decoding {
            by_corner: !is_center(cx.params, "format"),
            factors: FACTORS.map(|name| cx.params.float(name).unwrap_or(1.0)),
            limit: cx.params.float("clip").unwrap_or(-1.0),
            clip: false,
        };
        decoded(data, anchors, &how)
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(data) = rank_in(cx, 0, 3..=3)? else { return Ok(()) };
        cx.unify_dims(Dim::Const(4), data[2], "operand `data`, axis 2")?;
        shaped(cx, 1, &[Dim::Const(1), data[1], Dim::Const(4)])
    });
    let def = define("mx_box_decode", "Boxes by corners from offsets to anchors.", compute, infer)
        .groups(&["data", "anchors"], FLOATS);
    FACTORS
        .into_iter()
        .fold(def, |def, name| def.param(name, 1.0, "factor of an offset"))
        .param("clip", -1.0, "greatest logarithm of a size; not positive: none")
        .choice("format", FORMATS, "center", "what the numbers of an anchor are")
        .ulp(16.0)
        .mxnet("_contrib_box_decode")
}

/// Offsets of matched references from anchors, and a mask of the positive samples.
fn encode() -> OpDef {
    let compute = formulas(|g, cx| {
        let ([samples, matches, anchors, refs, means, stds], out) = (g.operands(), &cx.outputs[0]);
        let (n, a, m) = (out.dims[0], out.dims[1], refs.dims()?[1]);
        // The reference of every sample, by its position among those of all images.
        let from = g.map(&[matches], DType::I64, [n, a], |s, x| {
            let i = x[0].cast(DType::I64);
            let i = i.max(&i.lit(0.0)).min(&i.lit(m.saturating_sub(1) as f64));
            s.coord(0) * i.lit(m as f64) + i
        });
        let from = from.reshape([n * a]);
        let matched = refs.reshape([n * m, 4]).gather(from, 0).reshape([n, a, 4]);
        let samples = samples.reshape([n, a, 1]);
        let parts = [0, 1, 2, 3].map(|i| {
            let [[rl, rh], [al, ah]] = [matched, anchors].map(|box_| [i % 2, i % 2 + 2].map(|at| component(box_, at)));
            let [mean, std] = [means, stds].map(|number| number.slice(0, i, 1).reshape([1, 1, 1]));
            g.map(&[samples, rl, rh, al, ah, mean, std], out.dtype, [n, a, 1], |_, x| {
                let size = |low: &Ex, high: &Ex| high - low;
                let centre = |low: &Ex, high: &Ex| (low + high) * 0.5;
                let (rw, aw) = (size(&x[1], &x[2]), size(&x[3], &x[4]));
                let raw = if i < 2 { (centre(&x[1], &x[2]) - centre(&x[3], &x[4])) / aw } else { (rw / aw).log() };
                x[0].gt(&x[0].lit(0.5)).select(&((raw - &x[5]) / &x[6]), &x[0].lit(0.0))
            })
        });
        let positive = |_: &ScalarBuilder, x: &[Ex]| x[0].gt(&x[0].lit(0.5)).select(&x[0].lit(1.0), &x[0].lit(0.0));
        let mask = g.map(&[samples], out.dtype, &out.dims, positive);
        Ok(vec![g.concat(&parts, 2), mask])
    });
    let infer = rule(|cx| {
        let four = Dim::Const(4);
        (0..2).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(samples) = rank_in(cx, 0, 2..=2)? else { return Ok(()) };
        shaped(cx, 1, &samples)?;
        shaped(cx, 2, &[samples[0], samples[1], four])?;
        if let Some(refs) = rank_in(cx, 3, 3..=3)? {
            shaped(cx, 3, &[samples[0], refs[1], four])?;
        }
        shaped(cx, 4, &[four])?;
        shaped(cx, 5, &[four])?;
        (0..2).try_for_each(|i| cx.set_output_dims(i, [samples[0], samples[1], four]))
    });
    let doc = "Offsets of the matched references (by corners) from anchors, and a mask of the positive samples.";
    let names = ["samples", "matches", "anchors", "refs", "means", "stds"];
    define("mx_box_encode", doc, compute, infer)
        .groups(&names, FLOATS)
        .outputs(2, 2)
        .no_gradient()
        .ulp(16.0)
        .mxnet("_contrib_box_encode")
}
