//! Convolutions of bytes with sums in i32.

use tensorc_abi::{Conv2d, ConvPass};
use tensorc_ir::index::Index;
use tensorc_ir::prim::Contraction;
use tensorc_ir::{DenseType, Extent};

use super::{addressable, same, sums_nothing, unit, window};

/// The contraction as a convolution of an image of u8 with filters of i8.
///
/// Axes `[n, oc, rows, columns, kh, kw, ic]`; left operand `(n, ic, rows·stride + kh·dilation - pad, …)`, right operand
/// `(oc, kh, kw, ic)`. A depthwise convolution has no axis `ic`: its left operand is `(n, oc, …)`, its right one `(oc, kh, kw)`.
pub(super) fn as_byte_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    let [filter, channel] = [1, 6];
    let depthwise = c.extents.len() == channel;
    let taps: &[usize] = if depthwise { &[filter, 4, 5] } else { &[filter, 4, 5, channel] };
    let bytes = [lhs.dtype, rhs.dtype] == ConvPass::Bytes.types()[..2];
    let ranks = [lhs.rank(), rhs.rank(), c.out_rank, c.extents.len()] == [4, taps.len(), 4, 3 + taps.len()];
    if !bytes || !ranks || sums_nothing(c) {
        return None;
    }
    let var = |i: usize| Index::var(i as u32);
    let is_axis = |index: &Index, axis: usize| same(index, &var(axis), &c.extents);
    let channel = if depthwise { filter } else { channel };
    let canonical = is_axis(&c.lhs[0], 0)
        && is_axis(&c.lhs[1], channel)
        && taps.iter().zip(&c.rhs).all(|(axis, index)| is_axis(index, *axis));
    let (channels, filters) = (c.extents.at(channel), c.extents.at(filter));
    let whole = [lhs.dims.at(0), lhs.dims.at(1)] == [c.extents.at(0), channels]
        && rhs.dims.all().eq(taps.iter().map(|axis| c.extents.at(*axis)));
    let one_group = depthwise && !filters.is_surely_from(2);
    if !canonical || !whole || one_group || !addressable(c, [lhs, rhs]) {
        return None;
    }
    let groups = if depthwise { [filters, Extent::ONE, Extent::ONE] } else { [Extent::ONE, channels, filters] };
    let mut conv = unit(ConvPass::Bytes, [c.extents.at(0), groups[0], groups[1], groups[2]]);
    for axis in 0..2 {
        let (o, k) = (2 + axis, 4 + axis);
        (conv.strides[axis], conv.dilations[axis], conv.pads[axis]) = window(&c.lhs[2 + axis], o, k, &c.extents)?;
        conv.input[axis] = lhs.dims.at(2 + axis);
        conv.output[axis] = c.extents.at(o);
        conv.kernel[axis] = c.extents.at(k);
    }
    Some(conv)
}
