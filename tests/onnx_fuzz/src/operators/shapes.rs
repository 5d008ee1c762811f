//! Operators that move elements: reshaping, slicing, padding, joining, filling.

use tensorc::DType;
use tensorc::ir::TensorData;
use tensorc::ir::scalar::Scalar;
use tensorc_frontend::onnx::tensor::data_type;

use super::{Draw, types};
use crate::draw::{self, Elements, MOST};
use crate::model::{NodeSpec, Value, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("CastLike", cast_like),
    ("CenterCropPad", center_crop_pad),
    ("Compress", compress),
    ("Concat", concat),
    ("ConstantOfShape", constant_of_shape),
    ("DepthToSpace", depth_to_space),
    ("Dropout", dropout),
    ("Expand", expand),
    ("EyeLike", eye_like),
    ("Flatten", flatten),
    ("NonZero", plain),
    ("OneHot", one_hot),
    ("Pad", pad),
    ("Range", range),
    ("Reshape", reshape),
    ("ReverseSequence", reverse_sequence),
    ("Shape", shape_of),
    ("Size", plain),
    ("Slice", slice),
    ("SpaceToDepth", space_to_depth),
    ("Split", split),
    ("Squeeze", squeeze),
    ("Tile", tile),
    ("Transpose", transpose),
    ("Trilu", trilu),
    ("Unique", unique),
    ("Unsqueeze", unsqueeze),
];

fn all(w: &mut Writer<'_>, op: &str, least: usize, most: usize) -> Value {
    let allowed = types(w, op, 0);
    w.any(&allowed, least, most)
}

fn plain(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let least = usize::from(op == "NonZero");
    let x = all(w, op, least, 5);
    Some(NodeSpec::new(op, vec![Some(x)]))
}

fn cast_like(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 5);
    let to = draw::dtype(&mut w.rng, &DType::COMPUTED);
    let dims = draw::shape(&mut w.rng, 0, 2);
    let like = w.operand(to, &dims, Elements::Any);
    Some(NodeSpec::new(op, vec![Some(x), Some(like)]))
}

/// As in inference: training draws random numbers.
fn dropout(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 5);
    let ratio = w.one_in(2).then(|| w.operand(DType::F32, &[], Elements::Unit));
    let training = w.one_in(3).then(|| w.fixed(TensorData::scalar(Scalar::bool(false))));
    Some(NodeSpec::new(op, vec![Some(x), ratio, training]).results(1 + w.choice(2) as usize))
}

fn reshape(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 6);
    let zero_allowed = w.one_in(4);
    let mut left = x.data.len();
    let mut dims: Vec<i64> = vec![];
    for _ in 0..w.choice(5) {
        let divisors: Vec<u64> = (1..=left.clamp(1, 64)).filter(|d| left.is_multiple_of(*d)).collect();
        let d = *w.rng.pick(&divisors);
        dims.push(d as i64);
        left /= d;
    }
    dims.push(left as i64);
    if x.data.is_empty() && !zero_allowed {
        // A zero would stand for the operand's extent.
        dims = x.dims().iter().map(|_| 0).collect();
    } else if !x.data.is_empty() && w.one_in(2) {
        let at = w.choice(dims.len() as u64) as usize;
        dims[at] = -1;
    }
    if !zero_allowed && w.one_in(4) {
        for (i, d) in dims.iter_mut().enumerate() {
            if x.dims().get(i).is_some_and(|n| *n as i64 == *d) {
                *d = 0;
            }
        }
    }
    let shape = w.ints(&dims)?;
    let spec = NodeSpec::new(op, vec![Some(x), Some(shape)]);
    Some(if zero_allowed { spec.int("allowzero", 1) } else { spec })
}

fn flatten(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 5);
    let rank = x.rank() as i64;
    let axis = w.choice(2 * rank as u64 + 1) as i64 - rank;
    let spec = NodeSpec::new(op, vec![Some(x)]);
    Some(if w.one_in(4) { spec } else { spec.int("axis", axis) })
}

fn transpose(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 6);
    let mut perm: Vec<i64> = (0..x.rank() as i64).collect();
    for i in (1..perm.len()).rev() {
        perm.swap(i, w.choice(i as u64 + 1) as usize);
    }
    let spec = NodeSpec::new(op, vec![Some(x)]);
    Some(if w.one_in(4) || perm.is_empty() { spec } else { spec.ints("perm", &perm) })
}

