//! Convolution, pooling, resizing, and normalisation over channels.

use tensorc::DType;

use super::{Draw, types};
use crate::draw::{self, Elements};
use crate::model::{NodeSpec, Value, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("AffineGrid", affine_grid),
    ("AveragePool", pool),
    ("BatchNormalization", batch_norm),
    ("Col2Im", col2im),
    ("Conv", conv),
    ("ConvTranspose", conv_transpose),
    ("DeformConv", deform_conv),
    ("GlobalAveragePool", global_pool),
    ("GlobalLpPool", global_pool),
    ("GlobalMaxPool", global_pool),
    ("GroupNormalization", group_norm),
    ("InstanceNormalization", instance_norm),
    ("LRN", lrn),
    ("LpPool", pool),
    ("MaxPool", pool),
    ("MaxUnpool", max_unpool),
    ("Resize", resize),
];

/// Extents of windows along the spatial axes of an image, and how they are placed.
pub(super) struct Windows {
    pub kernel: Vec<u64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
    auto: Option<&'static str>,
}

/// Windows that fit an image of these spatial extents; `padded` allows pads.
pub(super) fn windows(w: &mut Writer<'_>, spatial: &[u64], padded: bool) -> Option<Windows> {
    let rank = spatial.len();
    let mut out = Windows { kernel: vec![], strides: vec![], dilations: vec![], pads: vec![0; 2 * rank], auto: None };
    for (i, n) in spatial.iter().enumerate() {
        let kernel = 1 + w.choice(3.min((*n).max(1)));
        let dilation = if w.one_in(4) { 1 + w.choice(2) } else { 1 };
        let reach = (kernel - 1) * dilation + 1;
        if padded {
            let most = kernel.min(3);
            out.pads[i] = w.choice(most) as i64;
            out.pads[rank + i] = w.choice(most) as i64;
        }
        if n + (out.pads[i] + out.pads[rank + i]) as u64 >= reach {
            out.dilations.push(dilation as i64);
        } else if *n >= kernel {
            out.dilations.push(1);
        } else {
            return None;
        }
        out.kernel.push(kernel);
        out.strides.push(if w.one_in(3) { 1 + w.choice(3) as i64 } else { 1 });
    }
    if w.one_in(4) {
        out.auto = Some(w.word(&["SAME_UPPER", "SAME_LOWER", "VALID"]));
        out.dilations.fill(1);
    }
    Some(out)
}

impl Windows {
    /// The attributes of a node; defaults are left out now and then.
    pub(super) fn state(&self, w: &mut Writer<'_>, spec: NodeSpec, kernel_needed: bool) -> NodeSpec {
        let plain = |list: &[i64]| list.iter().all(|x| *x == 1);
        let mut spec = spec;
        if kernel_needed || w.one_in(2) {
            let kernel: Vec<i64> = self.kernel.iter().map(|k| *k as i64).collect();
            spec = spec.ints("kernel_shape", &kernel);
        }
        if !plain(&self.strides) || w.one_in(2) {
            spec = spec.ints("strides", &self.strides);
        }
        if !plain(&self.dilations) || w.one_in(4) {
            spec = spec.ints("dilations", &self.dilations);
        }
        match self.auto {
            Some(auto) => spec.text("auto_pad", auto),
            None if self.pads.iter().all(|p| *p == 0) && w.one_in(2) => spec,
            None => spec.ints("pads", &self.pads),
        }
    }
}

fn float(w: &mut Writer<'_>, op: &str) -> DType {
    let allowed = types(w, op, 0);
    draw::dtype(&mut w.rng, &allowed)
}

/// An image of one to three spatial axes: one of the model or a new one.
fn image(w: &mut Writer<'_>, op: &str, most: usize) -> Value {
    let allowed = types(w, op, 0);
    let floats: Vec<DType> = allowed.iter().copied().filter(|d| d.is_float()).collect();
    let allowed = if floats.is_empty() { allowed } else { floats };
    let found: Vec<Value> = w
        .model
        .computed
        .iter()
        .filter(|v| allowed.contains(&v.dtype()) && (3..=2 + most).contains(&v.rank()) && !v.data.is_empty())
        .cloned()
        .collect();
    if !found.is_empty() && !w.one_in(3) {
        return w.rng.pick(&found).clone();
    }
    let dtype = draw::dtype(&mut w.rng, &allowed);
    let mut dims = vec![1 + w.choice(2), *w.rng.pick(&[1, 2, 3, 4, 6, 8, 16, 17])];
    for _ in 0..1 + w.choice(most as u64) {
        dims.push(*w.rng.pick(&[1, 2, 3, 4, 5, 7, 9, 12]));
    }
    w.operand(dtype, &dims, Elements::Any)
}

