//! Convolutions whose result, and mostly data, hold their channels in blocks: `[n, channels / 16, h, w, 16]`.
//! How they are written as contractions, and how they are recognised.

use tensorc_abi::{CHANNEL_BLOCK, Conv2d, ConvLayout, ConvPass, DType};

use super::{same, window};
use crate::index::Index;
use crate::prim::{Contraction, Method};
use crate::types::DenseType;

/// The iteration axes of a blocked convolution, by their places: `[n, block, p, q, lane]` of the result, then
/// what is summed over.
struct Axes {
    /// Channels of data: a block and a lane, or one axis; none for depthwise ones.
    channel: Option<u32>,
    taps: [u32; 2],
    lane: Option<u32>,
}

impl Axes {
    fn new(layout: ConvLayout, depthwise: bool) -> Axes {
        match (layout, depthwise) {
            (_, true) => Axes { channel: None, taps: [5, 6], lane: None },
            (ConvLayout::Blocked, false) => Axes { channel: Some(5), taps: [6, 7], lane: Some(8) },
            (_, false) => Axes { channel: Some(5), taps: [6, 7], lane: None },
        }
    }

    fn count(&self) -> usize {
        5 + [self.channel, self.lane].iter().flatten().count() + 2
    }

    /// Channels of data: of all axes that count them.
    fn data(&self) -> Vec<Index> {
        match (self.channel, self.lane) {
            (None, _) => vec![Index::var(1), Index::var(4)],
            (Some(block), Some(lane)) => vec![Index::var(block), Index::var(lane)],
            (Some(channel), None) => vec![Index::var(channel)],
        }
    }

    /// Filters `(oc, ic, r, s)`.
    fn filters(&self) -> Vec<Index> {
        let join = |block: u32, lane: u32| Index::var(block).scale(CHANNEL_BLOCK as i64).add(&Index::var(lane));
        let inner = match (self.channel, self.lane) {
            (None, _) => Index::constant(0),
            (Some(block), Some(lane)) => join(block, lane),
            (Some(channel), None) => Index::var(channel),
        };
        let [r, s] = self.taps.map(Index::var);
        vec![join(1, 4), inner, r, s]
    }
}

/// The contraction of a convolution with one group, or a depthwise one, to blocked channels; `layout` is not
/// [`ConvLayout::Planar`]. Filters are `[oc, ic, kh, kw]`, all channels come in whole blocks where they are blocked.
pub fn blocked_convolution(conv: &Conv2d, layout: ConvLayout) -> Contraction {
    let depthwise = conv.is_depthwise();
    let axes = Axes::new(layout, depthwise);
    let outputs = conv.groups * conv.out_channels;
    let mut extents = vec![conv.batch, outputs / CHANNEL_BLOCK, conv.output[0], conv.output[1], CHANNEL_BLOCK];
    extents.extend(axes.channel.map(|_| match axes.lane {
        Some(_) => conv.in_channels / CHANNEL_BLOCK,
        None => conv.in_channels,
    }));
    extents.extend(conv.kernel);
    extents.extend(axes.lane.map(|_| CHANNEL_BLOCK));
    let at = |d: usize| {
        let out = Index::var(2 + d as u32).scale(conv.strides[d] as i64);
        out.add(&Index::var(axes.taps[d]).scale(conv.dilations[d] as i64)).offset(-(conv.pads[d] as i64))
    };
    let channels = axes.data();
    let lhs = [&[Index::var(0), channels[0].clone(), at(0), at(1)], &channels[1..]].concat();
    Contraction { extents, out_rank: 5, lhs, rhs: axes.filters(), method: Method::Sum }
}

