//! Boxes by corners (x1, y1, x2, y2) or centre (x, y, width, height): overlap, and offsets from anchors.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![iou(), decode(), encode()]
}

pub const FORMATS: &[&str] = &["corner", "center"];

pub fn is_center(params: &Params, name: &str) -> bool {
    params.str(name) == Some("center")
}

/// Element `i` of the last axis, which it keeps with extent 1.
pub fn component(b: &mut Builder<'_>, x: Value, i: u64) -> Result<Value> {
    let rank = b.dims(x)?.len();
    b.slice_axis(x, rank - 1, i, 1)
}

/// The four numbers of boxes, by corners.
pub fn corners(b: &mut Builder<'_>, x: Value, center: bool) -> Result<[Value; 4]> {
    let part = [0, 1, 2, 3].map(|i| component(b, x, i));
    let [p0, p1, p2, p3] = part;
    let part = [p0?, p1?, p2?, p3?];
    if !center {
        return Ok(part);
    }
    let ty = b.ty(part[0])?;
    let mut side = |at: usize, sign: f64| {
        b.map_as(&[part[at], part[at + 2]], ty.dtype, &ty.dims, |_, a| &a[0] + &a[1] * (sign / 2.0))
    };
    Ok([side(0, -1.0)?, side(1, -1.0)?, side(0, 1.0)?, side(1, 1.0)?])
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
    let compute = composite_of(|b, cx, [x, y]| {
        let center = is_center(cx.params, "format");
        let (n, m) = (b.ty(x)?.len() / 4, b.ty(y)?.len() / 4);
        let mut inputs = vec![];
        for (box_, dims) in [(x, [n, 1]), (y, [1, m])] {
            for part in corners(b, box_, center)? {
                inputs.push(b.reshaped(part, &dims)?);
            }
        }
        let out = &cx.outputs[0];
        let all = b.map_as(&inputs, out.dtype, &[n, m], |_, a| overlap(&a[..4], &a[4..]))?;
        b.reshaped(all, &out.dims)
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

fn decode() -> OpDef {
    let compute = composite_of(|b, cx, [data, anchors]| {
        let by_corner = !is_center(cx.params, "format");
        let ty = b.ty(data)?;
        let mut parts = vec![];
        let raw = [0, 1, 2, 3].map(|i| component(b, anchors, i));
        let [a0, a1, a2, a3] = raw;
        let anchor = [a0?, a1?, a2?, a3?];
        let line = [ty.dims[0], ty.dims[1], 1];
        let std = [0, 1, 2, 3].map(|i| cx.params.float(["std0", "std1", "std2", "std3"][i]).unwrap_or(1.0));
        let limit = cx.params.float("clip").unwrap_or(-1.0);
        for corner in 0..4usize {
            let axis = corner % 2;
            let (at, size) = (component(b, data, axis as u64)?, component(b, data, axis as u64 + 2)?);
            let sign = if corner < 2 { -1.0 } else { 1.0 };
            parts.push(b.map_as(&[at, size, anchor[axis], anchor[axis + 2]], ty.dtype, &line, |_, a| {
                let (width, centre) = match by_corner {
                    true => (&a[3] - &a[2], (&a[2] + &a[3]) * 0.5),
                    false => (a[3].clone(), a[2].clone()),
                };
                let d = &a[1] * std[axis + 2];
                let d = if limit > 0.0 { d.min(&d.lit(limit)) } else { d };
                let half = d.exp() * &width * 0.5;
                &a[0] * std[axis] * &width + centre + half * sign
            })?);
        }
        b.concat(&parts, 2)
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let Some(data) = rank_in(cx, 0, 3..=3)? else { return Ok(()) };
        cx.unify_dims(Dim::Const(4), data[2], "operand `data`, axis 2")?;
        shaped(cx, 1, &[Dim::Const(1), data[1], Dim::Const(4)])
    });
    let def = define("mx_box_decode", "Boxes by corners from offsets to anchors.", compute, infer)
        .groups(&["data", "anchors"], FLOATS);
    ["std0", "std1", "std2", "std3"]
        .into_iter()
        .fold(def, |def, name| def.param(name, 1.0, "factor of an offset"))
        .param("clip", -1.0, "greatest logarithm of a size; not positive: none")
        .choice("format", FORMATS, "center", "what the numbers of an anchor are")
        .ulp(16.0)
        .mxnet("_contrib_box_decode")
}

/// Offsets of matched references from anchors, and a mask of the positive samples.
fn encode() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let all = (0..6).map(|i| operand(b, args, i)).collect::<Result<Vec<_>>>()?;
        let (samples, matches, anchors, refs, means, stds) = (all[0], all[1], all[2], all[3], all[4], all[5]);
        let out = &cx.outputs[0];
        let (n, a, m) = (out.dims[0], out.dims[1], b.dims(refs)?[1]);
        // The reference of every sample, by its position among those of all images.
        let from = b.map_as(&[matches], DType::I64, &[n, a], |s, x| {
            let i = x[0].cast(DType::I64);
            let i = i.max(&i.lit(0.0)).min(&i.lit(m.saturating_sub(1) as f64));
            s.coord(0) * i.lit(m as f64) + i
        })?;
        let from = b.reshaped(from, &[n * a])?;
        let rows = b.reshaped(refs, &[n * m, 4])?;
        let matched = b.gathered(rows, from, 0)?;
        let matched = b.reshaped(matched, &[n, a, 4])?;
        let samples = b.reshaped(samples, &[n, a, 1])?;
        let mut parts = vec![];
        for i in 0..4u64 {
            let axis = i % 2;
            let mut inputs = vec![samples];
            for box_ in [matched, anchors] {
                inputs.push(component(b, box_, axis)?);
                inputs.push(component(b, box_, axis + 2)?);
            }
            for number in [means, stds] {
                let x = b.slice_axis(number, 0, i, 1)?;
                inputs.push(b.reshaped(x, &[1, 1, 1])?);
            }
            parts.push(b.map_as(&inputs, out.dtype, &[n, a, 1], |_, x| {
                let size = |low: &Ex, high: &Ex| high - low;
                let centre = |low: &Ex, high: &Ex| (low + high) * 0.5;
                let (rw, aw) = (size(&x[1], &x[2]), size(&x[3], &x[4]));
                let raw = if i < 2 { (centre(&x[1], &x[2]) - centre(&x[3], &x[4])) / aw } else { (rw / aw).log() };
                x[0].gt(&x[0].lit(0.5)).select(&((raw - &x[5]) / &x[6]), &x[0].lit(0.0))
            })?);
        }
        let mask = b.map_as(&[samples], out.dtype, &out.dims, |_, x| {
            x[0].gt(&x[0].lit(0.5)).select(&x[0].lit(1.0), &x[0].lit(0.0))
        })?;
        Ok(vec![b.concat(&parts, 2)?, mask])
    }));
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
    let def = define("mx_box_encode", doc, compute, infer);
    names
        .into_iter()
        .fold(def, |def, name| def.group(name, FLOATS))
        .outputs(2, 2)
        .no_gradient()
        .ulp(16.0)
        .mxnet("_contrib_box_encode")
}
