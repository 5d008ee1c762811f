//! Operators whose result shapes depend on element values; they run on the host.

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
        let hits = marked(x);
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

/// The positions of elements that are not zero, ascending.
pub fn marked(x: &TensorData) -> Vec<u64> {
    fn positions<const SIZE: usize>(bytes: &[u8], is_zero: impl Fn(&[u8; SIZE]) -> bool) -> Vec<u64> {
        let all = bytes.as_chunks::<SIZE>().0.iter().enumerate();
        all.filter(|(_, element)| !is_zero(element)).map(|(i, _)| i as u64).collect()
    }
    // The sign of a zero does not count.
    let (bytes, sign) = (x.bytes(), u32::from(x.dtype().is_float()));
    match x.dtype().size() {
        1 => positions::<1>(bytes, |element| *element == [0]),
        2 => positions::<2>(bytes, |element| u16::from_le_bytes(*element) << sign == 0),
        4 => positions::<4>(bytes, |element| u32::from_le_bytes(*element) << sign == 0),
        _ => positions::<8>(bytes, |element| u64::from_le_bytes(*element) << sign == 0),
    }
}

/// The tensor with only the given positions of an axis.
pub fn select(x: &TensorData, axis: usize, keep: &[u64]) -> Result<TensorData, OpError> {
    let mut dims = x.dims().to_vec();
    let extent = dims[axis] as usize;
    dims[axis] = keep.len() as u64;
    let slice = dims[axis + 1..].iter().product::<u64>() as usize * x.dtype().size();
    let all = x.bytes();
    let mut bytes = Vec::with_capacity(dims[..axis].iter().product::<u64>() as usize * keep.len() * slice);
    for outer in all.chunks_exact((extent * slice).max(1)) {
        keep.iter().for_each(|i| bytes.extend_from_slice(&outer[*i as usize * slice..][..slice]));
    }
    let whole = TensorData::new(DenseType::new(x.dtype(), &dims), bytes.into());
    whole.ok_or_else(|| OpError("the result does not fill its shape".into()))
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
        let mut keep = marked(condition);
        keep.truncate(keep.partition_point(|i| *i < x.dims()[axis]));
        Ok(vec![select(&x, axis, &keep)?])
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

/// A number that orders elements of one type; NaN is the greatest, and zeros are equal.
fn key(x: Scalar) -> u64 {
    const SIGN: u64 = 1 << 63;
    match x.dtype.is_float() {
        true => match x.as_f64() {
            n if n.is_nan() => u64::MAX,
            n if n < 0.0 => !n.to_bits(),
            // The sum with 0 of either zero is 0.
            n => (n + 0.0).to_bits() | SIGN,
        },
        false if x.dtype == DType::U64 => x.bits,
        false => x.as_i64() as u64 ^ SIGN,
    }
}

/// Equal slices of a tensor along an axis, in ascending order.
struct Groups {
    /// Slice positions, sorted by content and then by position.
    sorted: Vec<u64>,
    /// Where each group begins there, and how many slices it has.
    groups: Vec<(usize, usize)>,
}

impl Groups {
    fn of(x: &TensorData, axis: usize) -> Groups {
        let n = x.dims()[axis] as usize;
        let inner = x.dims()[axis + 1..].iter().product::<u64>() as usize;
        let elements = inner * x.dims()[..axis].iter().product::<u64>() as usize;
        let keys: Vec<u64> = x.iter().map(key).collect();
        let slice = |s: u64| (0..elements).map(move |p| (p / inner * n + s as usize) * inner + p % inner);
        let compare = |i: u64, j: u64| slice(i).map(|at| keys[at]).cmp(slice(j).map(|at| keys[at]));
        let mut sorted: Vec<u64> = (0..n as u64).collect();
        match elements {
            1 => sorted.sort_unstable_by_key(|i| (keys[*i as usize], *i)),
            _ => sorted.sort_unstable_by(|i, j| compare(*i, *j).then(i.cmp(j))),
        }
        let mut groups: Vec<(usize, usize)> = vec![];
        for (at, i) in sorted.iter().enumerate() {
            match groups.last_mut() {
                Some((begin, count)) if compare(sorted[*begin], *i).is_eq() => *count += 1,
                _ => groups.push((at, 1)),
            }
        }
        Groups { sorted, groups }
    }

    /// The slices of a group.
    fn members(&self, (begin, count): (usize, usize)) -> &[u64] {
        &self.sorted[begin..][..count]
    }
}

fn unique() -> OpDef {
    let compute = host(|cx, args| {
        let (x, axis) = along(given(args, 0)?, cx.params.int("axis"))?;
        let n = x.dims()[axis];
        let all = Groups::of(&x, axis);
        let mut groups: Vec<&[u64]> = all.groups.iter().map(|group| all.members(*group)).collect();
        if !cx.params.bool("sorted").unwrap_or(true) {
            groups.sort_unstable_by_key(|members| members[0]);
        }
        let first: Vec<u64> = groups.iter().map(|members| members[0]).collect();
        let mut inverse = vec![0i64; n as usize];
        for (g, members) in groups.iter().enumerate() {
            members.iter().for_each(|&i| inverse[i as usize] = g as i64);
        }
        let count = groups.len() as u64;
        Ok(vec![
            select(&x, axis, &first)?,
            i64_tensor(&[count], &first.iter().map(|i| *i as i64).collect::<Vec<_>>())?,
            i64_tensor(&[n], &inverse)?,
            i64_tensor(&[count], &groups.iter().map(|members| members.len() as i64).collect::<Vec<_>>())?,
        ])
    });
    let infer = shape_rule(|cx| {
        for i in 1..cx.output_count() {
            cx.set_output_dtype(i, DType::I64)?;
            partial(cx, i, &[None])?;
        }
        let axis = cx.params.int("axis");
        if axis.is_none() {
            partial(cx, 0, &[None])?;
        }
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let (axis, slices) = match axis {
            Some(axis) => {
                let axis = cx.axis(axis, x.len())?;
                crate::index::all_but(cx, 0, &x, axis, None)?;
                (axis, Some(x[axis]))
            }
            None => (0, x.iter().map(|dim| dim.as_extent()).product::<Option<Extent>>().map(Dim::of)),
        };
        let found = cx.output_shape(0).dims().and_then(|dims| dims.get(axis).copied());
        for (i, dim) in [(1, found), (2, slices), (3, found)] {
            if let Some(dim) = dim.filter(|_| i < cx.output_count()) {
                cx.set_output_dims(i, [dim])?;
            }
        }
        Ok(())
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

/// A box: its ends along both axes, and its area.
struct Extremes {
    low: [f64; 2],
    high: [f64; 2],
    area: f64,
}

impl Extremes {
    fn of(b: &[f64], center: bool) -> Extremes {
        let ends = |axis: usize| match center {
            true => (b[axis] - b[axis + 2] / 2.0, b[axis] + b[axis + 2] / 2.0),
            false => (b[axis].min(b[axis + 2]), b[axis].max(b[axis + 2])),
        };
        let [first, second] = [ends(0), ends(1)];
        let area = (first.1 - first.0) * (second.1 - second.0);
        Extremes { low: [first.0, second.0], high: [first.1, second.1], area }
    }

    /// Area of the intersection over that of the union; 0 for an empty box.
    fn overlap(&self, other: &Extremes) -> f64 {
        let shared = |i: usize| (self.high[i].min(other.high[i]) - self.low[i].max(other.low[i])).max(0.0);
        let common = shared(0) * shared(1);
        let union = self.area + other.area - common;
        if common <= 0.0 || union <= 0.0 { 0.0 } else { common / union }
    }
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
            let of_image = &coordinates[(n * count * 4) as usize..][..count as usize * 4];
            let boxes: Vec<Extremes> = of_image.chunks_exact(4).map(|b| Extremes::of(b, center)).collect();
            for c in 0..classes {
                let score = |i: u64| scores[((n * classes + c) * count + i) as usize];
                let mut candidates: Vec<u64> = (0..count).filter(|&i| least.is_none_or(|t| score(i) > t)).collect();
                candidates.sort_by(|&i, &j| score(j).total_cmp(&score(i)));
                let mut kept: Vec<u64> = vec![];
                for i in candidates {
                    if kept.len() == limit {
                        break;
                    }
                    let candidate = &boxes[i as usize];
                    if kept.iter().all(|&k| boxes[k as usize].overlap(candidate) <= iou) {
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