fn slice(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 5);
    let rank = x.rank() as i64;
    let default_axes = w.one_in(4);
    let axes: Vec<i64> = (0..rank).filter(|_| default_axes || w.one_in(2)).collect();
    let (mut starts, mut ends, mut steps) = (vec![], vec![], vec![]);
    for axis in &axes {
        let n = x.dims()[*axis as usize] as i64;
        let step = *w.rng.pick(&[1, 1, 1, 2, 3, -1, -1, -2, 100, -100]);
        let edge = |w: &mut Writer<'_>| match w.choice(8) {
            0 => i64::MAX,
            1 => i64::MIN + 1,
            2 => n,
            3 => -n - 1,
            _ => w.choice(2 * n as u64 + 3) as i64 - n - 1,
        };
        let (a, b) = (edge(w), edge(w));
        let (low, high) = (a.min(b), a.max(b));
        let (start, end) = if w.one_in(8) {
            (a, b)
        } else if step > 0 {
            (low, high)
        } else {
            (high, low)
        };
        starts.push(start);
        ends.push(end);
        steps.push(step);
    }
    let given_steps = !w.one_in(3);
    let named: Vec<i64> = axes.iter().map(|a| if w.one_in(3) { a - rank } else { *a }).collect();
    let with_axes = !default_axes || given_steps;
    let (starts, ends) = (w.ints(&starts)?, w.ints(&ends)?);
    let axes = if with_axes { Some(w.ints(&named)?) } else { None };
    let steps = if given_steps { Some(w.ints(&steps)?) } else { None };
    Some(NodeSpec::new(op, vec![Some(x), Some(starts), Some(ends), axes, steps]))
}

fn pad(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 4);
    let rank = x.rank();
    let mode = w.word(&["constant", "constant", "reflect", "edge", "wrap"]);
    let some_axes = w.one_in(3);
    let axes: Vec<usize> = (0..rank).filter(|_| !some_axes || w.one_in(2)).collect();
    let mut pads = vec![0i64; 2 * axes.len()];
    for (i, axis) in axes.iter().enumerate() {
        let n = x.dims()[*axis] as i64;
        for side in 0..2 {
            pads[side * axes.len() + i] = match (mode, w.choice(5)) {
                ("constant", 0) if n > 0 => -(w.choice(n as u64 / 2 + 1) as i64),
                ("constant", _) => w.choice(4) as i64,
                ("reflect", _) => w.choice(n.max(1) as u64) as i64,
                _ if n == 0 => 0,
                _ => w.choice(n as u64 + 1) as i64,
            };
        }
    }
    let named: Vec<i64> = axes.iter().map(|a| *a as i64 - if w.one_in(3) { rank as i64 } else { 0 }).collect();
    let pads = w.ints(&pads)?;
    let value = (mode == "constant" && w.one_in(2)).then(|| w.operand(x.dtype(), &[], Elements::Any));
    let axes = if some_axes { Some(w.ints(&named)?) } else { None };
    Some(NodeSpec::new(op, vec![Some(x), Some(pads), value, axes]).text("mode", mode))
}

fn concat(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 5);
    let axis = w.axis(x.rank());
    let at = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    let mut operands = vec![Some(x.clone())];
    for _ in 0..w.choice(4) {
        let mut dims = x.dims().to_vec();
        if w.one_in(2) {
            dims[at] = *w.rng.pick(&[0, 1, 2, 3, 5, 17]);
        }
        operands.push(Some(w.operand(x.dtype(), &dims, Elements::Any)));
    }
    Some(NodeSpec::new(op, operands).int("axis", axis))
}

fn split(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 5);
    let axis = w.axis(x.rank());
    let at = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    let n = x.dims()[at];
    let parts = 1 + w.choice(4) as usize;
    if w.one_in(2) && n > 0 {
        let parts = parts.min(n as usize);
        // The last part is the smallest, and there is one.
        let size = n.div_ceil(parts as u64);
        if size * (parts as u64 - 1) >= n {
            return None;
        }
        let spec = NodeSpec::new(op, vec![Some(x)]).results(parts).int("axis", axis);
        return Some(spec.int("num_outputs", parts as i64));
    }
    let mut left = n;
    let mut sizes: Vec<i64> = vec![];
    for _ in 1..parts {
        let size = w.choice(left + 1);
        sizes.push(size as i64);
        left -= size;
    }
    sizes.push(left as i64);
    let sizes = w.ints(&sizes)?;
    Some(NodeSpec::new(op, vec![Some(x), Some(sizes)]).results(parts).int("axis", axis))
}