fn pool(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 3);
    let windows = windows(w, &x.dims()[2..], true)?;
    let mut spec = windows.state(w, NodeSpec::new(op, vec![Some(x)]), true);
    if w.one_in(3) && windows.auto.is_none() {
        spec = spec.int("ceil_mode", 1);
    }
    match op {
        "AveragePool" if w.one_in(2) => spec = spec.int("count_include_pad", w.rng.below(2) as i64),
        "LpPool" if w.one_in(2) => spec = spec.int("p", 1 + w.rng.below(3) as i64),
        "MaxPool" if w.one_in(2) => spec = spec.results(2),
        _ => {}
    }
    Some(spec)
}

fn max_unpool(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dims = [1, 1 + w.choice(2), 2 * (1 + w.choice(4)), 2 * (1 + w.choice(4))];
    let x = w.operand(DType::F32, &dims, Elements::Any);
    let pool = NodeSpec::new("MaxPool", vec![Some(x)]).ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2]);
    let mut results = w.add(pool.results(2))?;
    let (indices, values) = (results.pop()?, results.pop()?);
    let spec = NodeSpec::new(op, vec![Some(values), Some(indices)]);
    Some(spec.ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2]))
}

fn conv(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 3);
    let windows = windows(w, &x.dims()[2..], true)?;
    let channels = x.dims()[1];
    let groups: Vec<u64> = (1..=channels).filter(|g| channels.is_multiple_of(*g)).collect();
    let group = if w.one_in(2) { 1 } else { *w.rng.pick(&groups) };
    let out = group * (1 + w.choice(if group == 1 { 17 } else { 3 }));
    let dims = [&[out, channels / group], &windows.kernel[..]].concat();
    let weight = w.operand(x.dtype(), &dims, Elements::Any);
    let bias = w.one_in(2).then(|| w.operand(x.dtype(), &[out], Elements::Any));
    let spec = windows.state(w, NodeSpec::new(op, vec![Some(x), Some(weight), bias]), false);
    Some(if group == 1 { spec } else { spec.int("group", group as i64) })
}

fn conv_transpose(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 3);
    let mut windows = windows(w, &x.dims()[2..], true)?;
    let channels = x.dims()[1];
    let groups: Vec<u64> = (1..=channels).filter(|g| channels.is_multiple_of(*g)).collect();
    let group = if w.one_in(2) { 1 } else { *w.rng.pick(&groups) };
    let out = 1 + w.choice(5);
    let dims = [&[channels, out], &windows.kernel[..]].concat();
    let weight = w.operand(x.dtype(), &dims, Elements::Any);
    let bias = w.one_in(2).then(|| w.operand(x.dtype(), &[out * group], Elements::Any));
    if w.one_in(2) {
        windows.auto = None;
    }
    let mut spec = windows.state(w, NodeSpec::new(op, vec![Some(x), Some(weight), bias]), false);
    if windows.strides.iter().any(|s| *s > 1) && w.one_in(2) {
        let extra: Vec<i64> = windows.strides.iter().map(|s| w.rng.below(*s as u64) as i64).collect();
        spec = spec.ints("output_padding", &extra);
    }
    Some(if group == 1 { spec } else { spec.int("group", group as i64) })
}

fn deform_conv(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F64]);
    let group = 1 + w.choice(2);
    let (channels, out) = (group * (1 + w.choice(2)), group * (1 + w.choice(2)));
    let (height, width) = (3 + w.choice(4), 3 + w.choice(4));
    let (kh, kw) = (1 + w.choice(3), 1 + w.choice(3));
    let batch = 1 + w.choice(2);
    let x = w.operand(dtype, &[batch, channels, height, width], Elements::Any);
    let weight = w.operand(dtype, &[out, channels / group, kh, kw], Elements::Any);
    let (oh, ow) = (height - kh + 1, width - kw + 1);
    let offset = w.operand(dtype, &[batch, 2 * kh * kw, oh, ow], Elements::Unit);
    let bias = w.one_in(2).then(|| w.operand(dtype, &[out], Elements::Any));
    let mask = w.one_in(2).then(|| w.operand(dtype, &[batch, kh * kw, oh, ow], Elements::Unit));
    let spec = NodeSpec::new(op, vec![Some(x), Some(weight), Some(offset), bias, mask]);
    Some(if group == 1 { spec } else { spec.int("group", group as i64) })
}

fn global_pool(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 3);
    let spec = NodeSpec::new(op, vec![Some(x)]);
    Some(if op == "GlobalLpPool" && w.one_in(2) { spec.int("p", 1 + w.rng.below(3) as i64) } else { spec })
}

fn batch_norm(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 2);
    let channels = [x.dims()[1]];
    let mut operands = vec![Some(x.clone())];
    for elements in [Elements::Any, Elements::Any, Elements::Any, Elements::Positive] {
        operands.push(Some(w.operand(x.dtype(), &channels, elements)));
    }
    let spec = NodeSpec::new(op, operands);
    let spec = if w.one_in(2) { spec } else { spec.float("epsilon", 0.01) };
    if w.one_in(4) {
        return Some(spec.results(3).int("training_mode", 1).float("momentum", 0.7));
    }
    Some(spec)
}

