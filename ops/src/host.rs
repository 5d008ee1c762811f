//! Operators whose result shapes depend on element values; they run on the host.

use std::cmp::Ordering;

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![nonzero(), compress(), unique(), non_max_suppression()]
}

fn given(args: &[Option<TensorData>], i: usize) -> Result<&TensorData, OpError> {
    args.get(i).and_then(Option::as_ref).ok_or_else(|| OpError(format!("operand {i} is missing")))
}

fn i64_tensor(dims: &[u64], values: &[i64]) -> Result<TensorData, OpError> {
    TensorData::i64s(dims, values).ok_or_else(|| OpError("the result does not fill its shape".into()))
}

fn nonzero() -> OpDef {
    let compute = host(|_, args| {
        let x = given(args, 0)?;
        let hits: Vec<u64> = (0..x.len()).filter(|&i| x.get(i).as_bool()).collect();
        let strides = x.ty.strides();
        let coordinate = |i: u64, axis: usize| i as i64 / strides[axis] % x.dims()[axis] as i64;
        let values: Vec<i64> =
            (0..x.dims().len()).flat_map(|axis| hits.iter().map(move |&i| coordinate(i, axis))).collect();
        Ok(vec![i64_tensor(&[x.dims().len() as u64, hits.len() as u64], &values)?])
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        let rank = cx.input_shape(0).rank().map(|r| Dim::Const(r as u64));
        partial(cx, 0, &[rank, None])
    });
    define("nonzero", "The coordinates of the non-zero elements, in row-major order.", compute, infer)
        .operand("X", &[])
        .onnx("NonZero", 9)
}

/// The tensor with only the given positions of an axis.
pub fn select(x: &TensorData, axis: usize, keep: &[u64]) -> TensorData {
    let mut dims = x.dims().to_vec();
    let extent = dims[axis];
    dims[axis] = keep.len() as u64;
    let inner: u64 = dims[axis + 1..].iter().product();
    TensorData::from_fn(DenseType::new(x.dtype(), &dims), |i| {
        let (outer, rest) = (i / (inner * keep.len() as u64), i % (inner * keep.len() as u64));
        x.get((outer * extent + keep[(rest / inner) as usize]) * inner + rest % inner)
    })
}

/// The operand itself, or as one axis.
fn along(x: &TensorData, axis: Option<i64>) -> Result<(TensorData, usize), OpError> {
    match axis {
        Some(a) => Ok((x.clone(), normalize_axis(a, x.dims().len())?)),
        None => x.reshape(&[x.len()]).map(|x| (x, 0)).ok_or_else(|| OpError("operand cannot be flattened".into())),
    }
}

fn compress() -> OpDef {
    let compute = host(|cx, args| {
        let (x, axis) = along(given(args, 0)?, cx.params.int("axis"))?;
        let condition = given(args, 1)?;
        let n = condition.len().min(x.dims()[axis]);
        let keep: Vec<u64> = (0..n).filter(|&i| condition.get(i).as_bool()).collect();
        Ok(vec![select(&x, axis, &keep)])
    });
    let infer = shape_rule(|cx| {
        let Some(axis) = cx.params.int("axis") else { return partial(cx, 0, &[None]) };
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(axis, x.len())?;
        crate::index::all_but(cx, 0, &x, axis, None)
    });
    define("compress", "The slices along `axis` where the condition holds.", compute, infer)
        .operand("input", &[])
        .operand("condition", BOOLS)
        .maybe("axis", ParamKind::Int, "Default: of the flattened operand.")
        .onnx("Compress", 9)
}

/// Total order of elements of one type; NaN is the greatest.
fn order(a: Scalar, b: Scalar) -> Ordering {
    match a.dtype.is_float() {
        true => {
            let (x, y) = (a.as_f64(), b.as_f64());
            x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
        }
        false if a.dtype == DType::U64 => a.bits.cmp(&b.bits),
        false => a.as_i64().cmp(&b.as_i64()),
    }
}

