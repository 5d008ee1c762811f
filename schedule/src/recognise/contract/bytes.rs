//! Convolutions of bytes with sums in i32.

use tensorc_abi::{BYTE_TERMS, Conv2d, ConvPass};
use tensorc_ir::index::Index;
use tensorc_ir::prim::Contraction;
use tensorc_ir::{DenseType, Extent};

use super::{addressable, same, sums_nothing, unit, window};

/// The contraction as a convolution of an image of u8 with filters of i8 whose channels come in fours.
///
/// Axes `[n, oc, rows, columns, kh, kw, ic]`; left operand `(n, ic, rows·stride + kh·dilation - pad, …)`, right operand
/// `(oc, kh, kw, ic)`.
pub(super) fn as_byte_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    let bytes = [lhs.dtype, rhs.dtype] == ConvPass::Bytes.types()[..2];
    if !bytes || [lhs.rank(), rhs.rank(), c.out_rank, c.extents.len()] != [4, 4, 4, 7] || sums_nothing(c) {
        return None;
    }
    let var = |i: usize| Index::var(i as u32);
    let is_axis = |index: &Index, axis: usize| same(index, &var(axis), &c.extents);
    let [filter, channel] = [1, 6];
    let canonical = is_axis(&c.lhs[0], 0)
        && is_axis(&c.lhs[1], channel)
        && [filter, 4, 5, channel].into_iter().zip(&c.rhs).all(|(axis, index)| is_axis(index, axis));
    let channels = c.extents.at(channel);
    let whole = [lhs.dims.at(0), lhs.dims.at(1)] == [c.extents.at(0), channels]
        && rhs.dims.all().eq([filter, 4, 5, channel].map(|axis| c.extents.at(axis)));
    if !canonical || !whole || channels.sure_quotient(BYTE_TERMS).is_none() || !addressable(c, [lhs, rhs]) {
        return None;
    }
    let mut conv = unit(ConvPass::Bytes, [c.extents.at(0), Extent::ONE, channels, c.extents.at(filter)]);
    for axis in 0..2 {
        let (o, k) = (2 + axis, 4 + axis);
        (conv.strides[axis], conv.dilations[axis], conv.pads[axis]) = window(&c.lhs[2 + axis], o, k, &c.extents)?;
        conv.input[axis] = lhs.dims.at(2 + axis);
        conv.output[axis] = c.extents.at(o);
        conv.kernel[axis] = c.extents.at(k);
    }
    Some(conv)
}
