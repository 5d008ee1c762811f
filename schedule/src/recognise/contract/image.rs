//! Convolutions of images that do not both have their channels in planes ([`ImageLayout`]): how they are written as
//! contractions, and how they are recognised.

use tensorc_abi::{CHANNEL_BLOCK, Conv2d, ConvPass, DType, ImageLayout};
use tensorc_ir::DenseType;
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, ConvAlgorithm};
use tensorc_ir::{Extent, Extents};

use super::{pass, same, sums_nothing, window};

/// The iteration axes of a convolution, by their places: those of the result, then what is summed over.
struct ConvIterationAxes {
    layouts: [ImageLayout; 2],
    out_rank: u32,
    /// Rows and columns of the result.
    pixels: [u32; 2],
    /// Channels of data: one axis, or blocks; none for depthwise ones.
    channel: Option<u32>,
    taps: [u32; 2],
    /// Channels in a block of data.
    lane: Option<u32>,
}

impl ConvIterationAxes {
    fn new(layouts: [ImageLayout; 2], depthwise: bool) -> ConvIterationAxes {
        let (out_rank, pixels) = match layouts[1] {
            ImageLayout::Nchw => (4, [2, 3]),
            ImageLayout::Nchw16c => (5, [2, 3]),
            ImageLayout::Nhwc => (4, [1, 2]),
        };
        let in_blocks = layouts[0] == ImageLayout::Nchw16c;
        match depthwise {
            true => ConvIterationAxes {
                layouts,
                out_rank,
                pixels,
                channel: None,
                taps: [out_rank, out_rank + 1],
                lane: None,
            },
            false => {
                let (channel, taps) = (Some(out_rank), [out_rank + 1, out_rank + 2]);
                ConvIterationAxes { layouts, out_rank, pixels, channel, taps, lane: in_blocks.then_some(out_rank + 3) }
            }
        }
    }

    fn count(&self) -> usize {
        self.out_rank as usize + [self.channel, self.lane].iter().flatten().count() + 2
    }

    /// The output channel.
    fn filter(&self) -> Index {
        match self.layouts[1] {
            ImageLayout::Nchw => Index::var(1),
            ImageLayout::Nchw16c => join(&Index::var(1), &Index::var(4)),
            ImageLayout::Nhwc => Index::var(3),
        }
    }

    /// The axes of data, given those of its rows and columns.
    fn data(&self, rows: Index, columns: Index, extents: &Extents) -> Vec<Index> {
        let n = Index::var(0);
        let channel = self.channel.map_or_else(|| self.filter(), Index::var);
        match self.layouts[0] {
            ImageLayout::Nchw => vec![n, channel, rows, columns],
            ImageLayout::Nhwc => vec![n, rows, columns, channel],
            ImageLayout::Nchw16c => {
                let (block, lane) = match self.lane {
                    Some(lane) => (channel, Index::var(lane)),
                    None => (
                        channel.floor_div(CHANNEL_BLOCK as i64, extents),
                        channel.modulo(CHANNEL_BLOCK as i64, extents),
                    ),
                };
                vec![n, block, rows, columns, lane]
            }
        }
    }

    /// Filters `(oc, ic, r, s)`.
    fn filters(&self) -> Vec<Index> {
        let inner = match (self.channel, self.lane) {
            (None, _) => Index::constant(0),
            (Some(block), Some(lane)) => join(&Index::var(block), &Index::var(lane)),
            (Some(channel), None) => Index::var(channel),
        };
        let [r, s] = self.taps.map(Index::var);
        vec![self.filter(), inner, r, s]
    }
}

/// A channel of its block and its place there.
fn join(block: &Index, lane: &Index) -> Index {
    block.scale(CHANNEL_BLOCK as i64).add(lane)
}

/// The contraction of a convolution with one group, or of a depthwise one, in its layouts. Filters are
/// `[oc, ic, kh, kw]`, channels come in whole blocks where they are in blocks. Not for planes on both sides, nor
/// for a depthwise one on either.
pub fn image_convolution(conv: &Conv2d<Extent>) -> Contraction {
    let (batch, [rows, columns]) = (conv.batch, conv.output);
    let axes = ConvIterationAxes::new(conv.layouts, conv.is_depthwise());
    let outputs = conv.groups * conv.out_channels;
    let (blocks, lanes) = (outputs / CHANNEL_BLOCK, Extent::from(CHANNEL_BLOCK));
    let result = match conv.layouts[1] {
        ImageLayout::Nchw => vec![batch, outputs, rows, columns],
        ImageLayout::Nchw16c => vec![batch, blocks, rows, columns, lanes],
        ImageLayout::Nhwc => vec![batch, rows, columns, outputs],
    };
    let channels = axes.channel.map(|_| match axes.lane {
        Some(_) => conv.in_channels / CHANNEL_BLOCK,
        None => conv.in_channels,
    });
    let summed = channels.into_iter().chain(conv.kernel).chain(axes.lane.map(|_| lanes));
    let extents: Extents = result.into_iter().chain(summed).collect();
    let at = |d: usize| {
        let out = Index::var(axes.pixels[d]).scale(conv.strides[d]);
        out.add(&Index::var(axes.taps[d]).scale(conv.dilations[d])).offset(Extent::ZERO - conv.pads[d])
    };
    let lhs = axes.data(at(0), at(1), &extents);
    Contraction {
        extents,
        out_rank: axes.out_rank as usize,
        lhs,
        rhs: axes.filters(),
        algorithm: ConvAlgorithm::Direct,
    }
}