fn unique() -> OpDef {
    let compute = host(|cx, args| {
        let (x, axis) = along(given(args, 0)?, cx.params.int("axis"))?;
        let n = x.dims()[axis];
        let inner: u64 = x.dims()[axis + 1..].iter().product();
        let outer: u64 = x.dims()[..axis].iter().product();
        let compare = |i: u64, j: u64| {
            let element = |s: u64, p: u64| x.get((p / inner * n + s) * inner + p % inner);
            (0..outer * inner)
                .map(|p| order(element(i, p), element(j, p)))
                .find(|o| o.is_ne())
                .unwrap_or(Ordering::Equal)
        };
        let mut sorted: Vec<u64> = (0..n).collect();
        sorted.sort_by(|&i, &j| compare(i, j));
        // Groups of equal slices; the sort is stable, so the first of each is the earliest.
        let mut groups: Vec<Vec<u64>> = vec![];
        for i in sorted {
            match groups.last_mut() {
                Some(g) if compare(g[0], i).is_eq() => g.push(i),
                _ => groups.push(vec![i]),
            }
        }
        if !cx.params.bool("sorted").unwrap_or(true) {
            groups.sort_by_key(|g| g[0]);
        }
        let first: Vec<u64> = groups.iter().map(|g| g[0]).collect();
        let mut inverse = vec![0i64; n as usize];
        for (g, members) in groups.iter().enumerate() {
            members.iter().for_each(|&i| inverse[i as usize] = g as i64);
        }
        let count = groups.len() as u64;
        Ok(vec![
            select(&x, axis, &first),
            i64_tensor(&[count], &first.iter().map(|i| *i as i64).collect::<Vec<_>>())?,
            i64_tensor(&[n], &inverse)?,
            i64_tensor(&[count], &groups.iter().map(|g| g.len() as i64).collect::<Vec<_>>())?,
        ])
    });
    let infer = shape_rule(|cx| {
        for i in 1..cx.output_count() {
            cx.set_output_dtype(i, DType::I64)?;
            partial(cx, i, &[None])?;
        }
        let Some(axis) = cx.params.int("axis") else { return partial(cx, 0, &[None]) };
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(axis, x.len())?;
        crate::index::all_but(cx, 0, &x, axis, None)
    });
    let doc = "The distinct elements, or slices along `axis`; where each first occurs, which of them every element is, \
               and how often each occurs.";
    define("unique", doc, compute, infer)
        .operand("X", &[])
        .maybe("axis", ParamKind::Int, "Default: of the flattened operand.")
        .param("sorted", true, "Ascending; otherwise in order of first occurrence.")
        .outputs(1, 4)
        .onnx("Unique", 11)
}

/// Corners (low, high) of a box along both axes.
fn corners(b: &[f64], center: bool) -> [(f64, f64); 2] {
    match center {
        true => [(b[0] - b[2] / 2.0, b[0] + b[2] / 2.0), (b[1] - b[3] / 2.0, b[1] + b[3] / 2.0)],
        false => [(b[0].min(b[2]), b[0].max(b[2])), (b[1].min(b[3]), b[1].max(b[3]))],
    }
}

/// Area of the intersection over that of the union; 0 for an empty box.
fn overlap(a: &[f64], b: &[f64], center: bool) -> f64 {
    let (a, b) = (corners(a, center), corners(b, center));
    let area = |c: &[(f64, f64); 2]| (c[0].1 - c[0].0) * (c[1].1 - c[1].0);
    let shared = |i: usize| (a[i].1.min(b[i].1) - a[i].0.max(b[i].0)).max(0.0);
    let common = shared(0) * shared(1);
    let union = area(&a) + area(&b) - common;
    if common <= 0.0 || union <= 0.0 { 0.0 } else { common / union }
}

fn non_max_suppression() -> OpDef {
    let compute = host(|cx, args| {
        let (boxes, scores) = (given(args, 0)?, given(args, 1)?);
        let item = |i: usize| args.get(i).and_then(Option::as_ref).and_then(|t| t.iter().next()).map(Scalar::as_f64);
        let limit = item(2).unwrap_or(0.0).max(0.0) as usize;
        let (iou, least) = (item(3).unwrap_or(0.0), item(4));
        let center = cx.params.int("center_point_box") == Some(1);
        let [batches, classes, count] = *scores.dims() else { return Err("operand `scores`: expected rank 3".into()) };
        if boxes.dims() != [batches, count, 4] {
            return Err(OpError(format!(
                "operand `boxes`: expected [{batches}, {count}, 4], found {:?}",
                boxes.dims()
            )));
        }
        let (coordinates, scores) = (boxes.to_f64s(), scores.to_f64s());
        let mut out = vec![];
        for n in 0..batches {
            let at = |i: u64| &coordinates[((n * count + i) * 4) as usize..][..4];
            for c in 0..classes {
                let score = |i: u64| scores[((n * classes + c) * count + i) as usize];
                let mut candidates: Vec<u64> = (0..count).filter(|&i| least.is_none_or(|t| score(i) > t)).collect();
                candidates.sort_by(|&i, &j| score(j).total_cmp(&score(i)));
                let mut kept: Vec<u64> = vec![];
                for i in candidates {
                    if kept.len() < limit && kept.iter().all(|&k| overlap(at(k), at(i), center) <= iou) {
                        kept.push(i);
                    }
                }
                out.extend(kept.into_iter().flat_map(|i| [n as i64, c as i64, i as i64]));
            }
        }
        Ok(vec![i64_tensor(&[out.len() as u64 / 3, 3], &out)?])
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        partial(cx, 0, &[None, Some(Dim::Const(3))])
    });
    let doc = "Greedy selection of boxes by score, leaving out those that overlap a selected one too much; rows of \
               (batch, class, box).";
    define("non_max_suppression", doc, compute, infer)
        .operands(&["boxes", "scores"], FLOATS)
        .optional("max_output_boxes_per_class", TypeRule::OneOf(&[DType::I64]))
        .optional("iou_threshold", TypeRule::OneOf(FLOATS))
        .optional("score_threshold", TypeRule::OneOf(FLOATS))
        .param("center_point_box", 0, "1: boxes are centre and size, not corners.")
        .onnx("NonMaxSuppression", 10)
}
