//! Operators that read or write at positions that other operands hold.

use tensorc::DType;

use super::{Draw, types};
use crate::draw::{self, Elements};
use crate::model::{NodeSpec, Value, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("GridSample", grid_sample),
    ("MaxRoiPool", max_roi_pool),
    ("NonMaxSuppression", non_max_suppression),
    ("RoiAlign", roi_align),
    ("ScatterElements", scatter_elements),
    ("ScatterND", scatter_nd),
    ("TensorScatter", tensor_scatter),
];

fn index_type(w: &mut Writer<'_>) -> DType {
    if w.one_in(3) { DType::I32 } else { DType::I64 }
}

/// A value, an axis of it as an attribute and as a number, and its extent, which is not 0.
fn with_axis(w: &mut Writer<'_>, op: &str, most: usize) -> Option<(Value, i64, usize, u64)> {
    let allowed = types(w, op, 0);
    let x = w.any(&allowed, 1, most);
    let axis = w.axis(x.rank());
    let at = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    let n = x.dims()[at];
    (n > 0).then_some((x, axis, at, n))
}

fn gather(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let (x, axis, _, n) = with_axis(w, op, 4)?;
    let dims = draw::shape(&mut w.rng, 0, 2);
    if x.data.len() / n * dims.iter().product::<u64>() > draw::MOST {
        return None;
    }
    let dtype = index_type(w);
    let indices = w.operand(dtype, &dims, Elements::Index(n, true));
    let spec = NodeSpec::new(op, vec![Some(x), Some(indices)]);
    Some(spec.int("axis", axis))
}

fn smaller(w: &mut Writer<'_>, dims: &[u64]) -> Vec<u64> {
    dims.iter().map(|d| if w.one_in(3) { w.rng.below(d + 1) } else { *d }).collect()
}

fn gather_elements(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let (x, axis, at, n) = with_axis(w, op, 4)?;
    let mut dims = smaller(w, x.dims());
    dims[at] = *w.rng.pick(&[0, 1, 2, 3, n]);
    let dtype = index_type(w);
    let indices = w.operand(dtype, &dims, Elements::Index(n, true));
    Some(NodeSpec::new(op, vec![Some(x), Some(indices)]).int("axis", axis))
}

const REDUCTIONS: [&str; 5] = ["none", "add", "mul", "max", "min"];

fn scatter_elements(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let (x, axis, at, n) = with_axis(w, op, 4)?;
    let reduction = *w.rng.pick(&REDUCTIONS);
    let mut dims = smaller(w, x.dims());
    // Without a reduction two updates of one element have no order.
    let few = reduction == "none";
    dims[at] = if few { *w.rng.pick(&[0, 1]) } else { *w.rng.pick(&[1, 2, 3]) };
    let dtype = index_type(w);
    let indices = w.operand(dtype, &dims, Elements::Index(n, true));
    let updates = w.operand(x.dtype(), &dims, Elements::Any);
    let spec = NodeSpec::new(op, vec![Some(x), Some(indices), Some(updates)]).int("axis", axis);
    Some(if few && w.one_in(2) { spec } else { spec.text("reduction", reduction) })
}

/// Index tuples for the axes of `dims` from `first` on, below `lead`.
fn tuples(w: &mut Writer<'_>, dims: &[u64], lead: &[u64]) -> Option<Value> {
    let least = dims.iter().copied().min().unwrap_or(1);
    if least == 0 {
        return None;
    }
    let shape = [lead, &[dims.len() as u64]].concat();
    Some(w.operand(DType::I64, &shape, Elements::Index(least, true)))
}

fn gather_nd(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let allowed = types(w, op, 0);
    let x = w.any(&allowed, 1, 4);
    let batch = w.choice(x.rank() as u64) as usize;
    let batch = if w.one_in(2) { 0 } else { batch };
    let width = 1 + w.choice((x.rank() - batch) as u64) as usize;
    let mut lead = x.dims()[..batch].to_vec();
    lead.extend(draw::shape(&mut w.rng, 0, 1));
    let least = x.dims()[batch..batch + width].iter().copied().min().unwrap_or(0);
    if least == 0 {
        return None;
    }
    let indices = {
        let shape = [&lead[..], &[width as u64]].concat();
        w.operand(DType::I64, &shape, Elements::Index(least, false))
    };
    let spec = NodeSpec::new(op, vec![Some(x), Some(indices)]);
    Some(if batch == 0 && w.one_in(2) { spec } else { spec.int("batch_dims", batch as i64) })
}

fn scatter_nd(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let allowed = types(w, op, 0);
    let x = w.any(&allowed, 1, 4);
    let width = 1 + w.choice(x.rank() as u64) as usize;
    let reduction = *w.rng.pick(&REDUCTIONS);
    let lead: Vec<u64> = if reduction == "none" { vec![1] } else { vec![1 + w.choice(3)] };
    let indices = tuples(w, &x.dims()[..width], &lead)?;
    let dims = [&lead[..], &x.dims()[width..]].concat();
    let updates = w.operand(x.dtype(), &dims, Elements::Any);
    let spec = NodeSpec::new(op, vec![Some(x), Some(indices), Some(updates)]);
    Some(if reduction == "none" { spec } else { spec.text("reduction", reduction) })
}

