//! Convolutions of ResNet-50 with relu: 3×3 between as many channels, and pairs of 1×1 to fewer channels and back.

use tensorc::ir::params::{ParamValue, Params};

use super::chain::{ChainLayer, LayerChain};
use super::{Case, Peer, Precision, Size};

/// Images, channels of the narrow side, and side of an image.
type ConvShape = [u64; 3];

/// 1×1 convolutions go between so many times the channels.
const WIDER: u64 = 4;

fn layers(precision: Precision, kernel: u64, [images, channels, side]: ConvShape) -> LayerChain {
    let ways = match kernel {
        1 => vec![(WIDER * channels, channels), (channels, WIDER * channels)],
        _ => vec![(channels, channels)],
    };
    // Relu leaves half of the variance.
    let deviation = |from: u64| (2.0 / (from * kernel * kernel) as f64).sqrt();
    let operands = ways.iter().map(|(from, to)| (vec![*to, *from, kernel, kernel], deviation(*from))).collect();
    let layer: Box<ChainLayer> = Box::new(move |b, x, weights| {
        weights.iter().try_fold(x, |y, w| {
            let pads = Params::new().with("pads", ParamValue::Ints(vec![kernel as i64 / 2; 4]));
            let sums = b.op("conv", &[y, *w], pads)?;
            Ok(b.call("relu", &[sums])?)
        })
    });
    let products: u64 = ways.iter().map(|(from, to)| from * to * kernel * kernel).sum();
    let flops = 2.0 * (products * side * side * images) as f64;
    LayerChain { precision, dims: vec![images, ways[0].0, side, side], operands, layer, flops }
}

/// Channels and sides of ResNet-50's stages.
const STAGES: [[u64; 2]; 4] = [[64, 56], [128, 28], [256, 14], [512, 7]];

pub(super) fn cases(size: Size) -> Vec<Case> {
    let shapes: Vec<ConvShape> = match size {
        Size::Device => [32, 1].iter().flat_map(|n| STAGES.map(|[channels, side]| [*n, channels, side])).collect(),
        Size::Small => vec![[1, 8, 6]],
    };
    let mut all = vec![];
    for precision in [Precision::Bf16, Precision::Tf32, Precision::F32] {
        for &shape in &shapes {
            for kernel in [3, 1] {
                let [images, channels, side] = shape;
                let of = if kernel == 1 { "1×1 and back" } else { "3×3" };
                let wide = if kernel == 1 { WIDER * channels } else { channels };
                let name = format!("{} {of}, {images} × {wide} × {side}²", precision.name());
                let chain = layers(precision, kernel, shape);
                all.push(Case::new(name, move |setup| chain.report(setup, Some(Peer::CuDnn))));
            }
        }
    }
    all
}