fn instance_norm(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 2);
    let channels = [x.dims()[1]];
    let scale = w.operand(x.dtype(), &channels, Elements::Any);
    let bias = w.operand(x.dtype(), &channels, Elements::Any);
    Some(NodeSpec::new(op, vec![Some(x), Some(scale), Some(bias)]))
}

fn group_norm(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let spec = instance_norm(w, op)?;
    let channels = spec.operands.first()?.as_ref()?.dims()[1];
    let groups: Vec<u64> = (1..=channels).filter(|g| channels.is_multiple_of(*g)).collect();
    let groups = *w.rng.pick(&groups);
    Some(spec.int("num_groups", groups as i64))
}

fn lrn(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 2);
    let size = 1 + 2 * w.choice(3) as i64;
    let spec = NodeSpec::new(op, vec![Some(x)]).int("size", size);
    Some(if w.one_in(2) { spec } else { spec.float("alpha", 0.1).float("beta", 0.5).float("bias", 2.0) })
}

fn col2im(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let spatial: Vec<u64> = (0..1 + w.choice(2)).map(|_| 2 + w.choice(5)).collect();
    let mut windows = windows(w, &spatial, true)?;
    windows.auto = None;
    let rank = spatial.len();
    let blocks = |i: usize| {
        let reach = (windows.kernel[i] as i64 - 1) * windows.dilations[i] + 1;
        (spatial[i] as i64 + windows.pads[i] + windows.pads[rank + i] - reach) / windows.strides[i] + 1
    };
    let count: i64 = (0..rank).map(blocks).product();
    let size: u64 = windows.kernel.iter().product();
    let dtype = float(w, op);
    let dims = [1 + w.choice(2), (1 + w.choice(2)) * size, count as u64];
    let x = w.operand(dtype, &dims, Elements::Any);
    let shape: Vec<i64> = spatial.iter().map(|d| *d as i64).collect();
    let kernel: Vec<i64> = windows.kernel.iter().map(|d| *d as i64).collect();
    let (shape, kernel) = (w.ints(&shape)?, w.ints(&kernel)?);
    let spec = NodeSpec::new(op, vec![Some(x), Some(shape), Some(kernel)]);
    Some(spec.ints("strides", &windows.strides).ints("dilations", &windows.dilations).ints("pads", &windows.pads))
}

fn affine_grid(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F64]);
    let spatial = 2 + w.choice(2);
    let batch = 1 + w.choice(2);
    let theta = w.operand(dtype, &[batch, spatial, spatial + 1], Elements::Any);
    let mut size = vec![batch as i64, 1 + w.choice(3) as i64];
    size.extend((0..spatial).map(|_| 1 + w.rng.below(4) as i64));
    let size = w.ints(&size)?;
    Some(NodeSpec::new(op, vec![Some(theta), Some(size)]).int("align_corners", w.rng.below(2) as i64))
}

fn resize(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = image(w, op, 2);
    let rank = x.rank();
    let mode = w.word(&["nearest", "linear", "cubic"]);
    let outer = usize::from(!w.one_in(6)) * 2;
    // Cubic interpolation is of two axes.
    if mode == "cubic" && (rank != 4 || outer != 2) {
        return None;
    }
    let coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"];
    let coordinate = *w.rng.pick(&coordinates);
    let by_scale = w.one_in(2);
    let (scales, sizes) = match by_scale {
        true => {
            let scale = |i: usize, w: &mut Writer<'_>| match i < outer {
                true => 1.0,
                false => *w.rng.pick(&[1.0f32, 2.0, 0.5, 1.5, 3.0, 0.7]),
            };
            let scales: Vec<f32> = (0..rank).map(|i| scale(i, w)).collect();
            if scales.iter().zip(x.dims()).any(|(s, d)| *s * *d as f32 * 1.0 < 1.0) {
                return None;
            }
            let data = tensorc::ir::TensorData::f32s(&[rank as u64], &scales)?;
            (Some(w.fixed(data)), None)
        }
        false => {
            let size = |i: usize, w: &mut Writer<'_>| match i < outer {
                true => x.dims()[i] as i64,
                false => 1 + w.rng.below(12) as i64,
            };
            let sizes: Vec<i64> = (0..rank).map(|i| size(i, w)).collect();
            (None, Some(w.ints(&sizes)?))
        }
    };
    let spec = NodeSpec::new(op, vec![Some(x), None, scales, sizes]).text("mode", mode);
    let mut spec = spec.text("coordinate_transformation_mode", coordinate);
    if mode == "nearest" {
        let nearest = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"];
        spec = spec.text("nearest_mode", w.word(&nearest));
    } else if w.one_in(4) {
        spec = spec.int("antialias", 1);
    }
    if mode == "cubic" && w.one_in(2) {
        spec = spec.int("exclude_outside", 1).float("cubic_coeff_a", -0.5);
    }
    Some(spec)
}
