//! Quantised operators.

use tensorc::DType;

use super::{Draw, windows};
use crate::draw::{self, Elements};
use crate::model::{NodeSpec, Value, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("ConvInteger", conv_integer),
    ("DequantizeLinear", dequantize),
    ("DynamicQuantizeLinear", dynamic),
    ("MatMulInteger", matmul_integer),
    ("QLinearConv", qlinear_conv),
    ("QLinearMatMul", qlinear_matmul),
    ("QuantizeLinear", quantize),
];

fn eight_bits(w: &mut Writer<'_>) -> DType {
    if w.one_in(2) { DType::U8 } else { DType::I8 }
}

/// Extents of scales for a value: one, or one for each slice along an axis.
fn scale_shape(w: &mut Writer<'_>, x: &Value) -> (Vec<u64>, Option<i64>) {
    if x.rank() == 0 || w.one_in(2) {
        return (vec![], None);
    }
    let axis = w.axis(x.rank());
    let at = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    (vec![x.dims()[at]], Some(axis))
}

fn quantize(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&[DType::F32], 0, 4);
    let to = draw::dtype(&mut w.rng, &[DType::U8, DType::I8, DType::U16, DType::I16]);
    let (dims, axis) = scale_shape(w, &x);
    let scale = w.operand(DType::F32, &dims, Elements::Positive);
    let zero = (!w.one_in(3)).then(|| w.operand(to, &dims, Elements::Any));
    let spec = NodeSpec::new(op, vec![Some(x), Some(scale), zero]);
    Some(if let Some(axis) = axis { spec.int("axis", axis) } else { spec })
}

fn dequantize(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&[DType::U8, DType::I8, DType::I32, DType::U16, DType::I16], 0, 4);
    let (dims, axis) = scale_shape(w, &x);
    let scale = w.operand(DType::F32, &dims, Elements::Positive);
    let zero = (x.dtype() != DType::I32 && !w.one_in(3)).then(|| w.operand(x.dtype(), &dims, Elements::Any));
    let spec = NodeSpec::new(op, vec![Some(x), Some(scale), zero]);
    Some(if let Some(axis) = axis { spec.int("axis", axis) } else { spec })
}

fn dynamic(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&[DType::F32], 1, 4);
    Some(NodeSpec::new(op, vec![Some(x)]).results(3))
}

fn matmul_integer(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let a = w.any(&[DType::U8, DType::I8], 2, 3);
    let k = *a.dims().last()?;
    let to = eight_bits(w);
    let n = 1 + w.choice(9);
    let b = w.operand(to, &[k, n], Elements::Any);
    let zero_a = w.one_in(2).then(|| w.operand(a.dtype(), &[], Elements::Any));
    let zero_dims = if w.one_in(2) { vec![] } else { vec![n] };
    let zero_b = w.one_in(2).then(|| w.operand(to, &zero_dims, Elements::Any));
    Some(NodeSpec::new(op, vec![Some(a), Some(b), zero_a, zero_b]))
}

fn qlinear_matmul(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let a = w.any(&[DType::U8, DType::I8], 2, 3);
    let k = *a.dims().last()?;
    let (to, out) = (eight_bits(w), a.dtype());
    let n = 1 + w.choice(9);
    let b = w.operand(to, &[k, n], Elements::Any);
    let mut operands = vec![];
    for (value, of) in [(Some(a.clone()), a.dtype()), (Some(b), to), (None, out)] {
        operands.extend(value.map(Some));
        operands.push(Some(w.operand(DType::F32, &[], Elements::Positive)));
        operands.push(Some(w.operand(of, &[], Elements::Any)));
    }
    Some(NodeSpec::new(op, operands))
}

/// An image, a filter of some type for it, and the windows.
fn convolved(w: &mut Writer<'_>, of: DType) -> Option<(Value, Value, windows::Windows, u64, u64)> {
    let dtype = eight_bits(w);
    let group = 1 + w.choice(2);
    let dims = [1 + w.choice(2), group * (1 + w.choice(3)), 2 + w.choice(6), 2 + w.choice(6)];
    let x = w.operand(dtype, &dims, Elements::Any);
    let windows = windows::windows(w, &dims[2..], true)?;
    let out = group * (1 + w.choice(4));
    let filter = [&[out, dims[1] / group], &windows.kernel[..]].concat();
    let filter = w.operand(of, &filter, Elements::Any);
    Some((x, filter, windows, group, out))
}

fn conv_integer(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let of = eight_bits(w);
    let (x, filter, windows, group, _) = convolved(w, of)?;
    let zero = w.one_in(2).then(|| w.operand(x.dtype(), &[], Elements::Any));
    let zero_filter = (zero.is_some() && w.one_in(2)).then(|| w.operand(of, &[], Elements::Any));
    let spec = windows.state(w, NodeSpec::new(op, vec![Some(x), Some(filter), zero, zero_filter]), false);
    Some(if group == 1 { spec } else { spec.int("group", group as i64) })
}

fn qlinear_conv(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let of = eight_bits(w);
    let (x, filter, windows, group, out) = convolved(w, of)?;
    let per_channel: Vec<u64> = if w.one_in(2) { vec![] } else { vec![out] };
    let to = x.dtype();
    let scale = |w: &mut Writer<'_>, dims: &[u64]| Some(w.operand(DType::F32, dims, Elements::Positive));
    let (xs, ws, ys) = (scale(w, &[]), scale(w, &per_channel), scale(w, &[]));
    let xz = Some(w.operand(to, &[], Elements::Any));
    let wz = Some(w.operand(of, &per_channel, Elements::Between(0, 0)));
    let yz = Some(w.operand(to, &[], Elements::Any));
    let bias = w.one_in(2).then(|| w.operand(DType::I32, &[out], Elements::Any));
    let operands = vec![Some(x), xs, xz, Some(filter), ws, wz, ys, yz, bias];
    let spec = windows.state(w, NodeSpec::new(op, operands), false);
    Some(if group == 1 { spec } else { spec.int("group", group as i64) })
}