fn squeeze(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 6);
    let rank = x.rank() as i64;
    let ones: Vec<i64> = (0..rank).filter(|a| x.dims()[*a as usize] == 1 && !w.one_in(3)).collect();
    let axes: Vec<i64> = ones.iter().map(|a| if w.one_in(3) { a - rank } else { *a }).collect();
    let axes = if w.one_in(4) { None } else { Some(w.ints(&axes)?) };
    Some(NodeSpec::new(op, vec![Some(x), axes]))
}

fn unsqueeze(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 4);
    let count = 1 + w.choice(2) as i64;
    let rank = x.rank() as i64 + count;
    let mut axes: Vec<i64> = (0..rank).collect();
    while axes.len() > count as usize {
        let at = w.choice(axes.len() as u64) as usize;
        axes.remove(at);
    }
    axes.iter_mut().for_each(|a| *a -= if w.one_in(3) { rank } else { 0 });
    if w.one_in(3) {
        axes.reverse();
    }
    let axes = w.ints(&axes)?;
    Some(NodeSpec::new(op, vec![Some(x), Some(axes)]))
}

fn expand(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 5);
    let dims = draw::broadcast(&mut w.rng, x.dims());
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let shape = w.ints(&dims)?;
    Some(NodeSpec::new(op, vec![Some(x), Some(shape)]))
}

fn tile(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 4);
    let mut size = x.data.len();
    let repeats: Vec<i64> = (0..x.rank())
        .map(|_| {
            let n = *w.rng.pick(&[1, 1, 2, 3, 0, 5]);
            let n = if size * n.max(1) > MOST { 1 } else { n };
            size *= n;
            n as i64
        })
        .collect();
    let repeats = w.ints(&repeats)?;
    Some(NodeSpec::new(op, vec![Some(x), Some(repeats)]))
}

fn trilu(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 2, 4);
    let k = *w.rng.pick(&[0, 1, -1, 2, -3, 100, -100, i64::MAX / 4]);
    let k = w.one_in(2).then(|| w.fixed(TensorData::scalar(Scalar::i64(k))));
    let spec = NodeSpec::new(op, vec![Some(x), k]);
    Some(if w.one_in(3) { spec } else { spec.int("upper", w.rng.below(2) as i64) })
}

fn shape_of(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 0, 6);
    let edge = |w: &mut Writer<'_>| w.choice(16) as i64 - 8;
    let spec = NodeSpec::new(op, vec![Some(x)]);
    let spec = if w.one_in(2) { spec } else { spec.int("start", edge(w)) };
    Some(if w.one_in(2) { spec } else { spec.int("end", edge(w)) })
}

fn constant_of_shape(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dims = draw::shape(&mut w.rng, 0, 4);
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let shape = w.ints(&dims)?;
    let spec = NodeSpec::new(op, vec![Some(shape)]);
    if w.one_in(4) {
        return Some(spec);
    }
    let dtype = draw::dtype(&mut w.rng, &DType::COMPUTED);
    let value = draw::tensor(&mut w.rng, dtype, &[1], Elements::Any);
    Some(spec.tensor("value", &value))
}

fn eye_like(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 2, 2);
    let spec = NodeSpec::new(op, vec![Some(x)]);
    let spec = if w.one_in(2) { spec } else { spec.int("k", w.rng.below(9) as i64 - 4) };
    let dtype = draw::dtype(&mut w.rng, &[DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::F16]);
    Some(if w.one_in(2) { spec } else { spec.int("dtype", data_type(dtype).into()) })
}

fn range(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = draw::dtype(&mut w.rng, &[DType::F32, DType::F64, DType::I32, DType::I64, DType::I16]);
    let start = w.choice(20) as f64 - 10.0;
    let span = w.choice(40) as f64 - 10.0;
    let delta = *w.rng.pick(&[1.0, 2.0, 3.0, 0.5, -1.0, -2.0]);
    let delta = if dtype.is_float() || delta != 0.5 { delta } else { 1.0 };
    let [a, b, c] = [start, start + span, delta].map(|x| TensorData::scalar(Scalar::from_f64(dtype, x)));
    let (a, b, c) = (w.fixed(a), w.fixed(b), w.fixed(c));
    Some(NodeSpec::new(op, vec![Some(a), Some(b), Some(c)]))
}