/// The contraction as a convolution to blocked channels, with filters as they are. The pass is
/// [`ConvPass::Forward`], or that of its [`Method`], but only packed filters can be computed with: they must be
/// constant.
pub fn as_blocked_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d> {
    let shapes = c.out_rank == 5 && c.extents.get(4) == Some(&CHANNEL_BLOCK) && rhs.rank() == 4;
    if !shapes || [lhs, rhs].iter().any(|ty| ty.dtype != DType::F32 || ty.len() > i32::MAX as u64) {
        return None;
    }
    let (layout, depthwise) = match (lhs.rank(), c.extents.len()) {
        (4, 8) => (ConvLayout::ToBlocked, false),
        (5, 9) => (ConvLayout::Blocked, false),
        (5, 7) => (ConvLayout::Blocked, true),
        _ => return None,
    };
    let axes = Axes::new(layout, depthwise);
    if c.extents.contains(&0) || axes.count() != c.extents.len() {
        return None;
    }
    let equal = |maps: &[Index], expected: &[Index]| {
        maps.len() == expected.len() && maps.iter().zip(expected).all(|(a, b)| same(a, b, &c.extents))
    };
    let channels = axes.data();
    let spatial = [c.lhs[2].clone(), c.lhs[3].clone()];
    let data = [&[Index::var(0), channels[0].clone()], &spatial[..], &channels[1..]].concat();
    let lanes = lhs.dims.get(4).is_none_or(|n| *n == CHANNEL_BLOCK);
    if !lanes || !equal(&c.lhs, &data) || !equal(&c.rhs, &axes.filters()) {
        return None;
    }
    let outputs = c.extents[1] * CHANNEL_BLOCK;
    let inputs = lhs.dims[1] * lhs.dims.get(4).copied().unwrap_or(1);
    let mut conv = Conv2d {
        batch: c.extents[0],
        groups: if depthwise { outputs } else { 1 },
        in_channels: if depthwise { 1 } else { inputs },
        out_channels: if depthwise { 1 } else { outputs },
        input: [lhs.dims[2], lhs.dims[3]],
        output: [c.extents[2], c.extents[3]],
        kernel: [rhs.dims[2], rhs.dims[3]],
        strides: [1; 2],
        dilations: [1; 2],
        pads: [0; 2],
        pass: ConvPass::Forward,
        images: [0; 2],
        layout,
    };
    for (d, (at, tap)) in spatial.iter().zip(axes.taps).enumerate() {
        (conv.strides[d], conv.dilations[d], conv.pads[d]) = window(at, 2 + d, tap as usize, &c.extents)?;
    }
    let taps = axes.taps.map(|axis| c.extents[axis as usize]);
    let whole = lhs.dims[0] == conv.batch
        && taps == conv.kernel
        && rhs.dims[..2] == [outputs, conv.in_channels]
        && (!depthwise || inputs == outputs && outputs > 1)
        && axes.channel.is_none_or(|axis| c.extents[axis as usize] == lhs.dims[1])
        && axes.lane.is_none_or(|axis| c.extents[axis as usize] == CHANNEL_BLOCK);
    conv.pass = match c.method {
        Method::Winograd2 if conv.allows_winograd() => ConvPass::Winograd2,
        Method::Winograd4 if conv.allows_winograd() => ConvPass::Winograd4,
        _ => ConvPass::Forward,
    };
    whole.then_some(conv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_recognised() {
        let conv = |groups, in_channels, out_channels| Conv2d {
            batch: 2,
            groups,
            in_channels,
            out_channels,
            input: [9, 8],
            output: [5, 6],
            kernel: [3, 3],
            strides: [2, 1],
            dilations: [1, 1],
            pads: [1, 0],
            pass: ConvPass::Forward,
            images: [0; 2],
            layout: ConvLayout::Planar,
        };
        let cases = [(conv(1, 32, 48), ConvLayout::Blocked), (conv(1, 3, 16), ConvLayout::ToBlocked)];
        for (conv, layout) in cases.into_iter().chain([(conv(32, 1, 1), ConvLayout::Blocked)]) {
            let c = blocked_convolution(&conv, layout);
            let inputs = conv.groups * conv.in_channels;
            let x = match layout {
                ConvLayout::Blocked => vec![2, inputs / 16, 9, 8, 16],
                _ => vec![2, inputs, 9, 8],
            };
            let w = [conv.groups * conv.out_channels, conv.in_channels, 3, 3];
            let (x, w) = (DenseType::new(DType::F32, &x), DenseType::new(DType::F32, &w));
            assert_eq!(as_blocked_convolution(&c, &x, &w), Some(Conv2d { layout, ..conv }));
            let filtered = Contraction { method: Method::Winograd4, ..c.clone() };
            assert_eq!(as_blocked_convolution(&filtered, &x, &w).map(|conv| conv.pass), Some(ConvPass::Forward));
            let mut flipped = c.clone();
            flipped.lhs[2] = flipped.lhs[2].scale(-1).offset(8);
            assert_eq!(as_blocked_convolution(&flipped, &x, &w), None);
        }
        let conv = Conv2d { strides: [1; 2], output: [9, 6], ..conv(1, 32, 48) };
        let c = blocked_convolution(&conv, ConvLayout::Blocked);
        let types = [&[2, 2, 9, 8, 16][..], &[48, 32, 3, 3]].map(|dims| DenseType::new(DType::F32, dims));
        for (method, pass) in [(Method::Winograd2, ConvPass::Winograd2), (Method::Winograd4, ConvPass::Winograd4)] {
            let c = Contraction { method, ..c.clone() };
            assert_eq!(
                as_blocked_convolution(&c, &types[0], &types[1]),
                Some(Conv2d { layout: ConvLayout::Blocked, pass, ..conv })
            );
        }
    }
}