/// The contraction as a convolution between images of which at least one has its channels not in planes, with filters
/// as they are. The pass is [`ConvPass::Forward`], or that of its [`ConvAlgorithm`], but only packed filters can be computed
/// with: they must be constant. What is a matrix product is none: 1×1 without blocks on either side.
pub fn as_image_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    let fits = [lhs, rhs].iter().all(|ty| ty.dtype == DType::F32) && super::addressable(c, [lhs, rhs]);
    if !fits || rhs.rank() != 4 || sums_nothing(c) {
        return None;
    }
    let sides = ImageLayout::ALL.into_iter().flat_map(|x| ImageLayout::ALL.map(|y| [x, y]));
    let mut forms = sides.flat_map(|layouts| [false, true].map(|depthwise| (layouts, depthwise)));
    forms.find_map(|(layouts, depthwise)| as_form(c, lhs, rhs, layouts, depthwise))
}

fn as_form(
    c: &Contraction,
    lhs: &DenseType,
    rhs: &DenseType,
    layouts: [ImageLayout; 2],
    depthwise: bool,
) -> Option<Conv2d<Extent>> {
    let axes = ConvIterationAxes::new(layouts, depthwise);
    let [x, y] = layouts;
    let in_planes = if depthwise { layouts.contains(&ImageLayout::Nchw) } else { layouts == [ImageLayout::Nchw; 2] };
    let rank = if x == ImageLayout::Nchw16c { 5 } else { 4 };
    if in_planes || lhs.rank() != rank || c.out_rank != axes.out_rank as usize || c.extents.len() != axes.count() {
        return None;
    }
    let [rows, columns] = if x == ImageLayout::Nhwc { [1, 2] } else { [2, 3] };
    let data = axes.data(c.lhs[rows].clone(), c.lhs[columns].clone(), &c.extents);
    let equal = |maps: &[Index], expected: &[Index]| {
        maps.len() == expected.len() && maps.iter().zip(expected).all(|(a, b)| same(a, b, &c.extents))
    };
    if !equal(&c.lhs, &data) || !equal(&c.rhs, &axes.filters()) {
        return None;
    }
    let outputs = match y {
        ImageLayout::Nchw => c.extents.at(1),
        ImageLayout::Nchw16c if c.extents.at(4) == CHANNEL_BLOCK => c.extents.at(1) * CHANNEL_BLOCK,
        ImageLayout::Nchw16c => return None,
        ImageLayout::Nhwc => c.extents.at(3),
    };
    let (inputs, summed) = match x {
        ImageLayout::Nchw => (lhs.dims.at(1), lhs.dims.at(1)),
        ImageLayout::Nchw16c if lhs.dims.at(4) == CHANNEL_BLOCK => (lhs.dims.at(1) * CHANNEL_BLOCK, lhs.dims.at(1)),
        ImageLayout::Nchw16c => return None,
        ImageLayout::Nhwc => (lhs.dims.at(3), lhs.dims.at(3)),
    };
    let mut conv = Conv2d {
        batch: c.extents.at(0),
        groups: if depthwise { outputs } else { Extent::ONE },
        in_channels: if depthwise { Extent::ONE } else { inputs },
        out_channels: if depthwise { Extent::ONE } else { outputs },
        input: [lhs.dims.at(rows), lhs.dims.at(columns)],
        output: axes.pixels.map(|axis| c.extents.at(axis as usize)),
        kernel: [rhs.dims.at(2), rhs.dims.at(3)],
        strides: [Extent::ONE; 2],
        dilations: [Extent::ONE; 2],
        pads: [Extent::ZERO; 2],
        pass: ConvPass::Forward,
        images: [Extent::ZERO; 2],
        layouts,
    };
    for (d, axis) in [rows, columns].into_iter().enumerate() {
        let (p, tap) = (axes.pixels[d] as usize, axes.taps[d] as usize);
        (conv.strides[d], conv.dilations[d], conv.pads[d]) = window(&c.lhs[axis], p, tap, &c.extents)?;
    }
    let taps = axes.taps.map(|axis| c.extents.at(axis as usize));
    let whole = lhs.dims.at(0) == conv.batch
        && taps == conv.kernel
        && [rhs.dims.at(0), rhs.dims.at(1)] == [outputs, conv.in_channels]
        && (!depthwise || inputs == outputs && outputs >= CHANNEL_BLOCK)
        && axes.channel.is_none_or(|axis| c.extents.at(axis as usize) == summed)
        && axes.lane.is_none_or(|axis| c.extents.at(axis as usize) == CHANNEL_BLOCK);
    let is_product = conv.is_pointwise() && !depthwise && !layouts.contains(&ImageLayout::Nchw16c);
    conv.pass = pass(&conv, c.algorithm);
    (whole && !is_product).then_some(conv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_ir::extent::Known;

    fn types(conv: &Conv2d) -> [DenseType; 2] {
        let (inputs, [h, w]) = (conv.groups * conv.in_channels, conv.input);
        let x = match conv.layouts[0] {
            ImageLayout::Nchw => vec![conv.batch, inputs, h, w],
            ImageLayout::Nchw16c => vec![conv.batch, inputs / 16, h, w, 16],
            ImageLayout::Nhwc => vec![conv.batch, h, w, inputs],
        };
        let filters = vec![conv.groups * conv.out_channels, conv.in_channels, conv.kernel[0], conv.kernel[1]];
        [x, filters].map(|dims| DenseType::new(DType::F32, &dims))
    }

    fn conv(groups: u64, in_channels: u64, out_channels: u64, layouts: [ImageLayout; 2]) -> Conv2d {
        Conv2d {
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
            layouts,
        }
    }

    #[test]
    fn what_is_written_is_recognised() {
        let sides = ImageLayout::ALL.into_iter().flat_map(|x| ImageLayout::ALL.map(|y| [x, y]));
        let sides: Vec<_> = sides.filter(|layouts| *layouts != [ImageLayout::Nchw; 2]).collect();
        let mut cases = vec![];
        for layouts in sides {
            cases.push(conv(1, 32, 48, layouts));
            let [inputs, outputs] = layouts.map(|layout| if layout.holds(3) { 3 } else { 16 });
            cases.push(conv(1, inputs, outputs, layouts));
            if !layouts.contains(&ImageLayout::Nchw) {
                cases.push(conv(32, 1, 1, layouts));
            }
        }
        for conv in cases {
            let c = image_convolution(&conv.convert(&Known));
            let [x, w] = types(&conv);
            assert_eq!(as_image_convolution(&c, &x, &w), Some(conv.convert(&Known)));
            let filtered = Contraction { algorithm: ConvAlgorithm::WinogradF4, ..c.clone() };
            assert_eq!(as_image_convolution(&filtered, &x, &w).map(|conv| conv.pass), Some(ConvPass::Forward));
            let rows = if conv.layouts[0] == ImageLayout::Nhwc { 1 } else { 2 };
            let mut flipped = c.clone();
            flipped.lhs[rows] = flipped.lhs[rows].scale(-1).offset(8);
            assert_eq!(as_image_convolution(&flipped, &x, &w), None);
        }
    }

    #[test]
    fn algorithms_are_passes_and_products_are_not_convolutions() {
        let layouts = [ImageLayout::Nchw16c, ImageLayout::Nhwc];
        let minimal = Conv2d { strides: [1; 2], output: [9, 6], ..conv(1, 32, 48, layouts) };
        let [x, w] = types(&minimal);
        for algorithm in ConvAlgorithm::ALL {
            let c = Contraction { algorithm, ..image_convolution(&minimal.convert(&Known)) };
            let pass = ConvPass::by(algorithm);
            assert_eq!(as_image_convolution(&c, &x, &w), Some(Conv2d { pass, ..minimal }.convert(&Known)));
        }
        let (kernel, pads, last) = ([1; 2], [0; 2], ImageLayout::Nhwc);
        let pointwise = Conv2d { kernel, pads, strides: [1; 2], output: [9, 8], ..minimal };
        for (x, recognised) in [(ImageLayout::Nchw16c, true), (last, false), (ImageLayout::Nchw, false)] {
            let pointwise = Conv2d { layouts: [x, last], ..pointwise };
            let [x, w] = types(&pointwise);
            assert_eq!(
                as_image_convolution(&image_convolution(&pointwise.convert(&Known)), &x, &w).is_some(),
                recognised
            );
        }
    }
}