fn one_hot(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let index = draw::dtype(&mut w.rng, &[DType::I64, DType::I32, DType::F32]);
    let dims = draw::shape(&mut w.rng, 0, 3);
    let depth = 1 + w.choice(6) as i64;
    let indices = w.operand(index, &dims, Elements::Between(-depth - 1, depth + 1));
    let of = if w.one_in(2) { DType::I64 } else { DType::I32 };
    let depth = TensorData::scalar(Scalar::from_i64(of, depth));
    let depth = if w.one_in(2) { depth.reshape(&[1])? } else { depth };
    let depth = w.fixed(depth);
    let dtype = draw::dtype(&mut w.rng, &[DType::F32, DType::I64, DType::I32]);
    let values = w.operand(dtype, &[2], Elements::Any);
    let axis = w.axis(dims.len() + 1);
    let spec = NodeSpec::new(op, vec![Some(indices), Some(depth), Some(values)]);
    Some(if w.one_in(3) { spec } else { spec.int("axis", axis) })
}

fn depth_to_space(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let block = 1 + w.choice(3);
    let dims = [1 + w.choice(2), block * block * (1 + w.choice(3)), 1 + w.choice(5), w.choice(5)];
    let allowed = types(w, op, 0);
    let dtype = draw::dtype(&mut w.rng, &allowed);
    let x = w.operand(dtype, &dims, Elements::Any);
    let spec = NodeSpec::new(op, vec![Some(x)]).int("blocksize", block as i64);
    Some(if w.one_in(3) { spec } else { spec.text("mode", w.word(&["DCR", "CRD"])) })
}

fn space_to_depth(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let block = 1 + w.choice(3);
    let dims = [1 + w.choice(2), 1 + w.choice(3), block * w.choice(5), block * (1 + w.choice(4))];
    let allowed = types(w, op, 0);
    let dtype = draw::dtype(&mut w.rng, &allowed);
    let x = w.operand(dtype, &dims, Elements::Any);
    Some(NodeSpec::new(op, vec![Some(x)]).int("blocksize", block as i64))
}

fn center_crop_pad(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 4);
    let rank = x.rank() as i64;
    let some = w.one_in(2);
    let axes: Vec<i64> = (0..rank).filter(|_| !some || w.one_in(2)).collect();
    let shape: Vec<i64> = axes.iter().map(|_| 1 + w.choice(8) as i64).collect();
    let shape = w.ints(&shape)?;
    let named: Vec<i64> = axes.iter().map(|a| if w.one_in(3) { a - rank } else { *a }).collect();
    let spec = NodeSpec::new(op, vec![Some(x), Some(shape)]);
    Some(if some && !named.is_empty() { spec.ints("axes", &named) } else { spec })
}

fn reverse_sequence(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 2, 4);
    let batch = w.choice(2) as i64;
    let (n, t) = (x.dims()[batch as usize], x.dims()[1 - batch as usize]);
    if t == 0 {
        return None;
    }
    let lengths = w.operand(DType::I64, &[n], Elements::Between(0, t as i64));
    Some(NodeSpec::new(op, vec![Some(x), Some(lengths)]).int("batch_axis", batch).int("time_axis", 1 - batch))
}

fn compress(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = all(w, op, 1, 4);
    let axis = w.one_in(2).then(|| w.axis(x.rank()));
    let n = match axis {
        Some(a) => x.dims()[if a < 0 { a + x.rank() as i64 } else { a } as usize],
        None => x.data.len(),
    };
    let n = w.rng.below(n + 1);
    let condition = w.operand(DType::Bool, &[n], Elements::Any);
    let spec = NodeSpec::new(op, vec![Some(x), Some(condition)]);
    Some(if let Some(axis) = axis { spec.int("axis", axis) } else { spec })
}

fn unique(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = draw::dtype(&mut w.rng, &[DType::F32, DType::I64, DType::I8, DType::F64]);
    let dims = draw::shape(&mut w.rng, 1, 3);
    let x = w.operand(dtype, &dims, Elements::Between(-2, 3));
    let spec = NodeSpec::new(op, vec![Some(x)]).results(1 + w.choice(4) as usize);
    let spec = if w.one_in(2) { spec } else { spec.int("axis", w.axis(dims.len())) };
    Some(if w.one_in(2) { spec } else { spec.int("sorted", w.rng.below(2) as i64) })
}