fn tensor_scatter(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let allowed = types(w, op, 0);
    let dtype = draw::dtype(&mut w.rng, &allowed);
    let (batch, heads, most, size) = (1 + w.choice(3), 1 + w.choice(2), 2 + w.choice(5), 1 + w.choice(4));
    let now = 1 + w.choice(most);
    let cache = w.operand(dtype, &[batch, heads, most, size], Elements::Any);
    let update = w.operand(dtype, &[batch, heads, now, size], Elements::Any);
    let circular = w.one_in(2);
    let last = if circular { most - 1 } else { most - now };
    let at = w.operand(DType::I64, &[batch], Elements::Between(0, last as i64));
    let at = (!w.one_in(4)).then_some(at);
    let spec = NodeSpec::new(op, vec![Some(cache), Some(update), at]);
    let spec = if w.one_in(2) { spec } else { spec.int("axis", if w.one_in(2) { -2 } else { 2 }) };
    Some(if circular { spec.text("mode", "circular") } else { spec })
}

fn grid_sample(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let allowed = types(w, op, 0);
    let dtype = draw::dtype(&mut w.rng, &allowed);
    let spatial = 2 + usize::from(w.one_in(3));
    let mut dims = vec![1 + w.choice(2), 1 + w.choice(3)];
    let mut grid = vec![dims[0]];
    for _ in 0..spatial {
        dims.push(1 + w.choice(5));
        grid.push(1 + w.choice(5));
    }
    grid.push(spatial as u64);
    let x = w.operand(dtype, &dims, Elements::Any);
    let mut data = draw::tensor(&mut w.rng, dtype, &grid, Elements::Unit);
    if dtype.is_float() {
        data = tensorc::ir::TensorData::from_fn(data.ty.clone(), |i| {
            tensorc::ir::scalar::Scalar::from_f64(dtype, data.get(i).as_f64() * 2.6 - 1.3)
        });
    }
    let grid = w.fresh(data);
    let mode =
        *w.rng.pick(if spatial == 2 { &["linear", "nearest", "cubic"] } else { &["linear", "nearest", "linear"] });
    let spec = NodeSpec::new(op, vec![Some(x), Some(grid)]).text("mode", mode);
    let spec = spec.text("padding_mode", w.word(&["zeros", "border", "reflection"]));
    Some(spec.int("align_corners", w.rng.below(2) as i64))
}

/// Boxes `[n, width]` of a picture with coordinates below `extent`.
fn boxes(w: &mut Writer<'_>, dtype: DType, count: u64, width: u64, extent: f64) -> Value {
    let raw = draw::tensor(&mut w.rng, dtype, &[count, width], Elements::Unit);
    let data = tensorc::ir::TensorData::from_fn(raw.ty.clone(), |i| {
        let (row, column) = (i / width, i % width);
        let corner = (column + 4 - width) % 4;
        let near = raw.get(row * width + column).as_f64() * extent / 2.0;
        let x = match (width, column) {
            (5, 0) => 0.0,
            _ if corner >= 2 => near + extent / 2.0,
            _ => near,
        };
        tensorc::ir::scalar::Scalar::from_f64(dtype, x)
    });
    w.fresh(data)
}

fn roi_align(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F64, DType::F32]);
    let dims = [1 + w.choice(2), 1 + w.choice(3), 2 + w.choice(7), 2 + w.choice(7)];
    let x = w.operand(dtype, &dims, Elements::Any);
    let count = w.choice(4);
    let rois = boxes(w, dtype, count, 4, 8.0);
    let batch = w.operand(DType::I64, &[count], Elements::Index(dims[0], false));
    let spec = NodeSpec::new(op, vec![Some(x), Some(rois), Some(batch)]);
    let spec = if w.one_in(3) { spec } else { spec.text("mode", w.word(&["avg", "max"])) };
    let modes = ["half_pixel", "output_half_pixel"];
    let spec = if w.one_in(3) { spec } else { spec.text("coordinate_transformation_mode", w.word(&modes)) };
    let (height, width) = (1 + w.choice(3) as i64, 1 + w.choice(3) as i64);
    let spec = spec.int("output_height", height).int("output_width", width);
    let spec = if w.one_in(2) { spec } else { spec.int("sampling_ratio", w.rng.below(3) as i64) };
    Some(if w.one_in(2) { spec } else { spec.float("spatial_scale", 0.5) })
}

fn max_roi_pool(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dims = [1, 1 + w.choice(3), 3 + w.choice(6), 3 + w.choice(6)];
    let x = w.operand(DType::F32, &dims, Elements::Any);
    let count = 1 + w.choice(3);
    let rois = boxes(w, DType::F32, count, 5, 6.0);
    let shape = [1 + w.choice(3) as i64, 1 + w.choice(3) as i64];
    Some(NodeSpec::new(op, vec![Some(x), Some(rois)]).ints("pooled_shape", &shape))
}

fn non_max_suppression(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let (batch, classes, count) = (1 + w.choice(2), 1 + w.choice(3), 1 + w.choice(7));
    let boxes = w.operand(DType::F32, &[batch, count, 4], Elements::Unit);
    let scores = w.operand(DType::F32, &[batch, classes, count], Elements::Unit);
    let most = w.choice(4) as i64;
    let most = w.ints(&[most])?;
    let iou = (!w.one_in(3)).then(|| w.operand(DType::F32, &[], Elements::Unit));
    let threshold = w.one_in(2).then(|| w.operand(DType::F32, &[1], Elements::Unit));
    let spec = NodeSpec::new(op, vec![Some(boxes), Some(scores), Some(most), iou, threshold]);
    Some(if w.one_in(2) { spec } else { spec.int("center_point_box", w.rng.below(2) as i64) })
}
